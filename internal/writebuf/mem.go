package writebuf

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
)

// Mem is a Store in memory, for tests of what uses one.
type Mem struct {
	mu     sync.Mutex
	parts  map[ID]*memPart // guarded by mu
	closed bool            // guarded by mu

	// Fail, unless nil, is asked before each change with its name (append, fence, trim, reset, delete); an error it returns
	// is the call's. After one that is of unknown outcome the change is made all the same.
	Fail func(op string, id ID) (made bool, err error)
}

type memPart struct {
	known   bool
	gen     uint64
	floor   uint64
	last    uint64
	entries []Entry
}

// deletedGeneration is above every generation.
const deletedGeneration = math.MaxUint32 + 1

// NewMem returns an empty one.
func NewMem() *Mem { return &Mem{parts: map[ID]*memPart{}} }

// Buffer implements Store.
func (m *Mem) Buffer(id ID) Buffer { return &memBuffer{m: m, id: id} }

// Check implements Store: it has nothing to say.
func (m *Mem) Check(context.Context) ([]Warning, error) { return nil, nil }

// Close implements Store.
func (m *Mem) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Lose removes entries as a server does that loses them: without a record of it. No seqs: everything of the partition,
// its generation too.
func (m *Mem) Lose(id ID, seqs ...uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parts[id]
	if p == nil || len(seqs) == 0 {
		delete(m.parts, id)
		return
	}
	var kept []Entry
	for _, e := range p.entries {
		lost := false
		for _, s := range seqs {
			lost = lost || s == e.Seq
		}
		if !lost {
			kept = append(kept, e)
		}
	}
	p.entries = kept
}

type memBuffer struct {
	m     *Mem
	id    ID
	wrote uint32 // guarded by m.mu; the highest generation of a change that succeeded
}

// change runs fn on the partition as its owner.
func (b *memBuffer) change(ctx context.Context, op string, generation uint32, fn func(p *memPart) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", op, b.id, err)
	}
	if err := CheckGeneration(generation); err != nil {
		return err
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.m.closed {
		return fmt.Errorf("%s %s: %w", op, b.id, ErrClosed)
	}
	var failed error
	if b.m.Fail != nil {
		made, err := b.m.Fail(op, b.id)
		if err != nil && !made {
			return err
		}
		failed = err
	}
	p := b.m.parts[b.id]
	if p == nil {
		p = &memPart{}
		b.m.parts[b.id] = p
	}
	if p.gen > uint64(generation) && !(op == "delete" && p.gen == deletedGeneration) {
		return fmt.Errorf("%s %s with generation %d: %w", op, b.id, generation, ErrFenced)
	}
	if err := fn(p); err != nil {
		return err
	}
	if failed == nil && p.known { // a trim of what never was there records nothing
		b.wrote = max(b.wrote, generation)
	}
	return failed
}

func (p *memPart) whole() bool { return uint64(len(p.entries)) == p.count() }

func (p *memPart) count() uint64 {
	if p.floor == 0 {
		return 0
	}
	return p.last + 1 - p.floor
}

func (b *memBuffer) Append(ctx context.Context, batch Batch) error {
	if err := CheckBatch(batch); err != nil {
		return err
	}
	return b.change(ctx, "append", batch.Generation, func(p *memPart) error {
		floor, entries := max(batch.Floor, p.floor), batch.Entries
		seq := entries[0].Seq
		if !p.known && b.wrote > 0 {
			return &LostError{ID: b.id, Seq: seq, Next: floor, Reset: true}
		}
		for len(entries) > 0 && entries[0].Seq < floor {
			entries = entries[1:]
		}
		if len(entries) == 0 {
			return nil
		}
		if p.floor > 0 && p.last+1 < floor || p.floor == 0 && len(p.entries) == 0 { // nothing of what is there is needed any more
			*p = memPart{known: p.known, gen: p.gen, floor: floor, last: floor - 1}
		}
		switch {
		case !p.whole():
			return &LostError{ID: b.id, Seq: seq, Next: floor, Reset: true}
		case entries[0].Seq > p.last+1:
			return &LostError{ID: b.id, Seq: seq, Next: p.last + 1}
		}
		for _, e := range entries {
			if e.Seq > p.last {
				break
			}
			if held := p.entries[e.Seq-p.floor]; held.Seq != e.Seq || !bytes.Equal(held.Frame, e.Frame) {
				return fmt.Errorf("append %s seq %d: %w", b.id, e.Seq, ErrCorrupt)
			}
		}
		for _, e := range entries {
			if e.Seq > p.last {
				p.entries = append(p.entries, Entry{Seq: e.Seq, Frame: bytes.Clone(e.Frame)})
				p.last = e.Seq
			}
		}
		p.known, p.gen = true, uint64(batch.Generation)
		return nil
	})
}

func (b *memBuffer) Submit(ctx context.Context, batch Batch, done func(error)) {
	done(b.Append(ctx, batch))
}

func (b *memBuffer) Fence(ctx context.Context, generation uint32) (State, error) {
	var before State
	err := b.change(ctx, "fence", generation, func(p *memPart) error {
		before = p.state()
		p.known, p.gen = true, uint64(generation)
		return nil
	})
	return before, err
}

func (p *memPart) state() State {
	s := State{Known: p.known, Generation: uint32(min(p.gen, math.MaxUint32)), Floor: p.floor, Last: p.last, Count: uint64(len(p.entries))}
	if n := len(p.entries); n > 0 {
		s.First, s.End = p.entries[0].Seq, p.entries[n-1].Seq
	}
	return s
}

func (b *memBuffer) Read(ctx context.Context, from uint64, limit Limit) ([]Entry, error) {
	if err := CheckSeq(from); err != nil {
		return nil, err
	}
	p, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	limit = limit.WithDefaults()
	var got []Entry
	size := 0
	for _, e := range p.entries {
		if e.Seq < from {
			continue
		}
		if len(got) > 0 && (len(got) >= limit.Entries || size+len(e.Frame) > limit.Bytes) {
			return Page(b.id, p.state(), from, got, false)
		}
		got = append(got, Entry{Seq: e.Seq, Frame: bytes.Clone(e.Frame)})
		size += len(e.Frame)
	}
	return Page(b.id, p.state(), from, got, true)
}

func (b *memBuffer) look(ctx context.Context) (memPart, error) {
	if err := ctx.Err(); err != nil {
		return memPart{}, fmt.Errorf("read %s: %w", b.id, err)
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.m.closed {
		return memPart{}, fmt.Errorf("read %s: %w", b.id, ErrClosed)
	}
	p := memPart{}
	if held := b.m.parts[b.id]; held != nil {
		p = *held
	}
	if err := CheckKnown(p.state(), b.wrote); err != nil {
		return memPart{}, fmt.Errorf("read %s: %w", b.id, err)
	}
	return p, nil
}

func (b *memBuffer) Bounds(ctx context.Context) (State, error) {
	p, err := b.look(ctx)
	return p.state(), err
}

func (b *memBuffer) Trim(ctx context.Context, generation uint32, below uint64) error {
	if err := CheckSeq(below); err != nil {
		return err
	}
	return b.change(ctx, "trim", generation, func(p *memPart) error {
		if p.floor == 0 {
			return nil
		}
		p.floor = max(p.floor, min(below, p.last+1))
		var kept []Entry
		for _, e := range p.entries {
			if e.Seq >= p.floor {
				kept = append(kept, e)
			}
		}
		p.entries = kept
		return nil
	})
}

func (b *memBuffer) Reset(ctx context.Context, generation uint32) error {
	return b.change(ctx, "reset", generation, func(p *memPart) error {
		*p = memPart{known: true, gen: uint64(generation)}
		return nil
	})
}

func (b *memBuffer) Delete(ctx context.Context, generation uint32) error {
	return b.change(ctx, "delete", generation, func(p *memPart) error {
		*p = memPart{known: true, gen: deletedGeneration}
		return nil
	})
}
