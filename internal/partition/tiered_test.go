package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/record"
)

// runTiered is world.run for a partition whose segments are exported to store. Its segments are small.
func (w *world) runTiered(store objstore.Store, retention seglog.Retention, fn func(p *Partition)) {
	w.t.Helper()
	tasks := task.NewGroup(context.Background())
	cold, err := tier.NewCold(context.Background(), store, tier.ColdConfig{CacheBytes: 1 << 20, StretchBytes: 4 << 10})
	if err != nil {
		w.t.Fatal(err)
	}
	exporter, err := tier.NewExporter(context.Background(), store, tier.ExporterConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := w.config(tasks, seglog.CleanStop)
	cfg.Tier = &Tier{Cold: cold, Exporter: exporter, Prefix: "levee", Cluster: "test", SealAge: time.Hour}
	t := &Topic{Name: w.topic.Name, Full: w.topic.Name.String(), ID: w.topic.ID, Incarnation: w.topic.Incarnation}
	p := New(cfg, t, 0, Settings{Mode: seglog.OnCommit, ModeChosen: w.chosen, SegmentBytes: 8 << 10, Retention: retention})
	defer func() {
		w.t.Helper()
		if err := errors.Join(exporter.Stop(), p.Close(context.Background(), errors.New("the test is over")), cold.Close(), tasks.Wait()); err != nil {
			w.t.Error(err)
		}
	}()
	fn(p)
}

// exportAll has everything that is sealed exported, and waits for that.
func exportAll(t *testing.T, w *world, p *Partition) int64 {
	t.Helper()
	for {
		changed := w.meta.Changed()
		if err := p.Export(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, more := p.log.Load().SealedAt(p.copied()); !more {
			return p.copied()
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("exported up to %d only", p.copied())
		}
	}
}

// readOn reads n records from an offset on, however they come, each in its place.
func readOn(t *testing.T, p *Partition, from int64, n int, value func(offset int64) string) error {
	r, err := p.NewReader(t.Context(), from)
	if err != nil {
		return err
	}
	for at := from; at < from+int64(n); {
		c, err := r.Next(t.Context(), 1+rand.IntN(6<<10), 1+rand.IntN(50))
		if err != nil {
			return err
		}
		if c.Data == nil && c.Next == c.End {
			return fmt.Errorf("caught up at %d", c.Next)
		}
		for rest := c.Data; len(rest) > 0; {
			var b []byte
			if b, rest, err = record.Next(rest); err != nil {
				return err
			}
			if err := record.Each(b, func(rec record.Record) error {
				switch {
				case rec.Offset < at && at == from:
					return nil // batches are never cut
				case rec.Offset != at:
					return fmt.Errorf("offset %d after %d", rec.Offset, at-1)
				case string(rec.Value) != value(at):
					return fmt.Errorf("offset %d is %q", at, rec.Value)
				}
				at++
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func numbered(offset int64) string {
	return fmt.Sprintf("%d %s", offset, strings.Repeat("x", int(offset%300)))
}

// What retention has taken from the log is read from objects, from any offset on, also while segments are on their way; and
// by who comes after a restart, or has a new disk.
func TestReadsChainObjectsAndLog(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	store := objstore.NewMem()
	total := int64(2000)
	if testing.Short() {
		total = 500
	}
	next := int64(0)
	add := func(p *Partition, n int) {
		for range n {
			mustAppend(t, p, numbered(next), numbered(next+1))
			next += 2
		}
	}
	w.runTiered(store, seglog.Retention{Bytes: 20 << 10}, func(p *Partition) {
		readers := make(chan error, 4)
		add(p, 50)
		for range cap(readers) {
			go func() {
				for range 50 {
					b, ok := p.Bounds()
					if !ok {
						continue
					}
					from := rand.Int64N(b.End)
					if err := readOn(t, p, from, int(b.End-from), numbered); err != nil {
						readers <- fmt.Errorf("from %d: %w", from, err)
						return
					}
				}
				readers <- nil
			}()
		}
		for next < total {
			add(p, 1+rand.IntN(20))
			if err := p.Export(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Retain(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range cap(readers) {
			if err := <-readers; err != nil {
				t.Error(err)
			}
		}
		exportAll(t, w, p)
		if _, err := p.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first := p.log.Load().Bounds().First; first == 0 || p.copied() < first {
			t.Fatalf("the log begins at %d, and what is below %d is exported", first, p.copied())
		}
		if b, _ := p.Bounds(); b.First != 0 {
			t.Errorf("the oldest offset is %d", b.First)
		}
		if offset, err := p.OffsetForTime(t.Context(), 1000); err != nil || offset != 0 {
			t.Errorf("the first record of that time is %d, %v", offset, err)
		}
	})
	w.runTiered(store, seglog.Retention{Bytes: 20 << 10}, func(p *Partition) {
		if err := readOn(t, p, 0, int(total), numbered); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	})
}

// refusingStore takes nothing while it is on.
type refusingStore struct {
	objstore.Store
	on    atomic.Bool
	tried chan struct{} // one slot
}

func (s *refusingStore) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if s.on.Load() {
		select {
		case s.tried <- struct{}{}:
		default:
		}
		return objstore.Info{}, fmt.Errorf("%w: the test refuses", objstore.ErrUnavailable)
	}
	return s.Store.PutIfAbsent(ctx, key, src)
}

// While the store takes nothing, nothing is removed, appends go on, and what waited is exported afterwards.
func TestRetentionWaitsForTheExport(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	store := objstore.NewMem()
	refusing := &refusingStore{Store: store, tried: make(chan struct{}, 1)}
	refusing.on.Store(true)
	w.runTiered(refusing, seglog.Retention{Bytes: 1}, func(p *Partition) {
		for i := range int64(300) {
			mustAppend(t, p, numbered(i))
		}
		if err := p.Export(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-refusing.tried
		if _, err := p.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b := p.log.Load().Bounds(); b.First != 0 || p.copied() != 0 {
			t.Fatalf("the log begins at %d, and what is below %d is exported", b.First, p.copied())
		}
		refusing.on.Store(false)
		exportAll(t, w, p)
		if _, err := p.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b := p.log.Load().Bounds(); b.Segments != 1 {
			t.Errorf("%d segments stay", b.Segments)
		}
		if err := readOn(t, p, 0, 300, numbered); err != nil {
			t.Error(err)
		}
	})
}

// A gap that retention tore before there was an export is told as trimmed, with what is the oldest behind it.
func TestGapsAreTold(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	store := objstore.NewMem()
	var gap int64
	w.runTiered(store, seglog.Retention{}, func(p *Partition) {
		for i := range int64(200) {
			mustAppend(t, p, numbered(i))
		}
		gap = exportAll(t, w, p)
	})
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		if err := p.Ready(t.Context()); fault.KindOf(err) != fault.Unsupported {
			t.Errorf("without the object store it opens: %v", err)
		}
	})
	log, _, err := seglog.Open(seglog.Config{FS: w.fs, Dir: dir, SalvageDir: "/data/salvage", Topic: w.topic.Name.String(), TopicID: w.topic.ID, SegmentBytes: 8 << 10, Retention: seglog.Retention{Bytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(200) {
		if _, err := log.Append(t.Context(), batch(t, numbered(200+i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Retain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	w.runTiered(store, seglog.Retention{Bytes: 1}, func(p *Partition) {
		for i := range int64(200) {
			mustAppend(t, p, numbered(400+i))
		}
		oldest := p.log.Load().Bounds().First
		exportAll(t, w, p)
		if _, err := p.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		var trimmed *seglog.TrimmedError
		if err := readOn(t, p, 0, 600, numbered); !errors.As(err, &trimmed) || trimmed.Requested != gap || trimmed.Oldest != oldest {
			t.Errorf("%v; exported up to %d, and again from %d on", err, gap, oldest)
		}
		if err := readOn(t, p, oldest, int(600-oldest), numbered); err != nil {
			t.Error(err)
		}
	})
}

// Who lost the partition exports nothing any more; and nothing of a topic that is gone.
func TestExportIsFenced(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	w.runTiered(store, seglog.Retention{}, func(p *Partition) {
		for i := range int64(300) {
			mustAppend(t, p, numbered(i))
		}
		x := (*exporting)(p)
		s, err := x.Next(t.Context())
		if err != nil || s == nil || s.Base != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		o, err := tier.Upload(t.Context(), store, x.Place(), *s)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
		for range 2 {
			if err := x.Commit(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		stale := meta.ExportObject{Name: w.topic.Name, ID: w.topic.ID, Generation: 7, Frontier: o.Next, Object: meta.ExportedObject{
			Base: o.Next, Next: o.Next + 1, BaseSeq: 1, NextSeq: 2, Generation: 1, SegmentBytes: 1, Size: 1}}
		if _, err := w.meta.Propose(t.Context(), stale); fault.KindOf(err) != fault.Fenced {
			t.Errorf("%v", err)
		}
		if _, err := w.meta.Propose(t.Context(), meta.DeleteTopic{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
			t.Fatal(err)
		}
		if err := x.Commit(t.Context(), o); fault.KindOf(err) != fault.Deleted {
			t.Errorf("%v", err)
		}
		if p.exported() != nil {
			t.Error("the metadata still has it")
		}
	})
}
