package broker

import (
	"context"
	"errors"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
)

// logFeed feeds a subscriber of a reliable topic: it reads the log from a position on, up to what may be read, and waits
// there. History and live records come the same way, so there is no seam between them.
type logFeed struct {
	maxRecords int // of one read
	reader     *partition.Reader
	offset     int64 // of the next record; the first batch read may begin below it
	atEnd      bool  // the subscriber was told that it is at the end
	// floating: nothing was delivered yet and the subscriber asked for whatever is oldest (or first after a time), so that
	// it follows when retention takes the place it was given.
	floating bool
	life     context.Context // the subscriber's
}

// openLog finds the position and makes the feed.
func (s *Subscriber) openLog(ctx context.Context, start Position, memory func(size int) []byte) error {
	part := s.t.parts[s.info.Partition]
	at, end, err := resolve(ctx, s.info.Topic, s.info.Partition, part, start)
	if err != nil {
		return err
	}
	s.info.Start, s.info.End = at, end
	reader, err := part.NewReader(ctx, s.info.Start)
	if err != nil {
		return err
	}
	reader.Memory = memory
	s.feed = &logFeed{
		reader: reader, offset: s.info.Start, life: s.life, maxRecords: s.b.cfg.RecordsPerRead,
		floating: start.Kind == AtEarliest || start.Kind == AtTime,
	}
	return nil
}

// resolve returns the offset that a position is at now, and the end of the log.
func resolve(ctx context.Context, topic string, n int32, part *partition.Partition, to Position) (at, end int64, err error) {
	if err := part.Ready(ctx); err != nil {
		return 0, 0, err
	}
	bounds, ok := part.Bounds()
	if !ok {
		return 0, 0, fault.New(fault.Unavailable, "%s/%d was unloaded meanwhile: subscribe again", topic, n)
	}
	switch to.Kind {
	case AtEarliest:
		return bounds.First, bounds.End, nil
	case AtLatest:
		return bounds.End, bounds.End, nil
	case AtTime:
		offset, err := part.OffsetForTime(ctx, to.Value)
		return offset, max(bounds.End, offset), err
	case AtOffset:
		switch {
		case to.Value < 0:
			return 0, 0, fault.New(fault.InvalidArgument, "offset %d is not allowed: offsets are 0 or above", to.Value)
		case to.Value < bounds.First:
			return 0, 0, &seglog.TrimmedError{Topic: topic, Partition: n, Requested: to.Value, Oldest: bounds.First}
		case to.Value > bounds.End:
			return 0, 0, &seglog.BeyondEndError{Topic: topic, Partition: n, Requested: to.Value, End: bounds.End}
		}
		return to.Value, bounds.End, nil
	}
	return 0, 0, fault.New(fault.InvalidArgument, "position of kind %d is not known: use earliest, latest, an offset or a time", to.Kind)
}

func (f *logFeed) close() {}

func (f *logFeed) next(ctx context.Context, maxBytes int) (Event, error) {
	for {
		e, err := f.read(ctx, maxBytes)
		if !errors.Is(err, errCaughtUp) {
			return e, err
		}
		if !f.atEnd {
			f.atEnd = true
			return Event{Kind: EventAtEnd, Next: f.offset}, nil
		}
		if err := f.wait(ctx); err != nil {
			return Event{}, err
		}
	}
}

// read returns what is there, or errCaughtUp.
func (f *logFeed) read(ctx context.Context, maxBytes int) (Event, error) {
	for {
		c, err := f.reader.Next(ctx, maxBytes, f.maxRecords)
		var trimmed *seglog.TrimmedError
		if errors.As(err, &trimmed) && f.floating {
			f.offset = trimmed.Oldest
			f.reader.MoveTo(f.offset)
			continue
		}
		if err != nil {
			return Event{}, err
		}
		switch {
		case c.Lost != nil:
			f.moved(c.Next)
			return Event{Kind: EventLost, Lost: *c.Lost, Next: c.Next}, nil
		case c.Data != nil:
			f.moved(c.Next)
			return Event{Kind: EventData, Batches: c.Data, Records: c.Records, Next: c.Next}, nil
		case c.Next > f.offset: // nothing but frames that are not for readers
			f.offset = c.Next
			continue
		}
		return Event{}, errCaughtUp
	}
}

func (f *logFeed) moved(next int64) { f.offset, f.atEnd, f.floating = next, false, false }

// wait returns once there is something to read at the feed's offset. The log knows only one context, so the caller's and
// the subscriber's are joined.
func (f *logFeed) wait(ctx context.Context) error {
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(f.life, func() { cancel(context.Cause(f.life)) })
	defer stop()
	return f.reader.Wait(both, f.offset)
}
