package dispatch

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"pgregory.net/rapid"
)

// TestIndexIsASortedList drives the index and a sorted slice alike.
func TestIndexIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index
		var list []*node
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			off := rapid.Int64Range(0, 1000).Draw(t, "off") * 3
			at, known := slices.BinarySearchFunc(list, off, func(n *node, off int64) int { return int(n.from - off) })
			if known && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				x.remove(list[at])
				list = slices.Delete(list, at, at+1)
			} else if !known {
				n := &node{from: off, to: off + 1}
				x.insert(n)
				list = slices.Insert(list, at, n)
			}
			var got []*node
			x.each(0, func(n *node) bool { got = append(got, n); return true })
			if !slices.Equal(got, list) || x.size != len(list) {
				t.Fatalf("%d nodes, expected %d", len(got), len(list))
			}
			var want *node
			if i := slices.IndexFunc(list, func(n *node) bool { return n.to >= off+1 }); i >= 0 {
				want = list[i]
			}
			if n := x.from(off + 1); n != want {
				t.Fatalf("from %d: %v, expected %v", off+1, n, want)
			}
			if len(list) > 0 && (x.first() != list[0] || x.last() != list[len(list)-1]) {
				t.Fatal("first or last")
			}
		}
	})
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMillionsOfDelayedRecords: they cost memory by block, all are handed out when they are due, and none before.
func TestMillionsOfDelayedRecords(t *testing.T) {
	total := int64(5_000_000)
	if testing.Short() {
		total = 500_000
	}
	const hour = int64(3600_000)
	due := func(off int64) int64 { return 1000 + off*7919%hour } // spread over an hour, in no order
	items := make([]Item, 0, cursor.BlockSize)
	load := func(from, to int64) []Item {
		items = items[:0]
		for off := from; off <= min(to, total-1); off++ {
			items = append(items, Item{From: off, To: off, Bytes: 100, DueMs: due(off)})
		}
		return items
	}
	before := heap()
	set, _ := cursor.NewSet(cursor.State{})
	all := Window{1 << 30, 1 << 50}
	d := New(Config{Type: Shared, Consumer: all, Total: all}, set, nil)
	now := Now{}
	d.Step(now, &Event{Kind: Join, Consumer: 1, Member: Member{Name: "a"}})
	for from, ok := d.WantsRead(); ok && from < total; from, ok = d.WantsRead() {
		to := min(from+cursor.BlockSize, total)
		d.Step(now, &Event{Kind: Read, Items: load(from, to-1), Next: to})
	}
	st := d.Stats()
	used := heap() - before
	t.Logf("%d records: %d one by one, %d blocks, %d kB", total, st.Delayed, st.DelayedBlocks, used/1024)
	if used > 32<<20 || st.LookAhead != 0 || st.Delayed > 50_000 {
		t.Errorf("%d bytes, %+v", used, st)
	}

	// Five minutes of the hour: each minute's records come in that minute.
	seen, scans, last := int64(0), 0, int64(0)
	for now.WallMs < 300_000 {
		wait, ok := d.Wake(now)
		if !ok {
			t.Fatal("nothing is to come")
		}
		wait = min(max(wait, time.Millisecond), 250*time.Millisecond)
		now.Mono += wait
		now.WallMs += wait.Milliseconds()
		effects := d.Step(now, &Event{Kind: Ask, Consumer: 1, Bytes: 1 << 40})
		for {
			for _, f := range effects {
				for _, s := range f.Spans {
					for off := s.From; off <= s.To; off++ {
						seen++
						if due(off) > now.WallMs {
							t.Fatalf("%d at %d, due %d", off, now.WallMs, due(off))
						}
						last = max(last, now.WallMs-due(off))
					}
					d.Step(now, &Event{Kind: Ack, Ranges: []cursor.Range{{From: s.From, To: s.To}}})
				}
			}
			from, to, ok := d.WantsScan(now)
			if !ok {
				break
			}
			scans++
			effects = d.Step(now, &Event{Kind: Scanned, Items: load(from, to)})
		}
	}
	want := int64(0)
	for off := range total {
		if due(off) <= now.WallMs-1000 {
			want++
		}
	}
	t.Logf("%d handed out in 5 minutes, the latest %d ms late, with %d looks at blocks", seen, last, scans)
	if seen < want || last > 1000 {
		t.Errorf("%d handed out of %d that were due a second ago, the latest %d ms late", seen, want, last)
	}
}

// TestLateReadIsDropped: what was asked for before a rewind must not be taken for what comes after it.
func TestLateReadIsDropped(t *testing.T) {
	set, _ := cursor.NewSet(cursor.State{Position: 100})
	d := New(Config{Type: Shared}, set, nil)
	d.Step(Now{}, &Event{Kind: Join, Consumer: 1, Member: Member{Name: "a"}})
	if from, ok := d.WantsRead(); !ok || from != 100 {
		t.Fatalf("reads from %d, %v", from, ok)
	}
	d.Step(Now{}, &Event{Kind: Seek, Offset: 10})
	d.Step(Now{}, &Event{Kind: Read, Items: []Item{{From: 100, To: 109, Bytes: 10}}, Next: 110})
	from, ok := d.WantsRead()
	if !ok || from != 10 || d.Stats().LookAhead != 0 {
		t.Fatalf("reads from %d, %v, %+v", from, ok, d.Stats())
	}
	d.Step(Now{}, &Event{Kind: Read, Items: []Item{{From: 10, To: 19, Bytes: 10}}, Next: 20})
	effects := d.Step(Now{}, &Event{Kind: Ask, Consumer: 1, Bytes: 5})
	if len(effects) != 1 || effectText(effects[0]) != "deliver 1: 10-14" {
		t.Errorf("%v", effects)
	}
}

// TestLookAheadIsBounded: with nobody who asks, reading stops; with keys that nobody takes, too.
func TestLookAheadIsBounded(t *testing.T) {
	for _, key := range []string{"", "x"} {
		s := newShell(Config{Type: KeyShared, LookAhead: Window{100, 1 << 20}})
		s.most = 10
		for range 50 {
			for range 20 {
				s.publish(1, 10, key, 0)
			}
		}
		s.join(1, Member{Name: "a", Filters: []string{"y*"}})
		if n := s.d.Stats().LookAhead; n != 100 {
			t.Errorf("%d read ahead", n)
		}
		if _, ok := s.d.WantsRead(); ok {
			t.Error("it reads on")
		}
		s.check(t)
	}
}

// TestKeysAreSpread: no consumer has much more than its share, and few keys move when one joins.
func TestKeysAreSpread(t *testing.T) {
	var ks keys
	owners := func(consumers int) (owner []string, most int) {
		var order []*consumer
		for i := range consumers {
			order = append(order, &consumer{m: Member{Name: fmt.Sprintf("worker-%d", i)}})
		}
		ks.place(order)
		count := map[string]int{}
		for i := range 20_000 {
			c, _ := ks.find(&key{hash: uint64(i)}, false, 1)
			owner = append(owner, c.m.Name)
			count[c.m.Name]++
			most = max(most, count[c.m.Name])
		}
		return owner, most
	}
	ten, most := owners(10)
	if most > 20_000/10*3/2 {
		t.Errorf("one of 10 has %d of 20000 keys", most)
	}
	eleven, _ := owners(11)
	moved := 0
	for i := range ten {
		if ten[i] != eleven[i] {
			moved++
			if eleven[i] != "worker-10" {
				t.Fatal("a key moved between two that stay")
			}
		}
	}
	t.Logf("of 20000 keys one of 10 has %d, %d moved to the eleventh", most, moved)
	if moved > 20_000/11*2 {
		t.Errorf("%d keys moved", moved)
	}
}

// BenchmarkKeyed is one record with a key read, handed out and acknowledged, with ten consumers, behind so many others that
// wait.
func BenchmarkKeyed(b *testing.B) {
	for _, ahead := range []int{0, 10_000} {
		b.Run(fmt.Sprint(ahead), func(b *testing.B) { benchmarkKeyed(b, int64(ahead)) })
	}
}

func benchmarkKeyed(b *testing.B, ahead int64) {
	set, _ := cursor.NewSet(cursor.State{})
	d := New(Config{Type: KeyShared, AckTimeout: time.Minute}, set, nil)
	for id := range 10 {
		d.Step(Now{}, &Event{Kind: Join, Consumer: ConsumerID(id + 1), Member: Member{Name: fmt.Sprint("w", id)}})
	}
	r := rand.New(rand.NewPCG(1, 2))
	items := make([]Item, 100)
	ranges := make([]cursor.Range, 0, 100)
	next := int64(0)
	take := func(effects []Effect) {
		ranges = ranges[:0]
		for _, f := range effects {
			for _, s := range f.Spans {
				ranges = append(ranges, cursor.Range{From: s.From, To: s.To})
			}
		}
		d.Step(Now{}, &Event{Kind: Ack, Ranges: ranges})
	}
	read := func() {
		for i := range items {
			items[i] = Item{From: next, To: next, Bytes: 100, Key: uint64(r.IntN(1000)), HasKey: true}
			next++
		}
		take(d.Step(Now{}, &Event{Kind: Read, Items: items, Next: next}))
	}
	for next < ahead {
		read()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range (b.N + 99) / 100 {
		read()
		for id := 0; d.Stats().LookAhead > ahead; id = (id + 1) % 10 { // each has something within ten turns
			take(d.Step(Now{}, &Event{Kind: Ask, Consumer: ConsumerID(id + 1), Bytes: 2_000}))
		}
	}
	if left := d.Stats().LookAhead; next-left != set.Position()+set.Settled() {
		b.Fatalf("%d of %d are settled, %d wait", set.Position()+set.Settled(), next, left)
	}
}
