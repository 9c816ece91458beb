package partition

import (
	"context"

	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// Reader reads one partition from a position on. It holds no file between calls, so any number may exist. It is not
// safe for concurrent use.
type Reader struct {
	// Memory, unless nil, gives the memory that chunks' data is read into; what it held does not matter.
	Memory func(size int) []byte

	p      *Partition
	log    *seglog.Log
	cover  *cover // nil: the log's end bounds what is read
	reader *seglog.Reader
	older  *tier.Manifest // what describes objects that the metadata does not; nil: not looked at
	cold   *tier.Reader   // what comes next is read from objects; nil: from the log
	offset int64          // of what comes next
}

// Next returns what comes next below the bound, at most about maxBytes and maxRecords but at least one batch when there
// is one, from the log or from the objects that were made of it. A chunk without data whose Next is its End means caught
// up: see Wait.
func (r *Reader) Next(ctx context.Context, maxBytes, maxRecords int) (seglog.Chunk, error) {
	c, err := r.chain(ctx, maxBytes, maxRecords)
	return c, r.p.explain(err)
}

// Wait returns nil once there is something at or behind offset, and an error when ctx is done or nothing more can come.
func (r *Reader) Wait(ctx context.Context, offset int64) error {
	if r.cover != nil {
		return r.p.explain(r.cover.wait(ctx, offset))
	}
	return r.p.explain(r.log.Wait(ctx, offset))
}

// ofLog returns a reader of the log that stops where this one must.
func (r *Reader) ofLog(offset int64) *seglog.Reader {
	of := r.log.NewReader(offset)
	if r.cover != nil {
		of.Bound = r.cover.bound
	}
	return of
}

// Changed returns a channel that is closed once there may be more than Next found. Call it before the Next whose result
// decides whether to wait.
func (r *Reader) Changed() <-chan struct{} {
	if r.cover != nil {
		return r.cover.changed()
	}
	return r.log.Changed()
}

// Bounds returns where the log stands, as far as it may be read.
func (r *Reader) Bounds() seglog.Bounds {
	return r.cover.visible(r.log.Bounds())
}

// MoveTo goes on at offset.
func (r *Reader) MoveTo(offset int64) {
	if r.offset != offset {
		r.reader, r.cold, r.offset = r.ofLog(offset), nil, offset
	}
}
