package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// event is what a partition's reader has for the caller.
type event struct {
	kind  eventKind
	batch []byte // one batch, its checksum verified
	from  int64  // batchEvent: records below it are not wanted; lostEvent: first offset
	to    int64  // lostEvent: last offset; caughtUpEvent: next offset to be written
	err   error
}

type eventKind uint8

const (
	batchEvent eventKind = iota
	lostEvent
	caughtUpEvent
	failedEvent
)

type subscription = grpc.BidiStreamingClient[leveev1.SubscribeRequest, leveev1.SubscribeResponse]

// reader reads one partition: it keeps a stream open and queues what comes.
type reader struct {
	consumer  *Consumer
	partition int32
	opened    chan struct{} // closed when the first opening has succeeded or failed for good

	// Of run's goroutine.
	start    Position // where to open next
	next     int64    // offset to go on at; set once started
	started  bool
	reliable bool
	isOpen   bool // opened is closed

	// Guarded by consumer.mu. For what held, owed and credit mean, see credit.go.
	events   []event
	rpc      subscription // while the stream is open
	credit   int64
	held     int64
	owed     int64
	indebted bool
	handed   int64 // offset behind the last message handed out
	last     error // why the stream broke, or could not be opened
	refusal  error // why the first opening failed for good
}

func (c *Consumer) newReader(partition int32) *reader {
	start, ok := c.config.Positions[partition]
	if !ok {
		start = c.config.From
	}
	return &reader{
		consumer: c, partition: partition, start: start, opened: make(chan struct{}),
	}
}

// run keeps the partition's stream open until the consumer ends or the partition cannot be read any more.
func (r *reader) run() {
	c := r.consumer
	for attempt := 0; ; attempt++ {
		received, err := r.session()
		if c.ctx.Err() != nil {
			return
		}
		if received {
			attempt = 0
		}
		e := streamError(err)
		c.mu.Lock()
		r.last = e
		if !e.Retriable && !r.isOpen {
			r.refusal = e
		}
		c.mu.Unlock()
		if !e.Retriable {
			r.push(event{kind: failedEvent, err: e})
			r.markOpened()
			return
		}
		c.client.logger.Warn("consumer lost its broker", "topic", c.topic, "partition", r.partition, "error", e)
		if !sleep(c.ctx, backoff(attempt)) {
			return
		}
	}
}

func (r *reader) markOpened() {
	if !r.isOpen {
		r.isOpen = true
		close(r.opened)
	}
}

func (r *reader) lastError() error {
	r.consumer.mu.Lock()
	defer r.consumer.mu.Unlock()
	return r.last
}

func (r *reader) refused() error {
	r.consumer.mu.Lock()
	defer r.consumer.mu.Unlock()
	return r.refusal
}

// session opens a stream and queues what it delivers until it ends, which always has a reason. It says whether anything
// came.
func (r *reader) session() (received bool, err error) {
	c := r.consumer
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	timer := time.AfterFunc(openTimeout, cancel)
	rpc, sub, err := r.open(ctx)
	if !timer.Stop() && c.ctx.Err() == nil {
		e := newError(KindUnavailable, "the broker did not open the partition within %v", openTimeout)
		e.Retriable = true
		return false, e
	}
	if err != nil {
		return false, err
	}
	r.begin(sub)
	c.mu.Lock()
	r.rpc = rpc
	c.owe(r)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		r.rpc = nil
		c.mu.Unlock()
	}()
	r.markOpened()
	var dropped int64
	for {
		resp, err := rpc.Recv()
		if err != nil {
			return received, err
		}
		received = true
		if err := r.take(resp, &dropped); err != nil {
			return received, err
		}
	}
}

func (r *reader) open(ctx context.Context) (subscription, *leveev1.Subscribed, error) {
	c := r.consumer
	rpc, err := c.client.stream.Subscribe(ctx)
	if err != nil {
		return nil, nil, err
	}
	open := &leveev1.OpenSubscribe{Topic: c.topic, Partition: r.partition, MaxBytes: c.config.MaxBytes}
	r.start.into(open)
	c.mu.Lock()
	open.TopicId = c.topicID
	grant := r.credit - r.held
	r.owed = 0
	c.mu.Unlock()
	req := &leveev1.SubscribeRequest{Open: open}
	if grant > 0 {
		req.Credit = &leveev1.Credit{Bytes: grant}
	}
	if err := rpc.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err // on EOF the reason comes with Recv
	}
	first, err := rpc.Recv()
	if err != nil {
		return nil, nil, err
	}
	if t := first.GetTrimmed(); t != nil {
		return nil, nil, trimmed(t)
	}
	if e := first.GetEnded(); e != nil {
		return nil, nil, fromMessage(e)
	}
	if first.GetSubscribed() == nil {
		return nil, nil, newError(KindInternal, "the broker's first message does not say that the partition is open")
	}
	return rpc, first.GetSubscribed(), nil
}

// begin takes where a stream starts.
func (r *reader) begin(sub *leveev1.Subscribed) {
	c := r.consumer
	start := sub.GetStart()
	skipped := event{kind: lostEvent, from: r.next, to: start - 1}
	c.mu.Lock()
	if c.topicID == nil {
		c.topicID, c.partitions = slices.Clone(sub.GetTopicId()), sub.GetPartitions()
	}
	if !r.started {
		r.handed = start
	}
	c.mu.Unlock()
	r.reliable = sub.GetReliable()
	switch {
	case !r.started:
		r.started = true
		r.next = start
	case !r.reliable: // nothing is kept: what came meanwhile is gone, and offsets may have begun anew
		r.next = start
	case start > r.next: // no broker should: but nothing is ever skipped silently
		r.push(skipped)
		r.next = start
	}
	r.reopenAt()
}

// reopenAt sets where the next stream is to be opened.
func (r *reader) reopenAt() {
	if r.reliable {
		r.start = Offset(r.next)
	} else {
		r.start = Latest()
	}
}

// take queues what one message says. An error ends the stream.
func (r *reader) take(resp *leveev1.SubscribeResponse, dropped *int64) error {
	if d := resp.GetDelivery(); d != nil {
		if err := r.deliver(d, dropped); err != nil {
			return err
		}
	}
	if l := resp.GetLost(); l != nil {
		r.push(event{kind: lostEvent, from: l.GetFrom(), to: l.GetTo()})
		r.next = max(r.next, l.GetTo()+1)
		r.reopenAt()
	}
	if resp.GetAtEnd() {
		r.push(event{kind: caughtUpEvent, to: resp.GetCaughtUp()})
	}
	if t := resp.GetTrimmed(); t != nil {
		return trimmed(t)
	}
	if e := resp.GetEnded(); e != nil {
		return fromMessage(e)
	}
	return nil
}

func (r *reader) deliver(d *leveev1.Delivery, dropped *int64) error {
	c := r.consumer
	if n := d.GetDropped() - *dropped; n > 0 {
		*dropped = d.GetDropped()
		c.mu.Lock()
		c.dropped += n
		c.mu.Unlock()
	}
	for rest := d.GetBatches(); len(rest) > 0; {
		batch, more, err := record.Next(rest)
		if err == nil {
			_, err = record.Check(batch)
		}
		if err != nil {
			e := fromRecord(err, "received")
			e.Kind = KindCorrupt
			return e
		}
		rest = more
		r.push(event{kind: batchEvent, batch: batch, from: r.next})
	}
	r.next = max(r.next, d.GetNext())
	r.reopenAt()
	return nil
}

// push queues ev for the caller. It never waits: credit bounds what comes.
func (r *reader) push(ev event) {
	c := r.consumer
	c.mu.Lock()
	r.held += int64(len(ev.batch))
	r.events = append(r.events, ev)
	if len(r.events) == 1 {
		c.ready = append(c.ready, r)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// decode returns the wanted messages of a batch: none if it is a marker.
func (r *reader) decode(ev event) ([]Message, error) {
	info, err := record.ParseHeader(ev.batch)
	if err != nil {
		return nil, fromRecord(err, "received")
	}
	if info.Count == 0 || info.Control() || info.LastOffset() < ev.from {
		return nil, nil
	}
	// The count is checked against the bytes before Each calls back; until then it sizes nothing large.
	messages := make([]Message, 0, min(info.Count, 1024))
	err = record.Each(ev.batch, func(rec record.Record) error {
		if rec.Offset >= ev.from {
			messages = append(messages, Message{Record: rec, Topic: r.consumer.topic, Partition: r.partition})
		}
		return nil
	})
	if err != nil {
		return nil, fromRecord(err, "received")
	}
	return messages, nil
}

// passed notes that everything below offset was handed out.
func (r *reader) passed(offset int64) {
	r.consumer.mu.Lock()
	r.handed = offset
	r.consumer.mu.Unlock()
}

// setCredit lowers or raises the credit to its share; the broker has been given none before.
func (r *reader) setCredit(bytes int64) {
	c := r.consumer
	c.mu.Lock()
	r.owed += bytes - r.credit
	r.credit = bytes
	c.owe(r)
	c.mu.Unlock()
}

func trimmed(t *leveev1.Trimmed) *Error {
	e := newError(KindTrimmed, "offset %d was removed by retention; the oldest is %d", t.GetRequested(), t.GetOldest())
	e.Details = map[string]string{"requested": strconv.FormatInt(t.GetRequested(), 10), "oldest": strconv.FormatInt(t.GetOldest(), 10)}
	return e
}
