package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
)

// expiring is a partition whose objects have a retention, and what it is made of.
type expiring struct {
	*Partition
	w    *world
	cfg  *Config
	stop func() error // as a process that ends
}

// newExpiring opens one; now tells ages.
func (w *world) newExpiring(store objstore.Store, local seglog.Retention, objects tier.Retention, now func() time.Time) *expiring {
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
	remover := tier.NewRemover(context.Background(), store, nil, nil)
	cfg := w.config(tasks, seglog.CleanStop)
	cfg.Log.Now = now
	cfg.Tier = &Tier{Store: store, Cold: cold, Exporter: exporter, Remover: remover, Prefix: "levee", Cluster: "test", SealAge: time.Hour}
	t := &Topic{Name: w.topic.Name, Full: w.topic.Name.String(), ID: w.topic.ID, Incarnation: w.topic.Incarnation}
	p := New(cfg, t, 0, Settings{Mode: seglog.OnCommit, ModeChosen: true, SegmentBytes: 8 << 10, Retention: local, Objects: objects})
	return &expiring{Partition: p, w: w, cfg: cfg, stop: func() error {
		return errors.Join(exporter.Stop(), remover.Stop(), p.Close(context.Background(), errors.New("the test is over")), cold.Close(), tasks.Wait())
	}}
}

// fill appends records until n objects are exported.
func (p *expiring) fill(from int64, n int) int64 {
	for {
		for range 20 {
			mustAppend(p.w.t, p.Partition, numbered(from))
			from++
		}
		exportAll(p.w.t, p.w, p.Partition)
		if e := p.exported(); e != nil && len(e.Objects) >= n {
			return from
		}
	}
}

// settled waits until the Remover has nothing left, or dead is closed, and says whether it has nothing left.
func (p *expiring) settled(dead <-chan struct{}) bool {
	p.w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	full := tier.NewRemover(context.Background(), p.cfg.Tier.Store, nil, nil).Room()
	for p.cfg.Tier.Remover.Room() < full {
		select {
		case <-tick.C:
		case <-dead:
			return false
		case <-deadline:
			p.w.t.Fatal("what expired is not removed")
		}
	}
	return true
}

// What is forgotten and what is folded stays in the store until the copy of the metadata there does not name it any more.
func TestDeletionsWaitForTheMetadata(t *testing.T) {
	for _, folded := range []bool{false, true} { // what expires is looked up elsewhere then
		w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
		now := time.UnixMilli(1_700_000_000_000)
		p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{Age: time.Hour}, func() time.Time { return now })
		var gone atomic.Bool
		asked := make(chan uint64, 1)
		p.cfg.Tier.MetadataCopied = func(ctx context.Context, index uint64) error {
			if !gone.Load() {
				return nil
			}
			asked <- index
			<-ctx.Done() // as long as the partition is there
			return context.Cause(ctx)
		}
		end := p.fill(0, 30)
		p.quiet() // nothing is merged
		if folded {
			fold := func() { // it does not wait
				if err := (*exporting)(p.Partition).foldOf(t.Context(), p.exported(), 8); err != nil {
					t.Fatal(err)
				}
			}
			fold()
			gone.Store(true)
			there := len(listed(t, store))
			fold()
			if index := <-asked; index != w.meta.View().Index() || len(listed(t, store)) != there+1 {
				t.Errorf("folded: change %d, %d objects of %d are there", index, len(listed(t, store)), there)
			}
			p.settled(nil)
			gone.Store(false)
		}
		now = now.Add(2 * time.Hour)
		p.fill(end, 1)
		p.quiet()
		gone.Store(true)
		there := len(listed(t, store))
		if _, err := p.Maintain(t.Context()); err != nil { // nor does it
			t.Fatal(err)
		}
		if index := <-asked; index != w.meta.View().Index() {
			t.Errorf("expired: change %d", index)
		}
		p.settled(nil)
		if known := len(p.exported().Objects); known > 2 || len(listed(t, store)) != there {
			t.Errorf("expired: %d objects are known, %d of %d are there", known, len(listed(t, store)), there)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
}

func listed(t *testing.T, store objstore.Store) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for info, err := range store.List(t.Context(), "levee/", "") {
		if err != nil {
			t.Fatal(err)
		}
		all[info.Key] = true
	}
	return all
}

// Objects go by their own retention, by bytes and by age, never the newest; the log's retention takes none with it, and
// theirs none of the log. Who asks for what is gone is told what is the oldest.
func TestObjectsExpire(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	now := time.UnixMilli(1_700_000_000_000)
	p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{Age: time.Hour}, func() time.Time { return now })
	end := p.fill(0, 4)
	maintain := func() {
		t.Helper()
		if _, err := p.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.settled(nil)
	}
	maintain()
	before := p.exported().Objects
	if first := p.log.Load().Bounds().First; first != p.copied() || len(listed(t, store)) != len(before) {
		t.Fatalf("the log begins at %d, %d objects of %d are left", first, len(listed(t, store)), len(before))
	}
	now = now.Add(30 * time.Minute)
	end = p.fill(end, len(before)+2)
	r, err := p.NewReader(t.Context(), 0) // it stands in an object that is about to go
	if err != nil {
		t.Fatal(err)
	}
	if c, err := r.Next(t.Context(), 1, 1); err != nil || c.First != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	now = now.Add(31 * time.Minute)
	maintain()
	after := p.exported().Objects
	if oldest := before[len(before)-1].Next; after[0].Base != oldest || len(listed(t, store)) != len(after) {
		t.Fatalf("%d objects from offset %d on are known, %d are there; expected the first at %d", len(after), after[0].Base, len(listed(t, store)), oldest)
	}
	oldest := after[0].Base
	var trimmed *seglog.TrimmedError
	if err := readOn(t, p.Partition, 0, 1, numbered); !errors.As(err, &trimmed) || trimmed.Requested != 0 || trimmed.Oldest != oldest {
		t.Errorf("%v; expected trimmed, the oldest %d", err, oldest)
	}
	for err = nil; err == nil; { // what it has in memory it may still give
		_, err = r.Next(t.Context(), 1<<20, 1<<20)
		if r.offset >= oldest {
			t.Fatal("read on through a gap")
		}
	}
	if !errors.As(err, &trimmed) || trimmed.Oldest != oldest {
		t.Errorf("a reader on its way: %v", err)
	}
	if b, _ := p.Bounds(); b.First != oldest {
		t.Errorf("the oldest offset is %d", b.First)
	}
	if err := readOn(t, p.Partition, oldest, int(end-oldest), numbered); err != nil {
		t.Error(err)
	}
	now = now.Add(1000 * time.Hour)
	maintain() // it has the rest sealed, too
	newest := exportAll(t, w, p.Partition)
	now = now.Add(1000 * time.Hour)
	maintain()
	if e := p.exported(); len(e.Objects) != 1 || e.Frontier() != newest || newest != end || len(listed(t, store)) != 1 {
		t.Errorf("%d objects are left, up to %d of %d", len(e.Objects), e.Frontier(), end)
	}
	maintain() // nothing more to do
	if err := p.stop(); err != nil {
		t.Error(err)
	}

	// With a limit of bytes, and a log that keeps everything: only objects go.
	w, store = newWorld(t, seglog.OnCommit), objstore.NewMem()
	p = w.newExpiring(store, seglog.Retention{}, tier.Retention{Bytes: 25 << 10}, nil)
	end = p.fill(0, 6)
	maintain()
	total := int64(0)
	for _, o := range p.exported().Objects {
		total += o.Size
	}
	if n := len(p.exported().Objects); total > 25<<10 || total < 15<<10 || len(listed(t, store)) != n {
		t.Errorf("%d objects of %d bytes are left", n, total)
	}
	if b, _ := p.Bounds(); b.First != 0 {
		t.Errorf("the log begins at %d", b.First)
	}
	if err := readOn(t, p.Partition, 0, int(end), numbered); err != nil {
		t.Error(err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// dying lets so many operations be done, and nothing from then on, as if the process had died. What the last one came to,
// done or not, its caller does not learn.
type dying struct {
	halfway bool // the last one is done
	dead    chan struct{}

	mu   sync.Mutex
	left int
}

var errDead = errors.New("the process is dead")

func (d *dying) do(op func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		return errDead
	}
	d.left--
	if d.left > 0 || d.halfway {
		if err := op(); err != nil {
			return err
		}
	}
	if d.left == 0 {
		close(d.dead)
		return errDead
	}
	return nil
}

type dyingStore struct {
	objstore.Store
	d *dying
}

func (s *dyingStore) Delete(ctx context.Context, key string) error {
	return s.d.do(func() error { return s.Store.Delete(ctx, key) })
}

type dyingMeta struct {
	*meta.Memory
	d *dying
}

func (m *dyingMeta) Propose(ctx context.Context, c meta.Command) (r meta.Result, err error) {
	err = m.d.do(func() (err error) { r, err = m.Memory.Propose(ctx, c); return err })
	return r, err
}

// Wherever a run dies between forgetting objects and deleting them: what is known is there, whole; what is not known is
// found by a scrub; and the next run goes on as if nothing had happened.
func TestExpiryCrashesAnywhere(t *testing.T) {
	for _, halfway := range []bool{false, true} {
		for at := 1; ; at++ {
			w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
			p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{}, nil)
			end := p.fill(0, 5)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			d := &dying{left: at, halfway: halfway, dead: make(chan struct{})}
			w.store = &dyingMeta{w.meta, d}
			p = w.newExpiring(&dyingStore{store, d}, seglog.Retention{Bytes: 1}, tier.Retention{Bytes: 20 << 10}, nil)
			name := fmt.Sprintf("death at operation %d, done: %v", at, halfway)
			if err := (*exporting)(p.Partition).expire(t.Context()); err != nil && !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			survived := p.settled(d.dead)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-d.dead:
				survived = false
			default:
			}
			w.store = nil
			checkExpired(t, w, store, name)

			p = w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{Bytes: 20 << 10}, nil)
			if err := p.Ready(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := p.Maintain(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p.settled(nil)
			b, _ := p.Bounds()
			if b.First == 0 || b.End != end {
				t.Fatalf("%s: offsets %d to %d", name, b.First, b.End)
			}
			if err := readOn(t, p.Partition, b.First, int(b.End-b.First), numbered); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			checkExpired(t, w, store, name)
			if survived {
				break
			}
		}
	}
}

// checkExpired: every object that the metadata knows is whole, and a scrub leaves no other.
func checkExpired(t *testing.T, w *world, store objstore.Store, name string) {
	t.Helper()
	known := func(p tier.Partition) tier.Known {
		k := tier.Known{State: tier.Live}
		e := w.meta.View().Export(w.topic.ID, p.Number)
		for _, o := range e.Objects {
			k.Objects = append(k.Objects, tier.Object(o))
		}
		k.Frontier = e.Frontier()
		return k
	}
	report, err := tier.Scrub(t.Context(), store, "levee", "test", known, tier.ScrubOptions{
		Full: true, Remove: true, Grace: time.Nanosecond, Now: func() time.Time { return time.Now().Add(time.Hour) },
		Expect: []tier.Partition{{TopicID: w.topic.ID}},
	})
	if err != nil || report.Missing.Count != 0 || report.Damaged.Count != 0 || report.Orphans.Count != report.Removed {
		t.Fatalf("%s: %+v, %v", name, report, err)
	}
	if n := len(listed(t, store)); n != len(known(tier.Partition{}).Objects) {
		t.Fatalf("%s: %d objects after a scrub, %d are known", name, n, len(known(tier.Partition{}).Objects))
	}
}

// What nobody would delete is not forgotten, and nothing is of a topic that is gone.
func TestExpiryNeedsWhoDeletes(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{Bytes: 1}, nil)
	p.fill(0, 3)
	p.cfg.Tier.Remover = nil
	if err := (*exporting)(p.Partition).expire(t.Context()); err != nil || len(p.exported().Objects) < 3 {
		t.Errorf("without anybody to delete them objects are forgotten: %v", err)
	}
	if _, err := w.meta.Propose(t.Context(), meta.DeleteTopic{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
		t.Fatal(err)
	}
	p.cfg.Tier.Remover = tier.NewRemover(context.Background(), store, nil, nil)
	if err := (*exporting)(p.Partition).expire(t.Context()); err != nil && fault.KindOf(err) != fault.Deleted {
		t.Errorf("of a topic that is gone: %v", err)
	}
	if err := errors.Join(p.cfg.Tier.Remover.Stop(), p.stop()); err != nil {
		t.Error(err)
	}
}
