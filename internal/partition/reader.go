package partition

import (
	"context"

	"github.com/leveemq/levee/internal/seglog"
)

// Reader reads one partition from a position on. It holds no file between calls, so any number may exist. It is not
// safe for concurrent use.
type Reader struct {
	// Memory, unless nil, gives the memory that chunks' data is read into; what it held does not matter.
	Memory func(size int) []byte

	p      *Partition
	log    *seglog.Log
	reader *seglog.Reader
}

// Next returns what comes next below the bound, at most about maxBytes and maxRecords but at least one batch when there
// is one. A chunk without data whose Next is its End means caught up: see Wait.
func (r *Reader) Next(maxBytes, maxRecords int) (seglog.Chunk, error) {
	r.reader.Memory = r.Memory
	c, err := r.reader.Next(maxBytes, maxRecords)
	return c, r.p.explain(err)
}

// Wait returns nil once there is something at or behind offset, and an error when ctx is done or nothing more can come.
func (r *Reader) Wait(ctx context.Context, offset int64) error {
	return r.p.explain(r.log.Wait(ctx, offset))
}

// Changed returns a channel that is closed once there may be more than Next found. Call it before the Next whose result
// decides whether to wait.
func (r *Reader) Changed() <-chan struct{} { return r.log.Changed() }

// Bounds returns where the log stands.
func (r *Reader) Bounds() seglog.Bounds { return r.log.Bounds() }

// MoveTo goes on at offset.
func (r *Reader) MoveTo(offset int64) {
	if r.reader.Offset() != offset {
		r.reader = r.log.NewReader(offset)
	}
}
