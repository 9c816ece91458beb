package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// slowness is how long one of the slow consumers of -slow takes for a message.
const slowness = 10 * time.Millisecond

// tally is what the consumers of one subscription have in common.
type tally struct {
	ctx  context.Context // ends when there are enough
	done context.CancelFunc
	want int64
	got  atomic.Int64 // acknowledged by consumers that are not slow
}

// add counts n messages and reports whether more are wanted.
func (t *tally) add(n int) bool {
	if t.got.Add(int64(n)) < t.want {
		return true
	}
	t.done()
	return false
}

// subscribed consumes -stream with -conc consumers of a new subscription, from the beginning, and acknowledges each
// message. It is over when what consumers that are not slow have acknowledged is as many as wanted, and saved.
func (d *leveeD) subscribed(kind client.SubscriptionType, acks string, want int64) (int64, time.Duration) {
	name := fmt.Sprintf("bench%d", time.Now().UnixNano())
	must2(d.conn.Admin().CreateSubscription(d.ctx, client.SubscriptionSpec{Topic: *stream, Name: name, Type: kind, From: client.Earliest()}))
	ctx, cancel := context.WithTimeout(d.ctx, 60*time.Second)
	defer cancel()
	t := &tally{want: want}
	t.ctx, t.done = context.WithCancel(ctx)
	defer t.done()

	var wg sync.WaitGroup
	flushed, settled := flushesAndAcks()
	start := time.Now()
	for i := range *conc {
		wg.Go(func() {
			switch {
			case i < *slow:
				consumeSlowly(ctx, name, t)
			case acks == "own":
				consumeOneByOne(ctx, name, t)
			default:
				consumeSubscription(ctx, name, acks == "each", t)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	flushedAfter, settledAfter := flushesAndAcks()
	flushes, ackMessages = flushedAfter-flushed, settledAfter-settled
	must(d.conn.Admin().DeleteSubscription(d.ctx, *stream, name))
	return t.got.Load(), took
}

func must2[T any](v T, err error) T {
	must(err)
	return v
}

// consumeSubscription acknowledges with the client's own batches; each: message by message, and the client sends what
// waits whenever it can.
func consumeSubscription(ctx context.Context, name string, each bool, t *tally) {
	c := leveeConn()
	defer c.Close()
	config := client.SubscriptionConfig{}
	if each {
		config.AckEvery = 1
	}
	sub := must2(c.Subscribe(ctx, *stream, name, config))
	for {
		batch, err := sub.NextBatch(t.ctx)
		if err != nil && t.ctx.Err() != nil {
			break
		}
		must(err)
		if each {
			for i := range batch {
				batch[i].Ack()
			}
		} else {
			client.AckBatch(batch)
		}
		if !t.add(len(batch)) {
			break
		}
	}
	must(sub.Save(ctx))
	must(sub.Close(ctx))
}

// consumeSlowly is a consumer like any other but for the time it takes. What it handles is not counted.
func consumeSlowly(ctx context.Context, name string, t *tally) {
	c := leveeConn()
	defer c.Close()
	sub := must2(c.Subscribe(ctx, *stream, name, client.SubscriptionConfig{}))
	for t.ctx.Err() == nil { // Next looks at it only where it has to wait
		m, err := sub.Next(t.ctx)
		if err != nil && t.ctx.Err() != nil {
			break
		}
		must(err)
		time.Sleep(slowness)
		m.Ack()
	}
	must(sub.Close(ctx))
}

// consumeOneByOne acknowledges each message with a message of its own on the stream, which the client library would not
// do: it sends together what waits.
func consumeOneByOne(ctx context.Context, name string, t *tally) {
	conn := must2(grpc.NewClient(*addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<20),
		grpc.WithInitialConnWindowSize(4<<20), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Codec{}), grpc.MaxCallRecvMsgSize(80<<20))))
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rpc := must2(leveev1.NewStreamClient(conn).Consume(ctx))
	const credit = 4 << 20
	must(rpc.Send(&leveev1.ConsumeRequest{Open: &leveev1.OpenConsume{Topic: *stream, Subscription: name}, Credit: &leveev1.Credit{Bytes: credit}}))
	deliveries := make(chan *leveev1.Delivered, 1024) // credit bounds them
	saved := make(chan error, 1)
	go func() {
		defer close(deliveries)
		for {
			resp, err := rpc.Recv()
			switch {
			case err != nil && ctx.Err() != nil:
				return
			case err != nil:
				must(err)
			case resp.GetSaved() != 0:
				saved <- nil
			case resp.GetDelivered() != nil:
				deliveries <- resp.GetDelivered()
			}
		}
	}()
	ack := &leveev1.Range{}
	one := &leveev1.ConsumeRequest{Acks: []*leveev1.Range{ack}}
	owed := int64(0)
	for more := true; more; {
		select {
		case d := <-deliveries:
			n := acknowledge(d, func(offset int64) {
				ack.From, ack.To = offset, offset
				must(rpc.Send(one))
			})
			if owed += int64(len(d.GetBatches())); owed >= credit/4 {
				must(rpc.Send(&leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: owed}}))
				owed = 0
			}
			more = t.add(n)
		case <-t.ctx.Done():
			more = false
		}
	}
	must(rpc.Send(&leveev1.ConsumeRequest{Save: 1}))
	select {
	case err := <-saved:
		must(err)
	case <-ctx.Done():
		must(ctx.Err())
	}
}

// acknowledge decodes every record of a delivery, as the client does, and calls ack for those that are handed out.
func acknowledge(d *leveev1.Delivered, ack func(offset int64)) (n int) {
	offsets := d.GetOffsets()
	for rest := d.GetBatches(); len(rest) > 0; {
		batch, more, err := record.Next(rest)
		must(err)
		_, err = record.Check(batch)
		must(err)
		must(record.Each(batch, func(r record.Record) error {
			for len(offsets) > 0 && offsets[0].GetTo() < r.Offset {
				offsets = offsets[1:]
			}
			if len(offsets) > 0 && r.Offset >= offsets[0].GetFrom() {
				ack(r.Offset)
				n++
			}
			return nil
		}))
		rest = more
	}
	return n
}

// Of the last run of a subscription, where -metrics says where to look.
var flushes, ackMessages int64

// flushesAndAcks returns how often the broker has flushed a log to the device, and how many messages with
// acknowledgements it has taken.
func flushesAndAcks() (flushes, acks int64) {
	if *metrics == "" {
		return 0, 0
	}
	const flushed, acked = "levee_storage_sync_duration_seconds_count", `levee_subscription_settlements_total{kind="ack"}`
	values := scrape(flushed, acked)
	return int64(values[flushed]), int64(values[acked])
}
