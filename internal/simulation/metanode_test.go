package simulation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/meta"
)

// metaBug is a fault that a metadata node has on purpose.
type metaBug int

const (
	metaRight      metaBug = iota
	metaEarlyReply         // answers before the flush
	metaUnnamedLog         // does not make the name of a new log durable
	metaEarlyTrim          // removes the log before the snapshot is durable
	metaStaleRead          // a replica answers reads from whatever state it has
)

// metaNode is a broker's metadata as a core: the leader puts commands into its log, flushes, applies and answers;
// replicas fetch the log, or a snapshot of what it no longer has, and answer reads. Each takes snapshots of its own.
type metaNode struct {
	id     NodeID
	leader NodeID
	bug    metaBug
	every  uint64 // entries between snapshots
	judge  *metaJudge

	j        journal
	logs     []string
	state    *meta.State
	applied  uint64
	ready    bool
	named    bool // the name of the log file in use is durable
	found    []entry
	queue    []Request
	group    []Request
	writing  []entry
	recent   []entry // applied since the last snapshot, for replicas that ask
	base     uint64  // index before recent
	snapshot uint64  // index of the newest snapshot, done or under way
	saving   uint64  // disk operation that writes it; 0: none
	install  []byte  // it came from the leader
}

// answer is what a metadata node says to a client.
type answer struct {
	Index uint64
	Text  string
	Topic *meta.Topic `json:",omitempty"`

	Subscription *meta.Subscription   `json:",omitempty"`
	Cursor       *meta.Cursor         `json:",omitempty"`
	Subject      *meta.Subject        `json:",omitempty"`
	Version      *meta.SubjectVersion `json:",omitempty"`
	Skipped      int                  `json:",omitempty"`
	Subscribed   []subscribed         `json:",omitempty"` // of a read: all of the topic
	Subjects     []*meta.Subject      `json:",omitempty"` // of a read: all
}

const (
	snapshotFile = "snapshot"
	pollInterval = 12 * time.Millisecond
)

func (m *metaNode) Step(_ Now, e Event) []Effect {
	switch e := e.(type) {
	case Boot:
		return m.boot(e)
	case DiskDone:
		return m.diskDone(e)
	case Timer:
		return m.poll()
	}
	if !m.ready {
		return nil
	}
	switch e := e.(type) {
	case Request:
		if name, read := strings.CutPrefix(string(e.Body), "read "); read {
			return m.read(e, name)
		}
		m.queue = append(m.queue, e)
		return m.pump()
	case Receive:
		if m.id == m.leader {
			return m.ship(e)
		}
		return m.take(e.Body)
	}
	return nil
}

func (m *metaNode) boot(e Boot) []Effect {
	m.state = meta.NewState()
	for _, f := range e.Files {
		if strings.HasPrefix(f.Name, journalPrefix) {
			m.logs = append(m.logs, f.Name)
		}
		if f.Name == snapshotFile {
			if err := m.state.Restore(f.Data); err != nil {
				m.judge.w.Fail("snapshot", "%s: %v", m.id, err)
				return nil
			}
		}
	}
	m.applied = m.state.View().Index()
	m.base, m.snapshot = m.applied, m.applied
	found, effects := m.j.open(e.Files, m.applied)
	if !slices.Contains(m.logs, m.j.file) {
		m.logs = append(m.logs, m.j.file)
	}
	m.found = found
	if m.id != m.leader {
		effects = append(effects, SetTimer{"poll", pollInterval})
	}
	return effects
}

// serve takes in what the disk held, once it is durable.
func (m *metaNode) serve() {
	m.ready = true
	for _, e := range m.found {
		m.apply(e)
	}
	m.found = nil
	m.judge.booted(m)
}

func (m *metaNode) diskDone(e DiskDone) []Effect {
	if e.Err != nil {
		return []Effect{Halt{e.Err.Error()}}
	}
	if e.ID == m.saving {
		return m.saved()
	}
	wasIdle := m.j.idle()
	if more := m.j.done(e, !m.named); more != nil {
		m.named = true
		return more
	}
	if wasIdle || !m.j.idle() {
		return nil
	}
	var out []Effect
	if !m.ready {
		m.serve()
	}
	out = append(out, m.settle()...)
	out = append(out, m.save()...)
	return append(out, m.pump()...)
}

// pump starts a group when none is being written.
func (m *metaNode) pump() []Effect {
	if len(m.queue) == 0 || !m.j.idle() || m.install != nil {
		return nil
	}
	m.group, m.queue = m.queue, nil
	for i, r := range m.group {
		m.writing = append(m.writing, entry{m.applied + 1 + uint64(i), fmt.Appendf(nil, "%s %s", requestKey(r), r.Body)})
	}
	out := m.j.write(m.writing)
	if m.bug == metaEarlyReply {
		out = append(m.settle(), out...)
	}
	return out
}

// settle applies what is durable now and answers for it.
func (m *metaNode) settle() []Effect {
	var out []Effect
	for i, e := range m.writing {
		a := m.apply(e)
		if i < len(m.group) {
			out = append(out, reply(m.group[i], a))
		}
	}
	m.group, m.writing = nil, nil
	return out
}

func (m *metaNode) apply(e entry) answer {
	_, command, _ := strings.Cut(string(e.body), " ")
	r, err := m.state.ApplyEncoded(e.index, []byte(command))
	if err != nil {
		m.judge.w.Fail("apply", "%s: %v", m.id, err)
	}
	m.applied = e.index
	m.recent = append(m.recent, e)
	a := answerOf(r)
	m.judge.applied(m, e, a, r)
	return a
}

func answerOf(r meta.Result) answer {
	a := answer{Index: r.Index, Topic: r.Topic, Text: fmt.Sprintf("producer id %d, registration %d", r.FirstProducerID, r.Registration),
		Subscription: r.Subscription, Cursor: r.Cursor, Subject: r.Subject, Version: r.SchemaVersion, Skipped: r.Skipped}
	if r.Deletion != nil {
		a.Text += fmt.Sprintf(", deleted %+v", *r.Deletion)
	}
	if r.Refused != nil {
		a.Text = "refused: " + r.Refused.Error()
	}
	return a
}

func reply(r Request, a answer) Effect {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return Reply{r.From, r.ID, b}
}

// read answers from the state at hand: on the leader that is all that was ever answered; a replica waits until it has
// what the client has seen.
func (m *metaNode) read(r Request, text string) []Effect {
	name, least, _ := strings.Cut(text, " ")
	var seen uint64
	fmt.Sscan(least, &seen)
	if m.applied < seen && m.bug != metaStaleRead {
		return nil // the client asks again
	}
	return []Effect{reply(r, readAnswer(m.state.View(), name))}
}

func readAnswer(v *meta.View, name string) answer {
	n, err := meta.ParseTopic(name)
	if err != nil {
		panic(err)
	}
	a := answer{Index: v.Index(), Text: fmt.Sprintf("deleted through %d", v.DeletedThrough(n))}
	if a.Topic, _ = v.Topic(n); a.Topic != nil {
		a.Subscribed = subscribedTo(v, a.Topic)
	}
	a.Subjects = slices.Collect(v.Subjects())
	return a
}

// save takes a snapshot when enough was applied, and goes on in a new log file.
func (m *metaNode) save() []Effect {
	if m.saving != 0 || m.applied < m.snapshot+m.every || len(m.writing) > 0 {
		return nil
	}
	b, err := m.state.Snapshot()
	if err != nil {
		panic(err)
	}
	m.judge.snapshot(m, b)
	return m.replace(b, m.applied)
}

func (m *metaNode) replace(b []byte, index uint64) []Effect {
	m.snapshot = index
	m.j.ids++
	m.saving = m.j.ids
	m.roll(index + 1)
	out := []Effect{Disk{ID: m.saving, Op: DiskReplace, File: snapshotFile, Data: b}}
	if m.bug == metaEarlyTrim {
		out = append(out, m.removeOld()...)
	}
	return out
}

func (m *metaNode) roll(first uint64) {
	m.j.roll(first)
	m.named = m.bug == metaUnnamedLog
	m.logs = slices.DeleteFunc(m.logs, func(name string) bool { return name == m.j.file })
	m.logs = append(m.logs, m.j.file)
}

// removeOld removes all logs but the one in use. Nobody waits for it.
func (m *metaNode) removeOld() []Effect {
	var out []Effect
	for _, name := range m.logs[:len(m.logs)-1] {
		m.j.ids++
		out = append(out, Disk{ID: m.j.ids, Op: DiskRemove, File: name})
	}
	m.logs = m.logs[len(m.logs)-1:]
	return out
}

// saved goes on once a snapshot is durable.
func (m *metaNode) saved() []Effect {
	m.saving = 0
	if m.install != nil {
		if err := m.state.Restore(m.install); err != nil {
			m.judge.w.Fail("snapshot", "%s: %v", m.id, err)
		}
		m.install = nil
		m.applied, m.recent = m.snapshot, nil
		m.judge.booted(m)
	}
	m.recent = slices.DeleteFunc(m.recent, func(e entry) bool { return e.index <= m.snapshot })
	m.base = m.snapshot
	return append(m.removeOld(), m.pump()...)
}

// poll asks the leader for what comes next.
func (m *metaNode) poll() []Effect {
	return []Effect{Send{m.leader, fmt.Appendf(nil, "have %d", m.applied)}, SetTimer{"poll", pollInterval}}
}

// ship sends a replica what it asks for: a few entries, or the snapshot where the log begins later.
func (m *metaNode) ship(r Receive) []Effect {
	var have uint64
	if _, err := fmt.Sscanf(string(r.Body), "have %d", &have); err != nil {
		panic(err)
	}
	if have < m.base {
		b, err := m.state.Snapshot()
		if err != nil {
			panic(err)
		}
		return []Effect{Send{r.From, append([]byte("S"), b...)}}
	}
	b := []byte("E")
	for i, e := range m.recent[min(int(have-m.base), len(m.recent)):] {
		if i == 6 {
			break
		}
		b = e.append(b)
	}
	if len(b) == 1 {
		return nil
	}
	return []Effect{Send{r.From, b}}
}

// take writes what the leader sent, where it is what comes next.
func (m *metaNode) take(b []byte) []Effect {
	if !m.j.idle() || m.saving != 0 {
		return nil
	}
	if b[0] == 'S' {
		s := meta.NewState()
		if err := s.Restore(b[1:]); err != nil {
			m.judge.w.Fail("snapshot", "%s: %v", m.id, err)
			return nil
		}
		if index := s.View().Index(); index > m.applied {
			m.install = b[1:]
			return m.replace(b[1:], index)
		}
		return nil
	}
	for rest := b[1:]; len(rest) > 0; {
		e, n, ok := parseEntry(rest)
		if !ok {
			m.judge.w.Fail("network", "%s: a damaged entry came", m.id)
			return nil
		}
		if rest = rest[n:]; e.index == m.applied+1+uint64(len(m.writing)) {
			m.writing = append(m.writing, e)
		}
	}
	if len(m.writing) == 0 {
		return nil
	}
	return m.j.write(m.writing)
}
