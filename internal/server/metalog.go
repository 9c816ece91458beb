package server

import (
	"context"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
)

// metaLog lets a group of the raft package keep its entries in a log of the seglog package, neither of which knows the
// other: an entry's seq is a frame's, its term the frame's generation.
type metaLog struct{ log *seglog.Log }

var _ raft.Log = metaLog{}

func newMetaLog(l *seglog.Log) metaLog { return metaLog{l} }

// Append implements raft.Log.
func (m metaLog) Append(ctx context.Context, entries []raft.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // from here on the answer must be the log's, not that nobody waited for it
	frames := make([]seglog.Entry, len(entries))
	for i, e := range entries {
		frames[i] = seglog.Entry{Seq: e.Seq, Generation: e.Term, Kind: e.Kind, Batch: e.Batch}
	}
	_, last := m.Bounds()
	err := m.log.AppendEntries(ctx, frames)
	if err == nil {
		return nil
	}
	if _, now := m.Bounds(); now == last || m.log.Err() != nil {
		return err
	}
	// Entries that lie in two segments take two writes, and the second failed. The port knows all or nothing, and nobody
	// was told of any of them.
	if cut := m.log.TruncateAfter(ctx, last); cut != nil {
		return fault.New(fault.OutcomeUnknown, "a part of the entries was written (%w), and could not be cut off again: %v", err, cut)
	}
	return err
}

// Read implements raft.Log.
func (m metaLog) Read(from uint64, maxBytes int) ([]raft.Entry, error) {
	frames, err := m.log.ReadEntries(from, maxBytes)
	if err != nil {
		return nil, err
	}
	entries := make([]raft.Entry, len(frames))
	for i, f := range frames {
		entries[i] = raft.Entry{Seq: f.Seq, Term: f.Generation, Kind: f.Kind, Batch: f.Batch}
	}
	return entries, nil
}

// Bounds implements raft.Log.
func (m metaLog) Bounds() (first, last uint64) {
	b := m.log.Bounds()
	return b.FirstSeq, b.NextSeq - 1
}

// Term implements raft.Log.
func (m metaLog) Term(seq uint64) (uint32, error) { return m.log.GenerationAt(seq) }

// TrimBefore implements raft.Log: whole segments go.
func (m metaLog) TrimBefore(ctx context.Context, seq uint64) error { return m.log.TrimBefore(ctx, seq) }
