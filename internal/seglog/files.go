package seglog

import (
	"container/list"
	"sync"

	"github.com/leveemq/levee/internal/vfs"
)

// Files is a bounded set of open segment files, shared by the logs of a broker. A file in use, or one with writes that
// are not flushed, is never closed; the others are, longest unused first. It is safe for concurrent use.
type Files struct {
	max      int
	flushing chan struct{} // a slot for each flush under way

	mu   sync.Mutex
	open map[*segmentFile]*handle // guarded by mu
	idle *list.List               // guarded by mu; handles with no user, most recently used first
}

type handle struct {
	vfs.File
	seg   *segment
	users int           // guarded by Files.mu
	gone  bool          // guarded by Files.mu; close with the last user
	place *list.Element // guarded by Files.mu; in Files.idle
}

// NewFiles returns a set that keeps up to max files open beside the ones in use; max ≤ 0 means 512.
func NewFiles(max int) *Files {
	if max <= 0 {
		max = 512
	}
	return &Files{max: max, flushing: make(chan struct{}, flushesAtOnce), open: map[*segmentFile]*handle{}, idle: list.New()}
}

// flushesAtOnce bounds how many files are flushed side by side. A device does several in the time of one, not ever more,
// and the file system lets some wait a hundred times as long as others; here they wait in turn.
const flushesAtOnce = 16

// flush makes what was written to h durable, in its turn.
func (f *Files) flush(h *handle) error {
	f.flushing <- struct{}{}
	defer func() { <-f.flushing }()
	return h.Sync()
}

// acquire returns seg's open file; release it after use. create makes the file where there is none.
func (f *Files) acquire(fs vfs.FS, seg *segment, create bool) (*handle, error) {
	f.mu.Lock()
	if seg.file.gone {
		f.mu.Unlock()
		return nil, vfs.ErrNotExist
	}
	if h := f.open[seg.file]; h != nil {
		f.useLocked(h)
		f.mu.Unlock()
		return h, nil
	}
	f.mu.Unlock()
	file, err := fs.Open(seg.path, create)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	if seg.file.gone { // removed meanwhile
		f.mu.Unlock()
		_ = file.Close()
		return nil, vfs.ErrNotExist
	}
	if h := f.open[seg.file]; h != nil { // somebody else was faster
		f.useLocked(h)
		f.mu.Unlock()
		_ = file.Close()
		return h, nil
	}
	h := &handle{File: file, seg: seg, users: 1}
	f.open[seg.file] = h
	victims := f.evictLocked()
	f.mu.Unlock()
	closeAll(victims)
	return h, nil
}

func (f *Files) useLocked(h *handle) {
	h.users++
	if h.place != nil {
		f.idle.Remove(h.place)
		h.place = nil
	}
}

// retain adds a user to a handle that is in use.
func (f *Files) retain(h *handle) {
	f.mu.Lock()
	h.users++
	f.mu.Unlock()
}

func (f *Files) release(h *handle) {
	f.mu.Lock()
	h.users--
	var victims []*handle
	if h.users == 0 {
		if h.gone {
			victims = append(victims, h)
		} else {
			h.place = f.idle.PushFront(h)
			victims = f.evictLocked()
		}
	}
	f.mu.Unlock()
	closeAll(victims)
}

func (f *Files) evictLocked() (victims []*handle) {
	for len(f.open) > f.max && f.idle.Len() > 0 {
		h := f.idle.Remove(f.idle.Back()).(*handle)
		h.place = nil
		delete(f.open, h.seg.file)
		victims = append(victims, h)
	}
	return victims
}

// forget closes seg's file, now or with its last user, and opens it never again: it is about to be removed or cut, or
// its log is closed.
func (f *Files) forget(seg *segment) {
	f.mu.Lock()
	seg.file.gone = true
	h := f.open[seg.file]
	if h == nil {
		f.mu.Unlock()
		return
	}
	delete(f.open, seg.file)
	if h.users > 0 {
		h.gone = true
		f.mu.Unlock()
		return
	}
	f.idle.Remove(h.place)
	f.mu.Unlock()
	closeAll([]*handle{h})
}

// closeAll closes files that hold nothing unflushed, so an error has nothing to say about data.
func closeAll(hs []*handle) {
	for _, h := range hs {
		_ = h.Close()
	}
}

// Open returns how many files are open.
func (f *Files) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}
