package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

var errDied = errors.New("the process died")

// dying counts every operation of a process, on its file system and on the object store, and ends it at one of them.
type dying struct {
	objstore.Store
	fs     *vfs.Mem
	at     int  // which; 0: none
	done   bool // a request to the store takes effect before the process dies
	n      int
	left   *vfs.Mem // the file system as it was then
	cancel context.CancelFunc
}

// step reports whether the process is dead. took: the operation is over.
func (d *dying) step(took bool) error {
	if d.left != nil {
		return errDied
	}
	if !took {
		d.n++
	}
	if d.at > 0 && d.n >= d.at && took == d.done {
		d.left = d.fs.Clone()
		d.cancel()
		return errDied
	}
	return nil
}

func (d *dying) hook(op vfs.Op) error {
	if !op.Kind.Changes() {
		if d.left != nil {
			return errDied
		}
		return nil
	}
	if done := d.done; done { // there is no after here: it is the next one's before
		d.done = false
		defer func() { d.done = done }()
	}
	return d.step(false)
}

func around[T any](d *dying, do func() (T, error)) (T, error) {
	var none T
	if err := d.step(false); err != nil {
		return none, err
	}
	v, err := do()
	if lost := d.step(true); lost != nil {
		return none, lost
	}
	return v, err
}

func (d *dying) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	return around(d, func() (objstore.Info, error) { return d.Store.PutIfAbsent(ctx, key, src) })
}

func (d *dying) PutIfMatch(ctx context.Context, key string, v objstore.Version, src objstore.Source) (objstore.Info, error) {
	return around(d, func() (objstore.Info, error) { return d.Store.PutIfMatch(ctx, key, v, src) })
}

func (d *dying) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	return around(d, func() (*objstore.Body, error) { return d.Store.Get(ctx, key, off, n) })
}

func (d *dying) Head(ctx context.Context, key string) (objstore.Info, error) {
	return around(d, func() (objstore.Info, error) { return d.Store.Head(ctx, key) })
}

func (d *dying) Delete(ctx context.Context, key string) error {
	_, err := around(d, func() (int, error) { return 0, d.Store.Delete(ctx, key) })
	return err
}

func (d *dying) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if _, err := around(d, func() (int, error) { return 0, nil }); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		d.Store.List(ctx, prefix, after)(yield)
	}
}

// copyWorld is a data directory, and what is around it.
type copyWorld struct {
	t     *testing.T
	fs    *vfs.Mem
	store objstore.Store
	ids   byte
}

func (w *copyWorld) newID() (i metatier.ID) {
	w.ids++
	i[0], i[1] = 1, w.ids
	return i
}

// start does what a start does up to the metadata, on what is there. The store of d, if there is one, is used.
func (w *copyWorld) start(ctx context.Context, d *dying, crash seglog.Crash) (*metaRun, error) {
	store := w.store
	if d != nil {
		store, d.fs = d, w.fs
		w.fs.SetHook(d.hook)
		defer w.fs.SetHook(nil)
	}
	if err := vfs.MkdirSync(w.fs, "data"); err != nil {
		return nil, err
	}
	there, err := hasMetadata(w.fs, "data")
	if err != nil {
		return nil, err
	}
	own := notes{w.fs, "data"}
	c, known, err := own.Claim()
	if err != nil {
		return nil, err
	}
	if !there || known && c.State == metatier.Taking {
		w.ids++
		t := &metatier.Taker{
			Place: metatier.Place{Store: store, Cluster: "c"}, Self: metatier.Self{Run: metatier.ID{2, w.ids}, Broker: "1", Who: "w", Dir: "data"},
			Notes: own, NewID: w.newID, Now: time.Now, Logger: obs.Logger(nil),
			Install: func(snapshot []byte) error { return installMetadata(w.fs, "data", snapshot) },
		}
		if _, err := t.Take(ctx); err != nil {
			return nil, err
		}
	}
	return startMeta(w.fs, crash)
}

// copied returns a store with the metadata of a broker that is gone.
func copied(t *testing.T) objstore.Store {
	t.Helper()
	w := &copyWorld{t: t, fs: vfs.NewMem(), store: objstore.NewMem(), ids: 200} // nobody else has these
	m, err := w.start(t.Context(), nil, seglog.CleanStop)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close(t)
	for _, c := range metaScript(20) {
		if _, err := m.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := notes{w.fs, "data"}.Claim()
	if err != nil {
		t.Fatal(err)
	}
	k := metatier.NewKeeper(metatier.KeeperConfig{
		Place: metatier.Place{Store: w.store, Cluster: "c"}, Self: metatier.Self{Run: metatier.ID{3}, Broker: "1", Who: "first", Dir: "data"},
		Claim: c.ID, Source: copySource{m, m.group}, NewID: w.newID, Now: time.Now,
	})
	k.Start()
	if err := k.Stop(t.Context()); err != nil || k.Problem() != "" {
		t.Fatal(err, k.Problem())
	}
	return w.store
}

// TestTakingOverCrashesAnywhere ends the process at every operation on the disk and on the store while it takes a
// cluster's data over, keeping this and that of what was not flushed, once and a second time; the next start has every
// topic, with its generation raised once, is the owner, and goes on.
func TestTakingOverCrashesAnywhere(t *testing.T) {
	origin := copied(t)
	states := 0
	for at := 1; ; at++ {
		ended := false
		for _, done := range []bool{false, true} {
			for seed := range uint64(4) {
				w := &copyWorld{t: t, fs: vfs.NewMem(), store: objstoretest.Clone(t, origin)}
				if !w.die(at, done, seed) {
					ended = true
					break
				}
				if again := int(seed*7) % (at + 1); seed > 0 && again > 0 {
					w.die(again, done, seed+10)
				}
				w.whole(fmt.Sprintf("operation %d, done %v, seed %d", at, done, seed))
				states++
			}
		}
		if ended {
			break
		}
	}
	t.Logf("%d states", states)
	if states < 200 {
		t.Error("too few")
	}
}

// die starts and ends the process at one of its operations. It reports false where it came to its end before.
func (w *copyWorld) die(at int, done bool, seed uint64) bool {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	d := &dying{Store: w.store, at: at, done: done, cancel: cancel}
	m, err := w.start(ctx, d, seglog.MachineCrash)
	if d.left == nil {
		if err != nil {
			w.t.Fatalf("operation %d: %v", at, err)
		}
		m.close(w.t)
		return false
	}
	if m != nil {
		m.close(w.t)
	}
	choice := vfs.Random(seed)
	switch seed {
	case 0:
		choice = vfs.KeepAll
	case 1:
		choice = vfs.KeepNothing
	}
	w.fs = d.left.Crash(choice)
	return true
}

// whole starts the process and fails the test unless all is as it should be.
func (w *copyWorld) whole(what string) {
	w.t.Helper()
	m, err := w.start(w.t.Context(), nil, seglog.MachineCrash)
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	defer m.close(w.t)
	w.same(what, m)
	c, _, err := notes{w.fs, "data"}.Claim()
	if err != nil || c.State != metatier.Held {
		w.t.Errorf("%s: %+v, %v", what, c, err)
	}
	k := metatier.NewKeeper(metatier.KeeperConfig{
		Place: metatier.Place{Store: w.store, Cluster: "c"}, Self: metatier.Self{Run: metatier.ID{4}, Broker: "1", Who: "w", Dir: "data"},
		Claim: c.ID, Source: copySource{m, m.group}, NewID: w.newID, Now: time.Now,
	})
	if err := k.Check(w.t.Context()); err != nil {
		w.t.Errorf("%s: it is not the owner: %v", what, err)
	}
	if _, err := m.Propose(w.t.Context(), meta.CreateNamespace{Name: "onward"}); err != nil {
		w.t.Errorf("%s: it does not go on: %v", what, err)
	}
}

// same compares the topics with those of the broker before.
func (w *copyWorld) same(what string, m *metaRun) {
	w.t.Helper()
	want := meta.NewMemory()
	for _, c := range metaScript(20) {
		if _, err := want.Propose(w.t.Context(), c); err != nil {
			w.t.Fatal(err)
		}
	}
	n := 0
	for topic := range want.View().Topics("") {
		n++
		got, ok := m.View().TopicByID(topic.ID)
		if !ok || got.Incarnation != topic.Incarnation || got.Partitions[0].Generation != topic.Partitions[0].Generation+1 {
			w.t.Fatalf("%s: %s@%d %v is %+v at index %d", what, topic.Name, topic.Incarnation, topic.Partitions, got, m.View().Index())
		}
	}
	if m.View().TopicCount() != n || n < 10 {
		w.t.Errorf("%s: %d topics of %d", what, m.View().TopicCount(), n)
	}
}

// TestFoundingCrashesAnywhere is the same for a cluster that is new: it becomes the directory's, and nobody else's.
func TestFoundingCrashesAnywhere(t *testing.T) {
	for at := 1; ; at++ {
		ended := false
		for _, done := range []bool{false, true} {
			for seed := range uint64(4) {
				w := &copyWorld{t: t, fs: vfs.NewMem(), store: objstore.NewMem()}
				if !w.die(at, done, seed) {
					ended = true
					break
				}
				m, err := w.start(t.Context(), nil, seglog.MachineCrash)
				if err != nil {
					t.Fatalf("operation %d, done %v, seed %d: %v", at, done, seed, err)
				}
				c, _, err := notes{w.fs, "data"}.Claim()
				if err != nil || c.State != metatier.Held || m.View().TopicCount() != 0 {
					t.Errorf("operation %d, done %v, seed %d: %+v, %v", at, done, seed, c, err)
				}
				m.close(t)
			}
		}
		if ended {
			if at < 10 {
				t.Errorf("%d operations only", at)
			}
			return
		}
	}
}
