package tiers

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// destroy kills the broker, and takes its data directory away as a node does that goes with its disk.
func (r *rig) destroy() {
	r.T.Helper()
	r.kill()
	must(r.T, os.RemoveAll(r.Dir))
}

// leave ends everybody who works with the broker: nothing of what they know is there any more.
func (r *rig) leave() {
	r.T.Helper()
	for _, f := range r.readers {
		f.stop()
	}
	r.Pause()
	for _, l := range r.Loads {
		l.CrashMortals()
	}
}

// levee runs the command line against the broker.
func (r *rig) levee(args ...string) proc.Result {
	r.T.Helper()
	return proc.Run(r.T, nil, append([]string{"--addr", r.Broker.GRPC}, args...)...)
}

// TestEverythingLost destroys the broker with its disk where records are nowhere else, or are there no more: all is lost, and
// the broker that comes instead says so and does not act as if it knew of anything.
func TestEverythingLost(t *testing.T) {
	for _, s := range some(only(setups, func(s setup) bool { return s.store == nil })) {
		for n := range cycles() {
			t.Run(fmt.Sprintf("%s, cycle %d", s.name, n), func(t *testing.T) { loseEverything(t, s) })
		}
	}
}

func loseEverything(t *testing.T, s setup) {
	r := newRig(t, s, true)
	r.enough()
	topic := r.Loads[0].Topic
	if text := r.levee("topic", "describe", topic).Stdout; s.buffer == nil && !strings.Contains(text, "the data directory on it, is lost: everything in the topic") {
		t.Errorf("before the loss, described as:\n%s", text)
	}
	c := r.Place.Client(t)
	defer c.Close()
	old, err := c.NewProducer(t.Context(), topic, client.ProducerConfig{})
	must(t, err)
	r.destroy()
	if r.valkey != nil {
		r.valkey.lose()
	}
	r.leave()
	r.start()
	r.lostAll(topic)
	r.again(topic, old)
	r.Broker.Terminate()
	r.Broker.Wait()
}

// lostAll checks that a broker that knows of nothing says so.
func (r *rig) lostAll(topic string) {
	r.T.Helper()
	if text := r.Broker.Printed(); !strings.Contains(text, "the data directory is new") || !strings.Contains(text, "topics=0") {
		r.T.Errorf("a broker that begins with nothing says:\n%s", text)
	}
	if res := r.levee("topic", "ls", "--output", "json"); res.Code != 0 || res.Stdout != "" {
		r.T.Errorf("topics of a broker that begins with nothing: %+v", res)
	}
	if res := r.levee("topic", "describe", topic); res.Code != 1 || !strings.Contains(res.Stderr, topic) {
		r.T.Errorf("description of a topic that is lost: %+v", res)
	}
	r.on(func(ctx context.Context, _ *client.Admin) {
		c := r.Place.Client(r.T)
		defer c.Close()
		_, err := c.Consume(ctx, topic, client.ConsumerConfig{From: client.Offset(0)})
		if client.KindOf(err) != client.KindNotFound {
			r.T.Errorf("reading a topic that is lost: %v", err)
		}
	})
}

// again makes the topic once more, which has nothing of the one before; nor does it take what is sent to that.
func (r *rig) again(topic string, old *client.Producer) {
	r.T.Helper()
	r.on(func(ctx context.Context, admin *client.Admin) {
		_, err := admin.CreateTopic(ctx, client.TopicSpec{Name: topic})
		must(r.T, err)
		d, err := admin.DescribeTopic(ctx, topic)
		must(r.T, err)
		if p := d.PartitionStates[0]; p.First != 0 || p.End != 0 {
			r.T.Errorf("a topic that was made after everything was lost has offsets %d to %d", p.First, p.End)
		}
		ack, err := old.PublishSync(ctx, record.Record{Value: []byte("for the topic that is lost")})
		// Where it had come back before the topic was made again, it was told that there is none.
		if kind := client.KindOf(err); kind != client.KindDeleted && kind != client.KindNotFound {
			r.T.Errorf("a producer of the topic that is lost, at its successor: %+v, %v", ack, err)
		}
		d, err = admin.DescribeTopic(ctx, topic)
		must(r.T, err)
		if end := d.PartitionStates[0].End; end != 0 {
			r.T.Errorf("the topic that was made after everything was lost has records up to %d of before", end)
		}
	})
}
