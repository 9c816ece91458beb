package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

// shore is what outlives a broker: its disk, the metadata, and the object store.
type shore struct {
	fs      *vfs.Mem
	meta    *meta.Memory
	objects *objstore.Mem
	buffer  *writebuf.Mem // nil: there is none
	taken   bool          // another broker has taken over

	mu       sync.Mutex
	commands []meta.Command // guarded by mu; that made meta what it is
}

func newShore() *shore {
	return &shore{fs: vfs.NewMem(), meta: meta.NewMemory(), objects: objstore.NewMem()}
}

// crash returns an independent copy of what is found after a crash now. What the metadata and the object store have
// answered is durable.
func (s *shore) crash(choice vfs.Chooser) (*shore, error) {
	c := newShore()
	c.taken = s.taken
	s.mu.Lock() // what took effect may have been acted on before it is noted, so nothing does meanwhile
	if s.buffer != nil {
		var err error
		if c.buffer, err = copyBuffer(s.buffer); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	c.fs = s.fs.Crash(choice)
	c.commands = append(c.commands, s.commands...)
	s.mu.Unlock()
	for _, command := range c.commands {
		if _, err := c.meta.Propose(context.Background(), command); err != nil {
			return nil, err
		}
	}
	for info, err := range s.objects.List(context.Background(), "", "") {
		if err != nil {
			return nil, err
		}
		data, _, err := objstore.Read(context.Background(), s.objects, info.Key, 1<<30)
		if err != nil {
			return nil, err
		}
		if _, err := c.objects.PutIfAbsent(context.Background(), info.Key, objstore.Bytes(data)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// propose is meta.Store's, and remembers what took effect.
func (s *shore) propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.meta.Propose(ctx, c)
	if err == nil {
		s.commands = append(s.commands, c)
	}
	return r, err
}

// hookedMeta shows every command to hook before it takes effect and, once it has, before the answer goes out. An error of
// the second one is the answer.
type hookedMeta struct {
	*meta.Memory
	s    *shore
	hook func(at string) error
}

func (m *hookedMeta) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if m.hook == nil {
		return m.s.propose(ctx, c)
	}
	if err := m.hook("metadata before " + c.Op()); err != nil {
		return meta.Result{}, err
	}
	r, err := m.s.propose(ctx, c)
	if err != nil {
		return r, err
	}
	return r, m.hook("metadata after " + c.Op())
}

// hookedStore shows every operation to hook before it happens and, if it changes something, before its answer goes out.
// What is under way is given to the first: it may happen although whoever asked for it is gone. One put in so many stores
// other bytes than it was given, and does not notice.
type hookedStore struct {
	*objstore.Mem
	hook func(at string, underWay func(*shore) error) error
	rot  int

	mu   sync.Mutex
	puts int // guarded by mu
}

func (s *hookedStore) write(ctx context.Context, at string, do func(context.Context, objstore.Store) (objstore.Info, error)) (objstore.Info, error) {
	late := func(s *shore) error {
		_, err := do(context.WithoutCancel(ctx), s.objects)
		if errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrConflict) {
			return nil
		}
		return err
	}
	if err := s.hook("store before "+at, late); err != nil {
		return objstore.Info{}, err
	}
	info, err := do(ctx, s.Mem)
	if err != nil {
		return info, err
	}
	return info, s.hook("store after "+at, nil)
}

func (s *hookedStore) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	s.mu.Lock()
	s.puts++
	rotten := s.rot > 0 && s.puts%s.rot == 0
	s.mu.Unlock()
	data, err := readSource(ctx, src)
	if err != nil {
		return objstore.Info{}, err
	}
	if rotten {
		data[len(data)/2] ^= 0x10
	}
	return s.write(ctx, "put", func(ctx context.Context, to objstore.Store) (objstore.Info, error) {
		return to.PutIfAbsent(ctx, key, objstore.Bytes(data))
	})
}

func readSource(ctx context.Context, src objstore.Source) ([]byte, error) {
	scratch := objstore.NewMem()
	if _, err := scratch.PutIfAbsent(ctx, "o", src); err != nil {
		return nil, err
	}
	data, _, err := objstore.Read(ctx, scratch, "o", 1<<30)
	return data, err
}

func (s *hookedStore) PutIfMatch(ctx context.Context, key string, v objstore.Version, src objstore.Source) (objstore.Info, error) {
	return s.write(ctx, "replace", func(ctx context.Context, to objstore.Store) (objstore.Info, error) {
		return to.PutIfMatch(ctx, key, v, src)
	})
}

func (s *hookedStore) Delete(ctx context.Context, key string) error {
	_, err := s.write(ctx, "delete", func(ctx context.Context, to objstore.Store) (objstore.Info, error) {
		return objstore.Info{}, to.Delete(ctx, key)
	})
	return err
}

func (s *hookedStore) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := s.hook("store before get", nil); err != nil {
		return nil, err
	}
	return s.Mem.Get(ctx, key, off, n)
}

func (s *hookedStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.hook("store before head", nil); err != nil {
		return objstore.Info{}, err
	}
	return s.Mem.Head(ctx, key)
}

func (s *hookedStore) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := s.hook("store before list", nil); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		for info, err := range s.Mem.List(ctx, prefix, after) {
			if !yield(info, err) {
				return
			}
		}
	}
}

// keeper is one run of a broker as far as one partition goes.
type keeper struct {
	*Partition
	tasks    *task.Group
	cold     *tier.Cold
	exporter *tier.Exporter
	remover  *tier.Remover // nil: nothing is merged, and nothing expires
}

// keeping says how a run is to be.
type keeping struct {
	shore     *shore
	topic     *meta.Topic
	meta      meta.Store
	store     objstore.Store
	buffer    writebuf.Store // nil: none
	mode      seglog.Mode
	crash     seglog.Crash
	retention seglog.Retention
	now       func() time.Time
	sealAge   time.Duration // 0: an hour
	segment   int64         // 0: 1 KiB
	merging   bool          // small objects are merged, and deleted at once
}

func (k keeping) open() (*keeper, error) {
	cold, err := tier.NewCold(context.Background(), k.store, tier.ColdConfig{CacheBytes: 64 << 10, StretchBytes: 4 << 10})
	if err != nil {
		return nil, err
	}
	exporter, err := tier.NewExporter(context.Background(), k.store, tier.ExporterConfig{Parallel: 1})
	if err != nil {
		return nil, errors.Join(err, cold.Close())
	}
	tasks := task.NewGroup(context.Background())
	cfg := &Config{
		Log: seglog.Config{FS: k.shore.fs, Crash: k.crash, Now: k.now}, Meta: k.meta, Tasks: tasks,
		Place: func(*Topic, int32) (data, salvage string) { return dir, "/data/salvage" },
		Tier:  &Tier{Store: k.store, Cold: cold, Exporter: exporter, Prefix: "levee", Cluster: "test", SealAge: cmp.Or(k.sealAge, time.Hour)},
	}
	if k.buffer != nil {
		cfg.Buffer = &Buffer{Store: k.buffer, Timeout: time.Minute}
	}
	t := &Topic{Name: k.topic.Name, Full: k.topic.Name.String(), ID: k.topic.ID, Incarnation: k.topic.Incarnation}
	p := New(cfg, t, 0, Settings{Mode: k.mode, ModeChosen: true, FsyncInterval: time.Hour, SegmentBytes: cmp.Or(k.segment, 1<<10), Retention: k.retention})
	at := &keeper{p, tasks, cold, exporter, nil}
	if k.merging {
		at.remover = tier.NewRemover(context.Background(), k.store, nil, nil)
		cfg.Tier.Remover, cfg.Tier.MergeGrace = at.remover, time.Nanosecond
	}
	return at, nil
}

// stop is how a broker stops. It says nothing of what the log came to: its disk may be no more.
func (k *keeper) stop() error {
	_ = k.Close(context.Background(), errors.New("the run is over"))
	err := errors.Join(k.exporter.Stop(), k.cold.Close(), k.tasks.Wait())
	if k.remover != nil {
		err = errors.Join(err, k.remover.Stop())
	}
	return err
}

// settle has everything sealed and exported, and waits for that.
func (k *keeper) settle(m meta.Store) error {
	for {
		changed := m.Changed()
		if _, err := k.Maintain(context.Background()); err != nil {
			return err
		}
		if _, more := k.log.Load().SealedAt(k.copied()); !more {
			return nil
		}
		late := time.NewTimer(10 * time.Minute)
		select {
		case <-changed:
			late.Stop()
		case <-late.C:
			return fmt.Errorf("exports do not go on: they ended at %d (%+v)", k.copied(), k.exporter.Stats())
		}
	}
}

// known is what a scrub asks the metadata.
func (s *shore) known() func(tier.Partition) tier.Known {
	return func(p tier.Partition) tier.Known {
		v := s.meta.View()
		if _, live := v.TopicByID(p.TopicID); !live {
			for d := range v.Deletions() {
				if d.ID == p.TopicID {
					return tier.Known{State: tier.Dead}
				}
			}
			return tier.Known{}
		}
		e := v.Export(p.TopicID, p.Number)
		k := tier.Known{State: tier.Live, Frontier: e.Frontier()}
		if e != nil {
			for _, o := range e.Objects {
				k.Objects = append(k.Objects, tier.Object(o))
			}
		}
		return k
	}
}

// testSeed is what a test's randomness begins with. LEVEE_SEED repeats it.
func testSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LEVEE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	return seed
}
