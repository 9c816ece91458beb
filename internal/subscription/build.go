package subscription

import (
	"context"
	"errors"
	"slices"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// build puts together what the consumer was given: batches that are its as a whole as they lie in the log, and of others
// its records. It returns no records where what was given is gone.
func (c *Consumer) build(ctx context.Context) (Event, error) {
	pieces := c.building
	defer func() {
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		for i := range pieces {
			if s := pieces[i].stretch; s != nil {
				c.r.cache.release(s)
			}
		}
		clear(pieces)
	}()
	slices.SortFunc(pieces, func(a, b piece) int { return int(min(max(a.From-b.From, -1), 1)) })
	b := builder{c: c, ctx: ctx, event: Event{Kind: Data, Offsets: make([]seglog.Range, 0, len(pieces))}}
	defer b.close()
	for i := range pieces {
		b.note(&pieces[i].Span)
	}
	for i := 0; i < len(pieces); {
		n, err := b.batches(pieces[i:])
		if err != nil {
			return Event{}, c.unreadable(b.event.Offsets, err)
		}
		i += n
	}
	b.event.Batches = b.out
	return b.event, nil
}

// unreadable tells the dispatcher of records that were handed out and could not be read: the consumer will never see them,
// so they are not its any more. It returns nil where they are gone, which is no reason to end.
func (c *Consumer) unreadable(given []seglog.Range, err error) error {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	var trimmed *seglog.TrimmedError
	gone := errors.As(err, &trimmed)
	if gone {
		r.tell(dispatch.Trimmed, trimmed.Oldest)
		r.changed()
	}
	r.event.Kind, r.event.Consumer, r.event.Reason = dispatch.Nack, c.id, "could not be read"
	r.about(given...)
	r.step()
	if gone {
		return nil
	}
	return err
}

// builder puts one delivery together.
type builder struct {
	c      *Consumer
	ctx    context.Context
	event  Event
	out    []byte
	ranges []seglog.Range // of one batch; reused
	at     []int          // where they begin; reused
	source Source         // for what is not in the cache; nil until it is needed
}

func (b *builder) close() {
	if b.source != nil {
		b.source.Close()
	}
}

// note takes a span into what the event says.
func (b *builder) note(s *dispatch.Span) {
	e := &b.event
	e.Records += int(s.To - s.From + 1)
	if n := len(e.Offsets); n > 0 && e.Offsets[n-1].To+1 == s.From {
		e.Offsets[n-1].To = s.To
	} else {
		e.Offsets = append(e.Offsets, seglog.Range{From: s.From, To: s.To})
	}
	if s.Count <= 1 {
		return
	}
	if n := len(e.Counts); n > 0 && e.Counts[n-1].To+1 == s.From && e.Counts[n-1].Deliveries == s.Count {
		e.Counts[n-1].To = s.To
	} else {
		e.Counts = append(e.Counts, Count{s.From, s.To, s.Count})
	}
}

// batches adds the batches that hold the first of some pieces and as many more as lie in the same stretch, and returns
// how many pieces that were. A piece that reaches beyond the stretch is cut; what is left of it comes next.
func (b *builder) batches(pieces []piece) (done int, err error) {
	first := &pieces[0]
	var data []byte
	if first.stretch != nil {
		data = first.data
	} else if data, err = b.fetch(first.From); err != nil {
		return 0, err
	}
	if b.out == nil {
		b.out = b.c.memory(b.room(pieces, len(data)))[:0]
	}
	began := first.From
	for rest := data; len(rest) > 0 && done < len(pieces); {
		place := len(data) - len(rest)
		batch, more, err := record.Next(rest)
		if err != nil {
			return done, b.c.r.corrupt(err)
		}
		rest = more
		info, err := record.ParseHeader(batch)
		if err != nil {
			return done, b.c.r.corrupt(err)
		}
		last := info.LastOffset()
		if last < pieces[done].From {
			continue
		}
		b.ranges = b.ranges[:0]
		covered := int64(0)
		for done < len(pieces) && pieces[done].From <= last {
			p := &pieces[done]
			to := min(p.To, last)
			b.ranges = append(b.ranges, seglog.Range{From: p.From, To: to})
			covered += to - max(p.From, info.BaseOffset) + 1
			if p.To > last {
				p.From = last + 1
				break
			}
			done++
		}
		if err := b.add(batch, covered == int64(info.LastOffsetDelta)+1, first.stretch, place); err != nil {
			return done, err
		}
	}
	if done == 0 && first.From == began {
		return 1, nil // it is not where it should be: its time will be over, and it is looked for again
	}
	if done < len(pieces) {
		if p := &pieces[done]; p.stretch != nil && p.From >= p.next { // what is left of it lies elsewhere
			b.c.r.mu.Lock()
			b.c.r.cache.release(p.stretch)
			p.stretch = b.c.r.cache.find(p.From)
			b.c.r.mu.Unlock()
		}
	}
	return done, nil
}

// add appends a batch, or those of its records that are in b.ranges. It lies at a place in a stretch, unless that is nil.
func (b *builder) add(batch []byte, whole bool, in *stretch, place int) (err error) {
	if whole {
		b.out = append(b.out, batch...)
		return nil
	}
	if in != nil {
		var known bool
		if b.at, known = in.places.of(b.at[:0], b.ranges, in.first, place); known {
			if b.out, err = record.PickAt(b.out, batch, b.at); err != nil {
				return b.c.r.corrupt(err)
			}
			return nil
		}
	}
	at := 0
	b.out, err = record.Pick(b.out, batch, func(offset int64) bool {
		for at < len(b.ranges) && b.ranges[at].To < offset {
			at++
		}
		return at < len(b.ranges) && b.ranges[at].From <= offset
	})
	if err != nil {
		return b.c.r.corrupt(err)
	}
	return nil
}

// room is how much memory a delivery may take: as much as the stretches that its pieces lie in, and as much again as
// was asked for where they are to be read again.
func (b *builder) room(pieces []piece, least int) int {
	size, bytes := least, int64(0)
	var last *stretch
	for i := range pieces {
		if s := pieces[i].stretch; s != nil && s != last && i > 0 && s != pieces[0].stretch {
			size += len(s.data)
			last = s
		}
		bytes += pieces[i].Bytes
	}
	return min(size, int(bytes)+record.HeaderSize*(len(pieces)+1)+least/16+512)
}

// fetch reads the batches from an offset on once more.
func (b *builder) fetch(from int64) ([]byte, error) {
	if b.source == nil {
		s, err := b.c.r.open(b.ctx)
		if err != nil {
			return nil, err
		}
		b.source = s
	}
	c, err := b.source.Read(b.ctx, from, fetchBytes, b.c.r.cfg.readCount(), allocate)
	if err != nil {
		return nil, err
	}
	if c.Data == nil {
		return nil, &seglog.TrimmedError{Topic: b.c.r.spec.Topic, Partition: b.c.r.spec.Partition, Requested: from, Oldest: c.Next}
	}
	return c.Data, nil
}

// fetchBytes is how much is read at a time of what is handed out again: most likely a few records here and there.
const fetchBytes = 64 << 10
