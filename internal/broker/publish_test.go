package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func pack(t testing.TB, p record.ProducerInfo, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestManyPublishersAndASubscriberMidway checks the whole path: 64 publishers, each knowing where its records went; a
// subscriber that joins while they publish is told every offset once, in order, with the value that was acknowledged for
// it; and a late reader of the log is told the same.
func TestManyPublishersAndASubscriberMidway(t *testing.T) {
	r := newRig(t)
	r.create("a")
	const publishers, batches, perBatch = 64, 30, 3
	const total = publishers * batches * perBatch
	acked := make([]string, total)
	halfway := make(chan struct{})
	var sent atomic.Int64
	var wg sync.WaitGroup
	for n := range publishers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := r.OpenPublisher(context.Background(), "a", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			for i := range batches {
				list := make([]string, perBatch)
				for k := range list {
					list[k] = fmt.Sprintf("%d.%d.%d", n, i, k)
				}
				done := make(chan PublishResult, 1)
				if err := p.Submit(context.Background(), 0, pack(t, record.NoProducer, list...), func(r PublishResult) { done <- r }); err != nil {
					t.Error(err)
					return
				}
				res := <-done
				if res.Err != nil || res.LastOffset-res.Offset != perBatch-1 {
					t.Errorf("%+v", res)
					return
				}
				for k := range list {
					acked[res.Offset+int64(k)] = list[k] // two batches at one offset are a race, too
				}
				if sent.Add(1) == publishers*batches/2 {
					close(halfway)
				}
			}
		}()
	}
	<-halfway
	live := r.subscribe("a", 0, Earliest())
	var got []string
	for len(got) < total {
		if e := next(t, live); e.Kind == EventData {
			got = append(got, values(t, e, int64(len(got)))...)
		}
	}
	wg.Wait()
	for i, v := range got {
		if want := fmt.Sprintf("%d=%s", i, acked[i]); v != want {
			t.Fatalf("record %d was delivered as %s, acknowledged as %s", i, v, want)
		}
	}
	wantHistory(t, r.history("a", 0), strings.Join(got, " "))
}

func TestUnknownTopicsAndPartitions(t *testing.T) {
	r := newRig(t)
	r.create("a")
	ctx := context.Background()
	one := []record.Record{{Value: []byte("x")}}
	_, _, err := r.Publish(ctx, "nope", 0, one)
	wantKind(t, err, fault.NotFound, "default/nope", "levee topic create default/nope")
	_, _, err = r.Publish(ctx, "a", 1, one)
	wantKind(t, err, fault.NotFound, "default/a", "partition 1", "levee topic describe")
	_, _, err = r.Publish(ctx, "a", -2, one)
	wantKind(t, err, fault.NotFound, "partition -2")
	_, err = r.Subscribe(ctx, SubscribeSpec{Topic: "a", Partition: 7})
	wantKind(t, err, fault.NotFound, "partition 7")
	_, err = r.OpenPublisher(ctx, "a", []byte{1, 2})
	wantKind(t, err, fault.InvalidArgument)
}

var hostileNames = []string{
	"", "/", "a/", "/a", "a/b/c", ".", "..", "default/..", "../default", "..\\x", "a b", "a@1", "a\x00", "a\n", "ünicode", "a*", "%2e%2e",
	strings.Repeat("n", 201), "x/" + strings.Repeat("n", 201), "default/.", "\xff\xfe",
}

func TestHostileNames(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	for _, name := range hostileNames {
		_, err := r.CreateTopic(ctx, TopicSpec{Name: name})
		wantKind(t, err, fault.InvalidArgument)
		_, err = r.OpenPublisher(ctx, name, nil)
		wantKind(t, err, fault.InvalidArgument)
		_, err = r.Subscribe(ctx, SubscribeSpec{Topic: name})
		wantKind(t, err, fault.InvalidArgument)
		_, err = r.Topic(name)
		wantKind(t, err, fault.InvalidArgument)
		if err := r.DeleteTopic(ctx, name); fault.KindOf(err) != fault.InvalidArgument {
			t.Fatalf("delete %q: %v", name, err)
		}
		if !strings.Contains(name, "/") {
			wantKind(t, r.CreateNamespace(ctx, name), fault.InvalidArgument)
		}
	}
	longest := strings.Repeat("n", 200)
	if err := r.CreateNamespace(ctx, longest); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{longest + "/" + longest, "default/...", "default/-", "default/CON", "A", "a"} {
		r.create(name)
		r.publish(name, 0, name)
	}
	r.halt()
	r.start()
	wantHistory(t, r.history("A", 0), "0=A")
	wantHistory(t, r.history("a", 0), "0=a")
	if p := r.Problems(); len(p) > 0 {
		t.Fatalf("%q", p)
	}
}

func TestRecordsOfEveryShape(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.RecordBytes, c.Limits.BatchBytes = 64<<10, 100<<10 })
	r.create("a")
	ctx := context.Background()
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	sent := []record.Record{
		{}, {Key: []byte{}, Value: []byte{}}, {Key: binary, Value: binary}, {Value: make([]byte, 60<<10)},
		{Key: []byte("k"), Headers: []record.Header{{Key: "h", Value: binary}, {Key: "", Value: nil}, {Key: "h", Value: []byte{}}}},
		{Value: []byte("x"), Timestamp: -1},
	}
	for i := range sent {
		if _, res, err := r.Publish(ctx, "a", 0, sent[i:i+1]); err != nil || res.Offset != int64(i) {
			t.Fatalf("record %d: %+v, %v", i, res, err)
		}
	}
	s := r.subscribe("a", 0, Earliest())
	var got []record.Record
	for e := next(t, s); e.Kind == EventData; e = next(t, s) {
		for data := e.Batches; len(data) > 0; {
			one, rest, err := record.Next(data)
			if err != nil {
				t.Fatal(err)
			}
			list, err := record.Records(one)
			if err != nil {
				t.Fatal(err)
			}
			got, data = append(got, list...), rest
		}
	}
	for i := range sent {
		g, w := got[i], sent[i]
		if !bytes.Equal(g.Key, w.Key) || (g.Key == nil) != (w.Key == nil) || !bytes.Equal(g.Value, w.Value) || (g.Value == nil) != (w.Value == nil) ||
			len(g.Headers) != len(w.Headers) || w.Timestamp == -1 && g.Timestamp != -1 || w.Timestamp == 0 && g.Timestamp <= 0 {
			t.Fatalf("record %d came back as %+v", i, g)
		}
	}
	_, _, err := r.Publish(ctx, "a", 0, []record.Record{{Value: make([]byte, 65<<10)}})
	wantKind(t, err, fault.TooLarge, "default/a", "nothing was written")
	if d := fault.DetailsOf(err); d["limit_record_bytes"] != fmt.Sprint(64<<10) {
		t.Fatalf("%v", d)
	}
	_, err = r.PublishBatch(ctx, "a", 0, pack(t, record.NoProducer, strings.Repeat("x", 60<<10), strings.Repeat("x", 60<<10)))
	wantKind(t, err, fault.TooLarge)
	_, _, err = r.Publish(ctx, "a", 0, nil)
	wantKind(t, err, fault.InvalidArgument)
	good := pack(t, record.NoProducer, "x")
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		if _, err := r.PublishBatch(ctx, "a", 0, bad); err == nil && i >= 8 && (i < 12 || i > 15) {
			t.Fatalf("a batch with byte %d changed was taken", i)
		}
	}
	_, err = r.PublishBatch(ctx, "a", 0, nil)
	wantKind(t, err, fault.InvalidArgument)
}

func TestIdempotentProducer(t *testing.T) {
	r := newRig(t)
	r.create("a")
	ctx := context.Background()
	id, epoch, err := r.InitProducer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := func(seq int32, values ...string) (PublishResult, error) {
		return r.PublishBatch(ctx, "a", 0, pack(t, record.ProducerInfo{ID: id, Epoch: epoch, Sequence: seq}, values...))
	}
	first, err := send(0, "a", "b")
	if err != nil || first.Duplicate {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := send(0, "a", "b"); err != nil || !again.Duplicate || again.Offset != first.Offset {
		t.Fatalf("%+v, %v", again, err)
	}
	_, err = send(3, "d")
	wantKind(t, err, fault.SequenceGap, "default/a")
	wantHistory(t, r.history("a", 0), "0=a 1=b")
}

func TestProducerIDsAreNeverGivenOutTwice(t *testing.T) {
	r := newRig(t)
	seen := map[int64]bool{}
	for range 3 {
		ids := make(chan int64)
		for range 4 {
			go func() {
				for range producerBlock / 3 {
					id, _, err := r.InitProducer(context.Background())
					if err != nil {
						t.Error(err)
					}
					ids <- id
				}
			}()
		}
		for range 4 * (producerBlock / 3) {
			id := <-ids
			if seen[id] {
				t.Fatalf("%d was given out twice", id)
			}
			seen[id] = true
		}
		r.halt()
		r.start()
	}
}

// TestBytesInFlightAreBounded holds the flush back, so that nothing is answered, and publishes more than the broker may
// hold.
func TestBytesInFlightAreBounded(t *testing.T) {
	const limit = 40 << 10
	r := newRig(t, func(c *Config) {
		c.Limits.RecordBytes, c.Limits.BatchBytes, c.Limits.InFlightBytes = 16<<10, 16<<10, limit
	})
	r.create("a")
	r.publish("a", 0, "first")
	hold := make(chan struct{})
	r.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			<-hold
		}
		return nil
	})
	p, err := r.OpenPublisher(context.Background(), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	batch := pack(t, record.NoProducer, strings.Repeat("x", 10<<10))
	results := make(chan PublishResult, 100)
	for range limit / len(batch) {
		if err := p.Submit(context.Background(), 0, batch, func(r PublishResult) { results <- r }); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.metric("levee_broker_in_flight_bytes"); got != float64(limit/len(batch)*len(batch)) {
		t.Fatalf("%v bytes in flight", got)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	gaveUp := make(chan error)
	go func() { gaveUp <- p.Submit(ctx, 0, batch, func(PublishResult) { t.Error("answered") }) }()
	cancel(errors.New("the caller is gone"))
	if err := <-gaveUp; err == nil || !strings.Contains(err.Error(), "default/a") {
		t.Fatalf("got %v", err)
	}
	waited := make(chan error)
	go func() { waited <- p.Submit(context.Background(), 0, batch, func(r PublishResult) { results <- r }) }()
	close(hold)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	for range limit/len(batch) + 1 {
		if res := <-results; res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	if got := r.metric("levee_broker_in_flight_bytes"); got != 0 {
		t.Fatalf("%v bytes in flight after all were answered", got)
	}
}

func TestFullDiskRefusesAndRecovers(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	r.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite {
			return vfs.ErrNoSpace
		}
		return nil
	})
	_, _, err := r.Publish(context.Background(), "a", 0, []record.Record{{Value: []byte("two")}})
	wantKind(t, err, fault.NoSpace, "default/a")
	r.fs.SetHook(nil)
	r.publish("a", 0, "three")
	wantHistory(t, r.history("a", 0), "0=one 1=three")
}

func TestRouting(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 4})
	ctx := context.Background()
	keyed := func(keys ...string) []record.Record {
		var list []record.Record
		for _, k := range keys {
			list = append(list, record.Record{Key: []byte(k)})
		}
		return list
	}
	first, _, err := r.Publish(ctx, "a", -1, keyed("k", "k"))
	if err != nil || first != record.PartitionOf([]byte("k"), 4) {
		t.Fatalf("%d, %v", first, err)
	}
	if again, _, err := r.Publish(ctx, "a", -1, keyed("k")); err != nil || again != first {
		t.Fatalf("%d, then %d, %v", first, again, err)
	}
	_, _, err = r.Publish(ctx, "a", -1, keyed("k", "l"))
	wantKind(t, err, fault.InvalidArgument, "default/a", "different keys")
	seen := map[int32]int{}
	for range 8 {
		p, _, err := r.Publish(ctx, "a", -1, []record.Record{{Value: []byte("x")}})
		if err != nil {
			t.Fatal(err)
		}
		seen[p]++
	}
	if len(seen) != 4 || seen[0] != 2 {
		t.Fatalf("records without a key went to %v", seen)
	}
}

func TestPublishThatGivesUpSaysItDoesNotKnow(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	hold, entered := r.hold(func(op vfs.Op) bool { return op.Kind == vfs.OpSync })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	_, _, err := r.Publish(ctx, "a", 0, []record.Record{{Value: []byte("two")}})
	wantKind(t, err, fault.OutcomeUnknown, "default/a/0")
	close(hold)
}
