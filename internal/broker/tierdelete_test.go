package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
)

// left is what a crash leaves: a disk, the metadata, and the objects.
type left struct {
	where    string
	crash    seglog.Crash
	fs       *vfs.Mem
	commands []meta.Command
	objects  *objstore.Mem
}

// camera takes pictures of what a crash would leave, at every step.
type camera struct {
	*meta.Memory
	t       *testing.T
	fs      *vfs.Mem
	objects *objstore.Mem

	mu       sync.Mutex
	on       bool           // guarded by mu
	commands []meta.Command // guarded by mu; what the metadata is made of
	all      []left         // guarded by mu
}

// Propose implements meta.Store.
func (c *camera) Propose(ctx context.Context, command meta.Command) (meta.Result, error) {
	c.picture("before " + command.Op())
	c.mu.Lock()
	r, err := c.Memory.Propose(ctx, command)
	if err == nil {
		c.commands = append(c.commands, command)
	}
	c.mu.Unlock()
	c.picture("after " + command.Op())
	return r, err
}

func (c *camera) picture(where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return
	}
	for i, choice := range []vfs.Chooser{vfs.KeepAll, vfs.KeepNothing, vfs.Random(uint64(len(c.all)))} {
		one := left{where: fmt.Sprint(where, ", choice ", i), fs: c.fs.Crash(choice), objects: copyOf(c.t, c.objects), crash: seglog.MachineCrash}
		if i == 0 {
			one.crash = seglog.ProcessCrash
		}
		one.commands = append(one.commands, c.commands...)
		c.all = append(c.all, one)
	}
}

func copyOf(t *testing.T, objects *objstore.Mem) *objstore.Mem {
	to := objstore.NewMem()
	for info, err := range objects.List(context.Background(), "", "") {
		if err != nil {
			t.Error(err)
			break
		}
		data, _, err := objstore.Read(context.Background(), objects, info.Key, 1<<30)
		if err == nil {
			_, err = to.PutIfAbsent(context.Background(), info.Key, objstore.Bytes(data))
		}
		if err != nil {
			t.Error(err)
		}
	}
	return to
}

// watchedObjects takes a picture before and after each object is removed.
type watchedObjects struct {
	*objstore.Mem
	c *camera
}

func (w watchedObjects) Delete(ctx context.Context, key string) error {
	w.c.picture("before the delete of an object")
	err := w.Mem.Delete(ctx, key)
	w.c.picture("after the delete of an object")
	return err
}

// tiered gives a broker an object store. What it opens is closed by end.
func tiered(t *testing.T, store objstore.Store) (change func(*Config), end func() error) {
	cold, err := tier.NewCold(context.Background(), store, tier.ColdConfig{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := tier.NewExporter(context.Background(), store, tier.ExporterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		c.RetentionEvery = time.Second
		c.Tier = &partition.Tier{Store: store, Cold: cold, Exporter: x, Prefix: "levee", Cluster: "test", SealAge: time.Hour}
	}, func() error { return errors.Join(x.Stop(), cold.Close()) }
}

// Whatever the step at which a broker dies that deletes a topic: the topic is there with all its objects, or it is gone
// and the next run removes what is left of it.
func TestDeletionOfATieredTopicCrashesAnywhere(t *testing.T) {
	states, gone := 0, 0
	synctest.Test(t, func(t *testing.T) {
		c := &camera{Memory: meta.NewMemory(), t: t, objects: objstore.NewMem()}
		change, end := tiered(t, watchedObjects{c.objects, c})
		r := &rig{t: t, fs: vfs.NewMem(), store: c}
		c.fs = r.fs
		if err := r.fs.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		r.start(change)
		info := r.create("a", TopicSpec{Partitions: 2, Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
		for p := range int32(2) {
			for range 6 {
				r.publish("a", p, strings.Repeat("x", 40<<10))
			}
		}
		<-time.After(time.Minute) // everything is copied
		r.fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() {
				c.picture("before " + op.Kind.String())
			}
			return nil
		})
		c.mu.Lock()
		c.on = true
		c.mu.Unlock()
		if err := r.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		r.awaitPurged()
		r.fs.SetHook(nil)
		c.mu.Lock()
		c.on = false
		c.mu.Unlock()
		r.halt()
		if err := end(); err != nil {
			t.Error(err)
		}
		for _, l := range c.all {
			states++
			if l.goesOn(t, meta.TopicID(info.ID)) {
				gone++
			}
		}
	})
	t.Logf("%d crash states; the topic was gone in %d", states, gone)
	if gone == 0 || gone == states || states < 60 {
		t.Error("the test looked at the wrong time")
	}
}

// goesOn lets the next broker find what is left, and reports whether the topic is gone.
func (l left) goesOn(t *testing.T, id meta.TopicID) (gone bool) {
	m := meta.NewMemory()
	for _, command := range l.commands {
		if _, err := m.Propose(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	change, end := tiered(t, l.objects)
	r := &rig{t: t, fs: l.fs, store: m}
	r.start(change, func(c *Config) { c.Crash = l.crash })
	r.awaitPurged()
	_, live := m.View().TopicByID(id)
	want := int64(0)
	var expect []tier.Partition
	for p := range int32(2) {
		if e := m.View().Export(id, p); e != nil {
			want += int64(len(e.Objects))
			expect = append(expect, tier.Partition{TopicID: id, Number: p})
		}
	}
	report, err := tier.Scrub(t.Context(), l.objects, "levee", "test", func(p tier.Partition) tier.Known {
		k := tier.Known{State: tier.Live}
		e := m.View().Export(p.TopicID, p.Number)
		if e == nil {
			return tier.Known{}
		}
		for _, o := range e.Objects {
			k.Objects = append(k.Objects, tier.Object(o))
		}
		k.Frontier = e.Frontier()
		return k
	}, tier.ScrubOptions{Full: true, Expect: expect})
	if err != nil || report.Verified != want || report.Objects != want || report.Missing.Count+report.Damaged.Count+report.Unknown != 0 || live != (want > 3) {
		t.Errorf("%s: the topic is there: %t; %d objects count: %+v, %v", l.where, live, want, report, err)
	}
	r.halt()
	if err := end(); err != nil {
		t.Error(err)
	}
	return !live
}
