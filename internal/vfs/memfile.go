package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"
)

// fileState is the part of an inode that files use.
type fileState struct {
	data  content  // what reads see: the page cache over the device
	disk  content  // what the device holds
	dirty []change // unsynced, in order; a Sync starts a new slice, so that copies can share it

	stale     bool  // a failed Sync left clean bytes in the cache that the device does not have
	cleanSize int64 // length of data before the dirty changes
	failures  int   // failed Syncs
	lastErr   error // of the last one

	alloc int64 // bytes of space it takes
	opens int   // open handles
}

// change is an unsynced write of data at off, or a truncation to off.
type change struct {
	off      int64
	data     []byte // never written again
	truncate bool
}

// apply makes the change durable in full.
func (c change) apply(to *content) {
	if c.truncate {
		to.truncate(c.off)
	} else {
		to.write(c.data, c.off)
	}
}

// memFile is an open file of a Mem.
type memFile struct {
	m      *Mem
	node   *inode
	name   string
	seen   int // failures that this handle need not report any more; guarded by m.mu
	closed atomic.Bool
}

var (
	_ File    = (*memFile)(nil)
	_ Advisor = (*memFile)(nil)
)

func (f *memFile) fail(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// check refuses what no open file can do.
func (f *memFile) check(op string, off, n int64) error {
	switch {
	case f.closed.Load():
		return f.fail(op, fs.ErrClosed)
	case off < 0 || n < 0:
		return f.fail(op, fs.ErrInvalid)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.check("read", off, 0); err != nil {
		return 0, err
	}
	if err := f.m.hooks.before(Op{Kind: OpRead, Path: f.name, Off: off, Len: int64(len(p))}); err != nil {
		return 0, err
	}
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	n := f.node.data.readAt(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.check("write", off, 0); err != nil {
		return 0, err
	}
	p, err := f.m.hooks.beforeWrite(f.name, p, off)
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if len(p) == 0 {
		return 0, err
	}
	before := f.node.alloc
	if fit := f.m.mu.grow(f.node, off+int64(len(p))) - off; fit < int64(len(p)) {
		err = f.fail("write", ErrNoSpace)
		if fit <= 0 {
			f.m.mu.shrink(f.node, before)
			return 0, err
		}
		p = p[:fit]
	}
	p = slices.Clone(p)
	f.node.data.write(p, off)
	f.node.dirty = append(f.node.dirty, change{off: off, data: p})
	f.node.modTime = time.Now()
	return len(p), err
}

func (f *memFile) Size() (int64, error) {
	if err := f.check("size", 0, 0); err != nil {
		return 0, err
	}
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	return f.node.data.size, nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.check("truncate", size, 0); err != nil {
		return err
	}
	if err := f.m.hooks.before(Op{Kind: OpTruncate, Path: f.name, Off: size}); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.mu.shrink(f.node, size)
	if size != f.node.data.size {
		f.node.data.truncate(size)
		f.node.dirty = append(f.node.dirty, change{off: size, truncate: true})
		f.node.modTime = time.Now()
	}
	return nil
}

// Sync implements File. When a hook makes it fail it does what was measured on Linux with ext4. What was written since
// the last Sync is clean in the cache and missing on the device: reads show it, the next Sync succeeds without it, and
// DropCache or a crash makes reads show what the device held before. Lengths set by Truncate do reach the device, since
// they go through the file system's journal. Every other handle that was open then reports the failure once, at its
// own next Sync, which makes durable what was written after the failure nevertheless.
func (f *memFile) Sync() error {
	if err := f.check("sync", 0, 0); err != nil {
		return err
	}
	hook := f.m.hooks.before(Op{Kind: OpSync, Path: f.name})
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	node := f.node
	for _, c := range node.dirty {
		if hook != nil && !c.truncate {
			node.stale = true
		} else {
			c.apply(&node.disk)
		}
	}
	node.dirty = nil
	node.cleanSize = node.data.size
	err := hook
	if hook != nil {
		node.failures++
		node.lastErr = hook
	} else if f.seen < node.failures {
		err = f.fail("sync", fmt.Errorf("an earlier sync of this file failed: %w", node.lastErr))
	}
	f.seen = node.failures
	return err
}

// DropCache implements Advisor. Dirty bytes stay, as they do in the kernel. A range that is not the whole file drops
// nothing: the kernel only drops what it caches in one piece together, and that may be megabytes.
func (f *memFile) DropCache(off, n int64) error {
	if err := f.check("drop cache", off, n); err != nil {
		return err
	}
	if err := f.m.hooks.before(Op{Kind: OpDropCache, Path: f.name, Off: off, Len: n}); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if off == 0 && (n == 0 || n >= f.node.data.size) {
		f.node.dropCache()
	}
	return nil
}

// dropCache makes data what the device holds, as long as the file is, under the dirty changes.
func (n *inode) dropCache() {
	if !n.stale {
		return
	}
	n.stale = false
	n.data = n.disk.clone()
	n.data.truncate(n.cleanSize)
	for _, c := range n.dirty {
		c.apply(&n.data)
	}
}

// WillNeed implements Advisor: everything is in memory.
func (f *memFile) WillNeed(off, n int64) error { return f.check("will need", off, n) }

func (f *memFile) Reserve(off, n int64) error {
	if err := f.check("reserve", off, n); err != nil {
		return err
	}
	if err := f.m.hooks.before(Op{Kind: OpReserve, Path: f.name, Off: off, Len: n}); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	before := f.node.alloc
	if n > 0 && f.m.mu.grow(f.node, off+n) < off+n {
		f.m.mu.shrink(f.node, before)
		return f.fail("reserve", ErrNoSpace)
	}
	return nil
}

func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return f.fail("close", fs.ErrClosed)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.node.opens--
	f.m.mu.release(f.node)
	return nil
}

// grow takes space for a file that is to reach up to end, as far as there is any, and returns how far it may reach.
func (s *memState) grow(n *inode, end int64) int64 {
	more := end - n.alloc
	if more <= 0 {
		return end
	}
	if s.limited {
		more = min(more, max(s.space-s.used, 0))
	}
	n.alloc += more
	s.used += more
	return min(end, n.alloc)
}

// shrink gives back the space beyond size.
func (s *memState) shrink(n *inode, size int64) {
	if n.alloc > size {
		s.used -= n.alloc - size
		n.alloc = size
	}
}

// release gives back the space of a file that nobody can reach.
func (s *memState) release(n *inode) {
	if n.names == 0 && n.opens == 0 {
		s.shrink(n, 0)
	}
}
