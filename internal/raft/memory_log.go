package raft

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/leveemq/levee/internal/fault"
)

// MemoryLog is a Log that keeps nothing beyond its process: the fake of the port, for tests.
type MemoryLog struct {
	mu       sync.Mutex
	entries  []Entry // guarded by mu
	first    uint64  // guarded by mu; seq of entries[0]
	before   uint32  // guarded by mu; term of the entry before first
	onAppend func(entries []Entry) error
}

// NewMemoryLog returns an empty log.
func NewMemoryLog() *MemoryLog { return &MemoryLog{first: 1} }

// OnAppend has fn called before every Append takes effect, without a lock. When fn returns an error the Append fails
// with it and nothing is appended. It must not be set while an Append runs.
func (l *MemoryLog) OnAppend(fn func(entries []Entry) error) { l.onAppend = fn }

// Clone returns an independent log with the same entries: what is there after a crash now.
func (l *MemoryLog) Clone() *MemoryLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &MemoryLog{entries: slices.Clone(l.entries), first: l.first, before: l.before}
}

// Append implements Log.
func (l *MemoryLog) Append(ctx context.Context, entries []Entry) error {
	if err := ctx.Err(); err != nil {
		return fault.New(fault.KindOf(err), "append: %w", err)
	}
	if l.onAppend != nil {
		if err := l.onAppend(entries); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.first + uint64(len(l.entries))
	term := l.before
	if n := len(l.entries); n > 0 {
		term = l.entries[n-1].Term
	}
	for i, e := range entries {
		if e.Seq != next+uint64(i) || e.Term < term {
			return fault.New(fault.InvalidArgument, "entry %d of term %d cannot follow entry %d of term %d", e.Seq, e.Term, next+uint64(i)-1, term)
		}
		term = e.Term
	}
	for _, e := range entries {
		e.Batch = bytes.Clone(e.Batch)
		l.entries = append(l.entries, e)
	}
	return nil
}

// Read implements Log.
func (l *MemoryLog) Read(from uint64, maxBytes int) ([]Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < l.first {
		return nil, fault.New(fault.Trimmed, "entry %d was trimmed; the oldest is %d", from, l.first).With("oldest", l.first)
	}
	var out []Entry
	for i := from - l.first; i < uint64(len(l.entries)); i++ {
		e := l.entries[i]
		if maxBytes -= len(e.Batch); maxBytes < 0 && len(out) > 0 {
			break
		}
		e.Batch = bytes.Clone(e.Batch)
		out = append(out, e)
	}
	return out, nil
}

// Bounds implements Log.
func (l *MemoryLog) Bounds() (first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.first + uint64(len(l.entries)) - 1
}

// Term implements Log.
func (l *MemoryLog) Term(seq uint64) (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case seq+1 == l.first:
		return l.before, nil
	case seq < l.first:
		return 0, fault.New(fault.Trimmed, "entry %d was trimmed; the oldest is %d", seq, l.first).With("oldest", l.first)
	case seq >= l.first+uint64(len(l.entries)):
		return 0, fault.New(fault.OutOfRange, "entry %d is beyond the end", seq)
	}
	return l.entries[seq-l.first].Term, nil
}

// TrimBefore implements Log: it removes all it may.
func (l *MemoryLog) TrimBefore(_ context.Context, seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.first < seq && len(l.entries) > 0 {
		l.before = l.entries[0].Term
		l.entries = l.entries[1:]
		l.first++
	}
	return nil
}
