package subscription

import (
	"slices"
	"testing"

	"github.com/leveemq/levee/internal/seglog"
)

func read(c *cache, from int64, size int) {
	c.add(seglog.Chunk{First: from, Next: from + 10, Data: make([]byte, size)}, nil)
}

// Caches hold little in any case, and more while all together hold no more than they may.
func TestCachesShareABound(t *testing.T) {
	cfg := &Config{CacheBytes: 1000}
	some := func() *cache { return &cache{cfg: cfg, most: 800, least: 200} }
	a, b := some(), some()
	for i := range int64(8) {
		read(a, i*10, 100)
	}
	if a.bytes != 800 || a.find(0) == nil {
		t.Fatalf("one holds %d bytes, and it may hold 800", a.bytes)
	}
	read(a, 80, 100)
	if a.bytes != 800 || a.find(0) != nil || a.find(10) == nil {
		t.Errorf("one holds %d bytes, and it may hold 800", a.bytes)
	}
	for i := range int64(8) {
		read(b, i*10, 100)
	}
	if b.bytes != 200 || b.find(70) == nil || b.find(60) == nil || b.find(50) != nil || cfg.cached.Load() != 1000 {
		t.Errorf("the other holds %d bytes, both %d", b.bytes, cfg.cached.Load())
	}
	a.clear()
	for i := range int64(8) {
		read(b, 80+i*10, 100)
	}
	if b.bytes != 800 {
		t.Errorf("the other holds %d bytes once there is room", b.bytes)
	}
	passing := some()
	passing.shared = true
	for i := range int64(9) {
		read(passing, i*10, 100)
	}
	if passing.bytes != 800 {
		t.Errorf("one that cannot read again holds %d bytes, and it may hold 800", passing.bytes)
	}
	passing.clear()
	b.clear()
	if n := cfg.cached.Load(); n != 0 {
		t.Errorf("%d bytes count as held when nothing is", n)
	}
}

func TestPlaces(t *testing.T) {
	var p places
	for _, i := range []int64{0, 1, 2, 5, mostPlaces - 1} {
		p.note(i, 1000+int(i))
	}
	p.note(-1, 7)
	p.note(1<<40, 7) // bounded: a batch may claim any offsets
	if len(p) != mostPlaces {
		t.Fatalf("%d places", len(p))
	}
	of := func(ranges ...seglog.Range) []int {
		list, ok := p.of(nil, ranges, 50, 900)
		if !ok {
			return nil
		}
		return list
	}
	if got := of(seglog.Range{From: 50, To: 51}, seglog.Range{From: 55, To: 55}); !slices.Equal(got, []int{100, 101, 105}) {
		t.Errorf("got %v", got)
	}
	for _, unknown := range []seglog.Range{{From: 49, To: 50}, {From: 52, To: 53}, {From: 50 + mostPlaces, To: 50 + mostPlaces}, {From: 1 << 50, To: 1 << 50}} {
		if got := of(unknown); got != nil {
			t.Errorf("%v lies at %v", unknown, got)
		}
	}
}
