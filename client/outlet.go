package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// delivered is what an outlet has for the caller.
type delivered struct {
	kind     deliveredKind
	batch    []byte                // one batch, its checksum verified
	offsets  []*leveev1.Range      // which of it are handed out, and maybe others
	counts   []*leveev1.Deliveries // of those handed out before
	wanted   int64                 // how many records of it are handed out
	session  uint64                // the stream it came from; 0: what is delivered is settled
	number   uint64                // counts what came from the partition
	from, to int64                 // deliveredLost, deliveredSkipped: the offsets, both included
	active   bool
	err      error
}

type deliveredKind uint8

const (
	deliveredBatch deliveredKind = iota
	deliveredActive
	deliveredLost
	deliveredSkipped
	deliveredError
)

type consumption = grpc.BidiStreamingClient[leveev1.ConsumeRequest, leveev1.ConsumeResponse]

// outlet consumes one partition: it keeps a stream open, queues what comes, and sends what became of it.
type outlet struct {
	sub       *Subscription
	partition int32
	opened    chan struct{} // closed when the first opening has succeeded or failed for good
	wake      chan struct{} // holds one: there may be something to send
	isOpen    bool          // opened is closed; of run's goroutine

	// session counts streams; even while there is none. What came from another one the broker hands out again. It changes
	// under sub.mu.
	session atomic.Uint64

	// Guarded by sub.mu. For what held, owed and credit mean, see credit.go.
	events   []delivered
	number   uint64 // of the newest batch
	kind     SubscriptionType
	reliable bool
	beat     time.Duration // how often to send a heartbeat; 0: never
	credit   int64
	held     int64
	owed     int64
	leases   leases
	active   bool // what OnActive was told last
	told     bool // it was told
	box      ackBox
	last     error // why the stream broke, or could not be opened
	refusal  error // why the first opening failed for good
}

// leases is what a consumer holds of a partition.
type leases struct {
	unsettled int64 // records that came on the present stream and are not settled
	below     int64 // everything below it is acknowledged, of batches up to belowAt
	belowAt   uint64
}

func newOutlet(s *Subscription, partition int32) *outlet {
	return &outlet{
		sub: s, partition: partition, opened: make(chan struct{}), wake: make(chan struct{}, 1), box: newAckBox(),
	}
}

// run keeps the partition's stream open until the subscription ends or the partition cannot be consumed any more.
func (o *outlet) run() {
	s := o.sub
	defer o.markOpened()
	for attempt := 0; ; attempt++ {
		received, err := o.stream()
		if received {
			attempt = 0
		}
		e := streamError(err)
		// Another consumer has what this one had: to go on would be to take it away again, in turns.
		final := !e.Retriable || e.Kind == KindFenced || e.Kind == KindConflict
		if s.ctx.Err() != nil {
			e, final = errSubscriptionClosed, true
		}
		s.mu.Lock()
		o.last = e
		done := s.closed && o.box.empty()
		switch {
		case final:
			o.box.fail(e)
			if !o.isOpen {
				o.refusal = e
			}
			o.push(delivered{kind: deliveredError, err: e})
		case done:
			o.box.fail(errSubscriptionClosed)
		}
		s.mu.Unlock()
		if final || done {
			return
		}
		s.client.logger.Warn("subscription lost its broker", "topic", s.topic, "subscription", s.name, "partition", o.partition, "error", e)
		if !sleep(s.ctx, backoff(attempt)) {
			return
		}
	}
}

func (o *outlet) markOpened() {
	if !o.isOpen {
		o.isOpen = true
		close(o.opened)
	}
}

// stream opens a stream, queues what it delivers and sends what is to be sent until it ends, which always has a reason.
// It says whether anything came.
func (o *outlet) stream() (received bool, err error) {
	s := o.sub
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	timer := time.AfterFunc(openTimeout, cancel)
	rpc, first, err := o.open(ctx)
	if !timer.Stop() && s.ctx.Err() == nil {
		e := newError(KindUnavailable, "the broker did not open the partition within %v", openTimeout)
		e.Retriable = true
		return false, e
	}
	if err != nil {
		return false, err
	}
	o.begin(first)
	defer o.broken()
	o.markOpened()

	ended := make(chan struct{})
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	defer close(ended)
	if !s.client.spawn(&sending, func() { o.send(rpc, ended, cancel) }) {
		return false, errClientClosed
	}
	for {
		resp, err := rpc.Recv()
		if err != nil {
			return received, err
		}
		received = true
		if err := o.take(resp); err != nil {
			return received, err
		}
	}
}

// open opens a stream. Its first message carries every acknowledgement that the broker may not know: what was handed out
// before counts before anything is handed out again.
func (o *outlet) open(ctx context.Context) (consumption, *leveev1.Consuming, error) {
	s := o.sub
	rpc, err := s.client.stream.Consume(ctx)
	if err != nil {
		return nil, nil, err
	}
	c := &s.config
	open := &leveev1.OpenConsume{
		Topic: s.topic, Partition: o.partition, Subscription: s.name, Type: string(c.Type), Create: c.Create, Name: c.Name,
		Priority: c.Priority, KeyFilters: c.KeyFilters, WindowMessages: c.WindowMessages, WindowBytes: c.WindowBytes, MaxBytes: c.MaxBytes,
	}
	c.From.intoConsume(open)
	req := &leveev1.ConsumeRequest{Open: open}
	s.mu.Lock()
	open.TopicId, open.Epoch = s.topicID, o.box.epoch
	if grant := o.credit - o.held; grant > 0 {
		req.Credit = &leveev1.Credit{Bytes: grant}
	}
	o.owed = 0
	o.box.again(req, time.Now())
	s.mu.Unlock()
	if err := rpc.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err // on EOF the reason comes with Recv
	}
	first, err := rpc.Recv()
	if err != nil {
		return nil, nil, err
	}
	if err := ending(first); err != nil {
		return nil, nil, err
	}
	if first.GetConsuming() == nil {
		return nil, nil, newError(KindInternal, "the broker's first message does not say that the partition is open")
	}
	return rpc, first.GetConsuming(), nil
}

// ending returns why the broker says that the stream ends, or nil.
func ending(resp *leveev1.ConsumeResponse) error {
	if t := resp.GetTrimmed(); t != nil {
		return trimmed(t)
	}
	if e := resp.GetEnded(); e != nil {
		return fromMessage(e)
	}
	return nil
}

// begin takes what the broker says of a stream that has opened.
func (o *outlet) begin(c *leveev1.Consuming) {
	s := o.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topicID == nil {
		s.topicID, s.partitions = slices.Clone(c.GetTopicId()), c.GetPartitions()
	}
	if e := c.GetEpoch(); e != o.box.epoch {
		if o.box.epoch != 0 {
			o.box.sent.clear() // of before a seek: it counts no more, and must not count for what is handed out again
		}
		o.box.epoch = e
	}
	o.session.Add(1)
	o.leases.unsettled, o.box.early = 0, 0
	o.kind, o.reliable = SubscriptionType(c.GetType()), c.GetReliable()
	switch timeout := time.Duration(c.GetAckTimeoutMs()) * time.Millisecond; {
	case s.config.HeartbeatEvery < 0 || !o.reliable:
		o.beat = 0
	case s.config.HeartbeatEvery > 0:
		o.beat = s.config.HeartbeatEvery
	case timeout > 0:
		o.beat = max(timeout/3, time.Millisecond)
	default:
		o.beat = defaultHeartbeat
	}
	o.tellActive(c.GetActive())
}

// defaultHeartbeat is for subscriptions without an ack timeout: they may be given one at any time.
const defaultHeartbeat = 10 * time.Second

// broken forgets what came on a stream that has ended and was not handed out: the broker hands it out again.
func (o *outlet) broken() {
	s := o.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	o.session.Add(1)
	o.box.broken()
	if o.told {
		o.tellActive(false)
	}
	if !o.reliable {
		return // it was given for good
	}
	o.leases.unsettled = 0
	waiting := len(o.events) > 0
	o.events = slices.DeleteFunc(o.events, func(ev delivered) bool {
		if ev.kind == deliveredBatch {
			o.held -= int64(len(ev.batch))
		}
		return ev.kind == deliveredBatch
	})
	if waiting && len(o.events) == 0 {
		s.ready = slices.DeleteFunc(s.ready, func(r *outlet) bool { return r == o })
	}
}

// tellActive queues whether this consumer is the active one. sub.mu is held.
func (o *outlet) tellActive(active bool) {
	if o.kind != Failover || o.told && o.active == active {
		return
	}
	o.told, o.active = true, active
	o.push(delivered{kind: deliveredActive, active: active})
}

// take queues what one message says. An error ends the stream.
func (o *outlet) take(resp *leveev1.ConsumeResponse) error {
	s := o.sub
	var batches []delivered
	if d := resp.GetDelivered(); d != nil {
		var err error
		if batches, err = split(d); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := resp.GetDelivered(); d != nil {
		o.handOut(d, batches)
	}
	if resp.GetActive() || resp.GetStandby() {
		o.tellActive(resp.GetActive())
	}
	if l := resp.GetLost(); l != nil {
		o.push(delivered{kind: deliveredLost, from: l.GetFrom(), to: l.GetTo()})
	}
	if l := resp.GetSkipped(); l != nil {
		o.push(delivered{kind: deliveredSkipped, from: l.GetFrom(), to: l.GetTo()})
	}
	if id := resp.GetSaved(); id != 0 {
		var err error
		if e := resp.GetSaveFailed(); e != nil {
			err = fromMessage(e)
		}
		o.box.saved(id, err)
		o.poke() // there may be room for another
	}
	return ending(resp)
}

// handOut queues batches. sub.mu is held.
func (o *outlet) handOut(d *leveev1.Delivered, batches []delivered) {
	for _, r := range d.GetOffsets() {
		if o.reliable {
			o.leases.unsettled += r.GetTo() - r.GetFrom() + 1
			o.box.handedOut(r.GetFrom(), r.GetTo())
		}
	}
	for _, b := range batches {
		o.number++
		b.number = o.number
		if o.reliable {
			b.session = o.session.Load()
		}
		o.push(b)
	}
}

// split checks the batches of a message and sorts out which of the offsets each of them may hold.
func split(d *leveev1.Delivered) ([]delivered, error) {
	var batches []delivered
	offsets, counts := d.GetOffsets(), d.GetCounts()
	missing := int64(0)
	for _, r := range offsets {
		missing += r.GetTo() - r.GetFrom() + 1
	}
	for rest := d.GetBatches(); len(rest) > 0; {
		batch, more, err := record.Next(rest)
		var info record.BatchInfo
		if err == nil {
			info, err = record.Check(batch)
		}
		if err != nil {
			e := fromRecord(err, "received")
			e.Kind = KindCorrupt
			return nil, e
		}
		rest = more
		for len(offsets) > 0 && offsets[0].GetTo() < info.BaseOffset {
			offsets = offsets[1:]
		}
		for len(counts) > 0 && counts[0].GetTo() < info.BaseOffset {
			counts = counts[1:]
		}
		wanted := int64(0)
		for _, r := range offsets {
			if r.GetFrom() > info.LastOffset() {
				break
			}
			wanted += min(r.GetTo(), info.LastOffset()) - max(r.GetFrom(), info.BaseOffset) + 1
		}
		missing -= wanted
		// All the rest of offsets goes along: decoding looks no further than the batch goes.
		batches = append(batches, delivered{kind: deliveredBatch, batch: batch, offsets: offsets, counts: counts, wanted: wanted})
	}
	if missing != 0 {
		return nil, newError(KindInternal, "the broker handed out %d offsets that it did not send", missing)
	}
	return batches, nil
}

// push queues ev for the caller. It never waits: credit bounds what comes. sub.mu is held.
func (o *outlet) push(ev delivered) {
	s := o.sub
	o.held += int64(len(ev.batch))
	o.events = append(o.events, ev)
	if len(o.events) == 1 {
		s.ready = append(s.ready, o)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// decode returns the deliveries of a batch: none where none of its records is handed out.
func (o *outlet) decode(ev delivered) ([]Delivery, error) {
	if ev.wanted <= 0 {
		return nil, nil
	}
	offsets, counts := ev.offsets, ev.counts
	// The count is checked against the bytes before Each calls back; until then it sizes nothing large.
	deliveries := make([]Delivery, 0, min(ev.wanted, 1024))
	err := record.Each(ev.batch, func(rec record.Record) error {
		for len(offsets) > 0 && offsets[0].GetTo() < rec.Offset {
			offsets = offsets[1:]
		}
		if len(offsets) == 0 || rec.Offset < offsets[0].GetFrom() {
			return nil
		}
		for len(counts) > 0 && counts[0].GetTo() < rec.Offset {
			counts = counts[1:]
		}
		n := 1
		if len(counts) > 0 && rec.Offset >= counts[0].GetFrom() {
			n = int(counts[0].GetCount())
		}
		deliveries = append(deliveries, Delivery{
			Message:    Message{Record: rec, Topic: o.sub.topic, Partition: o.partition},
			Deliveries: n, outlet: o, session: ev.session, number: ev.number,
		})
		return nil
	})
	if err != nil {
		return nil, fromRecord(err, "received")
	}
	if int64(len(deliveries)) < ev.wanted {
		return nil, newError(KindInternal, "partition %d: %d offsets were handed out of a batch that has %d of them",
			o.partition, ev.wanted, len(deliveries))
	}
	return deliveries, nil
}

// setCredit lowers or raises the credit to its share; the broker has been given none before. sub.mu is held.
func (o *outlet) setCredit(bytes int64) {
	o.owed += bytes - o.credit
	o.credit = bytes
	o.poke()
}

// creditDue reports whether there is a portion of credit to return. sub.mu is held.
func (o *outlet) creditDue() bool { return o.owed >= max(o.credit/4, 1) }

// poke makes the sender look.
func (o *outlet) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
