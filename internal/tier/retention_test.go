package tier

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
)

func TestRetention(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	// Four objects of 100 bytes each, recorded so many seconds ago; -1: not known.
	for _, c := range []struct {
		ago  []int
		keep Retention
		want int
	}{
		{[]int{40, 30, 20, 10}, Retention{}, 0},
		{[]int{40, 30, 20, 10}, Retention{Bytes: 400}, 0},
		{[]int{40, 30, 20, 10}, Retention{Bytes: 399}, 1},
		{[]int{40, 30, 20, 10}, Retention{Bytes: 200}, 2},
		{[]int{40, 30, 20, 10}, Retention{Bytes: 1}, 3}, // the newest stays
		{[]int{40, 30, 20, 10}, Retention{Age: 40 * time.Second}, 0},
		{[]int{40, 30, 20, 10}, Retention{Age: 25 * time.Second}, 2},
		{[]int{40, 30, 20, 10}, Retention{Age: time.Second}, 3},
		{[]int{40, 30, 20, 10}, Retention{Age: 35 * time.Second, Bytes: 250}, 2},
		{[]int{40, 30, 20, 10}, Retention{Age: 25 * time.Second, Bytes: 400}, 2},
		{[]int{40, 10, 30, 10}, Retention{Age: 25 * time.Second}, 1}, // one that is not old keeps what is behind it
		{[]int{-1, -1, 30, 10}, Retention{Age: 25 * time.Second}, 3},
		{[]int{-1, -1, 20, 10}, Retention{Age: 25 * time.Second}, 0},
		{[]int{-1, -1, -1, -1}, Retention{Age: time.Second}, 0},
		{[]int{-1, -1, -1, -1}, Retention{Bytes: 150}, 3},
		{[]int{-10, 30, 20, 10}, Retention{Age: time.Second}, 0}, // by a clock that was ahead
		{[]int{30}, Retention{Age: time.Second, Bytes: 1}, 0},
		{nil, Retention{Age: time.Second, Bytes: 1}, 0},
	} {
		var all []Object
		for _, ago := range c.ago {
			o := Object{Size: 100}
			if ago != -1 {
				o.StoredMs = now.UnixMilli() - int64(ago)*1000
			}
			all = append(all, o)
		}
		if got := c.keep.Expired(len(all), func(i int) Object { return all[i] }, now); got != c.want {
			t.Errorf("%v under %+v: %d expired, expected %d", c.ago, c.keep, got, c.want)
		}
	}
}

// A Remover deletes what it was given, whatever the store answers, and holds nothing up for one that cannot be deleted.
func TestRemover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newTestStore()
		l := newTestLog(t, rand.New(rand.NewPCG(1, 1)))
		l.plain = true
		for range 12 {
			l.seal(3, 50)
		}
		all := l.export(under)
		locked := errors.New("locked")
		under.set(func(s *testStore) {
			s.before = func(op, key string) error {
				if op == "delete" && key == all[0].Key(l.place) {
					return locked
				}
				return nil
			}
		})
		rates := map[faulty.Kind]float64{}
		for _, k := range faulty.Kinds(objstore.OpDelete) {
			rates[k] = 0.1
		}
		r := NewRemover(t.Context(), faulty.New(under, faulty.Config{Seed: 7, Rate: rates}), nil, nil)
		for _, o := range all[:10] {
			r.Remove(l.place, o)
		}
		if room := r.Room(); room != maxRemovals-10 {
			t.Errorf("room for %d", room)
		}
		time.Sleep(time.Hour)
		if left := keys(under); len(left) != 3 || left[0] != all[0].Key(l.place) {
			t.Errorf("left: %v", left)
		}
		if room := r.Room(); room != maxRemovals-1 {
			t.Errorf("room for %d", room)
		}
		under.set(func(s *testStore) { s.before = nil })
		time.Sleep(time.Hour)
		if left := keys(under); len(left) != 2 || r.Room() != maxRemovals {
			t.Errorf("left: %v", left)
		}
		r.Remove(l.place, all[0]) // it is gone already
		time.Sleep(time.Hour)
		if r.Room() != maxRemovals {
			t.Error("what is gone is tried for ever")
		}
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
		r.Remove(l.place, all[11]) // nobody is there to do it
		if left := keys(under); len(left) != 2 {
			t.Errorf("left: %v", left)
		}
	})
}
