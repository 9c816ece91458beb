package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// diskWorld is a server without listeners on a memory disk, run through lives that touch every durable path, and a book
// of what it promised. It runs in a synctest bubble, where timers cost no time.
type diskWorld struct {
	t    *testing.T
	mem  *vfs.Mem
	dir  string
	boot int

	s       *server
	lines   *lockedBuffer
	running bool
	next    int // values are numbered
	books   map[string]*diskBook
	answers []answer

	mu       sync.Mutex
	sites    map[string]int // how often each site was seen
	faults   []*siteFault
	watched  bool              // a flush failed that the run has to tell of
	unproven map[string]string // files whose flush failed at a site, and that were not written since
	broken   []string          // what must never happen, and did
	unknown  map[string]bool   // calls from places that the source walk does not know
	source   map[string]string // file:line of each call in the source, and its site
}

// diskBook is what one topic of one partition was asked and answered.
type diskBook struct {
	mode    string
	kept    map[int64]string // acknowledged, by offset
	refused map[string]bool  // certainly not stored
	doubt   map[string]bool  // nobody knows
	trimmed bool             // retention may have removed the oldest
	deleted bool
	failed  string // a flush of what this log had written failed there: it may acknowledge nothing any more
}

// answer is what an operation of the script was told.
type answer struct {
	what string
	kind fault.Kind
	err  error
}

// siteFault makes one site fail.
type siteFault struct {
	site  string
	nth   int // occurrence that fails first
	stick bool
	err   error

	hits  int
	fired int
	where string // everything below it fails from then on, where it sticks
}

func newDiskWorld(t *testing.T, source map[string]string) *diskWorld {
	t.Helper()
	w := &diskWorld{
		t: t, mem: vfs.NewMem(), dir: t.TempDir(), books: map[string]*diskBook{}, sites: map[string]int{},
		unproven: map[string]string{}, unknown: map[string]bool{}, source: source,
	}
	if err := vfs.MkdirSync(w.mem, w.dir); err != nil {
		t.Fatal(err)
	}
	w.watch(w.mem)
	return w
}

// watch sees what is done to a disk by whom, and makes it fail.
func (w *diskWorld) watch(mem *vfs.Mem) { mem.SetHook(w.hook) }

func (w *diskWorld) hook(op vfs.Op) error {
	if !op.Kind.Changes() {
		return nil
	}
	site, product := w.siteOf(op)
	if !product {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sites[site]++
	if site == "seglog.settleFile Sync" {
		// A log that is opened again drops what the kernel has of its file and reads the device. What this flush says is
		// not taken for a proof of anything.
		delete(w.unproven, op.Path)
		if b := w.bookOf(op.Path); b != nil {
			b.failed = ""
		}
	}
	if earlier := w.unproven[op.Path]; op.Kind == vfs.OpSync && earlier != "" {
		w.broken = append(w.broken, fmt.Sprintf("%s flushes %s again, whose flush failed at %s", site, op.Path, earlier))
	}
	switch op.Kind {
	case vfs.OpWrite, vfs.OpRemove:
		delete(w.unproven, op.Path)
	case vfs.OpRename:
		delete(w.unproven, op.Path)
		delete(w.unproven, op.To)
	}
	for _, f := range w.faults {
		if err := f.decide(site, op); err != nil {
			w.failed(site, op)
			return err
		}
	}
	return nil
}

// decide returns what a fault does to an operation.
func (f *siteFault) decide(site string, op vfs.Op) error {
	if f.site != site {
		return nil
	}
	f.hits++
	if f.hits < f.nth || f.hits > f.nth && !(f.stick && strings.HasPrefix(op.Path, f.where)) {
		return nil
	}
	if f.fired++; f.fired == 1 {
		f.where = path.Dir(op.Path)
		if op.Kind == vfs.OpMkdir || op.Kind == vfs.OpSyncDir {
			f.where = op.Path
		}
	}
	if f.err == vfs.ErrNoSpace && op.Kind == vfs.OpWrite {
		return vfs.ShortWrite{N: int(op.Len / 2), Err: f.err}
	}
	return f.err
}

// failed notes what follows from a fault. The caller holds mu.
func (w *diskWorld) failed(site string, op vfs.Op) {
	if op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
		return
	}
	// The files that say how a run went are flushed past the watch: that failure is an error of the step itself.
	if !strings.HasPrefix(site, "server.") {
		w.watched = true
	}
	if op.Kind != vfs.OpSync {
		return
	}
	w.unproven[op.Path] = site
	if diskSites[site][0] != logStops {
		return
	}
	if b := w.bookOf(op.Path); b != nil {
		b.failed = site
	}
}

// bookOf returns the book of the topic that a file belongs to; nil: none.
func (w *diskWorld) bookOf(file string) *diskBook {
	for name, b := range w.books {
		if strings.HasPrefix(file, w.dir+"/"+topicsDir+"/"+name+"@") && !b.deleted {
			return b
		}
	}
	return nil
}

// fired reports whether all faults have happened.
func (w *diskWorld) fired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		if f.fired == 0 {
			return false
		}
	}
	return len(w.faults) > 0
}

// flushFailed reports whether a flush failed that is watched: logs go on flushing beside the script.
func (w *diskWorld) flushFailed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched
}

// helpers of vfs that do several operations; a site that calls one has a row for each.
var diskHelpers = map[string]bool{"MkdirSync": true, "WriteFileAtomic": true, "RemoveAll": true, "Discard": true}

// passThrough are the types that hand on what others ask.
var passThrough = []string{"watchedFS", "watchedFile", "reserveFS", "reserveFSFile"}

// siteOf returns the place above vfs that an operation comes from; product is false where that is a test.
func (w *diskWorld) siteOf(op vfs.Op) (site string, product bool) {
	pcs := make([]uintptr, 40)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	helper := ""
	for {
		f, more := frames.Next()
		name := f.Function[strings.LastIndex(f.Function, "/")+1:]
		switch {
		case strings.HasPrefix(name, "vfs."):
			if fn := strings.TrimPrefix(name, "vfs."); diskHelpers[fn] {
				helper = fn
			}
		case strings.HasSuffix(f.File, "_test.go"):
			return "", false
		case f.File == "<autogenerated>" || slices.ContainsFunc(passThrough, func(p string) bool {
			return strings.HasPrefix(name, "server.(*"+p+")") || strings.HasPrefix(name, "server.struct")
		}):
		default:
			at := fmt.Sprintf("%s:%d", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line)
			site = w.source[at]
			if site == "" {
				w.mu.Lock()
				w.unknown[at+" "+name] = true
				w.mu.Unlock()
				site = name
			}
			if helper != "" {
				site += "/" + op.Kind.String()
			}
			return site, true
		}
		if !more {
			return "", false
		}
	}
}

// start starts a server as Run does, listeners apart.
func (w *diskWorld) start() error {
	w.t.Helper()
	w.lines = &lockedBuffer{}
	cfg := settings(w.t, w.dir, map[string]string{
		"storage.retention_check": "1s", "storage.repair_checksum_tail": "true", "storage.fsync_interval": "100ms", "drain_timeout": "5s",
	})
	boot, mem := fmt.Sprint("boot ", w.boot), w.mem
	m := thisMachine()
	m.bootID = func() (string, error) { return boot, nil }
	m.sync = func(dir string) error { return syncAll(mem, dir) }
	w.s = newServer(cfg, Options{Version: "test", Logger: slog.New(slog.NewTextHandler(w.lines, nil))}, mem, m)
	w.running = true
	for _, do := range []func(context.Context) error{
		w.s.lockDataDir, w.s.claimDataDir, w.s.holdReserve, w.s.openMetadata, w.s.register, w.s.startBroker,
	} {
		if err := do(w.t.Context()); err != nil {
			return errors.Join(err, w.stop())
		}
	}
	w.s.status.started()
	w.s.tasks.Go("follow the start", w.s.followStart)
	for w.s.broker.Load().Ready() != nil {
		pause(10 * time.Millisecond)
	}
	return nil
}

// syncAll makes everything below dir durable, as syncing a file system does.
func syncAll(fs vfs.FS, dir string) error {
	list, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, info := range list {
		name := path.Join(dir, info.Name)
		if info.Dir {
			err = syncAll(fs, name)
		} else if f, oerr := fs.Open(name, false); oerr != nil {
			err = oerr
		} else {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return err
		}
	}
	return fs.SyncDir(dir)
}

// pause lets the bubble's time pass.
func pause(d time.Duration) { <-time.After(d) }

// stop stops the server, if it runs.
func (w *diskWorld) stop() error {
	if !w.running {
		return nil
	}
	w.running = false
	return w.s.stop()
}

// crash ends the run as a power loss or a kill does and puts what is left in its place.
func (w *diskWorld) crash(power bool) {
	left := w.mem.Crash(vfs.KeepAll)
	if power {
		left = w.mem.Crash(vfs.KeepNothing)
		w.boot++
	}
	w.mem.SetHook(nil) // the old one ends without a trace
	_ = w.stop()
	w.mem = left
	w.forgive()
	w.watch(left)
}

// forgive forgets what does not outlive a run.
func (w *diskWorld) forgive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.unproven)
	w.watched = false
	for _, b := range w.books {
		b.failed = ""
	}
}

// on returns a world like this one whose disk is mem, without faults and with a book of its own.
func (w *diskWorld) on(mem *vfs.Mem, reboot bool) *diskWorld {
	c := &diskWorld{
		t: w.t, mem: mem, dir: w.dir, boot: w.boot, next: w.next, books: map[string]*diskBook{}, sites: map[string]int{},
		unproven: map[string]string{}, unknown: map[string]bool{}, source: w.source,
	}
	if reboot {
		c.boot++
	}
	for name, b := range w.books {
		own := *b
		own.kept, own.refused, own.doubt, own.failed = maps.Clone(b.kept), maps.Clone(b.refused), maps.Clone(b.doubt), ""
		c.books[name] = &own
	}
	c.watch(mem)
	return c
}

// serves starts a server on what a fault has left, and wants everything to be there and to go on.
func (w *diskWorld) serves(when string) []string {
	if err := w.start(); err != nil {
		w.complain("%s: the next start fails: %v", when, err)
		return w.broken
	}
	w.check(when, false)
	for name, b := range w.books {
		if b.deleted {
			continue
		}
		if err := w.publish(name, 100, false); err != nil {
			w.complain("%s: %v", when, err)
		}
	}
	w.check(when+", after another publish", true)
	if err := w.stop(); err != nil {
		w.complain("%s: the next stop fails: %v", when, err)
	}
	return w.broken
}

func (w *diskWorld) broker() *broker.Broker { return w.s.broker.Load() }

// told notes what an operation was answered.
func (w *diskWorld) told(what string, err error) error {
	if err != nil {
		w.answers = append(w.answers, answer{what, fault.KindOf(err), err})
	}
	return err
}

func (w *diskWorld) create(name, mode string, change func(*broker.Settings)) {
	set := broker.Settings{Fsync: &mode, SegmentBytes: ptr(int64(64 << 10))}
	if change != nil {
		change(&set)
	}
	_, err := w.broker().CreateTopic(w.t.Context(), broker.TopicSpec{Name: name, Settings: set})
	if w.told("create "+name, err) == nil || fault.KindOf(err) == fault.AlreadyExists {
		w.mu.Lock() // hook looks for books
		defer w.mu.Unlock()
		w.books[name] = &diskBook{mode: mode, kept: map[int64]string{}, refused: map[string]bool{}, doubt: map[string]bool{}}
	}
}

// publish publishes one record of a size, under a producer of its own where numbered, and keeps the book.
func (w *diskWorld) publish(name string, size int, numbered bool) error {
	b := w.books[name]
	if b == nil {
		return nil // it could not be created
	}
	w.next++
	value := fmt.Sprintf("%s-%d-", name, w.next)
	value += strings.Repeat("v", max(0, size-len(value)))
	offset, err := w.send(name, value, numbered)
	switch {
	case err == nil:
		if old, there := b.kept[offset]; there {
			w.complain("%s: offset %d was given to %.40q and to %.40q", name, offset, old, value)
		}
		w.mu.Lock() // logs go on flushing beside the script
		failed := b.failed
		w.mu.Unlock()
		if failed != "" {
			w.complain("%s: offset %d was acknowledged after a flush of this log had failed at %s", name, offset, failed)
		}
		b.kept[offset] = value
	case slices.Contains([]fault.Kind{fault.IO, fault.NoSpace, fault.Unavailable}, fault.KindOf(err)):
		b.refused[value] = true
	default:
		b.doubt[value] = true
	}
	return w.told("publish to "+name, err)
}

func (w *diskWorld) send(name, value string, numbered bool) (int64, error) {
	ctx, records := w.t.Context(), []record.Record{{Value: []byte(value)}}
	if !numbered {
		_, r, err := w.broker().Publish(ctx, name, 0, records)
		return r.Offset, err
	}
	id, epoch, err := w.broker().InitProducer(ctx)
	if err != nil {
		return 0, fault.New(fault.Unavailable, "no producer: %w", err) // nothing was sent
	}
	p, err := w.broker().OpenPublisher(ctx, name, nil)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	builder := record.NewBuilder(record.None)
	if err := builder.Append(records[0]); err != nil {
		w.t.Fatal(err)
	}
	batch, err := builder.Build(record.ProducerInfo{ID: id, Epoch: epoch})
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan broker.PublishResult, 1)
	if err := p.Submit(ctx, 0, batch, func(r broker.PublishResult) { done <- r }); err != nil {
		return 0, err
	}
	r := <-done
	return r.Offset, r.Err
}

func (w *diskWorld) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// contents reads a topic to its end, or as far as it can be read.
func (w *diskWorld) contents(name string) (got map[int64]string, lost []broker.Range, first int64, err error) {
	got = map[int64]string{}
	sub, err := w.broker().Subscribe(w.t.Context(), broker.SubscribeSpec{Topic: name, Start: broker.Earliest()})
	if err != nil {
		return nil, nil, 0, err
	}
	defer sub.Close()
	first = sub.Info().Start
	for {
		e, err := sub.Next(w.t.Context(), 0)
		switch {
		case err != nil:
			return got, lost, first, err
		case e.Kind == broker.EventAtEnd:
			return got, lost, first, nil
		case e.Kind == broker.EventLost:
			lost = append(lost, e.Lost)
		case e.Kind == broker.EventData:
			for rest := e.Batches; len(rest) > 0; {
				batch, more, err := record.Next(rest)
				if err != nil {
					return got, lost, first, err
				}
				if err := record.Each(batch, func(r record.Record) error { got[r.Offset] = string(r.Value); return nil }); err != nil {
					return got, lost, first, err
				}
				rest = more
			}
		}
	}
}

// check compares every topic with its book. strict: nothing doubtful may be seen, for the run that left it in doubt
// goes on.
func (w *diskWorld) check(when string, strict bool) {
	for _, name := range slices.Sorted(maps.Keys(w.books)) {
		b := w.books[name]
		if b.deleted {
			continue
		}
		got, lost, first, err := w.contents(name)
		if err != nil && !w.fired() {
			w.complain("%s: %s cannot be read: %v", when, name, err)
			continue
		}
		for offset, value := range got {
			switch {
			case b.kept[offset] == value:
			case b.doubt[value] && !strict:
				b.kept[offset] = value // no longer in doubt
			default:
				w.complain("%s: %s has %.40q at offset %d, want %.40q (refused: %v, in doubt: %v)", when, name, value, offset, b.kept[offset], b.refused[value], b.doubt[value])
			}
		}
		if err != nil {
			continue // it stopped, or cannot be opened
		}
		for offset, value := range b.kept {
			gone := slices.ContainsFunc(lost, func(r broker.Range) bool { return r.From <= offset && offset <= r.To })
			if got[offset] != value && !(gone && b.mode != "on_commit") && !(b.trimmed && offset < first) {
				w.complain("%s: %s lost offset %d, %.40q, which was acknowledged (it begins at %d, lost: %v)", when, name, offset, value, first, lost)
			}
			if gone {
				delete(b.kept, offset) // told once, which is what was promised
			}
		}
	}
}

// diskLives is the script. Each life has a start, and ends in another way. stopEarly is asked behind each part.
func diskLives(w *diskWorld, stopEarly func() bool) {
	for i, life := range []struct {
		live func()
		end  func()
	}{
		{w.firstLife, func() { w.crash(false); w.damage() }},
		{w.laterLife, func() { w.crash(true) }},
		{w.laterLife, func() { _ = w.told("stop", w.stop()) }},
		{w.laterLife, func() { _ = w.told("stop", w.stop()) }},
	} {
		err := w.told("start", w.start())
		if err == nil {
			w.check(fmt.Sprintf("at the start of life %d", i), false)
			life.live()
			w.check(fmt.Sprintf("life %d", i), true)
		}
		if stopEarly() {
			return
		}
		if err != nil {
			w.t.Fatalf("life %d does not begin: %v", i, err)
		}
		life.end()
		if stopEarly() {
			return
		}
	}
}

const segmentFill = 30 << 10 // two of them do not fit a segment

// firstLife makes topics of every kind and has them roll, trim, change, unload and go.
func (w *diskWorld) firstLife() {
	ctx := w.t.Context()
	_ = w.told("create namespace", w.broker().CreateNamespace(ctx, "ns"))
	w.create("default/commit", "on_commit", nil)
	w.create("default/periodic", "periodic", nil)
	w.create("default/none", "none", nil)
	w.create("ns/trimmed", "on_commit", func(s *broker.Settings) { s.RetentionBytes = ptr(int64(100 << 10)) })
	w.create("ns/idle", "none", func(s *broker.Settings) { s.RetentionAge = ptr(time.Hour); s.SegmentBytes = ptr(int64(8 << 20)) })
	w.create("ns/busy", "on_commit", func(s *broker.Settings) { s.SegmentBytes = ptr(int64(8 << 20)) })
	w.create("default/gone", "on_commit", nil)
	w.create("default/bystander", "on_commit", nil)
	if b := w.books["ns/trimmed"]; b != nil {
		b.trimmed = true
	}
	for range 5 {
		for _, name := range []string{"default/commit", "default/periodic", "default/none", "ns/trimmed", "ns/busy", "default/gone"} {
			_ = w.publish(name, segmentFill, name != "default/none")
		}
		_ = w.publish("default/bystander", 100, false)
	}
	_ = w.publish("ns/idle", 1200<<10, false)
	_ = w.publish("default/gone", 4200<<10, false) // so long that it is not freed at once
	pause(5 * time.Second)                         // marks, flushes, retention, and taking reserved space back
	_, err := w.broker().SetTopic(ctx, "default/none", broker.Settings{Fsync: ptr("on_commit")}, nil)
	_ = w.told("set", err)
	_ = w.publish("default/none", 100, false)
	_, err = w.broker().SetTopic(ctx, "default/none", broker.Settings{Fsync: ptr("none")}, nil)
	_ = w.told("set", err)
	_ = w.told("unload", w.broker().UnloadTopic(ctx, "default/commit"))
	_ = w.publish("default/commit", 100, true)
	if w.told("delete", w.broker().DeleteTopic(ctx, "default/gone")) == nil {
		w.mu.Lock()
		w.books["default/gone"].deleted = true
		w.mu.Unlock()
	}
	pause(35 * time.Second) // a removal that failed is tried again
	for range 6 {
		_ = w.publish("ns/trimmed", segmentFill, false)
		pause(2 * time.Second)
	}
	_ = w.publish("default/commit", 100, false)
	_ = w.publish("default/periodic", 100, false)
}

// laterLife goes on with what there is.
func (w *diskWorld) laterLife() {
	pause(3 * time.Second)
	for range 3 {
		for _, name := range []string{"default/commit", "default/periodic", "default/none", "ns/trimmed"} {
			_ = w.publish(name, segmentFill, true)
		}
		_ = w.publish("default/bystander", 100, false)
	}
	pause(3 * time.Second)
	_ = w.publish("default/periodic", 100, false)
}

// damage leaves on the disk what crashes and bad luck do, so that the next start has something to repair.
func (w *diskWorld) damage() {
	append2 := func(file string, text []byte) {
		f, err := w.mem.Open(file, false)
		if err != nil {
			w.t.Fatal(err)
		}
		size, err := f.Size()
		if err == nil {
			_, err = f.WriteAt(text, size)
		}
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	newest := func(name, suffix string) string {
		list, err := w.mem.List(w.dir + "/topics/" + name + "@1/0")
		if err != nil {
			w.t.Fatal(err)
		}
		found := ""
		for _, info := range list {
			if strings.HasSuffix(info.Name, suffix) {
				found = w.dir + "/topics/" + name + "@1/0/" + info.Name
			}
		}
		return found
	}
	append2(newest("default/commit", ".log"), []byte("an append that was cut off"))
	if err := w.mem.Remove(newest("default/periodic", ".index")); err != nil {
		w.t.Fatal(err)
	}
	f, err := w.mem.Open(path.Dir(newest("default/none", ".log"))+"/00000000000000999999.index", true)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = f.Close()
	// A durable mark above the end of a log: its last batch is damaged.
	log := newest("ns/trimmed", ".log")
	g, err := w.mem.Open(log, false)
	if err != nil {
		w.t.Fatal(err)
	}
	size, err := g.Size()
	if err == nil {
		_, err = g.WriteAt([]byte{0xff}, size-1)
	}
	if err = errors.Join(err, g.Sync(), g.Close()); err != nil {
		w.t.Fatal(err)
	}
	b := w.books["ns/trimmed"]
	last := slices.Max(slices.Collect(maps.Keys(b.kept)))
	delete(b.kept, last) // an operator's setting says to cut it off and to declare it lost
	f, err = w.mem.Open(w.dir+"/raft/snapshot/00000000000000000001-1.snap.tmp", true)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = f.Close()
}

// TestOneLogHangs has the flush of one topic's log hang, and later the reading of one file fail: the other topics neither
// wait nor fail, what is confirmed of the hanging log can be read, and it goes on when the disk does.
func TestOneLogHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDiskWorld(t, nil)
		w.mem.SetHook(nil)
		if err := w.start(); err != nil {
			t.Fatal(err)
		}
		w.create("default/slow", "on_commit", nil)
		w.create("default/other", "periodic", nil)
		_ = w.publish("default/slow", 100, false)
		release := make(chan struct{})
		w.mem.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync && strings.Contains(op.Path, "slow@") && strings.HasSuffix(op.Path, ".log") {
				<-release
			}
			return nil
		})
		done := make(chan error, 1)
		go func() { _, err := w.send("default/slow", "waits", false); done <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _, err := w.broker().Publish(ctx, "default/slow", 0, []record.Record{{Value: []byte("given up")}})
		cancel()
		if kind := fault.KindOf(err); kind != fault.Timeout && kind != fault.OutcomeUnknown {
			t.Errorf("a publish whose time is over before the disk answers: %v", err)
		}
		for range 100 {
			if err := w.publish("default/other", 2000, false); err != nil {
				t.Fatal(err)
			}
		}
		w.check("while a flush hangs", true) // "waits" is in no book: it may not be seen
		select {
		case err := <-done:
			t.Fatalf("a publish was answered while its flush hangs: %v", err)
		default:
		}
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.books["default/slow"].kept[1] = "waits"
		w.books["default/slow"].doubt["given up"] = true
		// What was given up is in the log behind "waits", or not at all: a record behind it, once it is there, settles which.
		if err := w.publish("default/slow", 100, false); err != nil {
			t.Fatal(err)
		}
		w.check("after a flush hung", false)

		w.mem.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpRead && strings.Contains(op.Path, "other@") {
				return vfs.ErrIO
			}
			return nil
		})
		_, _, _, err = w.contents("default/other")
		if fault.KindOf(err) != fault.IO || !strings.Contains(fmt.Sprint(err), "/default/other@1/0/00000000000000000000.log") {
			t.Errorf("a read of a file that cannot be read does not name it: %v", err)
		}
		if err := w.publish("default/slow", 100, false); err != nil {
			t.Errorf("another topic while one cannot be read: %v", err)
		}
		w.mem.SetHook(nil)
		w.check("when the disk can be read again", true)
		if err := w.stop(); err != nil || len(w.broken) > 0 {
			t.Errorf("%v %q", err, w.broken)
		}
	})
}
