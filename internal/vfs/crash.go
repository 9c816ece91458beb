package vfs

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
)

// sector is what a device writes in one step.
const sector = 512

// Unsynced is one thing that a power loss decides about.
type Unsynced struct {
	Kind     OpKind // OpWrite, OpTruncate; or of a name: OpCreate, OpMkdir, OpRename, OpLink, OpRemove
	Path     string // last name of the file or directory
	Off, Len int64  // of a write; of a truncation Off is the new size
}

// How says what of a change survived.
type How uint8

// Of a change of names and of a truncation there are only two fates: Lost, and everything else is Kept.
const (
	Lost     How = iota
	Kept         // all of it
	SizeOnly     // the length grew to the end of the write, but the new bytes are zeros
	Torn         // the first N bytes, and no length beyond them
	Sectors      // the sectors (512 bytes of the file) whose ordinal in the write Pick accepts; the length grew fully
	Bytes        // the bytes whose ordinal in the write Pick accepts; the length grew fully
	Garbage      // the length grew fully, the new bytes are anything (N is the seed); old bytes are unharmed
)

// Fate is the decision about one Unsynced.
type Fate struct {
	How  How
	N    int
	Pick func(i int) bool
}

// Chooser decides what a power loss keeps. Decide is called from one goroutine, first for names and then for contents,
// each in the order in which they happened, so the same history meets the same decisions.
type Chooser interface {
	Decide(Unsynced) Fate
}

// ChooserFunc makes a Chooser of a function.
type ChooserFunc func(Unsynced) Fate

// Decide implements Chooser.
func (fn ChooserFunc) Decide(u Unsynced) Fate { return fn(u) }

type keepAll struct{}

func (keepAll) Decide(Unsynced) Fate { return Fate{How: Kept} }

var (
	// KeepAll is the crash of the process alone: the cache survives, and what was not synced is still not synced in
	// the new file system, where a later crash can lose it. So do bytes that a failed Sync left only in the cache.
	KeepAll Chooser = keepAll{}
	// KeepNothing loses everything that was not synced.
	KeepNothing Chooser = ChooserFunc(func(Unsynced) Fate { return Fate{} })
)

// Random returns a chooser that gives every unsynced thing a fate of its own. The mood of a seed is anything from
// losing nearly all to keeping nearly all. It is used up by one crash: to repeat that, make another with its seed.
func Random(seed uint64) Chooser {
	rnd := rand.New(rand.NewPCG(seed, 0x1e7ee))
	keep := []float64{0.05, 0.3, 0.5, 0.7, 0.95}[rnd.IntN(5)]
	whole := []float64{0.1, 0.5, 0.9}[rnd.IntN(3)] // share of writes that are not damaged
	return ChooserFunc(func(u Unsynced) Fate {
		if u.Kind != OpWrite || rnd.Float64() < whole {
			if rnd.Float64() < keep {
				return Fate{How: Kept}
			}
			return Fate{}
		}
		return Fate{
			How:  SizeOnly + How(rnd.IntN(int(Garbage-SizeOnly)+1)),
			N:    rnd.IntN(int(u.Len)),
			Pick: func(int) bool { return rnd.Float64() < keep },
		}
	})
}

// Clone returns an independent copy of the file system as it is, with all it has not synced and its limit of space,
// but without the hook and the open handles. It takes no longer for large files than for small ones.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Mem{}
	c.mu.memState = m.mu.clone()
	return c
}

func (s *memState) clone() memState {
	c := memState{lastID: s.lastID, limited: s.limited, space: s.space}
	done := make(map[*inode]*inode)
	var inodeCopy func(n *inode) *inode
	names := func(from map[string]*inode) map[string]*inode {
		if from == nil {
			return nil
		}
		to := make(map[string]*inode, len(from))
		for name, n := range from {
			to[name] = inodeCopy(n)
		}
		return to
	}
	inodeCopy = func(n *inode) *inode {
		if n == nil {
			return nil
		}
		if to := done[n]; to != nil {
			return to
		}
		to := &inode{id: n.id, dir: n.dir, names: n.names, name: n.name, modTime: n.modTime}
		done[n] = to
		to.parent = inodeCopy(n.parent)
		to.fileState = n.fileState.clone()
		to.entries, to.durable = names(n.entries), names(n.durable)
		if to.names == 0 {
			to.alloc = 0 // only handles held its space, and they stay behind
		}
		c.used += to.alloc
		return to
	}
	c.root = inodeCopy(s.root)
	c.pending = make([]*nameChange, len(s.pending))
	for i, p := range s.pending {
		q := *p
		q.node, q.from, q.to = inodeCopy(p.node), inodeCopy(p.from), inodeCopy(p.to)
		c.pending[i] = &q
	}
	return c
}

func (f *fileState) clone() fileState {
	c := *f
	c.data, c.disk = f.data.clone(), f.disk.clone()
	c.dirty = slices.Clip(f.dirty)
	c.opens = 0
	return c
}

// Crash returns what is found after the machine lost power now, which the old file system does not notice: nothing is
// shared with it, and it may be used, crashed and copied further. Everything found is durable, unless choice is KeepAll.
func (m *Mem) Crash(choice Chooser) *Mem {
	c := m.Clone() // nobody else has it yet, so there is no lock to hold while choice is asked
	if _, ok := choice.(keepAll); !ok {
		c.mu.lose(choice)
	}
	return c
}

func (s *memState) lose(choice Chooser) {
	for _, c := range s.pending {
		if choice.Decide(Unsynced{Kind: c.kind, Path: c.node.path()}).How == Lost {
			continue
		}
		if c.from != nil {
			c.settleFrom()
		}
		if c.to != nil {
			c.to.durable[c.toName] = c.node
		}
	}
	s.pending = nil
	found := map[*inode]bool{s.root: true}
	s.root.found(found)
	s.used = 0
	for _, n := range slices.SortedFunc(maps.Keys(found), func(a, b *inode) int { return cmp.Compare(a.id, b.id) }) {
		if !n.dir {
			n.lose(n.path(), choice)
			s.used += n.alloc
		}
	}
}

// found makes what is durable in a directory what is seen in it, and the same below it.
func (n *inode) found(all map[*inode]bool) {
	n.entries = maps.Clone(n.durable)
	for name, child := range n.durable {
		if all[child] {
			child.names++
			continue
		}
		all[child] = true
		child.parent, child.name, child.names = n, name, 1
		if child.dir {
			child.found(all)
		}
	}
}

// lose decides about everything that was not synced.
func (f *fileState) lose(name string, choice Chooser) {
	disk := f.disk.clone()
	for _, c := range f.dirty {
		u := Unsynced{Kind: OpWrite, Path: name, Off: c.off, Len: int64(len(c.data))}
		if c.truncate {
			u.Kind = OpTruncate
		}
		c.suffer(choice.Decide(u), &disk)
	}
	data := disk.clone() // before disk itself is copied: cloning changes it
	*f = fileState{data: data, disk: disk, cleanSize: disk.size, alloc: disk.size}
}

// suffer applies what fate left of the change.
func (c change) suffer(fate Fate, to *content) {
	if c.truncate && fate.How != Lost {
		fate.How = Kept
	}
	end := c.off + int64(len(c.data))
	old := to.size
	switch fate.How {
	case Lost:
		return
	case Kept:
		c.apply(to)
		return
	case Torn:
		to.write(c.data[:min(max(fate.N, 0), len(c.data))], c.off)
		return
	}
	to.truncate(max(old, end))
	switch fate.How {
	case Sectors:
		c.pick(fate.Pick, sector, to)
	case Bytes:
		c.pick(fate.Pick, 1, to)
	case Garbage:
		if from := max(old, c.off); from < end {
			p := make([]byte, end-from)
			noise := rand.NewPCG(uint64(fate.N), 0)
			for i := range p {
				p[i] = byte(noise.Uint64())
			}
			to.write(p, from)
		}
	}
}

// pick writes the units of the file, in which the change lies, that accept says.
func (c change) pick(accept func(int) bool, unit int64, to *content) {
	for i, at := 0, int64(0); at < int64(len(c.data)); i++ {
		n := min(unit-(c.off+at)%unit, int64(len(c.data))-at)
		if accept(i) {
			to.write(c.data[at:at+n], c.off+at)
		}
		at += n
	}
}
