package raft_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

const snapshotDir = "data/raft/snapshot"

// list is a machine that remembers what it was told. A command "refuse" is answered and remembered; "?" is one it does
// not understand.
type list struct {
	mu   sync.Mutex
	seen []string // guarded by mu
}

func (l *list) Apply(index uint64, command []byte) (any, error) {
	if string(command) == "?" {
		return nil, fault.New(fault.Unsupported, "unknown command")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf("%d:%s", index, command)
	l.seen = append(l.seen, text)
	return text, nil
}

func (l *list) Snapshot() func() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := slices.Clip(l.seen)
	return func() ([]byte, error) { return json.Marshal(seen) }
}

func (l *list) Restore(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = nil
	if err := json.Unmarshal(b, &l.seen); err != nil {
		return fault.New(fault.Corrupt, "restore: %w", err)
	}
	return nil
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// member is a group with what it stands on.
type member struct {
	*raft.Group
	list *list
	log  *raft.MemoryLog
	fs   *vfs.Mem
}

func start(log *raft.MemoryLog, fs *vfs.Mem, every uint64) (*member, error) {
	m := &member{list: &list{}, log: log, fs: fs}
	var err error
	m.Group, err = raft.Open(raft.Config{
		Log: log, FS: fs, SnapshotDir: snapshotDir, Machine: m.list, SnapshotEntries: every, Registerer: prometheus.NewRegistry(),
	})
	return m, err
}

func mustStart(t *testing.T, log *raft.MemoryLog, fs *vfs.Mem, every uint64) *member {
	t.Helper()
	m, err := start(log, fs, every)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *member) close(t *testing.T) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// propose proposes the commands c<from> to c<to> and waits until all is quiet.
func (m *member) propose(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if _, err := m.Propose(t.Context(), command(i)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
}

func command(i int) []byte { return fmt.Appendf(nil, "c%d", i) }

// wantList checks that exactly the commands c1 to c<to> were applied, each once, in order, at its own index.
func (m *member) wantList(t *testing.T, to int) {
	t.Helper()
	got := m.list.all()
	if len(got) != to {
		t.Fatalf("%d commands were applied instead of %d: %v", len(got), to, got)
	}
	for i, text := range got {
		if want := fmt.Sprintf("%d:c%d", i+1, i+1); text != want {
			t.Fatalf("command %d is %q instead of %q", i+1, text, want)
		}
	}
}

func (m *member) snapshots(t *testing.T) []string {
	t.Helper()
	infos, err := m.fs.List(snapshotDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return names
}

func TestConfigSaysAllThatIsMissing(t *testing.T) {
	_, err := raft.Open(raft.Config{})
	for _, field := range []string{"Log", "FS", "SnapshotDir", "Machine"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field+" ") {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestProposeAppliesInOrderAndAnswers(t *testing.T) {
	m := mustStart(t, raft.NewMemoryLog(), vfs.NewMem(), 0)
	defer m.close(t)
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for i := range 50 {
				want := fmt.Sprintf(":p%d-%d", p, i)
				got, err := m.Propose(context.Background(), []byte(want[1:]))
				if err != nil || !strings.HasSuffix(got.(string), want) {
					t.Errorf("answer %v, %v to %s", got, err, want)
				}
				if !slices.Contains(m.list.all(), got.(string)) {
					t.Errorf("%v was answered before it was applied", got)
				}
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for i, text := range m.list.all() {
		var index, n int
		var who string
		if _, err := fmt.Sscanf(strings.ReplaceAll(text, "-", " "), "%d:%s %d", &index, &who, &n); err != nil {
			t.Fatal(text, err)
		}
		if index != i+1 || n != next[who] {
			t.Fatalf("%q is number %d, and %d was due from %s", text, i+1, next[who], who)
		}
		next[who]++
	}
	if m.Applied() != 400 {
		t.Errorf("applied %d", m.Applied())
	}
}

func TestOneAppendServesAllThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := raft.NewMemoryLog()
		m := mustStart(t, log, vfs.NewMem(), 0)
		defer m.close(t)
		release := make(chan struct{})
		var sizes []int
		log.OnAppend(func(e []raft.Entry) error { sizes = append(sizes, len(e)); <-release; return nil })
		var wg sync.WaitGroup
		for i := range 21 {
			wg.Go(func() {
				if _, err := m.Propose(t.Context(), command(i)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(release)
		wg.Wait()
		if !slices.Equal(sizes, []int{1, 20}) {
			t.Errorf("appended in groups of %v", sizes)
		}
	})
}

func TestCommandsOutOfRange(t *testing.T) {
	m := mustStart(t, raft.NewMemoryLog(), vfs.NewMem(), 0)
	defer m.close(t)
	if _, err := m.Propose(t.Context(), nil); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
	if _, err := m.Propose(t.Context(), make([]byte, raft.MaxCommandBytes+1)); fault.KindOf(err) != fault.TooLarge {
		t.Error(err)
	}
	if _, err := m.Propose(t.Context(), make([]byte, raft.MaxCommandBytes)); err != nil {
		t.Error(err)
	}
}

func TestAFailedAppendReachesItsCallersOnly(t *testing.T) {
	log := raft.NewMemoryLog()
	m := mustStart(t, log, vfs.NewMem(), 0)
	defer m.close(t)
	full := fault.New(fault.NoSpace, "disk full")
	log.OnAppend(func([]raft.Entry) error { return full })
	if _, err := m.Propose(t.Context(), command(1)); fault.KindOf(err) != fault.NoSpace || !errors.Is(err, full) {
		t.Error(err)
	}
	log.OnAppend(nil)
	if _, err := m.Propose(t.Context(), command(1)); err != nil {
		t.Error(err)
	}
	m.wantList(t, 1)
	if m.Err() != nil {
		t.Error(m.Err())
	}
}

func TestAStoppedLogStopsTheGroup(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Stopped, fault.OutcomeUnknown} {
		t.Run(kind.String(), func(t *testing.T) {
			log := raft.NewMemoryLog()
			m := mustStart(t, log, vfs.NewMem(), 0)
			defer m.close(t)
			log.OnAppend(func([]raft.Entry) error { return fault.New(kind, "flush failed") })
			if _, err := m.Propose(t.Context(), command(1)); fault.KindOf(err) != kind {
				t.Error(err)
			}
			log.OnAppend(func([]raft.Entry) error { t.Error("appended to a log that had failed"); return nil })
			if _, err := m.Propose(t.Context(), command(2)); fault.KindOf(err) != fault.Stopped {
				t.Error(err)
			}
			if fault.KindOf(m.Err()) != fault.Stopped {
				t.Error(m.Err())
			}
		})
	}
}

// halfLog takes half of what it fails to append.
type halfLog struct{ *raft.MemoryLog }

func (l halfLog) Append(ctx context.Context, e []raft.Entry) error {
	if err := l.MemoryLog.Append(ctx, e[:1]); err != nil {
		return err
	}
	return fault.New(fault.IO, "write failed")
}

func TestALogThatKeptWhatItRefusedStopsTheGroup(t *testing.T) {
	g, err := raft.Open(raft.Config{Log: halfLog{raft.NewMemoryLog()}, FS: vfs.NewMem(), SnapshotDir: snapshotDir, Machine: &list{}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Propose(t.Context(), command(1)); fault.KindOf(err) != fault.IO {
		t.Error(err)
	}
	if _, err := g.Propose(t.Context(), command(1)); fault.KindOf(err) != fault.Stopped {
		t.Error(err)
	}
}

func TestACommandNobodyUnderstandsStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, fs := raft.NewMemoryLog(), vfs.NewMem()
		m := mustStart(t, log, fs, 0)
		release := make(chan struct{})
		log.OnAppend(func([]raft.Entry) error { <-release; return nil })
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i, c := range []string{"c1", "c2", "?", "c4"} {
			wg.Go(func() { _, errs[i] = m.Propose(t.Context(), []byte(c)) })
			synctest.Wait()
		}
		close(release)
		wg.Wait()
		if errs[0] != nil || errs[1] != nil || fault.KindOf(errs[2]) != fault.Unsupported || fault.KindOf(errs[3]) != fault.OutcomeUnknown {
			t.Error(errs)
		}
		if _, err := m.Propose(t.Context(), command(5)); fault.KindOf(err) != fault.Stopped {
			t.Error(err)
		}
		m.close(t)
		if _, err := start(log, fs, 0); fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "entry 3") {
			t.Errorf("the start must stop at entry 3: %v", err)
		}
	})
}

func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := raft.NewMemoryLog()
		m := mustStart(t, log, vfs.NewMem(), 0)
		defer m.close(t)
		release := make(chan struct{})
		log.OnAppend(func([]raft.Entry) error { <-release; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = m.Propose(ctx, command(i+1)) })
			synctest.Wait() // the first is being appended, the second waits
		}
		cancel()
		wg.Wait() // both leave although the log is stuck
		if fault.KindOf(errs[0]) != fault.OutcomeUnknown || !errors.Is(errs[0], context.Canceled) {
			t.Error(errs[0])
		}
		if fault.KindOf(errs[1]) != fault.Canceled {
			t.Error(errs[1])
		}
		if _, err := m.Propose(ctx, command(3)); fault.KindOf(err) != fault.Canceled {
			t.Error(err)
		}
		close(release)
		synctest.Wait()
		m.wantList(t, 1) // what was begun took effect, what was not never does
		m.propose(t, 2, 2)
		m.wantList(t, 2)
	})
}

func TestCloseAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := raft.NewMemoryLog()
		m := mustStart(t, log, vfs.NewMem(), 0)
		release := make(chan struct{})
		log.OnAppend(func([]raft.Entry) error { <-release; return nil })
		const n = 300 // more than may be queued
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { _, errs[i] = m.Propose(t.Context(), []byte("x")) })
		}
		synctest.Wait()
		wg.Go(func() { m.close(t) })
		synctest.Wait()
		close(release)
		wg.Wait()
		answered := 0
		for _, err := range errs {
			switch {
			case err == nil:
				answered++
			case fault.KindOf(err) != fault.Unavailable:
				t.Error(err)
			}
		}
		if _, last := log.Bounds(); answered == 0 || uint64(answered) != last {
			t.Errorf("%d were answered, and the log has %d entries", answered, last)
		}
		if _, err := m.Propose(t.Context(), command(1)); fault.KindOf(err) != fault.Unavailable {
			t.Error(err)
		}
		m.close(t)
	})
}

func TestStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, fs := raft.NewMemoryLog(), vfs.NewMem()
		for round := range 12 { // snapshots after 4, 8, 12 … entries; rounds end anywhere between
			m := mustStart(t, log, fs, 4)
			m.wantList(t, round*3)
			m.propose(t, round*3+1, round*3+3)
			m.wantList(t, round*3+3)
			m.close(t)
		}
		m := mustStart(t, log, fs, 4)
		defer m.close(t)
		if got := m.snapshots(t); len(got) != 2 || got[1] != "00000000000000000036-1.snap" {
			t.Errorf("snapshots are %v", got)
		}
		if first, _ := log.Bounds(); first != 33 {
			t.Errorf("the log begins at %d, and the older snapshot is of entry 32", first)
		}
	})
}

func TestSnapshotsByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		g, err := raft.Open(raft.Config{Log: raft.NewMemoryLog(), FS: fs, SnapshotDir: snapshotDir, Machine: &list{}, SnapshotBytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for range 4 {
			if _, err := g.Propose(t.Context(), make([]byte, 400)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		infos, err := fs.List(snapshotDir)
		if err != nil || len(infos) != 1 || !strings.HasPrefix(infos[0].Name, "00000000000000000003-") {
			t.Errorf("snapshots are %v, %v", infos, err)
		}
	})
}

// TestCommandsGoOnDuringASnapshot: a slow disk under a snapshot does not hold up a command.
func TestCommandsGoOnDuringASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, fs := raft.NewMemoryLog(), vfs.NewMem()
		m := mustStart(t, log, fs, 2)
		release := make(chan struct{})
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				<-release
			}
			return nil
		})
		m.propose(t, 1, 9)
		m.wantList(t, 9)
		close(release)
		synctest.Wait()
		if got := m.snapshots(t); !slices.Equal(got, []string{"00000000000000000002-1.snap", "00000000000000000009-1.snap"}) {
			t.Errorf("snapshots are %v", got)
		}
		m.close(t)
		again := mustStart(t, log, fs, 2)
		again.wantList(t, 9)
		again.close(t)
	})
}

// TestAFailedSnapshotIsTriedAgain fails every operation of a snapshot once; the commands do not notice.
func TestAFailedSnapshotIsTriedAgain(t *testing.T) {
	for _, failure := range []error{vfs.ErrNoSpace, vfs.ErrIO} {
		for n := 1; n <= 12; n++ {
			synctest.Test(t, func(t *testing.T) {
				log, fs := raft.NewMemoryLog(), vfs.NewMem()
				m := mustStart(t, log, fs, 3)
				m.propose(t, 1, 6)
				fs.SetHook(func(op vfs.Op) error {
					if op.Kind.Changes() && op.N == n {
						return failure
					}
					return nil
				})
				m.propose(t, 7, 20)
				m.wantList(t, 20)
				m.close(t)
				fs.SetHook(nil)
				again := mustStart(t, log, fs, 3)
				again.wantList(t, 20)
				if got := again.snapshots(t); len(got) > 3 || !strings.Contains(got[len(got)-1], "snap") {
					t.Errorf("operation %d failed: snapshots are %v", n, got)
				}
				if first, _ := log.Bounds(); first < 10 {
					t.Errorf("operation %d failed: the log still begins at %d", n, first)
				}
				again.close(t)
			})
		}
	}
}

func TestOtherEntriesAreNoCommands(t *testing.T) {
	log := raft.NewMemoryLog()
	for i, e := range []raft.Entry{
		{Kind: segfmt.KindGenerationStart, Batch: segfmt.ControlBatch(nil)},
		{Kind: segfmt.KindNoop, Batch: segfmt.ControlBatch(nil)},
		{Kind: segfmt.KindMembership, Batch: segfmt.ControlBatch([]byte("x"))},
	} {
		e.Seq, e.Term = uint64(i+1), 6
		if err := log.Append(t.Context(), []raft.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	m := mustStart(t, log, vfs.NewMem(), 0)
	defer m.close(t)
	if got, err := m.Propose(t.Context(), command(1)); err != nil || got != "4:c1" {
		t.Errorf("%v, %v", got, err)
	}
	if term, err := log.Term(4); err != nil || term != 6 {
		t.Errorf("the term fell to %d, %v", term, err)
	}
}

func TestEntriesThatCannotBe(t *testing.T) {
	for name, e := range map[string]raft.Entry{
		"lost range":   {Kind: segfmt.KindLost, Batch: segfmt.LostBatch(1, 2)},
		"unknown kind": {Kind: 77, Batch: segfmt.ControlBatch(nil)},
		"no batch":     {Kind: segfmt.KindData, Batch: []byte("x")},
		"no record":    {Kind: segfmt.KindData, Batch: segfmt.ControlBatch(nil)},
	} {
		log := raft.NewMemoryLog()
		e.Seq, e.Term = 1, 1
		if err := log.Append(t.Context(), []raft.Entry{e}); err != nil {
			t.Fatal(err)
		}
		if _, err := start(log, vfs.NewMem(), 0); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkPropose(b *testing.B) {
	for _, proposers := range []int{1, 16} {
		b.Run(fmt.Sprint(proposers), func(b *testing.B) {
			g, err := raft.Open(raft.Config{Log: raft.NewMemoryLog(), FS: vfs.NewMem(), SnapshotDir: snapshotDir, Machine: discard{}})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close()
			b.ReportAllocs()
			b.SetParallelism(proposers)
			if proposers == 1 {
				for b.Loop() {
					if _, err := g.Propose(context.Background(), []byte("command")); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := g.Propose(context.Background(), []byte("command")); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

type discard struct{}

func (discard) Apply(uint64, []byte) (any, error) { return nil, nil }
func (discard) Snapshot() func() ([]byte, error)  { return func() ([]byte, error) { return nil, nil } }
func (discard) Restore([]byte) error              { return nil }
