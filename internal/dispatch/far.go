package dispatch

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// Records that are due within nearBy are known one by one, while there is room. Blocks that hold others are looked at
// again scanAhead before the first of them is due, so that a look finds the work of half a minute.
const (
	nearBy    = time.Minute
	scanAhead = 30 * time.Second
)

// far is what is known of delayed records that are not in memory: by block of offsets, when the first of them is due.
// Millions of records cost a few kilobytes.
type far struct {
	due      map[int64]int64 // block number to wall clock
	next     int64           // the block that is due first
	known    bool            // next is up to date, and there is one
	scanning int64           // the block that the shell was asked for; -1: none
}

func newFar() far { return far{due: map[int64]int64{}, scanning: -1} }

// note remembers that a record is due then.
func (f *far) note(off, dueMs int64) {
	number := off / cursor.BlockSize
	if was, ok := f.due[number]; ok && was <= dueMs {
		return
	}
	f.due[number] = dueMs
	if f.known && f.before(number, f.next) {
		f.next = number
	}
}

func (f *far) before(a, b int64) bool {
	return f.due[a] < f.due[b] || f.due[a] == f.due[b] && a < b
}

// first returns the block that is due first.
func (f *far) first() (number, dueMs int64, ok bool) {
	if len(f.due) == 0 {
		return 0, 0, false
	}
	if !f.known {
		f.next = math.MaxInt64
		for number := range f.due { // the smallest of them, whatever the order
			if f.next == math.MaxInt64 || f.before(number, f.next) {
				f.next = number
			}
		}
		f.known = true
	}
	return f.next, f.due[f.next], true
}

func (f *far) remove(number int64) {
	delete(f.due, number)
	f.known = f.known && f.next != number
}

// WantsScan returns offsets, both included, whose records the shell reads and answers with Scanned: delayed ones among
// them are due soon, and only the block is known. It says so until it is answered.
func (d *Dispatcher) WantsScan(now Now) (from, to int64, ok bool) {
	number, due, ok := d.far.first()
	if !ok || !d.running() || !d.scanRoom(now, due) {
		return 0, 0, false
	}
	d.far.scanning = number
	from = number * cursor.BlockSize
	return from, from + cursor.BlockSize - 1, true
}

// scanRoom reports whether a block is to be looked at now whose first record is due then. Early there must be room for
// the others in memory; once it is due it is handed out, and the others stay known by the block.
func (d *Dispatcher) scanRoom(now Now, dueMs int64) bool {
	if dueMs <= now.WallMs {
		return d.late <= d.cfg.LookAhead.Messages/2
	}
	return dueMs <= now.WallMs+scanAhead.Milliseconds() && d.delayed.len() <= d.cfg.MaxDelayed/2
}

// scanned takes delayed records out of a block: those that are due are handed out, those that soon will be wait in
// memory, the others stay known by the block.
func (d *Dispatcher) scanned(now Now, items []Item) {
	number := d.far.scanning
	d.far.scanning = -1
	if _, ok := d.far.due[number]; number < 0 || !ok {
		return // asked for before a rewind, or twice
	}
	d.far.remove(number)
	if d.cfg.AtMostOnce {
		start := number * cursor.BlockSize
		d.passed(start, min(start+cursor.BlockSize, d.next), items)
	}
	for i := range items {
		it := &items[i]
		off := it.From
		if it.To != off || it.DueMs == 0 || off/cursor.BlockSize != number || off >= d.next || d.set.Has(off) {
			continue
		}
		if n := d.held.from(off); n != nil && n.from <= off || d.ahead.has(off) {
			continue
		}
		if it.DueMs <= now.WallMs {
			if d.late < d.cfg.LookAhead.Messages {
				n := d.newNode(it, off, off, it.Bytes, 0)
				n.late = true
				d.ready(n)
			} else {
				d.far.note(off, it.DueMs)
			}
			continue
		}
		d.delay(now, it)
	}
}

// passed settles what is not among the items from an offset up to an end and should be: what was read once was kept for some
// time only.
func (d *stock) passed(at, end int64, items []Item) {
	for i := range items {
		d.gone(at, min(items[i].From, end)-1)
		at = max(at, items[i].To+1)
	}
	d.gone(at, end-1)
}

// gone settles those offsets of a range of which nothing is known here.
func (d *stock) gone(from, to int64) {
	for off := d.set.Next(from); off <= to; off = d.set.Next(off + 1) {
		if n := d.held.from(off); n != nil && n.from <= off || d.ahead.has(off) {
			continue
		}
		d.set.Add(off, off)
		d.emit(Effect{Kind: Passed, From: off, To: off})
	}
}

// delay has a record that is not due wait: in memory, or in its block.
func (d *Dispatcher) delay(now Now, it *Item) {
	if it.DueMs > now.WallMs+nearBy.Milliseconds() || d.delayed.len() >= d.cfg.MaxDelayed {
		d.far.note(it.From, it.DueMs)
		return
	}
	n := d.newNode(it, it.From, it.To, it.Bytes, 0)
	n.place, n.due, n.late = placeDelayed, it.DueMs, true
	d.delayed.add(n)
}

// spill makes room in memory for what is due sooner: the half that is due last stays known by its blocks.
func (d *Dispatcher) spill() {
	all := slices.Clone(d.delayed.nodes)
	slices.SortFunc(all, func(a, b *node) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.from, b.from)) })
	for _, n := range all[len(all)/2:] {
		d.far.note(n.from, n.due)
		d.detach(n)
		d.dispose(n)
	}
}
