package client

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// Delivery is a message that a subscription has handed out. It is held until Ack or Nack says what became of it, the
// subscription's ack timeout has passed without a heartbeat, or the Subscription is closed: then the broker hands it out
// again. Its methods may be called by any goroutine, and return at once but for AckDurable; only the first call settles.
// On non-reliable topics what is delivered is settled, and they do nothing.
type Delivery struct {
	Message
	// Deliveries is how often the record was handed out, this time included.
	Deliveries int

	outlet  *outlet
	session uint64 // the stream it came from; 0: what is delivered is settled
	number  uint64 // of its batch
	settled bool   // guarded by the subscription's mutex
}

// isOurs reports whether d, which was not handed out yet, is still this consumer's.
func (d *Delivery) isOurs() bool { return d.session == 0 || d.session == d.outlet.session.Load() }

// Ack says that the record was handled: it is not handed out again. It is sent together with others, see
// SubscriptionConfig.AckEvery.
func (d *Delivery) Ack() {
	s := d.outlet.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	d.ack()
}

// AckBatch is Ack for every delivery of a batch.
func AckBatch(batch []Delivery) {
	if len(batch) == 0 {
		return
	}
	s := batch[0].outlet.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		batch[i].ack()
	}
}

// AckDurable acknowledges the record and returns once that is durable: it will not be handed out again, whatever happens
// to the broker. Where the connection has broken since the record was handed out, the broker may have handed it out again
// before the acknowledgement came, but does not after that. Whoever waits at the same time shares one write to the broker's
// disk.
func (d *Delivery) AckDurable(ctx context.Context) error {
	d.Ack()
	return d.outlet.sub.await(ctx, "saving an acknowledgement", (*ackBox).save, d.outlet)
}

// Nack says that the record was not handled: it is handed out again, to anybody, until the subscription's limit of
// deliveries is reached, and then becomes a dead letter, or what else the subscription says. When depends on why: after
// the delay where why is or wraps Retry, else after the subscription's backoff. The text of why is kept with a dead
// letter; nil says nothing.
func (d *Delivery) Nack(why error) {
	s := d.outlet.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if !d.settle() {
		return
	}
	n := &leveev1.Nack{Range: &leveev1.Range{From: d.Offset, To: d.Offset}}
	var retry *retryError
	if errors.As(why, &retry) {
		n.DelayMs = new(max(int64(0), int64(math.Ceil(float64(retry.delay)/float64(time.Millisecond)))))
	}
	if why != nil {
		n.Reason = reason(why)
	}
	d.outlet.pend(d.outlet.box.nack(n))
}

// mostReason bounds what is kept of an error's text.
const mostReason = 1000

func reason(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), mostReason)], "")
}

// retryError is what Retry returns.
type retryError struct{ delay time.Duration }

// Error says when.
func (e *retryError) Error() string { return "to be tried again after " + e.delay.String() }

// Retry is an error for Nack, and for handlers of Run to return: the record is to be handed out again after that delay
// (0: at once) instead of after the subscription's backoff. Wrap it to give a reason.
func Retry(delay time.Duration) error { return &retryError{delay} }

// rejection is what Reject returns.
type rejection string

// Error returns the reason.
func (r rejection) Error() string { return string(r) }

// Reject is an error for Nack, and for handlers of Run to return, that says no more than why: the reason is kept with the
// dead letter that the record becomes once its deliveries are used up.
func Reject(reason string) error { return rejection(reason) }

// DeliverAt returns the header of a record that subscriptions of type shared and key_shared hand out at t at earliest, to
// the millisecond. Others, and readers of the topic, get it at once.
func DeliverAt(t time.Time) record.Header {
	return record.Header{Key: record.HeaderDeliverAt, Value: strconv.AppendInt(nil, t.UnixMilli(), 10)}
}

// DeliverAfter is DeliverAt for a time from now on.
func DeliverAfter(d time.Duration) record.Header { return DeliverAt(time.Now().Add(d)) }
