package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/objstore"
)

func newTestCache(t *testing.T, limit, flying int64, ahead int) *cache {
	return newCache(context.Background(), limit, flying, ahead, NewMetrics(nil))
}

// The cache keeps what was used last, and never more than it may.
func TestCacheKeepsItsBound(t *testing.T) {
	c := newTestCache(t, 1000, 1000, 10)
	loads := map[piece]int{}
	get := func(at int64) {
		t.Helper()
		p := piece{"k", at}
		data, err := c.get(t.Context(), p, 100, func(context.Context) ([]byte, error) {
			loads[p]++
			return bytes.Repeat([]byte{byte(at)}, 100), nil
		})
		if err != nil || len(data) != 100 || data[0] != byte(at) || c.used > 1000 {
			t.Errorf("%d: %d bytes, %v; %d used", at, len(data), err, c.used)
		}
	}
	for at := range int64(10) {
		get(at)
	}
	get(0) // used again
	get(10)
	get(0)
	get(2)
	get(1) // went for 10
	if loads[piece{"k", 0}] != 1 || loads[piece{"k", 2}] != 1 || loads[piece{"k", 1}] != 2 {
		t.Error(loads)
	}
	c.forget("k")
	if get(0); loads[piece{"k", 0}] != 2 || c.used != 100 {
		t.Errorf("%v, %d used", loads, c.used)
	}
	if _, err := c.get(t.Context(), piece{"large", 0}, 2000, func(context.Context) ([]byte, error) { return make([]byte, 2000), nil }); err != nil || c.used != 100 {
		t.Errorf("%v, %d used", err, c.used)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
	if _, err := c.get(t.Context(), piece{"k", 99}, 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
}

// A load goes on as long as somebody waits for it, ends when nobody does, and its failure is kept from nobody and for
// nobody.
func TestCacheLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(t, 1000, 1000, 1)
		p := piece{"k", 0}
		loads, ended := 0, 0
		slow := func(ctx context.Context) ([]byte, error) {
			loads++
			select {
			case <-time.After(time.Second):
				return []byte("x"), nil
			case <-ctx.Done():
				ended++
				return nil, ctx.Err()
			}
		}
		first, giveUp := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.get(first, p, 1, slow); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if data, err := c.get(t.Context(), p, 1, slow); err != nil || string(data) != "x" {
				t.Errorf("%q, %v", data, err)
			}
		})
		synctest.Wait()
		giveUp()
		wg.Wait()
		if loads != 1 || ended != 0 {
			t.Errorf("%d loads, %d ended", loads, ended)
		}
		c.forget("k")
		alone, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		if _, err := c.get(alone, p, 1, slow); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if loads != 2 || ended != 1 {
			t.Errorf("%d loads, %d ended", loads, ended)
		}
		fails := func(context.Context) ([]byte, error) { return nil, objstore.ErrDenied }
		if _, err := c.get(t.Context(), p, 1, fails); !errors.Is(err, objstore.ErrDenied) {
			t.Error(err)
		}
		if data, err := c.get(t.Context(), p, 1, slow); err != nil || string(data) != "x" {
			t.Errorf("after a failure: %q, %v", data, err)
		}
		// Read-ahead goes on with nobody waiting, and no more of it than may be.
		ahead := func(ctx context.Context, _, n int64, got func([]byte)) error {
			for range n {
				data, err := slow(ctx)
				if err != nil {
					return err
				}
				got(data)
			}
			return nil
		}
		c.prefetch("k", 1, 2, 1, ahead)
		c.prefetch("k", 2, 3, 1, ahead)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.prefetch("k", 2, 3, 1, ahead) // the first one is there, and nobody has asked for it
		if c.kept[piece{"k", 1}] == nil || len(c.flights) != 0 || c.alone != 1 {
			t.Errorf("kept %v, %d under way, %d alone", c.kept, len(c.flights), c.alone)
		}
		if _, err := c.get(t.Context(), piece{"k", 1}, 1, nil); err != nil || c.alone != 0 {
			t.Errorf("%v, %d alone", err, c.alone)
		}
		c.prefetch("k", 3, 4, 1, ahead)
		time.Sleep(time.Second + patience)
		synctest.Wait()
		c.prefetch("k", 4, 5, 1, ahead) // nobody came for the one before
		if c.kept[piece{"k", 3}] == nil || c.flights[piece{"k", 4}] == nil || c.alone != 1 {
			t.Errorf("kept %v, under way %v, %d alone", c.kept, c.flights, c.alone)
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
}

// What is under way is bounded in bytes, whatever is asked for.
func TestCacheBoundsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(t, 100_000, 250, 0)
		var now, most atomic.Int64
		var wg sync.WaitGroup
		for i := range int64(50) {
			wg.Go(func() {
				_, err := c.get(t.Context(), piece{fmt.Sprint(i), 0}, 100, func(context.Context) ([]byte, error) {
					if n := now.Add(100); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(time.Second)
					now.Add(-100)
					return make([]byte, 100), nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 200 {
			t.Errorf("%d bytes under way, 200 fit", most.Load())
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
}

// Read-ahead hides what a store takes to answer: with four stretches ahead a read in order waits a quarter of the times.
func TestReadAheadHidesLatency(t *testing.T) {
	rng := seeded(t)
	took := func(ahead int) (took time.Duration, gets int) {
		synctest.Test(t, func(t *testing.T) {
			l := newTestLog(t, rng)
			l.plain = true
			for range 4 {
				l.seal(200, 3000)
			}
			store := newTestStore()
			all := l.export(store)
			before, _ := store.counts()
			store.before = func(string, string) error { time.Sleep(20 * time.Millisecond); return nil }
			c, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 16 << 10, ReadAhead: ahead})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := l.follow(c.NewReader(l.place, lookup(all), 0), 4000, 1000); err != nil {
				t.Error(err)
			}
			took = time.Since(start)
			gets, _ = store.counts()
			gets -= before
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		return took, gets
	}
	without, gets := took(-1)
	if want := time.Duration(gets) * 20 * time.Millisecond; without != want {
		t.Errorf("without: %s for %d requests", without, gets)
	}
	with, gets := took(4)
	if most := without/4 + 8*20*time.Millisecond; with > most {
		t.Errorf("with read-ahead: %s for %d requests, at most %s", with, gets, most)
	}
	t.Logf("%s without read-ahead, %s with", without, with)
}
