package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// tiered is a broker that copies its segments to a directory.
type tiered struct {
	t         *testing.T
	dir, root string
	env       map[string]string
	*rig
}

func newTiered(t *testing.T) *tiered {
	t.Helper()
	dir := proc.Dir(t)
	x := &tiered{t: t, dir: filepath.Join(dir, "data"), root: filepath.Join(dir, "objects")}
	x.env = map[string]string{
		"LEVEE_STORAGE_MODE": "shared_fs", "LEVEE_STORAGE_ROOT": x.root, "LEVEE_STORAGE_SEAL_AGE": "1s", "LEVEE_STORAGE_RETENTION_CHECK": "100ms",
		"LEVEE_STORAGE_SEGMENT_BYTES": "64KiB", "LEVEE_STORAGE_RETENTION_BYTES": "100KiB",
	}
	return x
}

// start starts the broker, on what is there.
func (x *tiered) start() {
	x.t.Helper()
	b := proc.Start(x.t, x.dir, proc.Options{Env: x.env})
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	x.t.Cleanup(cancel)
	x.rig = &rig{Broker: b, t: x.t, client: b.Dial(), raw: b.Raw(), ctx: ctx}
}

func (x *tiered) publish(topic string, from, n int) {
	x.t.Helper()
	p, err := x.client.NewProducer(x.ctx, topic, client.ProducerConfig{})
	if err != nil {
		x.t.Fatal(err)
	}
	for i := from; i < from+n; i++ {
		p.Publish(x.ctx, record.Record{Value: fmt.Appendf(nil, "%d %0200d", i, i)}, func(_ client.Ack, err error) {
			if err != nil {
				x.t.Error(err)
			}
		})
	}
	if err := p.Close(x.ctx); err != nil {
		x.t.Fatal(err)
	}
}

// complete fails the test unless a topic has exactly n records, each in its place.
func (x *tiered) complete(topic string, n int) {
	x.t.Helper()
	got := x.records(topic)
	if len(got) != n {
		x.t.Fatalf("%d records of %d", len(got), n)
	}
	for i, m := range got {
		if m.Offset != int64(i) || string(m.Value) != fmt.Sprintf("%d %0200d", i, i) {
			x.t.Fatalf("record %d is %d: %.20s", i, m.Offset, m.Value)
		}
	}
}

// inLog returns how many bytes a topic's log has.
func (x *tiered) inLog(topic string) int64 {
	x.t.Helper()
	d, err := x.client.Admin().DescribeTopic(x.ctx, topic)
	if err != nil {
		x.t.Fatal(err)
	}
	return d.PartitionStates[0].Bytes
}

// objects returns how many segments the directory has.
func (x *tiered) objects() (n int) {
	x.t.Helper()
	err := filepath.WalkDir(x.root, func(_ string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // its last object was deleted meanwhile
		case err == nil && strings.HasSuffix(e.Name(), ".lvseg"):
			n++
		}
		return err
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

// What the log has let go of is read from its copy, after a crash, too; without the directory a broker says that it cannot
// serve the topic; and deleting the topic deletes the copies.
func TestHistoryOutlivesTheLog(t *testing.T) {
	x := newTiered(t)
	if err := os.Mkdir(x.root, 0o755); err != nil {
		t.Fatal(err)
	}
	const n = 4000
	x.start()
	x.create("history", client.Settings{})
	x.publish("history", 0, n)
	x.Await("the log to let go of what is copied", func() bool { return x.inLog("history") < 200<<10 })
	if text := x.levee(nil, "topic", "describe", "history").Stdout; !strings.Contains(text, "BYTES IN THE LOG ALONE") || !strings.Contains(text, "retention runs: nothing") {
		t.Errorf("described as:\n%s", text)
	}
	if first, end := x.bounds("history"); first != 0 || end != n {
		t.Errorf("offsets %d to %d", first, end)
	}
	x.complete("history", n)

	x.Kill()
	x.Wait()
	x.start()
	x.complete("history", n)
	x.publish("history", n, 10)
	x.Await("the last records to be copied for their age", func() bool { return x.copiedBelow("history") == n+10 })
	x.complete("history", n+10)
	sub, err := x.client.Subscribe(x.ctx, "history", "from-the-beginning", client.SubscriptionConfig{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(n + 10) {
		m, err := sub.Next(x.ctx)
		if err != nil || m.Offset != i {
			t.Fatalf("%v, %v", m, err)
		}
		m.Ack()
	}
	if err := sub.Close(x.ctx); err != nil {
		t.Fatal(err)
	}

	x.Terminate()
	x.Wait()
	with := x.env
	x.env = map[string]string{}
	b := proc.Launch(t, x.dir, proc.Options{})
	b.Listening()
	c := b.Dial()
	_, err = c.Consume(x.ctx, "history", client.ConsumerConfig{From: client.Earliest()})
	if client.KindOf(err) != client.KindUnsupported || !strings.Contains(err.Error(), "storage.mode") {
		t.Errorf("without the directory: %v", err)
	}
	b.Terminate()
	b.Wait()

	x.env = with
	x.start()
	x.complete("history", n+10)
	if err := x.client.Admin().DeleteTopic(x.ctx, "history"); err != nil {
		t.Fatal(err)
	}
	x.Await("the copies to be deleted", func() bool { return x.objects() == 0 })
}

// A directory that is not there holds up nothing and costs nothing: the log keeps all, and copies are made once it is.
func TestStoreThatIsAway(t *testing.T) {
	x := newTiered(t)
	const n = 2000
	if err := os.Mkdir(x.root, 0o755); err != nil { // a first start has to ask the directory whether there is a copy of the metadata
		t.Fatal(err)
	}
	x.start()
	x.create("kept", client.Settings{})
	x.Terminate()
	x.Wait()
	if err := os.Rename(x.root, x.root+"-away"); err != nil {
		t.Fatal(err)
	}
	x.start()
	x.publish("kept", 0, n)
	x.complete("kept", n)
	failures := func() bool {
		return strings.Contains(string(x.http("GET", "/metrics", "", nil).body), `levee_storage_export_failures_total{kind="unavailable"}`)
	}
	x.Await("an export to fail", failures)
	d, err := x.client.Admin().DescribeTopic(x.ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if p := d.PartitionStates[0]; !p.Copied || p.CopiedBelow != 0 || p.ExposedBytes != p.Bytes {
		t.Errorf("while nothing can be copied: %+v", p)
	}
	if size := x.inLog("kept"); size < n*200 {
		t.Errorf("the log has %d bytes of %d records that are nowhere else", size, n)
	}
	if err := os.Rename(x.root+"-away", x.root); err != nil {
		t.Fatal(err)
	}
	x.Await("the log to let go of what is copied", func() bool { return x.inLog("kept") < 200<<10 })
	x.complete("kept", n)
}
