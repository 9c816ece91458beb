package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// wanderer is a reader that began at some offset and goes on a piece at a time, whatever happens to the partition between.
type wanderer struct {
	r                    *Reader
	from, at, stop       int64
	maxBytes, maxRecords int
}

// next reads one piece. The reader is opened where it is not, and again after the log was closed under it.
func (w *wanderer) next(p *Partition) error {
	if b, ok := p.Bounds(); ok && w.at >= b.End {
		return nil
	}
	if w.r == nil {
		r, err := p.NewReader(context.Background(), w.at)
		if err != nil {
			return err
		}
		w.r, w.from = r, w.at
	}
	c, err := w.r.Next(context.Background(), w.maxBytes, w.maxRecords)
	if fault.KindOf(err) == fault.Unavailable {
		w.r = nil
		return nil
	}
	if err != nil {
		return err
	}
	if c.Data == nil {
		return fmt.Errorf("nothing at %d: %+v", w.at, c)
	}
	for rest := c.Data; len(rest) > 0; {
		var b []byte
		if b, rest, err = record.Next(rest); err != nil {
			return err
		}
		if err := record.Each(b, func(rec record.Record) error {
			switch {
			case rec.Offset < w.at && w.at == w.from:
				return nil // batches are never cut
			case rec.Offset != w.at:
				return fmt.Errorf("offset %d where %d must come", rec.Offset, w.at)
			case string(rec.Value) != numbered(w.at):
				return fmt.Errorf("offset %d is %q", w.at, rec.Value)
			}
			w.at++
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// moving is a partition whose segments move while it is read.
type moving struct {
	t       *testing.T
	rng     *rand.Rand
	s       *shore
	topic   *meta.Topic
	k       *keeper
	clock   atomic.Int64 // nanoseconds ahead of time.Now
	end     int64
	readers []*wanderer
	merging bool // objects are small, and merged
	counts  map[string]int
}

func (m *moving) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *moving) open() {
	segment := int64(0)
	if m.merging {
		segment = 8 << 10
	}
	k, err := keeping{shore: m.s, topic: m.topic, segment: segment, meta: &hookedMeta{Memory: m.s.meta, s: m.s}, store: m.s.objects, mode: seglog.OnCommit, crash: seglog.CleanStop,
		retention: seglog.Retention{Bytes: 2 << 10}, merging: m.merging, now: func() time.Time { return time.Now().Add(time.Duration(m.clock.Load())) }}.open()
	m.must(err)
	m.must(k.Ready(context.Background()))
	m.k = k
}

// move does one of the things that move segments, or makes some.
func (m *moving) move() {
	ctx := context.Background()
	what := "publish"
	switch n := m.rng.IntN(100); {
	case n < 15 && m.merging:
		what = "small objects"
		m.clock.Add(int64(2 * time.Hour))
		m.must(m.k.settle(m.s.meta))
	case n < 12:
		what = "export"
		m.must(m.k.Export(ctx))
	case n < 20:
		what = "export of all"
		m.must(m.k.settle(m.s.meta))
	case n < 35:
		what = "retention"
		_, err := m.k.Retain(ctx)
		m.must(err)
	case n < 38:
		what = "seal"
		m.clock.Add(int64(2 * time.Hour))
		m.must(m.k.Export(ctx))
	case n < 40:
		what = "unload"
		m.must(m.k.Unload(ctx))
		m.must(m.k.Ready(ctx))
	case n < 42:
		what = "restart"
		m.must(m.k.stop())
		m.open()
		for _, w := range m.readers {
			w.r = nil
		}
	default:
		n := 1 + m.rng.IntN(3)
		m.must(m.k.publish(ctx, n, numbered))
		m.end += int64(n)
	}
	m.counts[what]++
}

// Readers that begin anywhere at any moment get what was published, each record once and in its place, while segments are
// sealed, copied and removed from the log, what is kept of objects is dropped, and the broker restarts. One of them reads a
// batch at a time, and so slowly that all of it moves under it. In every other round objects are small, and are merged all
// the time.
func TestRandomReadsWhileSegmentsMove(t *testing.T) {
	seed, rounds := testSeed(t), uint64(8)
	switch {
	case testing.Short():
		rounds = 2
	case os.Getenv("LEVEE_FAULTS") == "full":
		rounds = 500
	}
	for round := range rounds {
		randomReads(t, seed+round)
	}
}

func randomReads(t *testing.T, seed uint64) {
	const starts = 200
	m := &moving{t: t, merging: seed%2 == 0, rng: rand.New(rand.NewPCG(seed, 3)), s: newShore(), counts: map[string]int{}}
	r, err := m.s.propose(t.Context(), meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1, Dispatch: meta.Reliable})
	m.must(err)
	m.topic = r.Topic
	m.open()
	defer func() { m.must(m.k.stop()) }()
	for m.end < 50 {
		m.move()
	}
	slow := &wanderer{maxBytes: 1, maxRecords: 1, stop: 1 << 62}
	m.readers = append(m.readers, slow)
	begun, read := 0, int64(0)
	for begun < starts || len(m.readers) > 1 {
		m.move()
		if begun < starts && m.rng.IntN(2) == 0 {
			from := m.rng.Int64N(m.end)
			m.readers = append(m.readers, &wanderer{at: from, stop: from + 1 + m.rng.Int64N(m.end-from), maxBytes: 1 + m.rng.IntN(6<<10), maxRecords: 1 + m.rng.IntN(50)})
			begun++
		}
		kept := m.readers[:0]
		for _, w := range m.readers {
			rests := 3 // of so many times it goes on once, or does not
			if w == slow {
				rests = 6
			}
			if (m.rng.IntN(rests) > 0) != (w == slow) {
				if err := w.next(m.k.Partition); err != nil {
					t.Fatalf("the reader from %d to %d: %v; %v", w.from, w.stop, err, m.counts)
				}
			}
			if w.at < w.stop {
				kept = append(kept, w)
			} else {
				read++
			}
		}
		m.readers = kept
	}
	at := slow.at
	slow.stop = m.end
	for slow.at < slow.stop {
		m.must(slow.next(m.k.Partition))
	}
	t.Logf("%d readers of %d records, the slow one at %d of them when the others were done; %v", read, m.end, at, m.counts)
	first := m.k.log.Load().Bounds().First
	if read != starts || first < m.end/2 || m.counts["restart"] == 0 || m.counts["retention"] < 10 {
		t.Errorf("%d readers; the log begins at %d of %d", read, first, m.end)
	}
	merged := 0
	m.s.mu.Lock() // an export may be under way still
	for _, c := range m.s.commands {
		if _, ok := c.(meta.MergeObjects); ok {
			merged++
		}
	}
	m.s.mu.Unlock()
	if m.merging != (merged > 3) {
		t.Errorf("objects were merged %d times", merged)
	}
}

// What is published is copied within the age at which segments are sealed, and the time until somebody looks: a record that
// comes alone, and a trickle that never fills a segment.
func TestExposureIsBoundedWhenIdle(t *testing.T) {
	const age, look = 2 * time.Second, 500 * time.Millisecond
	for _, every := range []time.Duration{time.Hour, 100 * time.Millisecond, 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newShore()
			r, err := s.propose(t.Context(), meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1, Dispatch: meta.Reliable})
			if err != nil {
				t.Fatal(err)
			}
			k, err := keeping{shore: s, topic: r.Topic, meta: s.meta, store: slowPuts{s.objects}, mode: seglog.OnCommit, crash: seglog.CleanStop, sealAge: age, segment: 1 << 20}.open()
			if err != nil {
				t.Fatal(err)
			}
			var at []time.Time // when each record was published
			start, worst := time.Now(), time.Duration(0)
			for now := range time.Tick(10 * time.Millisecond) {
				if since := now.Sub(start); since > time.Minute {
					break
				} else if since%every == 10*time.Millisecond {
					b, _ := k.Bounds()
					if err := k.publish(t.Context(), 1, func(int64) string { return string(make([]byte, 1000)) }); err != nil || b.End != int64(len(at)) {
						t.Fatalf("%+v, %v", b, err)
					}
					at = append(at, time.Now())
				}
				if now.Sub(start)%look == 0 {
					if _, err := k.Maintain(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for copied := k.copied(); copied < int64(len(at)); copied = int64(len(at)) {
					worst = max(worst, now.Sub(at[copied]))
				}
			}
			t.Logf("%d records, one each %s: uncopied for %s at most", len(at), every, worst)
			if most := age + look + time.Second; worst > most || worst == 0 {
				t.Errorf("a record was in the log alone for %s, at most %s is promised", worst, most)
			}
			if e, ok := k.Exposure(); !ok || every == time.Hour && (e.Bytes != 0 || e.Age != 0 || e.Copied != 1) {
				t.Errorf("in the end %+v", e)
			}
			if err := k.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A partition opens, takes records and serves what its log has while the store answers nothing but errors, or nothing at
// all; a reader of what is there alone hears that the store is not available, and may come again.
func TestPartitionOpensWithoutItsStore(t *testing.T) {
	for _, kind := range []faulty.Kind{faulty.Unavailable, faulty.Throttled, faulty.Denied, faulty.Hang} {
		synctest.Test(t, func(t *testing.T) {
			s := newShore()
			r, err := s.propose(t.Context(), meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1, Dispatch: meta.Reliable})
			if err != nil {
				t.Fatal(err)
			}
			away := faulty.New(s.objects, faulty.Config{Rate: map[faulty.Kind]float64{kind: 1}})
			at := keeping{shore: s, topic: r.Topic, meta: s.meta, store: s.objects, mode: seglog.OnCommit, crash: seglog.CleanStop, retention: seglog.Retention{Bytes: 1}}
			first := int64(0)
			for run, store := range []objstore.Store{s.objects, away, s.objects} {
				at.store = store
				k, err := at.open()
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := k.Ready(t.Context()); err != nil || time.Since(start) > 0 {
					t.Fatalf("%s: opened after %s: %v", kind, time.Since(start), err)
				}
				for range 10 {
					if err := k.publish(t.Context(), 2, numbered); err != nil {
						t.Fatal(err)
					}
				}
				end := int64(20 * (run + 1))
				check := func(offset int64, value string) error {
					if value != numbered(offset) {
						return fmt.Errorf("offset %d is %q", offset, value)
					}
					return nil
				}
				if store == away {
					if _, err := k.Maintain(t.Context()); err != nil {
						t.Errorf("%s: %v", kind, err)
					}
					<-time.After(10 * time.Minute)
					if b := k.log.Load().Bounds(); b.First != first {
						t.Errorf("%s: the log begins at %d, %d were copied", kind, b.First, first)
					}
					if err := k.everything(first, end, nothingLost, check); err != nil {
						t.Errorf("%s: %v", kind, err)
					}
					if err := k.everything(0, end, nothingLost, check); fault.KindOf(err) != fault.Unavailable {
						t.Errorf("%s: read what is in the store alone (%s): %v", kind, fault.KindOf(err), err)
					}
				} else {
					if err := k.settle(s.meta); err != nil {
						t.Fatal(err)
					}
					if _, err := k.Retain(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := k.everything(0, end, nothingLost, check); err != nil {
						t.Error(err)
					}
					if first = k.log.Load().Bounds().First; first == 0 {
						t.Error("nothing was removed from the log")
					}
				}
				if err := k.stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// slowPuts is a store to which a put takes half a second.
type slowPuts struct{ objstore.Store }

func (s slowPuts) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
		return objstore.Info{}, errors.Join(objstore.ErrUnavailable, ctx.Err())
	}
	return s.Store.PutIfAbsent(ctx, key, src)
}
