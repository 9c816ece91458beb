package tier

import (
	"context"
	"errors"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// OffsetForTime returns the offset of the first record at or behind from with a timestamp at or after ms (milliseconds
// since the epoch). found is false where no object has one; the offset is then the first that no object holds.
func (c *Cold) OffsetForTime(ctx context.Context, place Place, objects Objects, from, ms int64) (offset int64, found bool, err error) {
	for {
		o, ok := objects(from)
		if !ok {
			return from, false, nil
		}
		if o.MaxTime >= ms && o.MaxTime != segfmt.NoTime {
			start, err := c.timeStart(ctx, place, &o, ms)
			if err != nil {
				return 0, false, err
			}
			if offset, found, err = firstAt(ctx, c.NewReader(place, objects, max(start, from)), from, o.Next, ms); found || err != nil {
				return offset, found, err
			}
		}
		from = o.Next
	}
}

// timeStart returns an offset in an object below which every record is older than ms.
func (c *Cold) timeStart(ctx context.Context, place Place, o *Object, ms int64) (int64, error) {
	start, key := o.Base, o.Key(place)
	if err := o.Validate(); err != nil {
		return 0, err
	}
	_, times, err := c.sides(ctx, place, o, key)
	if fault.KindOf(err) == fault.Corrupt {
		c.cfg.Logger.Warn("an exported segment's time index is damaged; reading the segment from its start", "object", key, "error", err)
		return start, nil
	}
	if errors.Is(err, objstore.ErrNotFound) {
		return start, nil // another one may have taken its place: who reads it finds out
	}
	if err != nil {
		return 0, err
	}
	// The footer's checksum covers it, so its own two need not be looked at.
	for times = times[:len(times)-segfmt.TimeEndSize]; len(times) > 0; times = times[segfmt.TimeEntrySize:] {
		if e := segfmt.ParseTimeEntry(times); e.MaxTimestamp < ms && e.Offset > start && e.Offset < o.Next {
			start = e.Offset
		}
	}
	return start, nil
}

// firstAt reads up to end until it meets a record at or after ms, at or behind from.
func firstAt(ctx context.Context, r *Reader, from, end, ms int64) (offset int64, found bool, err error) {
	for r.next < end {
		chunk, err := r.Next(ctx, 256<<10, 1<<30, nil)
		if err != nil {
			return 0, false, err
		}
		if chunk.Data == nil && chunk.Lost == nil {
			return 0, false, nil // retention was faster
		}
		for data := chunk.Data; len(data) > 0 && !found; {
			batch, rest, err := record.Next(data)
			if err != nil {
				return 0, false, err
			}
			data = rest
			if info, err := record.ParseHeader(batch); err != nil || info.MaxTimestamp < ms {
				continue
			}
			if err := record.Each(batch, func(rec record.Record) error {
				if !found && rec.Offset >= from && rec.Timestamp >= ms {
					offset, found = rec.Offset, true
				}
				return nil
			}); err != nil {
				return 0, false, err
			}
		}
		if found {
			return offset, true, nil
		}
	}
	return 0, false, nil
}
