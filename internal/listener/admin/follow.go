package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

// followBytes is how much one read takes; with the batch it may exceed it by, it is all that a follower holds.
const followBytes = 256 << 10

// follower writes one stream of server-sent events. The id of an event is the last offset it answers for, so that a
// client which reconnects with Last-Event-ID misses nothing and is told nothing twice.
type follower struct {
	s       *Server
	w       http.ResponseWriter
	sub     *broker.Subscriber
	next    int64 // what the client was told everything below
	dropped int64
	buf     bytes.Buffer
}

// follow streams a partition's records until the client goes, the topic is deleted or the broker drains. What the
// position asked for and is gone is told in an event of type trimmed; the stream goes on at the oldest record.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, b *broker.Broker, spec broker.SubscribeSpec) error {
	if !s.streams.take(1) {
		return fault.New(fault.Exhausted, "%d streams are open already: try again, or use the native protocol", s.limits.Streams).With("limit", s.limits.Streams)
	}
	defer s.streams.give(1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()

	f := &follower{s: s, w: w}
	sub, err := b.Subscribe(ctx, spec)
	trimmed := err
	if fault.KindOf(err) == fault.Trimmed {
		spec.Start = broker.Earliest()
		sub, err = b.Subscribe(ctx, spec)
	} else {
		trimmed = nil
	}
	if err != nil {
		return err
	}
	f.sub, f.next = sub, sub.Info().Start
	defer func() { f.sub.Close() }()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()

	patient(w)
	if rw, ok := w.(*responseWriter); ok {
		rw.stream = true
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies that know it pass events on at once
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(&f.buf, ": %s partition %d from offset %d\nretry: 2000\n\n", sub.Info().Topic, sub.Info().Partition, f.next)
	if trimmed != nil {
		f.trimmed(trimmed)
	}
	if err := f.flush(); err != nil {
		return nil // the client has gone; there is no one to tell
	}
	f.run(ctx, b, spec)
	return nil
}

// run passes events on until there is no one to pass them to or nothing more to come.
func (f *follower) run(ctx context.Context, b *broker.Broker, spec broker.SubscribeSpec) {
	for {
		quiet, cancel := context.WithTimeout(ctx, f.s.limits.Heartbeat)
		ev, err := f.sub.Next(quiet, followBytes)
		silent := errors.Is(quiet.Err(), context.DeadlineExceeded)
		cancel()
		switch {
		case err == nil:
			err = f.event(ev)
		case ctx.Err() != nil:
			f.ended(fault.New(fault.Unavailable, "the broker stops: reconnect with Last-Event-ID"))
			return
		case silent:
			f.buf.WriteString(": heartbeat\n\n")
			err = nil
		case fault.KindOf(err) == fault.Trimmed:
			// Retention overtook this reader: say so, and go on with what there is.
			f.trimmed(err)
			f.sub.Close()
			spec.Start = broker.Earliest()
			sub, again := b.Subscribe(ctx, spec)
			if again != nil {
				f.ended(again)
				return
			}
			f.sub, f.next, err = sub, sub.Info().Start, nil
		}
		if err != nil {
			f.ended(err)
			return
		}
		if f.flush() != nil {
			return
		}
	}
}

// event puts what the subscriber was told into the buffer.
func (f *follower) event(ev broker.Event) error {
	switch ev.Kind {
	case broker.EventData:
		if ev.Dropped > f.dropped {
			f.write("", "dropped", map[string]int64{"dropped": ev.Dropped - f.dropped, "total": ev.Dropped})
			f.dropped = ev.Dropped
		}
		partition := f.sub.Info().Partition
		var failed error
		err := eachRecord(ev.Batches, f.next, func(r record.Record) bool {
			f.write(strconv.FormatInt(r.Offset, 10), "record", toRecordOut(partition, r))
			if f.buf.Len() >= followBytes {
				failed = f.flush()
			}
			return failed == nil
		})
		if err == nil {
			err = failed
		}
		f.next = ev.Next
		return err
	case broker.EventLost:
		f.write(strconv.FormatInt(ev.Lost.To, 10), "lost", rangeJSON{ev.Lost.From, ev.Lost.To})
		f.next = ev.Next
	case broker.EventAtEnd:
		f.write("", "caught-up", map[string]int64{"next": ev.Next})
	}
	return nil
}

// trimmed tells that retention removed what would have come next.
func (f *follower) trimmed(err error) {
	details := fault.DetailsOf(err)
	id := ""
	if oldest, parse := strconv.ParseInt(details["oldest"], 10, 64); parse == nil && oldest > 0 {
		id = strconv.FormatInt(oldest-1, 10)
	}
	f.write(id, "trimmed", toErrorJSON(err))
}

// ended tells why the stream ends; a client that reconnects finds out what became of it.
func (f *follower) ended(err error) {
	name := "ended"
	if fault.KindOf(err) == fault.Deleted {
		name = "deleted"
	}
	f.write("", name, toErrorJSON(err))
	_ = f.flush() // the stream ends either way
}

// write appends one event to the buffer.
func (f *follower) write(id, name string, data any) {
	if id != "" {
		fmt.Fprintf(&f.buf, "id: %s\n", id)
	}
	fmt.Fprintf(&f.buf, "event: %s\ndata: ", name)
	enc := json.NewEncoder(&f.buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(data) // these types always encode; Encode ends the line
	f.buf.WriteByte('\n')
}

// flush sends the buffer. A client that does not take it within the write timeout is cut off.
func (f *follower) flush() error {
	f.s.writeWithin(f.w, f.s.limits.WriteTimeout)
	_, err := f.w.Write(f.buf.Bytes())
	f.buf.Reset()
	if err != nil {
		return err
	}
	return http.NewResponseController(f.w).Flush()
}
