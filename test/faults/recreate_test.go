package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// orders are what happens to a topic that clients have open, one letter a step: delete, create, kill the broker and start
// it, stop it and start it, unload the topic, and "!" to kill it while the next step is under way.
var orders = []string{"dc", "dcdc", "kdc", "dkc", "dck", "sdc", "dsc", "dcs", "!dc", "d!c"}

// remake is one topic name on its way through an order.
type remake struct {
	*Campaign
	name    string
	mode    string
	old     *leveev1.Topic // whom the handles belong to
	batch   []byte         // an idempotent producer's first, as it was published to old
	handles []*handle
}

// handle is something that a client had open on the topic that was deleted. It ends by itself.
type handle struct {
	what string
	end  chan error // one value: why it ended
}

// TestDeleteAndMakeAgain has clients hold on to a topic that is deleted and made again under them, in every order of that
// and of crashes and stops, in every mode: whoever holds the old topic is told that it was deleted, and the new one begins
// empty: no record, no offset, no sequence of a producer, and no file of the old one is left.
func TestDeleteAndMakeAgain(t *testing.T) {
	c := Begin(t, Options{})
	n := 0
	for _, mode := range Modes {
		for _, order := range orders {
			if testing.Short() && c.Rng.IntN(6) > 0 {
				continue
			}
			for range Amount(1, 1, 10) {
				r := &remake{Campaign: c, name: mode + "-" + strings.ReplaceAll(order, "!", "x"), mode: mode}
				r.play(order)
				n++
			}
		}
	}
	c.Broker.Terminate()
	if code := c.Broker.Wait(); code != 0 {
		t.Errorf("the last stop ended with exit code %d", code)
	}
	t.Logf("%d topics deleted and made again, %d starts, %.1f seconds", n, c.Starts, time.Since(c.started).Seconds())
}

func (r *remake) play(order string) {
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	r.create(ctx)
	r.open(ctx)
	for i := 0; i < len(order); i++ {
		switch order[i] {
		case 'd':
			r.delete(ctx)
		case 'c':
			r.create(ctx)
		case 'k':
			r.Crash()
			r.Start()
		case 's':
			r.Place.Set("")
			r.Broker.Terminate()
			if code := r.Broker.Wait(); code != 0 {
				r.T.Errorf("a stop ended with exit code %d", code)
			}
			r.Start()
		case '!':
			i++
			r.cutOff(ctx, order[i])
		}
	}
	for _, h := range r.handles {
		select {
		case err := <-h.end:
			if client.KindOf(err) != client.KindDeleted {
				r.T.Errorf("%s: %s ended with %v, and not because the topic was deleted", order, h.what, err)
			}
		case <-ctx.Done():
			r.T.Fatalf("%s: %s was never told that the topic was deleted", order, h.what)
		}
	}
	r.examine(ctx, order)
	r.delete(ctx)
}

// cutOff begins a step, kills the broker at any moment of it, and does what is left of it afterwards.
func (r *remake) cutOff(ctx context.Context, step byte) {
	r.T.Helper()
	raw := r.Broker.Raw()
	done := make(chan error, 1)
	go func() {
		var err error
		if step == 'd' {
			_, err = raw.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: r.name})
		} else {
			_, err = raw.CreateTopic(ctx, r.request())
		}
		done <- err
	}()
	r.Within(3 * time.Millisecond)
	r.Crash()
	<-done // whatever it says
	r.Start()
	_, err := r.Broker.Raw().DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: r.name})
	switch there := err == nil; {
	case step == 'd' && there:
		r.delete(ctx)
	case step == 'c' && !there:
		r.create(ctx)
	}
}

func (r *remake) request() *leveev1.CreateTopicRequest {
	return &leveev1.CreateTopicRequest{Name: r.name, Settings: &leveev1.TopicSettings{Fsync: &r.mode, SegmentBytes: new(int64(64 << 10))}}
}

func (r *remake) create(ctx context.Context) {
	r.T.Helper()
	if _, err := r.Broker.Raw().CreateTopic(ctx, r.request()); err != nil {
		r.T.Fatal(err)
	}
}

func (r *remake) delete(ctx context.Context) {
	r.T.Helper()
	if _, err := r.Broker.Raw().DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: r.name}); err != nil {
		r.T.Fatal(err)
	}
}

// open has clients open what clients open, and publish.
func (r *remake) open(ctx context.Context) {
	r.T.Helper()
	raw := r.Broker.Raw()
	d, err := raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: r.name})
	if err != nil {
		r.T.Fatal(err)
	}
	r.old = d.GetTopic()
	r.batch = r.idempotent(ctx, raw)
	if ack := r.send(ctx, raw, r.batch); ack.GetError() != nil || ack.GetDuplicate() {
		r.T.Fatalf("the first publish: %v", ack)
	}
	r.handles = []*handle{r.produce(ctx, true), r.produce(ctx, false), r.consume(ctx)}
}

// idempotent returns the first batch of a new idempotent producer.
func (r *remake) idempotent(ctx context.Context, raw *proc.Raw) []byte {
	r.T.Helper()
	who, err := raw.InitProducer(ctx, &leveev1.InitProducerRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	p := record.ProducerInfo{ID: who.GetProducerId(), Epoch: int16(who.GetEpoch())}
	return proc.BatchOf(r.T, record.None, p, record.Record{Value: []byte("old")})
}

// send publishes one batch over a stream of its own.
func (r *remake) send(ctx context.Context, raw *proc.Raw, batch []byte) *leveev1.Ack {
	r.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := raw.Publish(ctx)
	if err == nil {
		err = st.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: r.name}})
	}
	if err == nil {
		err = st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: batch}}})
	}
	for err == nil {
		var res *leveev1.PublishResponse
		if res, err = st.Recv(); err == nil && len(res.GetAcks()) > 0 {
			return res.GetAcks()[0]
		}
	}
	r.T.Fatal(err)
	return nil
}

// produce publishes until it is told that there is no point in it.
func (r *remake) produce(ctx context.Context, idempotent bool) *handle {
	r.T.Helper()
	cl := r.Place.Client(r.T)
	p, err := cl.NewProducer(ctx, r.name, client.ProducerConfig{Idempotent: idempotent, MaxInFlight: 4})
	if err != nil {
		r.T.Fatal(err)
	}
	h := &handle{what: fmt.Sprintf("a producer (idempotent: %v)", idempotent), end: make(chan error, 1)}
	started := make(chan struct{})
	go func() {
		defer cl.Close()
		_, err := p.PublishSync(ctx, record.Record{Value: []byte("old")})
		close(started)
		for err == nil || client.KindOf(err) == client.KindOutcomeUnknown {
			_, err = p.PublishSync(ctx, record.Record{Value: bytes.Repeat([]byte("old"), 100)})
		}
		h.end <- err
	}()
	Await(r.T, started, "a first record")
	return h
}

// consume reads until it is told that there is no point in it.
func (r *remake) consume(ctx context.Context) *handle {
	r.T.Helper()
	cl := r.Place.Client(r.T)
	consumer, err := cl.Consume(ctx, r.name, client.ConsumerConfig{From: client.Offset(0)})
	if err != nil {
		r.T.Fatal(err)
	}
	h := &handle{what: "a consumer", end: make(chan error, 1)}
	go func() {
		defer cl.Close()
		defer consumer.Close()
		for {
			m, err := consumer.Next(ctx)
			if err == nil && !bytes.HasPrefix(m.Value, []byte("old")) {
				err = fmt.Errorf("it was handed %q of the new topic at offset %d", m.Value, m.Offset)
			}
			if err != nil {
				h.end <- err
				return
			}
		}
	}()
	return h
}

// examine looks at the topic as it is now.
func (r *remake) examine(ctx context.Context, order string) {
	r.T.Helper()
	raw := r.Broker.Raw()
	d, err := raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: r.name})
	if err != nil {
		r.T.Fatal(err)
	}
	now, part := d.GetTopic(), d.GetPartitions()[0]
	if now.GetIncarnation() <= r.old.GetIncarnation() || bytes.Equal(now.GetId(), r.old.GetId()) {
		r.T.Errorf("%s: the topic is incarnation %d and was %d", order, now.GetIncarnation(), r.old.GetIncarnation())
	}
	if part.GetFirst() != 0 || part.GetEnd() != 0 {
		r.T.Errorf("%s: the new topic has offsets %d to %d", order, part.GetFirst(), part.GetEnd())
	}
	if ack := r.send(ctx, raw, r.batch); ack.GetError() != nil || ack.GetDuplicate() || ack.GetOffset() != 0 {
		r.T.Errorf("%s: the first publish to the new topic: %v", order, ack)
	}
	again, err := raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: r.name})
	if err != nil || again.GetPartitions()[0].GetEnd() != 1 {
		r.T.Errorf("%s: after one record: %v, %v", order, again, err)
	}
	topics := filepath.Join(r.Dir, "topics", "default")
	r.Broker.Await("rid of the old topic", func() bool {
		dirs, err := filepath.Glob(filepath.Join(topics, r.name+"@*"))
		left, err2 := os.ReadDir(filepath.Join(r.Dir, ".deleted"))
		return err == nil && len(dirs) == 1 && (err2 != nil || len(left) == 0)
	})
}
