package tier

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// testSource is a partition whose segments wait to be exported.
type testSource struct {
	name  string
	place Place

	mu       sync.Mutex
	segments []Segment
	done     []Object
	commit   func(o Object) error // before it is recorded; nil: always well
	answer   func() error         // after that
	released int
	next     func() // before it says what it has
}

func (s *testSource) Name() string { return s.name }
func (s *testSource) Place() Place { return s.place }

func (s *testSource) Next(context.Context) (*Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 {
		if s.next != nil {
			s.mu.Unlock()
			s.next()
			s.mu.Lock()
		}
		return nil, nil
	}
	seg := s.segments[0]
	seg.Release = func() { s.mu.Lock(); s.released++; s.mu.Unlock() }
	return &seg, nil
}

func (s *testSource) Commit(_ context.Context, o Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commit != nil {
		if err := s.commit(o); err != nil {
			return err
		}
	}
	s.done, s.segments = append(s.done, o), s.segments[1:]
	if s.answer != nil {
		return s.answer()
	}
	return nil
}

func (s *testSource) objects() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Object(nil), s.done...)
}

func newTestSource(t *testing.T, rng *rand.Rand, partition int32, segments int) *testSource {
	l := newTestLog(t, rng)
	l.plain = true
	l.place.Partition = partition
	for range segments {
		l.seal(5, 50)
	}
	return &testSource{name: "default/t", place: l.place, segments: l.of}
}

func newTestExporter(t *testing.T, store objstore.Store, cfg ExporterConfig) *Exporter {
	x, err := NewExporter(context.Background(), store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestExporterExportsInOrder(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore()
		x := newTestExporter(t, store, ExporterConfig{})
		var all []*testSource
		for p := range int32(9) {
			s := newTestSource(t, rng, p, 3)
			all = append(all, s)
			x.Wake(s)
		}
		synctest.Wait()
		for _, s := range all {
			done := s.objects()
			if len(done) != 3 || done[0].Next != done[1].Base || done[1].NextSeq != done[2].BaseSeq || s.released != 3 {
				t.Errorf("partition %d: %+v, released %d", s.place.Partition, done, s.released)
			}
		}
		if st := x.Stats(); st.Uploads != 27 || st.InProgress != 0 || len(st.Failures) != 0 || len(keys(store)) != 27 {
			t.Errorf("%+v, %d objects", st, len(keys(store)))
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// A store that is away for ten minutes holds up one partition; another one is exported all the while, and the first one
// as soon as the store is back, within the longest wait.
func TestExporterRetriesForEver(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore()
		x := newTestExporter(t, store, ExporterConfig{Parallel: 1})
		bad, good := newTestSource(t, rng, 1, 2), newTestSource(t, rng, 2, 20)
		var mu sync.Mutex // guards at
		var at []time.Time
		start := time.Now()
		store.set(func(s *testStore) {
			s.before = func(op, key string) error {
				if p, _, _ := ParseKey(key); p.Partition == 1 && op == "put" && time.Since(start) < 10*time.Minute {
					mu.Lock()
					at = append(at, time.Now())
					mu.Unlock()
					return objstore.ErrUnavailable
				}
				return nil
			}
		})
		x.Wake(bad)
		x.Wake(good)
		synctest.Wait()
		if n := len(good.objects()); n != 20 {
			t.Errorf("the good partition exported %d of 20 beside the bad one", n)
		}
		x.Wake(bad) // does not shorten the wait
		synctest.Wait()
		mu.Lock()
		if len(at) != 1 {
			t.Errorf("%d attempts at once", len(at))
		}
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		exact := 0
		for i := 1; i < len(at); i++ {
			wait := at[i].Sub(at[i-1])
			if most := min(time.Second<<min(i-1, 10), longRetry); wait < most/2 || wait > most {
				t.Errorf("wait %d was %s, want %s to %s", i, wait, most/2, most)
			} else if wait == most {
				exact++
			}
		}
		if exact > len(at)/2 {
			t.Errorf("%d of %d waits are not spread", exact, len(at))
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		tried := len(at)
		store.set(func(s *testStore) { s.before = failing("put", 1, objstore.ErrUnavailable) })
		late := newTestLog(t, rng)
		late.plain, late.place = true, bad.place
		late.seal(5, 50)
		bad.mu.Lock()
		bad.segments = late.of
		bad.mu.Unlock()
		x.Wake(bad)
		time.Sleep(time.Second) // the waits begin anew
		synctest.Wait()
		if n := len(bad.objects()); n != 3 {
			t.Errorf("%d of 3 exported", n)
		}
		st := x.Stats()
		st.Failures[fault.Unavailable]--
		if n := tried; n < 12 || st.Failures[fault.Unavailable] != int64(len(at)) || st.Waiting != 0 {
			t.Errorf("%+v after %d attempts", st, n)
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestExporterGivesUpWhenFenced(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		x := newTestExporter(t, newTestStore(), ExporterConfig{})
		s, calls := newTestSource(t, rng, 1, 1), 0
		s.commit = func(Object) error { calls++; return fault.New(fault.Fenced, "generation 3 is newer") }
		x.Wake(s)
		time.Sleep(time.Hour)
		synctest.Wait()
		if st := x.Stats(); calls != 1 || st.Waiting != 0 || st.Failures[fault.Fenced] != 1 {
			t.Errorf("%d commits, %+v", calls, st)
		}
		s.mu.Lock()
		s.commit = nil
		s.mu.Unlock()
		x.Wake(s)
		synctest.Wait()
		if len(s.objects()) != 1 {
			t.Error("not exported when told again")
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestExporterForgetsAndStops(t *testing.T) {
	rng := seeded(t)
	for _, stop := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newTestStore()
			x := newTestExporter(t, store, ExporterConfig{Parallel: 1, BytesPerSec: 1})
			l := newTestLog(t, rng)
			l.plain, l.place.Partition = true, 1
			l.seal(50, 50) // the first bytes that are read pass at once: this is more than these for certain
			running := &testSource{name: "default/t", place: l.place, segments: l.of}
			queued, waiting := newTestSource(t, rng, 2, 1), newTestSource(t, rng, 3, 1)
			waiting.segments[0].Next++ // not what the file says
			x.Wake(waiting)
			synctest.Wait()
			x.Wake(running)
			x.Wake(queued)
			synctest.Wait()
			if st := x.Stats(); st.InProgress != 1 || st.Waiting != 1 || st.Failures[fault.Corrupt] != 1 {
				t.Errorf("%+v", st)
			}
			if !stop {
				for _, s := range []*testSource{queued, waiting, running} {
					forgotten(t, x, s)
				}
				if st := x.Stats(); st.InProgress != 0 || st.Waiting != 0 || len(x.sources) != 0 {
					t.Errorf("%+v", st)
				}
			}
			if err := x.Stop(); err != nil {
				t.Error(err)
			}
			if n := running.released; n != 1 || len(keys(store)) != 0 {
				t.Errorf("released %d times, %d objects", n, len(keys(store)))
			}
			forgotten(t, x, running)
			x.Wake(running) // nothing happens any more
		})
	}
}

func TestExporterKeepsItsPace(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		x := newTestExporter(t, newTestStore(), ExporterConfig{BytesPerSec: 10_000})
		l := newTestLog(t, rng)
		l.plain = true
		for range 40 {
			l.seal(50, 5000)
		}
		s := &testSource{name: "default/t", place: l.place, segments: l.of}
		start := time.Now()
		x.Wake(s)
		var size int64
		for _, seg := range l.of {
			size += seg.Size
		}
		for len(s.objects()) < 40 {
			time.Sleep(time.Second)
		}
		if took, want := time.Since(start), time.Duration(size/10_000)*time.Second; took < want-20*time.Second || took > want+20*time.Second {
			t.Errorf("%d bytes in %s, want %s", size, took, want)
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// A segment that is sealed right after its source said that there is none is not left lying.
func TestExporterMissesNoWake(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		x := newTestExporter(t, newTestStore(), ExporterConfig{})
		s := newTestSource(t, rng, 1, 1)
		later := s.segments
		s.segments = nil
		said := make(chan struct{})
		s.next = func() { <-said }
		x.Wake(s)
		synctest.Wait()
		s.mu.Lock()
		s.segments, s.next = later, nil
		s.mu.Unlock()
		x.Wake(s)
		close(said)
		synctest.Wait()
		if len(s.objects()) != 1 {
			t.Error("not exported")
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// Bytes count once, however often the store reads them, and waiting for the own pace is not the store's stalling.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		g := newGuard(t.Context())
		r := guarded{newPace(500).reader(g.ctx, bytes.NewReader(make([]byte, 200_000))), g}
		b := make([]byte, 200_000)
		for range 3 {
			if n, err := r.ReadAt(b, 0); n != len(b) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		if took := time.Since(start); took < 300*time.Second || took > 400*time.Second {
			t.Errorf("took %s", took)
		}
		g.hold()
		g.progress() // of another part of the upload
		time.Sleep(2 * stalled)
		g.release()
		time.Sleep(stalled - 1)
		g.progress()
		time.Sleep(stalled - 1)
		synctest.Wait()
		if g.ctx.Err() != nil {
			t.Error("ended in time")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if err := g.end(t.Context(), g.ctx.Err()); fault.KindOf(err) != fault.Timeout {
			t.Error(err)
		}
	})
}

// An export takes a good part of the time until the next one, but not all of it; one that has waited goes at once.
func TestGentle(t *testing.T) {
	rng := seeded(t)
	const size = 32 << 20
	for _, tc := range []struct {
		began, ended time.Duration
		want         int64
	}{
		{time.Second, time.Second / 2, 8 * size},
		{time.Hour, time.Hour, gentlest},
		{time.Second, waited - 1, 0},
	} {
		if got := gentle(size, tc.began, tc.ended).perSec; got != tc.want {
			t.Errorf("%s and %s ago: %d bytes a second, want %d", tc.began, tc.ended, got, tc.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		x := newTestExporter(t, newTestStore(), ExporterConfig{})
		l := newTestLog(t, rng)
		l.plain = true
		l.seal(8000, 50)
		l.seal(8000, 50)
		s := &testSource{name: "default/t", place: l.place, segments: l.of}
		pass := time.Duration(float64(l.of[0].Size) / gentlest * float64(time.Second))
		start := time.Now()
		x.Wake(s)
		for len(s.objects()) < 2 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(start); pass < 10*time.Millisecond || took < 2*pass || took > 4*pass {
			t.Errorf("the first was read, sent and read back, each in about %s, and the second at once; both took %s", pass, took)
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// Sources come, are woken by many at once, and go at any time: what stays is exported once, what went is left alone.
func TestExporterUnderLoad(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore()
		store.before = failing("put", 30, objstore.ErrThrottled)
		x := newTestExporter(t, store, ExporterConfig{Parallel: 3})
		var all []*testSource
		for p := range int32(40) {
			all = append(all, newTestSource(t, rng, p, 4))
		}
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() {
				for range 20 {
					x.Wake(s)
					time.Sleep(time.Duration(i) * time.Millisecond)
				}
				if i%4 == 0 {
					forgotten(t, x, s)
					n := len(s.objects())
					time.Sleep(time.Hour)
					if len(s.objects()) != n {
						t.Errorf("partition %d was exported after it was forgotten", i)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		committed := 0
		for i, s := range all {
			done := s.objects()
			committed += len(done)
			for k := 1; k < len(done); k++ {
				if done[k].Base != done[k-1].Next {
					t.Errorf("partition %d: %+v follows %+v", i, done[k], done[k-1])
				}
			}
			if i%4 != 0 && len(done) != 4 {
				t.Errorf("partition %d: %d of 4 exported", i, len(done))
			}
		}
		if st := x.Stats(); st.Uploads != int64(committed) || st.InProgress != 0 || st.Waiting != 0 || st.Failures[fault.Unavailable] == 0 {
			t.Errorf("%d committed, %+v", committed, st)
		}
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// Wherever an export stands when it is told to end, it ends.
func TestExporterEndsAnywhere(t *testing.T) {
	rng := seeded(t)
	for _, at := range []string{"head", "put", "get"} {
		for _, forget := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				under := newTestStore()
				store := &hangingStore{testStore: under, op: at}
				x := newTestExporter(t, store, ExporterConfig{})
				s := newTestSource(t, rng, 1, 1)
				x.Wake(s)
				synctest.Wait()
				start := time.Now()
				if st := x.Stats(); st.InProgress != 1 {
					t.Errorf("%s: %+v", at, st)
				}
				if forget {
					forgotten(t, x, s)
				}
				if err := x.Stop(); err != nil {
					t.Error(err)
				}
				if time.Since(start) > 0 || s.released != 1 || len(s.objects()) != 0 || len(x.Stats().Failures) != 0 {
					t.Errorf("%s: after %s released %d times; %+v", at, time.Since(start), s.released, x.Stats())
				}
			})
		}
	}
}

// hangingStore never answers one operation.
type hangingStore struct {
	*testStore
	op string
}

func (s *hangingStore) wait(ctx context.Context, op string) error {
	if op != s.op {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *hangingStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.wait(ctx, "head"); err != nil {
		return objstore.Info{}, err
	}
	return s.testStore.Head(ctx, key)
}

func (s *hangingStore) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if err := s.wait(ctx, "put"); err != nil {
		return objstore.Info{}, err
	}
	return s.testStore.PutIfAbsent(ctx, key, src)
}

func (s *hangingStore) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := s.wait(ctx, "get"); err != nil {
		return nil, err
	}
	return s.testStore.Get(ctx, key, off, n)
}

func forgotten(t *testing.T, x *Exporter, s Source) {
	t.Helper()
	if err := x.Forget(context.Background(), s); err != nil {
		t.Error(err)
	}
}

// Who waits for an export to end that does not is told so, and may ask again.
func TestForgetWaitsNoLongerThanAsked(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		reached, release := make(chan struct{}), make(chan struct{})
		store := &stuckStore{Store: objstore.NewMem(), reached: reached, release: release}
		x := newTestExporter(t, store, ExporterConfig{})
		s := newTestSource(t, rng, 0, 1)
		x.Wake(s)
		<-reached
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := x.Forget(ctx, s); fault.KindOf(err) != fault.Timeout {
			t.Errorf("%v", err)
		}
		close(release)
		forgotten(t, x, s)
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// stuckStore does not notice that nobody waits for it any more.
type stuckStore struct {
	objstore.Store
	reached, release chan struct{}
}

func (s *stuckStore) PutIfAbsent(context.Context, string, objstore.Source) (objstore.Info, error) {
	close(s.reached)
	<-s.release
	return objstore.Info{}, objstore.ErrUnavailable
}
