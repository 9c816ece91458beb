package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/servers"
)

// inBucket makes the broker copy its segments to an object store.
func (x *tiered) inBucket(env map[string]string) *tiered {
	delete(x.env, "LEVEE_STORAGE_ROOT")
	x.env["LEVEE_STORAGE_MODE"] = "object_store"
	x.env["LEVEE_STORAGE_COLD_CACHE_BYTES"] = "4MiB"
	for k, v := range env {
		x.env["LEVEE_OBJECT_STORE_"+k] = v
	}
	return x
}

func inS3(t *testing.T, b *servers.S3Server) *tiered {
	x := newTiered(t).inBucket(map[string]string{
		"KIND": "s3", "BUCKET": "bucket", "ENDPOINT": b.URL, "PATH_STYLE": "true", "ACCESS_KEY": servers.AccessKey, "SECRET_KEY": servers.SecretKey,
	})
	x.root = b.Data
	return x
}

// copied waits until all but a little of a topic's log has gone from it.
func (x *tiered) copied(topic string) {
	x.t.Helper()
	x.Await("the log to let go of what is copied", func() bool { return x.inLog(topic) < 200<<10 })
}

// A store that dies and comes back: while segments are copied publishing goes on and the log keeps what has no copy; while
// copies are read the reader goes on where it was; and a broker starts without it.
func TestS3ThatDiesAndComesBack(t *testing.T) {
	const n = 4000
	bucket := servers.StartS3(t, "bucket")
	x := inS3(t, bucket)
	x.start()
	x.create("history", client.Settings{})
	x.publish("history", 0, n)
	x.copied("history")
	x.complete("history", n)

	// It dies while copies are made.
	x.publish("history", n, n/2)
	x.Await("another copy", func() bool { return x.copiedBelow("history") > n })
	bucket.Kill()
	x.publish("history", n+n/2, n/2)
	if size := x.inLog("history"); size < n/2*200 {
		t.Errorf("the log has %d bytes of %d records that are nowhere else", size, n/2)
	}
	bucket.Start()
	x.copied("history")
	x.complete("history", 2*n)

	// It is away while the broker starts, which has nothing of the copies in memory.
	x.Kill()
	x.Wait()
	bucket.Kill()
	x.start()
	x.publish("history", 2*n, 10)
	x.waits("history", 0)
	bucket.Start()
	x.complete("history", 2*n+10)

	// It dies in the middle of a read, which goes on where it was.
	x.Terminate()
	x.Wait()
	x.start()
	r := x.reader("history", 0)
	if err := r.upTo(x.ctx, 100); err != nil {
		t.Fatal(err)
	}
	bucket.Kill()
	x.waits("history", 2*n-1000)
	bucket.Start()
	if err := r.upTo(x.ctx, 2*n+10); err != nil {
		t.Error(err)
	}
	r.Close()
	if err := x.client.Admin().DeleteTopic(x.ctx, "history"); err != nil {
		t.Fatal(err)
	}
	x.Await("the copies to be deleted", func() bool { return x.objects() == 0 })
}

// orderly is a consumer whose records must come one after the other.
type orderly struct {
	*client.Consumer
	t  *testing.T
	at int
}

func (x *tiered) reader(topic string, from int) *orderly {
	x.t.Helper()
	c, err := x.client.Consume(x.ctx, topic, client.ConsumerConfig{From: client.Offset(int64(from))})
	if err != nil {
		x.t.Fatal(err)
	}
	return &orderly{c, x.t, from}
}

// upTo reads until it has all below an offset, or more.
func (o *orderly) upTo(ctx context.Context, end int) error {
	o.t.Helper()
	for o.at < end {
		all, err := o.NextBatch(ctx)
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.Offset != int64(o.at) || string(m.Value) != fmt.Sprintf("%d %0200d", o.at, o.at) {
				o.t.Fatalf("offset %d where %d must come: %.20s", m.Offset, o.at, m.Value)
			}
			o.at++
		}
	}
	return nil
}

// waits fails the test unless a reader of what is in the store alone gets nothing while that is away.
func (x *tiered) waits(topic string, from int) {
	x.t.Helper()
	r := x.reader(topic, from)
	defer r.Close()
	ctx, cancel := context.WithTimeout(x.ctx, 2*time.Second)
	defer cancel()
	err := r.upTo(ctx, from+1)
	if kind := client.KindOf(err); r.at != from || kind != client.KindUnavailable && kind != client.KindTimeout {
		x.t.Errorf("what is in the store alone, while that is away: read up to %d (%s): %v", r.at, kind, err)
	}
}

// TestGCS and TestAzure: the same broker with the other kinds of stores.
func TestGCS(t *testing.T) {
	smoke(t, newTiered(t).inBucket(map[string]string{"KIND": "gcs", "BUCKET": "bucket", "ENDPOINT": servers.GCS(t, "bucket"), "ANONYMOUS": "true"}))
}

func TestAzure(t *testing.T) {
	url := servers.Azure(t)
	servers.Container(t, url, "container")
	smoke(t, newTiered(t).inBucket(map[string]string{
		"KIND": "azure", "BUCKET": "container", "ENDPOINT": url, "ACCOUNT": servers.AzureAccount, "SECRET_KEY": servers.AzureKey,
	}))
}

func smoke(t *testing.T, x *tiered) {
	const n = 2000
	x.start()
	x.create("history", client.Settings{})
	x.publish("history", 0, n)
	x.copied("history")
	x.complete("history", n)
	x.Kill()
	x.Wait()
	x.start()
	x.complete("history", n)
	if err := x.client.Admin().DeleteTopic(x.ctx, "history"); err != nil {
		t.Fatal(err)
	}
}

// A record that comes alone, and a trickle, are copied within the age at which segments are sealed.
func TestRecordsAreCopiedInTime(t *testing.T) {
	x := newTiered(t)
	x.env["LEVEE_STORAGE_MODE"] = "local"
	x.env["LEVEE_STORAGE_SEAL_AGE"] = "2s"
	x.env["LEVEE_STORAGE_SEGMENT_BYTES"] = "64MiB"
	x.start()
	x.create("quiet", client.Settings{})
	x.publish("quiet", 0, 1)
	published := time.Now()
	x.Await("the only record to be copied", func() bool { return x.copiedBelow("quiet") == 1 })
	alone := time.Since(published)

	// 10 kB a second for a while: no record waits for longer, though more come all the time.
	at := []time.Time{published}
	var worst time.Duration
	p, err := x.client.NewProducer(x.ctx, "quiet", client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for len(at) < 300 {
		<-tick.C
		if copied := x.copiedBelow("quiet"); copied < int64(len(at)) {
			worst = max(worst, time.Since(at[copied]))
		}
		for range 5 {
			i := len(at)
			p.Publish(x.ctx, record.Record{Value: fmt.Appendf(nil, "%d %0200d", i, i)}, func(_ client.Ack, err error) {
				if err != nil {
					t.Error(err)
				}
			})
			at = append(at, time.Now())
		}
		if err := p.Flush(x.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(x.ctx); err != nil {
		t.Fatal(err)
	}
	x.Await("all to be copied", func() bool { return x.copiedBelow("quiet") == int64(len(at)) })
	if last := time.Since(at[len(at)-1]); last > worst {
		worst = last
	}
	t.Logf("copied %s after it came, alone; at most %s in a trickle", alone.Round(time.Millisecond), worst.Round(time.Millisecond))
	if most := 2*time.Second + copyMargin; alone > most || worst > most {
		t.Errorf("copied after %s alone, %s in a trickle; at most %s is promised", alone, worst, most)
	}
	x.complete("quiet", len(at))
}

// copyMargin is what looking, copying and a busy machine may add.
const copyMargin = 10 * time.Second

// copiedBelow returns the offset below which a topic has copies.
func (x *tiered) copiedBelow(topic string) int64 {
	x.t.Helper()
	d, err := x.client.Admin().DescribeTopic(x.ctx, topic)
	if err != nil {
		x.t.Fatal(err)
	}
	return d.PartitionStates[0].CopiedBelow
}
