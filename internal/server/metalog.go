package server

import (
	"context"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/writebuf"
)

// metaLog lets a group of the raft package keep its entries in a log of the seglog package, neither of which knows the
// other: an entry's seq is a frame's, its term the frame's generation.
type metaLog struct {
	log *seglog.Log
	// confirmer holds back the answer of an Append until the write buffer has it too; nil, or nothing in it: nobody does.
	confirmer *atomic.Pointer[metatier.Confirmer]
}

var _ raft.Log = metaLog{}

func newMetaLog(l *seglog.Log) metaLog { return metaLog{log: l} }

// Append implements raft.Log. While the write buffer does not confirm, it does not return: what is in the log is applied
// once it is confirmed, in order, and nothing behind it is written. Only a stop, or another broker's takeover, ends that.
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
		return m.confirmed(entries)
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

func (m metaLog) confirmed(entries []raft.Entry) error {
	if m.confirmer == nil || len(entries) == 0 {
		return nil
	}
	if c := m.confirmer.Load(); c != nil {
		return c.Confirm(entries[len(entries)-1].Seq)
	}
	return nil
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

// metaFrames is the metadata's log as its copy in the write buffer sees it.
type metaFrames struct{ log *seglog.Log }

var _ metatier.FrameLog = metaFrames{}

// Frames implements metatier.FrameLog.
func (m metaFrames) Frames(from uint64, maxBytes int) ([]writebuf.Entry, error) {
	frames, err := m.log.ReadFrames(from, maxBytes)
	if err != nil {
		return nil, err
	}
	entries := make([]writebuf.Entry, len(frames))
	for i, f := range frames {
		entries[i] = writebuf.Entry{Seq: f.Seq, Frame: f.Bytes}
	}
	return entries, nil
}

// First implements metatier.FrameLog.
func (m metaFrames) First() uint64 { return m.log.Bounds().FirstSeq }

// Last implements metatier.FrameLog.
func (m metaFrames) Last() uint64 { return m.log.Bounds().NextSeq - 1 } // it flushes before it says so

// Changed implements metatier.FrameLog.
func (m metaFrames) Changed() <-chan struct{} { return m.log.Changed() }
