package dispatch

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// rec is one record of a log in memory.
type rec struct {
	off   int64
	bytes int64
	key   string
	due   int64
	batch int
}

// shell feeds a dispatcher from a log in memory, as the real one does from a partition.
type shell struct {
	d     *Dispatcher
	cfg   Config
	now   Now
	log   []rec // by offset; there may be holes
	end   int64
	batch int
	most  int // records in one Read
	reads int
	scans int
}

func newShell(cfg Config) *shell {
	s := &shell{cfg: cfg, now: Now{Mono: time.Second, WallMs: 1_000_000}, most: 500}
	set, err := cursor.NewSet(cursor.State{})
	if err != nil {
		panic(err)
	}
	s.d = New(cfg, set, nil)
	return s
}

// publish adds n records as one batch.
func (s *shell) publish(n int, bytes int64, key string, due int64) {
	s.batch++
	for range n {
		s.log = append(s.log, rec{s.end, bytes, key, due, s.batch})
		s.end++
	}
}

func hashKey(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// items makes items of records from an offset on, below an end.
func (s *shell) items(from, end int64, most int) (items []Item, next int64) {
	i := 0
	if from > 0 { // the log is dense but for holes: start not far before
		i = max(0, min(int(from), len(s.log))-1)
		for i > 0 && s.log[i].off >= from {
			i--
		}
	}
	last := 0
	next = from
	for ; i < len(s.log) && most > 0; i++ {
		r := s.log[i]
		if r.off < from {
			continue
		}
		if r.off >= end {
			return items, next
		}
		next = r.off + 1
		most--
		if r.key == "" && r.due == 0 && r.batch == last && items[len(items)-1].To == r.off-1 {
			items[len(items)-1].To++
			items[len(items)-1].Bytes += r.bytes
			continue
		}
		last = 0
		it := Item{From: r.off, To: r.off, Bytes: r.bytes, DueMs: r.due}
		if r.key != "" {
			it.Key, it.HasKey = hashKey(r.key), true
			if s.d.NeedsKeys() {
				it.KeyText = []byte(r.key)
			}
		} else if r.due == 0 {
			last = r.batch
		}
		items = append(items, it)
	}
	if i >= len(s.log) {
		next = max(next, min(end, s.end))
	}
	return items, next
}

// effects gives an event to the dispatcher, then what it wants to read, and returns copies of all effects.
func (s *shell) effects(e Event) (out []Effect) {
	give := func(e Event) {
		for _, f := range s.d.Step(s.now, &e) {
			f.Spans = slices.Clone(f.Spans)
			out = append(out, f)
		}
	}
	give(e)
	for range 10_000 {
		if from, ok := s.d.WantsRead(); ok && from < s.end {
			items, next := s.items(from, s.end, s.most)
			s.reads++
			give(Event{Kind: Read, Items: items, Next: next})
			continue
		}
		from, to, ok := s.d.WantsScan(s.now)
		if !ok {
			return out
		}
		s.scans++
		items, _ := s.items(from, to+1, 1<<30)
		give(Event{Kind: Scanned, Items: items})
	}
	panic("the dispatcher reads without end")
}

// step is effects as text.
func (s *shell) step(e Event) []string { return s.texts(s.effects(e)) }

// pass lets time pass, with a tick whenever the dispatcher wants one.
func (s *shell) pass(t time.Duration) (out []string) {
	until := s.now.Mono + t
	for range 100_000 {
		wait, ok := s.d.Wake(s.now)
		if !ok || s.now.Mono+wait > until {
			wait = until - s.now.Mono
		}
		s.now.Mono += wait
		s.now.WallMs += wait.Milliseconds()
		out = append(out, s.step(Event{Kind: Tick})...)
		if s.now.Mono == until {
			return out
		}
	}
	panic("the dispatcher wakes without end")
}

func rangeText(from, to int64) string {
	if from == to {
		return strconv.FormatInt(from, 10)
	}
	return fmt.Sprintf("%d-%d", from, to)
}

func (s *shell) texts(effects []Effect) (out []string) {
	for _, f := range effects {
		out = append(out, effectText(f))
	}
	return out
}

func effectText(f Effect) string {
	reason := ""
	if f.Reason != "" {
		reason = " " + f.Reason
	}
	switch f.Kind {
	case Refused:
		return fmt.Sprintf("refused %d, held by%s", f.Consumer, reason)
	case Evicted:
		return fmt.Sprintf("evicted %d", f.Consumer)
	case Active:
		return fmt.Sprintf("active %d", f.Consumer)
	case Standby:
		return fmt.Sprintf("standby %d", f.Consumer)
	case Deliver:
		text := fmt.Sprintf("deliver %d:", f.Consumer)
		for _, s := range f.Spans {
			text += " " + rangeText(s.From, s.To)
			if s.Count != 1 {
				text += fmt.Sprintf("(x%d)", s.Count)
			}
		}
		return text
	case ToDeadLetter:
		return fmt.Sprintf("dead letter %s x%d%s", rangeText(f.From, f.To), f.Count, reason)
	case Dropped:
		return fmt.Sprintf("dropped %s x%d%s", rangeText(f.From, f.To), f.Count, reason)
	case Blocked:
		return fmt.Sprintf("blocked %d x%d%s", f.From, f.Count, reason)
	case Failed:
		return fmt.Sprintf("failed %d: from %d, oldest %d", f.Consumer, f.From, f.To)
	case Skipped:
		return "skipped " + rangeText(f.From, f.To)
	case LostRange:
		return "lost " + rangeText(f.From, f.To)
	case Passed:
		return "passed " + rangeText(f.From, f.To)
	}
	return fmt.Sprintf("unknown effect %+v", f)
}

func (s *shell) join(id ConsumerID, m Member) []string {
	return s.step(Event{Kind: Join, Consumer: id, Member: m})
}

func (s *shell) ask(id ConsumerID, bytes int64) []string {
	return s.step(Event{Kind: Ask, Consumer: id, Bytes: bytes})
}

func (s *shell) ack(from, to int64) []string {
	return s.step(Event{Kind: Ack, Ranges: []cursor.Range{{From: from, To: to}}})
}

// check compares what the dispatcher counts with what it has.
func (s *shell) check(t testing.TB) {
	t.Helper()
	if err := s.d.audit(); err != nil {
		t.Fatal(err)
	}
}

// audit finds out whether the sums and the places of nodes are what they must be.
func (d *Dispatcher) audit() error {
	var unsettled, inFlight, queued amount
	var late, poisoning, waiting, delayed, listed int
	held := map[*consumer]amount{}
	keyed := map[*key]int{}
	last := int64(-1)
	var err error
	fail := func(n *node, format string, args ...any) {
		if err == nil {
			err = fmt.Errorf("node %+v: %s", *n, fmt.Sprintf(format, args...))
		}
	}
	d.held.each(0, func(n *node) bool {
		if n.from <= last || n.to < n.from {
			fail(n, "after %d", last)
		}
		last = n.to
		if d.set.Next(n.from) != n.from {
			fail(n, "is settled")
		}
		if n.count > 0 {
			unsettled.add(n.messages(), n.bytes)
		}
		if n.key != nil {
			keyed[n.key]++
		}
		switch n.place {
		case placeLeased:
			inFlight.add(n.messages(), n.bytes)
			a := held[n.consumer]
			a.add(n.messages(), n.bytes)
			held[n.consumer] = a
			if d.members.byID[n.consumer.id] != n.consumer {
				fail(n, "is with consumer %d, who is gone", n.consumer.id)
			}
		case placeWaiting:
			waiting++
		case placeDelayed:
			delayed++
		case placeReady:
			if n.key == nil {
				listed++
			}
			if n.count == 0 {
				queued.add(n.messages(), n.bytes)
				if n.late {
					late++
				}
			}
		case placePoison:
			poisoning++
		case placeStuck:
			listed++
		default:
			fail(n, "is nowhere")
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	for _, r := range d.ahead.runs[d.ahead.start:] {
		queued.add(r.to-r.from+1, r.bytes)
		if n := d.held.from(r.from); n != nil && n.from <= r.to || d.set.Next(r.from) != r.from {
			return fmt.Errorf("run %+v is known twice, or settled", r)
		}
	}
	for k, n := range keyed {
		if k.refs != n || d.keys.byHash[k.hash] != k {
			return fmt.Errorf("key %q: %d references, %d nodes", k.text, k.refs, n)
		}
	}
	l := &d.lists
	switch {
	case unsettled != d.unsettled || inFlight != d.inFlight || queued != d.queued:
		return fmt.Errorf("sums: unsettled %v %v, in flight %v %v, queued %v %v", d.unsettled, unsettled, d.inFlight, inFlight, d.queued, queued)
	case late != d.late || poisoning != d.poisoning || waiting != d.waiting.len() || delayed != d.delayed.len():
		return fmt.Errorf("sums: late %d %d, poisoning %d %d, waiting %d %d, delayed %d %d", d.late, late, d.poisoning, poisoning, d.waiting.len(), waiting, d.delayed.len(), delayed)
	case listed != l.again.size+l.fresh.size+l.large.size+l.stuck.size:
		return fmt.Errorf("%d nodes in lists", listed)
	case len(keyed) != len(d.keys.byHash):
		return fmt.Errorf("%d keys with nodes, %d known", len(keyed), len(d.keys.byHash))
	}
	routed := 0
	for _, c := range d.members.order {
		routed += c.keyed[0].size + c.keyed[1].size
		if c.held != held[c] {
			return fmt.Errorf("consumer %d holds %v, counts %v", c.id, held[c], c.held)
		}
	}
	if routed != d.routed {
		return fmt.Errorf("%d keys are routed, counted %d", routed, d.routed)
	}
	return nil
}

func parseRange(t testing.TB, word string) cursor.Range {
	from, to, two := strings.Cut(word, "-")
	a, err := strconv.ParseInt(from, 10, 64)
	b := a
	if two && err == nil {
		b, err = strconv.ParseInt(to, 10, 64)
	}
	if err != nil {
		t.Fatalf("%q is no range", word)
	}
	return cursor.Range{From: a, To: b}
}
