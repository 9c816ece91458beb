package buffer

import (
	"bytes"
	"context"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// TestFrameBehindObject: a take-over begins a generation with a frame that is no record, behind those of the newest object in the
// segment that was made of that again, and the first record does not fit there. What readers get of objects goes on behind it.
func TestFrameBehindObject(t *testing.T) {
	for _, size := range []int{60_000, 70_000} { // the second is more than a segment
		t.Run(strconv.Itoa(size), func(t *testing.T) { bare{size: size, each: 4, sealAge: "1s"}.run(t) })
	}
}

// TestFrameInsideObject: that frame stands behind a record that fills the segment and has no copy yet. The object of both becomes
// one segment again, not two, and the next object begins behind that frame.
func TestFrameInsideObject(t *testing.T) {
	bare{size: 70_000, each: 1, sealAge: "1h", left: 1}.run(t)
}

// bare is what is published before each time that a broker's directory goes.
type bare struct {
	size, each int    // records, each for itself in a segment
	sealAge    string // until a segment is sealed that is not full
	left       int    // of all, those that have no copy when the directory goes
}

func (b bare) run(t *testing.T) {
	t.Helper()
	value := bytes.Repeat([]byte("x"), b.size)
	env := tiers(t)
	env["LEVEE_STORAGE_SEAL_AGE"] = b.sealAge
	r := begin(t, env)
	ctx, cancel := context.WithTimeout(t.Context(), proc.Patience)
	defer cancel()
	c := r.Place.Client(t)
	defer func() { _ = c.Close() }()
	const name = "default/large"
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: name, Settings: client.Settings{SegmentBytes: new(int64(64 << 10))}}); err != nil {
		t.Fatal(err)
	}
	n := 0
	send := func() {
		p, err := c.NewProducer(ctx, name, client.ProducerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for range b.each {
			if _, err := p.PublishSync(ctx, record.Record{Value: value}); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		r.Broker.Await("done with copying", func() bool {
			objects, err := filepath.Glob(filepath.Join(env["LEVEE_STORAGE_ROOT"], "levee", "main", "*", "0", "*.lvseg"))
			return err == nil && len(objects) == n-b.left && r.metric("levee_storage_metadata_lag_seconds") == 0
		})
	}
	send()
	for range 2 {
		r.replace()
		send()
	}
	r.replace()
	consumer, err := c.Consume(ctx, name, client.ConsumerConfig{From: client.Offset(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	for got := 0; got < n; {
		batch, err := consumer.NextBatch(ctx)
		if err != nil {
			t.Fatalf("after %d records of %d: %v", got, n, err)
		}
		got += len(batch)
	}
}
