package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/record"
)

// tierBook is what the script has promised so far, and what may be there beside it.
type tierBook struct {
	acked    int64 // offsets below it are acknowledged
	durable  int64 // offsets below it must survive a power cut
	maxEnd   int64 // the script used no offset from it on
	deleting bool  // the topic's deletion was asked for
	deleted  bool  // and answered
}

// tierLife runs a script against one partition, and tries at every step of it what a crash there leaves.
type tierLife struct {
	t     *testing.T
	topic *meta.Topic
	*shore
	mode      seglog.Mode
	seeds     int // chances that each power cut is given
	every     int // one step in so many is looked at
	again     int // one crash in so many is followed by another, at every step of what comes after it
	rng       *rand.Rand
	store     objstore.Store // what the partition is given
	buffers   writebuf.Store // the same; nil: none
	clock     atomic.Int64   // nanoseconds ahead of time.Now
	retention seglog.Retention
	k         *keeper
	meddle    func(at string) // another step, in the middle of this one

	turn   gate   // held by what meddles
	mu     gate   // held while a crash is tried
	at     string // the step under way
	book   tierBook
	busy   bool // meddling
	steps  int
	states int
	taken  int // of them, the directory was lost and the buffer had everything
	points map[string]int
}

func newTierLife(t *testing.T, seed uint64, mode seglog.Mode, seeds, again int) *tierLife {
	f := &tierLife{t: t, every: 1, mu: make(gate, 1), turn: make(gate, 1), shore: newShore(), mode: mode, seeds: seeds, again: again, rng: rand.New(rand.NewPCG(seed, 11)), points: map[string]int{}}
	name := mode.String()
	c := meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1, Dispatch: meta.Reliable, Settings: meta.Settings{Fsync: &name}}
	if mode != seglog.OnCommit {
		c.Reserved = FirstReservation
	}
	r, err := f.propose(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	f.topic = r.Topic
	for _, key := range foreignKeys {
		if _, err := f.objects.PutIfAbsent(context.Background(), key, objstore.Bytes([]byte(key))); err != nil {
			t.Fatal(err)
		}
	}
	f.retention = seglog.Retention{Bytes: 3 << 10}
	return f
}

// gate is a mutex whose waiting does not hold up the time of a bubble.
type gate chan struct{}

func (g gate) Lock()   { g <- struct{}{} }
func (g gate) Unlock() { <-g }

// await waits until nobody holds it.
func (g gate) await() {
	g <- struct{}{}
	<-g
}

// foreignKeys are objects of others in the same bucket.
var foreignKeys = []string{
	"levee/test/readme.txt", "levee/test/01000000000000000000000000000000/0/notes", "levee/other/x.lvseg", "backup/levee.tar",
}

func (f *tierLife) now() time.Time { return time.Now().Add(time.Duration(f.clock.Load())) }

// watch has every operation from now on looked at.
func (f *tierLife) watch(rot int, faults faulty.Config) {
	f.fs.SetHook(func(op vfs.Op) error {
		if op.Kind.Changes() && op.Kind != vfs.OpReserve { // a reservation changes nothing that is read
			f.crashes("disk "+op.Kind.String(), nil)
		}
		return nil
	})
	hook := func(at string, underWay func(*shore) error) error {
		f.crashes(at, underWay)
		return f.meddling(at)
	}
	f.store = faulty.New(&hookedStore{Mem: f.objects, rot: rot, hook: hook}, faults)
	if f.buffer != nil {
		f.buffers = &hookedBuffers{Mem: f.buffer, hook: func(at string, underWay func(*shore) error) error {
			f.crashes(at, underWay)
			return nil
		}}
	}
}

func (f *tierLife) metadata() meta.Store {
	return &hookedMeta{Memory: f.meta, s: f.shore, hook: func(at string) error {
		f.crashes(at, nil)
		return f.meddling(at)
	}}
}

// meddling lets something else happen in the middle of a step.
func (f *tierLife) meddling(at string) error {
	f.mu.Lock()
	meddle := f.meddle
	if f.busy {
		meddle = nil
	}
	if meddle != nil {
		f.busy = true
		f.turn.Lock()
	}
	f.mu.Unlock()
	if meddle == nil {
		return nil
	}
	meddle(at)
	f.turn.Unlock()
	f.mu.Lock()
	f.busy = false
	f.mu.Unlock()
	return nil
}

// crashes tries what is left if the machine, or only the process, dies now.
func (f *tierLife) crashes(point string, underWay func(*shore) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.t.Failed() {
		return // the first failure says it all
	}
	f.points[point]++
	if f.steps++; f.steps%f.every != 0 {
		return
	}
	where := fmt.Sprintf("%s, %s", f.at, point)
	f.try(vfs.KeepAll, seglog.ProcessCrash, where+", process crash", nil)
	f.try(vfs.KeepNothing, seglog.MachineCrash, where+", nothing kept", underWay)
	f.loses(where, underWay)
	for i := range f.seeds {
		seed := uint64(f.steps*1000 + i)
		f.try(vfs.Random(seed), seglog.MachineCrash, fmt.Sprintf("%s, seed %d", where, seed), underWay)
	}
}

// try goes on from a crash as the next broker does, and checks that nothing is missing, nothing is wrong, and nothing stays
// behind. underWay is what happens only then of what the broker that died had asked for.
func (f *tierLife) try(choice vfs.Chooser, crash seglog.Crash, where string, underWay func(*shore) error) {
	f.states++
	s, err := f.shore.crash(choice)
	if err != nil {
		f.t.Errorf("%s: %v", where, err)
		return
	}
	n := &nextLife{shore: s, topic: f.topic, mode: f.mode, crash: crash, book: f.book, underWay: underWay,
		again: f.states%f.again == 0}
	n.whole = s.covered(f.topic)
	f.goesOn(n, where)
}

// goesOn lets the next run find what a crash has left.
func (f *tierLife) goesOn(n *nextLife, where string) {
	n.clock.Store(f.clock.Load())
	if err := n.run(); err != nil {
		f.t.Errorf("%s (acknowledged below %d, durable below %d): %v", where, f.book.acked, f.book.durable, err)
	}
	f.states += n.states
}

// nextLife is what comes after a crash.
type nextLife struct {
	*shore
	topic    *meta.Topic
	mode     seglog.Mode
	crash    seglog.Crash
	book     tierBook
	underWay func(*shore) error
	again    bool         // crash once more, at every step
	second   bool         // it is what comes after that: the life before has published, too
	whole    bool         // the write buffer had everything that was acknowledged
	lost     bool         // the directory is gone, and another broker takes over
	accepted bool         // an operator gave up what the tiers may lack
	clock    atomic.Int64 // nanoseconds ahead of time.Now
	copied   int64        // offsets below it had a copy when it began
	states   int
}

func (n *nextLife) now() time.Time { return time.Now().Add(time.Duration(n.clock.Load())) }

func (n *nextLife) run() error {
	if _, live := n.meta.View().TopicByID(n.topic.ID); !live {
		if !n.book.deleting {
			return errors.New("the topic is gone")
		}
		return n.buried()
	}
	if n.book.deleted {
		return errors.New("the topic is back")
	}
	if !n.second {
		n.copied = n.meta.View().Export(n.topic.ID, 0).Frontier()
	}
	var during []*shore
	if n.again {
		n.fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() {
				s, err := n.shore.crash(vfs.Random(uint64(op.N)))
				if err != nil {
					return err
				}
				during = append(during, s)
			}
			return nil
		})
	}
	if err := n.lives(); err != nil {
		return err
	}
	for i, s := range during {
		n.states++
		second := &nextLife{shore: s, topic: n.topic, mode: n.mode, crash: seglog.MachineCrash, book: n.book}
		second.clock.Store(n.clock.Load())
		second.second, second.copied, second.lost, second.accepted, second.whole = true, n.copied, n.lost, n.accepted, n.whole
		if n.lost {
			second.whole = s.covered(n.topic)
			if i%2 == 0 { // it loses that directory, too
				if err := s.takeOver(); err != nil {
					return err
				}
			}
		}
		if err := second.run(); err != nil {
			return fmt.Errorf("and a second crash, the %dth of the next run: %w", i, err)
		}
	}
	return nil
}

// lives is a run that finds the topic.
func (n *nextLife) lives() error {
	k, err := n.keeping(n.crash).open()
	if err != nil {
		return err
	}
	if n.lost {
		if k, err = n.takesOver(k); err != nil {
			return err
		}
	}
	end, err := n.serves(k)
	if err = errors.Join(err, k.stop()); err != nil {
		return err
	}
	if k, err = n.keeping(seglog.CleanStop).open(); err != nil {
		return err
	}
	if err = k.Ready(context.Background()); err == nil {
		err = k.confirmed(context.Background())
	}
	if err == nil {
		err = n.complete(k, end)
	}
	return errors.Join(err, k.stop())
}

func (n *nextLife) keeping(crash seglog.Crash) keeping {
	k := keeping{shore: n.shore, topic: n.topic, meta: &hookedMeta{Memory: n.meta, s: n.shore}, store: n.objects, mode: n.mode, crash: crash,
		retention: seglog.Retention{Bytes: 1}, now: n.now}
	if n.buffer != nil {
		k.buffer = n.buffer
		if n.lost && n.underWay != nil {
			k.buffer = n.beset()
		}
	}
	return k
}

// serves checks what is found, publishes more, and has everything exported and removed from the log. It returns the end of
// what the run before had.
func (n *nextLife) serves(k *keeper) (end int64, err error) {
	ctx := context.Background()
	if err := k.Ready(ctx); err != nil {
		return 0, fmt.Errorf("it does not open: %w", err)
	}
	if err := k.confirmed(ctx); err != nil {
		return 0, err
	}
	b, _ := k.Bounds()
	if b.First != 0 {
		return 0, fmt.Errorf("the oldest offset is %d", b.First)
	}
	if n.mode == seglog.OnCommit && b.End > n.book.maxEnd && !n.second && !n.accepted {
		return 0, fmt.Errorf("it ends at %d, and only %d were written", b.End, n.book.maxEnd)
	}
	if err := n.complete(k, b.End); err != nil {
		return b.End, err
	}
	for range 3 {
		if err := k.publish(ctx, 2, later); err != nil {
			return b.End, err
		}
	}
	n.clock.Add(int64(2 * time.Hour)) // all of it is old enough to be sealed
	if err := k.settle(n.meta); err != nil {
		return b.End, err
	}
	now, _ := k.Bounds()
	if frontier := k.copied(); frontier != now.End {
		return b.End, fmt.Errorf("exported up to %d of %d", frontier, now.End)
	}
	if _, err := k.Retain(ctx); err != nil {
		return b.End, err
	}
	if first := k.log.Load().Bounds().First; first != now.End {
		return b.End, fmt.Errorf("the log begins at %d after everything up to %d was copied", first, now.End)
	}
	if err := n.complete(k, b.End); err != nil {
		return b.End, fmt.Errorf("read from objects: %w", err)
	}
	if n.underWay != nil {
		if err := n.underWay(n.shore); err != nil {
			return b.End, err
		}
	}
	return b.End, n.scrubbed(len(n.meta.View().Export(n.topic.ID, 0).Objects))
}

// complete reads everything. Below end it is what the script published; an offset may have been lost only where that was
// said, and where the run that crashed had promised nothing.
func (n *nextLife) complete(k *keeper, end int64) error {
	promised := n.book.durable
	switch {
	case n.accepted:
		promised = n.copied
	case n.crash == seglog.ProcessCrash || n.whole:
		promised = n.book.acked
	}
	if end < promised {
		return fmt.Errorf("it ends at %d, and what is below %d was promised", end, promised)
	}
	kept := max(promised, n.copied) // what had a copy is not lost
	b, _ := k.Bounds()
	return k.everything(0, b.End, func(from, _ int64) bool {
		return from >= kept && (n.mode != seglog.OnCommit || n.accepted)
	}, func(offset int64, value string) error {
		switch {
		case value == numbered(offset) && (offset < n.book.maxEnd || n.second), value == later(offset) && (offset >= end || n.second && offset >= promised):
			return nil
		}
		return fmt.Errorf("offset %d is %q", offset, value)
	})
}

func later(offset int64) string { return fmt.Sprintf("later %d %s", offset, strings.Repeat("y", 200)) }

// scrubbed removes what does not count, and checks that then nothing is left over or missing.
func (n *nextLife) scrubbed(objects int) error {
	ctx := context.Background()
	opts := tier.ScrubOptions{Full: true, Remove: true, Expect: []tier.Partition{{TopicID: n.topic.ID}}, Now: func() time.Time { return time.Now().Add(48 * time.Hour) }}
	for range 2 {
		r, err := tier.Scrub(ctx, n.objects, "levee", "test", n.known(), opts)
		if err != nil {
			return err
		}
		if r.Missing.Count+r.Damaged.Count != 0 || r.Orphans.Count != r.Removed || r.Verified != int64(objects) || r.Unknown != 0 || r.Foreign != 2 {
			return fmt.Errorf("scrub: %+v", r)
		}
	}
	var found int
	for _, err := range n.objects.List(ctx, "", "") {
		if err != nil {
			return err
		}
		found++
	}
	if found != objects+len(foreignKeys) {
		return fmt.Errorf("%d objects are left, %d count and %d are others'", found, objects, len(foreignKeys))
	}
	return nil
}

// buried finishes the deletion, and checks that nothing is left of the topic.
func (n *nextLife) buried() error {
	pending := false
	for range n.meta.View().Deletions() {
		pending = true
	}
	if pending {
		t := &Tier{Store: n.objects, Prefix: "levee", Cluster: "test"}
		if err := purge(context.Background(), n.fs, t, n.topic, n.propose); err != nil {
			return err
		}
	}
	if there, err := vfs.Exists(n.fs, dir); err != nil || there {
		return fmt.Errorf("the directory is there: %t, %w", there, err)
	}
	if err := n.scrubbed(0); err != nil || n.underWay == nil {
		return err
	}
	// What the run that died had asked for may come to pass later still. Nobody knows the topic any more, so it is shown and
	// left alone.
	if err := n.underWay(n.shore); err != nil {
		return err
	}
	r, err := tier.Scrub(context.Background(), n.objects, "levee", "test", n.known(), tier.ScrubOptions{Remove: true})
	if err != nil || r.Unknown > 1 || r.Objects != r.Unknown {
		return fmt.Errorf("scrub after the deletion: %+v, %w", r, err)
	}
	return nil
}

// purge takes away what a deleted topic has left, in a broker's order.
func purge(ctx context.Context, fs vfs.FS, t *Tier, topic *meta.Topic, propose func(context.Context, meta.Command) (meta.Result, error)) error {
	there, err := vfs.Exists(fs, dir)
	if err != nil {
		return err
	}
	if there {
		if err := vfs.Discard(ctx, fs, dir); err != nil {
			return err
		}
		if err := fs.SyncDir(path.Dir(dir)); err != nil {
			return err
		}
	}
	if err := t.DeleteTopic(ctx, topic.ID); err != nil {
		return err
	}
	_, err = propose(ctx, meta.TopicPurged{Name: topic.Name, Incarnation: topic.Incarnation})
	return err
}

// confirmed waits until all that the log has may be read.
func (k *keeper) confirmed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	r, err := k.NewReader(ctx, 0)
	if end := k.log.Load().Bounds().End; err == nil && end > 0 {
		err = r.Wait(ctx, end-1)
	}
	return err
}

// publish adds a batch of n records.
func (k *keeper) publish(ctx context.Context, n int, value func(int64) string) error {
	b, _ := k.Bounds()
	build := record.NewBuilder(record.None)
	for i := range int64(n) {
		if err := build.Append(record.Record{Value: []byte(value(b.End + i)), Timestamp: 1000}); err != nil {
			return err
		}
	}
	batch, err := build.Build(record.NoProducer)
	if err != nil {
		return err
	}
	r, err := k.Append(ctx, batch)
	if err == nil && r.Offset != b.End {
		err = fmt.Errorf("published at %d, not at %d", r.Offset, b.End)
	}
	return err
}

// nothingLost is what may be lost where nothing may be.
func nothingLost(int64, int64) bool { return false }

// everything reads from one offset up to another and tells each of them once. lost says whether a range may be told as lost.
func (k *keeper) everything(from, end int64, lost func(from, to int64) bool, each func(offset int64, value string) error) error {
	r, err := k.NewReader(context.Background(), from)
	if err != nil {
		return err
	}
	for at := from; at < end; {
		c, err := r.Next(context.Background(), 1<<10, 10)
		if err != nil {
			return fmt.Errorf("read at %d: %w", at, err)
		}
		switch {
		case c.Lost != nil:
			if c.Lost.From != at {
				return fmt.Errorf("lost from %d on is told at %d", c.Lost.From, at)
			}
			if at = c.Lost.To + 1; !lost(c.Lost.From, c.Lost.To) {
				return fmt.Errorf("offsets %d to %d are told as lost", c.Lost.From, c.Lost.To)
			}
		case c.Data == nil:
			return fmt.Errorf("caught up at %d, the end is %d", at, end)
		}
		for rest := c.Data; len(rest) > 0; {
			var b []byte
			if b, rest, err = record.Next(rest); err != nil {
				return err
			}
			if err := record.Each(b, func(rec record.Record) error {
				if rec.Offset != at {
					return fmt.Errorf("offset %d where %d must come", rec.Offset, at)
				}
				at++
				return each(rec.Offset, string(rec.Value))
			}); err != nil {
				return err
			}
		}
		if c.Next != at {
			return fmt.Errorf("at %d the reader goes on at %d", at, c.Next)
		}
	}
	return nil
}

func (f *tierLife) step(format string, args ...any) {
	synctest.Wait() // what goes on in the background belongs to the step before
	f.mu.Lock()
	f.at = fmt.Sprintf(format, args...)
	f.mu.Unlock()
}

func (f *tierLife) note(fn func(b *tierBook)) {
	f.mu.Lock()
	fn(&f.book)
	f.mu.Unlock()
}

func (f *tierLife) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%s: %v", f.at, err)
	}
}

func (f *tierLife) open() {
	f.step("open")
	k, err := keeping{shore: f.shore, topic: f.topic, meta: f.metadata(), store: f.store, buffer: f.buffers, mode: f.mode, crash: seglog.CleanStop, retention: f.retention, now: f.now}.open()
	f.must(err)
	f.k = k
	f.must(k.Ready(context.Background()))
}

func (f *tierLife) close() {
	f.step("close")
	f.must(f.k.stop())
	f.note(func(b *tierBook) { b.durable = b.acked })
}

func (f *tierLife) publish(n int) {
	f.step("publish at %d", f.book.acked)
	f.publishes(n)
	synctest.Wait()
}

func (f *tierLife) publishes(n int) {
	f.note(func(b *tierBook) { b.maxEnd = b.acked + int64(n) })
	if err := f.k.publish(context.Background(), n, numbered); err != nil {
		f.t.Error(err)
		return
	}
	f.note(func(b *tierBook) {
		if b.acked += int64(n); f.mode == seglog.OnCommit {
			b.durable = b.acked
		}
	})
}

func (f *tierLife) retain() {
	f.step("retention")
	_, err := f.k.Retain(context.Background())
	f.must(err)
}

func (f *tierLife) export() {
	f.step("export from %d on", f.k.copied())
	f.must(f.k.settle(f.metadata()))
	f.mu.Lock()
	f.meddle = nil
	f.mu.Unlock()
	f.turn.await() // what meddled with the last of it has ended
}

// sealOld seals what waits by its age.
func (f *tierLife) sealOld() {
	f.clock.Add(int64(90 * time.Minute))
	f.export()
	f.note(func(b *tierBook) { b.durable = max(b.durable, f.k.copied()) })
}

func (f *tierLife) read() {
	f.step("read")
	from := f.rng.Int64N(f.book.acked)
	f.must(f.k.everything(0, f.book.acked, nothingLost, func(offset int64, value string) error {
		if offset >= from && value != numbered(offset) {
			return fmt.Errorf("offset %d is %q", offset, value)
		}
		return nil
	}))
}

// script is the life: segments by size and by age, exports with publishing and retention in the middle of them, restarts,
// and in the end the topic's deletion.
func (f *tierLife) script() {
	f.open()
	defer func() {
		if f.t.Failed() {
			_ = f.k.stop() // so that nothing goes on
		}
	}()
	for round := range 3 {
		for range 8 {
			f.publish(1 + f.rng.IntN(3))
		}
		f.mu.Lock()
		f.meddle = f.disturb(round)
		f.mu.Unlock()
		f.export()
		f.retain()
		f.publish(2)
		if round == 1 {
			f.sealOld()
			f.close()
			f.open()
			f.read()
		}
	}
	for range 8 {
		f.publish(2)
	}
	f.bury()
}

// disturb returns what happens in the middle of exports.
func (f *tierLife) disturb(round int) func(at string) {
	return func(at string) {
		// Who publishes waits for the buffer, which may wait until what it lacks is noted.
		noting := strings.HasSuffix(at, "buffer.uncovered")
		switch {
		case f.rng.IntN(3) == 0 && round != 0 && !noting:
			f.publishes(1)
		case strings.Contains(at, "put") || strings.Contains(at, "export.add") || f.rng.IntN(3) == 0:
			if _, err := f.k.Retain(context.Background()); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// bury deletes the topic in the middle of an export, which ends when it is told to, or has to.
func (f *tierLife) bury() {
	ctx := context.Background()
	f.step("deletion")
	arrived, carryOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.mu.Lock()
	f.meddle = func(at string) {
		if strings.HasPrefix(at, "store before put") {
			once.Do(func() { close(arrived); <-carryOn })
		}
	}
	f.mu.Unlock()
	if f.rng.IntN(4) > 0 {
		f.must(f.k.Export(ctx))
		<-arrived
	}
	f.note(func(b *tierBook) { b.deleting = true })
	_, err := f.metadata().Propose(ctx, meta.DeleteTopic{Name: f.topic.Name, ID: f.topic.ID})
	f.must(err)
	f.note(func(b *tierBook) { b.deleted = true })
	_ = f.k.Close(ctx, fault.New(fault.Deleted, "deleted"))
	close(carryOn)
	f.must(f.k.StopExporting(ctx))
	for err = errors.New("not tried"); err != nil; {
		if err = purge(ctx, f.fs, f.k.cfg.Tier, f.topic, f.metadata().Propose); err != nil && !errors.Is(err, objstore.ErrOutcomeUnknown) && !objstore.Retryable(err) {
			f.t.Fatal(err)
		}
		<-time.After(time.Minute) // as time goes in the bubble
	}
	f.must(f.k.stop())
}

// Whatever the moment at which a broker or its machine dies while segments are sealed, exported, removed from the log, and
// the topic is deleted: every offset stays in one of the two, unchanged; exports go on by themselves; and a scrub leaves no
// orphan and misses no object.
func TestCrashAtEveryStepBetweenTheTiers(t *testing.T) {
	lives := []struct {
		mode  seglog.Mode
		rot   int
		rates map[faulty.Kind]float64
	}{
		{mode: seglog.OnCommit},
		{mode: seglog.OnCommit, rot: 2},
		{mode: seglog.Periodic, rot: 3, rates: putFaults(0.1)},
		{mode: seglog.OnCommit, rates: putFaults(0.15)},
	}
	rounds, seeds, again := 1, 2, 500
	switch {
	case testing.Short():
		lives, seeds, again = lives[1:2], 0, 1000
	case os.Getenv("LEVEE_FAULTS") == "full":
		rounds, seeds, again = 20, 6, 100
	}
	seed := testSeed(t)
	states, steps, points := 0, 0, map[string]int{}
	for i := range rounds * len(lives) {
		life := lives[i%len(lives)]
		synctest.Test(t, func(t *testing.T) {
			f := newTierLife(t, seed+uint64(i), life.mode, seeds, again)
			if testing.Short() {
				f.every = 3
			}
			f.watch(life.rot, faulty.Config{Seed: seed + uint64(i), Rate: life.rates})
			f.script()
			states, steps = states+f.states, steps+f.steps
			for p, n := range f.points {
				points[p] += n
			}
		})
	}
	t.Logf("%d crash states at %d steps: %v", states, steps, points)
	if !testing.Short() && states < 2000 {
		t.Errorf("only %d crash states", states)
	}
}

// putFaults is a rate for what may happen to a write.
func putFaults(rate float64) map[faulty.Kind]float64 {
	all := map[faulty.Kind]float64{}
	for _, k := range []faulty.Kind{faulty.LostAnswer, faulty.LostRequest, faulty.OwnConflict, faulty.Torn, faulty.Throttled, faulty.Late} {
		all[k] = rate
	}
	return all
}
