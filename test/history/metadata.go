package history

import "time"

// The errors of metadata operations that say something about the topic. Any other error of a failed operation says only
// that nothing was done. A client that repeats an operation by itself must not report these for a repetition: the first
// attempt may have been the reason. That is an unknown outcome.
const (
	AlreadyExists = "already_exists"
	NotFound      = "not_found"
)

// MetadataInfo is a metadata operation as its client begins it.
type MetadataInfo struct {
	Client   string
	Op       string // Create, Delete, Describe, List or Settings
	Topic    string // of List: what the listed names begin with
	Settings string // of Create and Settings: the value set; any text, the same for the same settings
	Local    bool   // of Describe and List: answered from a copy that may be behind
}

// The metadata operations.
const (
	Create   = opCreate
	Delete   = opDelete
	Describe = opDescribe
	List     = opList
	Settings = opSettings
)

// MetadataResult is what a metadata operation was answered. A Describe of a topic that does not exist is OK, with Exists
// false; the same holds for a Describe that failed with NotFound.
type MetadataResult struct {
	Exists      bool     // of Describe
	Incarnation uint64   // 0: not said
	Settings    string   // of Describe
	Topics      []string // of List
	Revision    uint64   // how new the metadata was: it grows with each change; 0: not said
	Error       string
}

// MetadataCall is one metadata operation.
type MetadataCall struct {
	h          *History
	id         int
	info       MetadataInfo
	start, end int64
	outcome    Outcome
	result     MetadataResult
}

// Metadata notes that a metadata operation begins. A history begins without topics.
func (h *History) Metadata(info MetadataInfo) *MetadataCall {
	start := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &MetadataCall{h: h, id: len(h.meta), info: info, start: start}
	h.meta = append(h.meta, m)
	h.emit(m.event())
	return m
}

// End notes what became of it.
func (m *MetadataCall) End(outcome Outcome, result MetadataResult) {
	end := m.h.now()
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	m.outcome, m.end, m.result = outcome, end, result
	m.h.note(end)
	m.h.emit(m.event())
}

// Start returns when it began.
func (m *MetadataCall) Start() time.Duration { return time.Duration(m.start) }
