package admin

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

const (
	defaultLimit = 100
	maxLimit     = 10_000
	maxWait      = time.Minute
	pageBytes    = 1 << 20 // stop a page once its records reach this; one batch is returned in any case
)

// rangeJSON is a closed range of offsets.
type rangeJSON struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// page is the answer to a read.
type page struct {
	Topic     string      `json:"topic"`
	Partition int32       `json:"partition"`
	Records   []recordOut `json:"records"`
	Lost      []rangeJSON `json:"lost,omitempty"`    // offsets among these that were lost in a crash
	Dropped   int64       `json:"dropped,omitempty"` // non-reliable topics: what came too fast for this request
	Next      int64       `json:"next"`              // where to go on: ?from=next
	End       int64       `json:"end"`               // the next offset to be written, as last seen
}

// consume answers with a page of records, or follows the partition as a stream of events.
func (s *Server) consume(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r, "partition", "from", "limit", "wait", "follow"); err != nil {
		return err
	}
	follow, err := queryBool(r, "follow")
	if err != nil {
		return err
	}
	spec, err := subscribeSpec(b, r)
	if err != nil {
		return err
	}
	if follow || strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return s.follow(w, r, b, spec)
	}
	limit, err := queryInt(r, "limit", defaultLimit, 1, maxLimit)
	if err != nil {
		return err
	}
	wait, err := queryDuration(r, "wait", 0, maxWait)
	if err != nil {
		return err
	}
	if !s.held.take(2 * pageBytes) {
		return fault.New(fault.Exhausted, "the broker holds too much for other requests: try again")
	}
	defer s.held.give(2 * pageBytes)
	patient(w)
	s.writeWithin(w, wait+s.limits.WriteTimeout+s.limits.BodyTimeout)
	sub, err := b.Subscribe(r.Context(), spec)
	if err != nil {
		return err
	}
	defer sub.Close()
	answer, err := s.readPage(r.Context(), sub, int(limit), wait)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// readPage collects up to limit records. It reads what is there without waiting; only where that is nothing does it
// wait, for the first that comes, until wait has passed or the server ends.
func (s *Server) readPage(ctx context.Context, sub *broker.Subscriber, limit int, wait time.Duration) (page, error) {
	info := sub.Info()
	p := page{Topic: info.Topic, Partition: info.Partition, Records: []recordOut{}, Next: info.Start, End: info.End}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waiting := !info.Reliable // these have no past: whatever comes, comes later
	if waiting {
		defer s.giveUpAfter(cancel, wait)()
	}
	for bytes := 0; len(p.Records) < limit && bytes < pageBytes; {
		ev, err := sub.Next(ctx, pageBytes)
		switch {
		case err != nil && ctx.Err() != nil && waiting:
			return p, nil // nothing came in time
		case err != nil && len(p.Records)+len(p.Lost) > 0:
			return p, nil // the next request is told
		case err != nil:
			return p, err
		}
		p.End = max(p.End, ev.Next)
		switch ev.Kind {
		case broker.EventData:
			p.Dropped = ev.Dropped
			if err := p.add(ev, limit); err != nil {
				return p, err
			}
			bytes += len(ev.Batches)
			if waiting {
				return p, nil
			}
		case broker.EventLost:
			p.Lost = append(p.Lost, rangeJSON{ev.Lost.From, ev.Lost.To})
			p.Next = ev.Next
		case broker.EventAtEnd:
			p.Next = ev.Next
			if len(p.Records)+len(p.Lost) > 0 {
				return p, nil
			}
			if !waiting {
				waiting = true
				defer s.giveUpAfter(cancel, wait)()
			}
		}
	}
	return p, nil
}

// giveUpAfter cancels when d has passed or the server ends; the function it returns ends the watch.
func (s *Server) giveUpAfter(cancel context.CancelFunc, d time.Duration) func() {
	timer := time.AfterFunc(d, cancel)
	stop := context.AfterFunc(s.ending, cancel)
	return func() {
		timer.Stop()
		stop()
	}
}

// add takes the records of an event that are at or behind p.Next, up to limit in all.
func (p *page) add(ev broker.Event, limit int) error {
	next := ev.Next
	err := eachRecord(ev.Batches, p.Next, func(r record.Record) bool {
		if len(p.Records) == limit {
			next = r.Offset
			return false
		}
		p.Records = append(p.Records, toRecordOut(p.Partition, r))
		return true
	})
	p.Next = next
	return err
}

// eachRecord calls fn with every record of the batches whose offset is at least from, until fn returns false.
func eachRecord(batches []byte, from int64, fn func(record.Record) bool) error {
	for len(batches) > 0 {
		batch, rest, err := record.Next(batches)
		if err != nil {
			return fmt.Errorf("cut batch: %w", err)
		}
		info, err := record.ParseHeader(batch)
		if err != nil {
			return fmt.Errorf("read batch: %w", err)
		}
		batches = rest
		if info.Control() || info.LastOffset() < from {
			continue
		}
		records, err := record.Records(batch)
		if err != nil {
			return fmt.Errorf("read records at offset %d: %w", info.BaseOffset, err)
		}
		for _, r := range records {
			if r.Offset >= from && !fn(r) {
				return nil
			}
		}
	}
	return nil
}

// subscribeSpec reads partition and position. On a topic with one partition, its number may be left out.
func subscribeSpec(b *broker.Broker, r *http.Request) (broker.SubscribeSpec, error) {
	spec := broker.SubscribeSpec{Topic: topicName(r)}
	info, err := b.Topic(spec.Topic)
	if err != nil {
		return spec, err
	}
	if info.Partitions > 1 && !r.URL.Query().Has("partition") {
		return spec, fault.New(fault.InvalidArgument, "%s has %d partitions: say which with ?partition=0 to %d", info.Name, info.Partitions, info.Partitions-1)
	}
	partition, err := queryInt(r, "partition", 0, 0, math.MaxInt32)
	if err != nil {
		return spec, err
	}
	spec.Partition = int32(partition) //nolint:gosec // queryInt bounds it
	spec.Start, err = parsePosition(r.URL.Query().Get("from"))
	if err != nil {
		return spec, err
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		offset, err := strconv.ParseInt(last, 10, 64)
		if err != nil || offset < 0 || offset == math.MaxInt64 {
			return spec, fault.New(fault.InvalidArgument, "Last-Event-ID: %s: want the offset of the last record that was handled", last)
		}
		spec.Start = broker.Offset(offset + 1)
	}
	return spec, nil
}

// parsePosition reads earliest, latest, an offset, or @ and a time.
func parsePosition(text string) (broker.Position, error) {
	switch text {
	case "", "earliest":
		return broker.Earliest(), nil
	case "latest":
		return broker.Latest(), nil
	}
	if at, ok := strings.CutPrefix(text, "@"); ok {
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return broker.Position{}, fault.New(fault.InvalidArgument, "from=%s: want @ and a time such as 2026-01-31T12:00:00Z (+ is %%2B in a URL)", text)
		}
		return broker.Time(t.UnixMilli()), nil
	}
	offset, err := strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return broker.Position{}, fault.New(fault.InvalidArgument, "from=%s: want earliest, latest, an offset, or @ and a time", text)
	}
	return broker.Offset(offset), nil
}

// queryDuration reads a duration from the query: Go's form, or seconds as a plain number.
func queryDuration(r *http.Request, name string, low, high time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		d, err = time.ParseDuration(text + "s")
	}
	if err != nil || d < low || d > high {
		return 0, fault.New(fault.InvalidArgument, "%s=%s: want a duration such as 5s, at most %s", name, text, high)
	}
	return d, nil
}
