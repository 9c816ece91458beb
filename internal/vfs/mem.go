package vfs

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a memory file system that can lose power: see Crash. It starts with an empty root directory; a relative path
// means the same as the absolute one. What a program sees is the page cache. What the device holds is kept apart:
//
//   - Of a file: the content at its last successful Sync, and in order what was written and truncated since.
//   - Of a directory: the names at its last SyncDir, and the creations, renames and removals since. Syncing a file
//     does not make its name durable, and syncing a directory makes neither its own name nor any content durable.
//   - A rename is one change as long as nothing of it was synced: both names follow it or neither does. Between two
//     directories each SyncDir settles its own half, and the other half is then on its own: after syncing only the new
//     parent the file may be under both names, after syncing only the old one under neither. (A directory that moved
//     is never in two places: syncing its new parent settles the move, syncing only the old one settles nothing.)
//   - A Sync that fails is Linux's: see memFile.Sync. A SyncDir that fails changes nothing.
//
// It is safe for concurrent use.
type Mem struct {
	hooks hooks

	mu struct {
		sync.RWMutex
		memState
	}
}

// memState is the file system without its lock.
type memState struct {
	root    *inode
	lastID  int64
	pending []*nameChange
	limited bool
	space   int64 // of all files together, if limited
	used    int64
}

// inode is a file or a directory.
type inode struct {
	id      int64 // order of creation
	dir     bool
	names   int    // how many visible names it has
	parent  *inode // its last visible name
	name    string
	modTime time.Time

	fileState

	entries map[string]*inode // what a program sees
	durable map[string]*inode // what the device holds
}

// nameChange is a change of names that is not durable yet. From loses a name, to gains one; a half that is settled is
// nil.
type nameChange struct {
	kind             OpKind
	node             *inode
	from, to         *inode
	fromName, toName string
}

var _ FS = (*Mem)(nil)

// NewMem returns an empty file system without a limit.
func NewMem() *Mem {
	m := &Mem{}
	m.mu.root = &inode{dir: true, names: 1, entries: map[string]*inode{}, durable: map[string]*inode{}}
	return m
}

// SetHook has fn called before every operation, from the goroutine that does it and without a lock, so fn may block
// and may call Clone or Crash. If fn returns an error the operation fails with it (wrapped with the path) and has no
// effect, except that a Sync fails as Linux does and a ShortWrite writes a part. Size, Close and WillNeed are not
// operations. Nil removes the hook. Numbering starts again from 1.
func (m *Mem) SetHook(fn func(Op) error) { m.hooks.set(fn) }

// Ops returns how many operations with OpKind.Changes there were since the hook was set.
func (m *Mem) Ops() int { return int(m.hooks.changes.Load()) }

// SetSpace limits the bytes of all files together, reserved ones included; negative means no limit. A file takes its
// space up to the last byte written or reserved, and gives it back when it has neither a name nor an open handle.
// Names and directories are free.
func (m *Mem) SetSpace(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.limited, m.mu.space = bytes >= 0, bytes
}

// Open implements FS.
func (m *Mem) Open(name string, create bool) (File, error) {
	kind := OpOpen
	if create {
		kind = OpCreate
	}
	if err := m.hooks.before(Op{Kind: kind, Path: name}); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.mu.openFile(name, create)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	node.opens++
	return &memFile{m: m, node: node, name: name, seen: node.failures}, nil
}

func (s *memState) openFile(name string, create bool) (*inode, error) {
	dir, base, err := s.parent(name)
	if err != nil {
		return nil, err
	}
	if base == "" {
		return nil, syscall.EISDIR
	}
	node := dir.entries[base]
	switch {
	case node != nil && node.dir:
		return nil, syscall.EISDIR
	case node != nil:
		return node, nil
	case !create:
		return nil, fs.ErrNotExist
	}
	node = s.newInode(false)
	s.link(node, dir, base)
	s.pending = append(s.pending, &nameChange{kind: OpCreate, node: node, to: dir, toName: base})
	return node, nil
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	if err := m.hooks.before(Op{Kind: OpRename, Path: oldname, To: newname}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.rename(oldname, newname); err != nil {
		return &fs.PathError{Op: "rename", Path: oldname + " to " + newname, Err: err}
	}
	return nil
}

func (s *memState) rename(oldname, newname string) error {
	from, fromName, err := s.parent(oldname)
	if err != nil {
		return err
	}
	to, toName, err := s.parent(newname)
	if err != nil {
		return err
	}
	node := from.entries[fromName]
	target := to.entries[toName]
	switch {
	case fromName == "" || toName == "":
		return syscall.EBUSY
	case node == nil:
		return fs.ErrNotExist
	case target != nil && target.dir:
		return fs.ErrExist
	case target == node:
		return nil
	case target != nil && node.dir:
		return syscall.ENOTDIR
	}
	for d := to; d != nil; d = d.parent {
		if d == node {
			return syscall.EINVAL // a directory into itself
		}
	}
	if target != nil {
		s.unlink(target)
	}
	delete(from.entries, fromName)
	from.modTime = time.Now()
	node.names--
	s.link(node, to, toName)
	s.pending = append(s.pending, &nameChange{
		kind: OpRename, node: node, from: from, fromName: fromName, to: to, toName: toName,
	})
	return nil
}

// Link implements FS.
func (m *Mem) Link(oldname, newname string) error {
	if err := m.hooks.before(Op{Kind: OpLink, Path: oldname, To: newname}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.linkFile(oldname, newname); err != nil {
		return &fs.PathError{Op: "link", Path: oldname + " to " + newname, Err: err}
	}
	return nil
}

func (s *memState) linkFile(oldname, newname string) error {
	node, err := s.find(oldname)
	if err != nil {
		return err
	}
	to, toName, err := s.parent(newname)
	switch {
	case err != nil:
		return err
	case node.dir:
		return syscall.EPERM
	case toName == "" || to.entries[toName] != nil:
		return fs.ErrExist
	}
	s.link(node, to, toName)
	s.pending = append(s.pending, &nameChange{kind: OpLink, node: node, to: to, toName: toName})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	if err := m.hooks.before(Op{Kind: OpRemove, Path: name}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.remove(name); err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

func (s *memState) remove(name string) error {
	dir, base, err := s.parent(name)
	if err != nil {
		return err
	}
	node := dir.entries[base]
	switch {
	case base == "":
		return syscall.EBUSY
	case node == nil:
		return fs.ErrNotExist
	case len(node.entries) > 0:
		return syscall.ENOTEMPTY
	}
	delete(dir.entries, base)
	dir.modTime = time.Now()
	s.unlink(node)
	s.pending = append(s.pending, &nameChange{kind: OpRemove, node: node, from: dir, fromName: base})
	return nil
}

// MkdirAll implements FS. It is one operation, but every directory is a name of its own to lose.
func (m *Mem) MkdirAll(dir string) error {
	if err := m.hooks.before(Op{Kind: OpMkdir, Path: dir}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.mu.root
	for _, name := range split(dir) {
		next := at.entries[name]
		switch {
		case next == nil:
			next = m.mu.newInode(true)
			m.mu.link(next, at, name)
			m.mu.pending = append(m.mu.pending, &nameChange{kind: OpMkdir, node: next, to: at, toName: name})
		case !next.dir:
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		at = next
	}
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]Info, error) {
	if err := m.hooks.before(Op{Kind: OpList, Path: dir}); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	node, err := m.mu.find(dir)
	if err == nil && !node.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: err}
	}
	list := make([]Info, 0, len(node.entries))
	for _, name := range slices.Sorted(maps.Keys(node.entries)) {
		list = append(list, node.entries[name].info(name))
	}
	return list, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Info, error) {
	if err := m.hooks.before(Op{Kind: OpStat, Path: name}); err != nil {
		return Info{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	node, err := m.mu.find(name)
	if err != nil {
		return Info{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return node.info(path.Base(path.Clean(name))), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	if err := m.hooks.before(Op{Kind: OpSyncDir, Path: dir}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.mu.find(dir)
	if err == nil && !node.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return &fs.PathError{Op: "sync dir", Path: dir, Err: err}
	}
	m.mu.settle(node)
	return nil
}

// settle makes the names in dir durable, in the order in which they changed.
func (s *memState) settle(dir *inode) {
	for i, c := range s.pending {
		if c.to == dir {
			if c.node.dir {
				s.settleMoves(c.node, s.pending[:i+1])
			}
			dir.durable[c.toName] = c.node
			c.to = nil
		}
		if c.from == dir && (c.to == nil || !c.node.dir) {
			c.settleFrom()
		}
	}
	s.pending = slices.DeleteFunc(s.pending, func(c *nameChange) bool { return c.from == nil && c.to == nil })
}

// settleMoves takes a directory whose newest place becomes durable out of all earlier ones.
func (s *memState) settleMoves(node *inode, changes []*nameChange) {
	for _, c := range changes {
		if c.node == node {
			c.to = nil
			c.settleFrom()
		}
	}
}

// settleFrom makes the loss of a name durable. A renamed one may have been taken by another file meanwhile.
func (c *nameChange) settleFrom() {
	if c.from != nil && (c.kind == OpRemove || c.from.durable[c.fromName] == c.node) {
		delete(c.from.durable, c.fromName)
	}
	c.from = nil
}

func (s *memState) newInode(dir bool) *inode {
	s.lastID++
	node := &inode{id: s.lastID, dir: dir, modTime: time.Now()}
	if dir {
		node.entries, node.durable = map[string]*inode{}, map[string]*inode{}
	}
	return node
}

func (s *memState) link(node, dir *inode, name string) {
	dir.entries[name] = node
	dir.modTime = time.Now()
	node.parent, node.name = dir, name
	node.names++
}

func (s *memState) unlink(node *inode) {
	node.names--
	s.release(node)
}

// parent returns the directory that name is in and its base name there, which is "" for the root.
func (s *memState) parent(name string) (*inode, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return s.root, "", nil
	}
	dir, err := s.walk(parts[:len(parts)-1])
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, parts[len(parts)-1], err
}

func (s *memState) find(name string) (*inode, error) { return s.walk(split(name)) }

func (s *memState) walk(parts []string) (*inode, error) {
	at := s.root
	for _, p := range parts {
		if !at.dir {
			return nil, syscall.ENOTDIR
		}
		next := at.entries[p]
		if next == nil {
			return nil, fs.ErrNotExist
		}
		at = next
	}
	return at, nil
}

func split(name string) []string {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

func (n *inode) info(name string) Info {
	return Info{Name: name, Size: n.data.size, Dir: n.dir, ModTime: n.modTime}
}

// path is the inode's last visible name.
func (n *inode) path() string {
	if n.parent == nil {
		return "/"
	}
	return path.Join(n.parent.path(), n.name)
}
