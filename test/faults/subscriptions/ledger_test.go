package subscriptions

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
)

// place is where a record lies.
type place struct {
	partition int32
	offset    int64
}

// kind is what happened to a record, or to somebody.
type kind byte

const (
	published kind = 'p' // its publisher was told that it is stored
	given     kind = 'd' // a consumer was handed it
	acked     kind = 'a' // a consumer is about to acknowledge it
	nacked    kind = 'n' // a consumer is about to give it back
	durable   kind = 's' // a consumer was told that its acknowledgement is durable
	heard     kind = 'h' // a consumer was told that its acknowledgement has arrived, which does not make it durable
	accepted  kind = 'v' // its publisher was told that it is stored, and not where
	joined    kind = 'j' // no record's: a consumer has subscribed
	left      kind = 'l' // no record's: a consumer was told to subscribe again, and that what it holds goes to others
)

// event is one thing that happened to a record.
type event struct {
	at int64 // Unix time in nanoseconds, of whoever saw it
	place
	kind  kind
	who   int32 // the consumer, or publisher
	count int32 // of a delivery: which one the broker says it is
	key   int32 // -1: none
	value uint64
}

// blow is something that happened to somebody, and may have taken what it was about to say with it.
type blow struct {
	at, over int64 // from before it to after it
	who      int32 // everybody: the broker
	// costs is how old an acknowledgement may have been at that time and yet be lost.
	costs time.Duration
	left  bool // it goes on, and may say late that it was handed something before
}

const everybody int32 = -1

// ledger is everything that was seen of one subscription. It is safe for concurrent use.
type ledger struct {
	mu     sync.Mutex
	events []event            // guarded by mu
	blows  []blow             // guarded by mu
	begun  map[int32]uint64   // by publisher: values below it were begun; guarded by mu
	acks   map[place]struct{} // acknowledged by a consumer; guarded by mu
	stored int                // acknowledged to publishers; guarded by mu
	room   chan struct{}      // what is begun and not acknowledged by a consumer
	moves  int                // guarded by mu
	// repeats is how many records may stand twice, since their publishers sent them again and cannot say that they do.
	repeats int
	goal    int           // guarded by mu
	hit     chan struct{} // closed once there are goal acks; nil: nobody waits; guarded by mu
}

// mostAhead bounds how far publishers are ahead of consumers.
const mostAhead = 4000

func newLedger() *ledger {
	return &ledger{begun: map[int32]uint64{}, acks: map[place]struct{}{}, room: make(chan struct{}, mostAhead)}
}

// note adds events.
func (l *ledger) note(events ...event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		if e := &events[i]; e.kind == joined || e.kind == left {
			l.moves++
			l.blows = append(l.blows, blow{at: e.at - int64(over), over: e.at + int64(over), who: e.who, left: e.kind == left})
			continue
		}
		l.events = append(l.events, events[i])
		switch events[i].kind {
		case published, accepted:
			l.stored++
		case acked:
			if _, again := l.acks[events[i].place]; !again {
				l.acks[events[i].place] = struct{}{}
				select {
				case <-l.room:
				default:
				}
			}
		}
	}
	if l.hit != nil && len(l.acks) >= l.goal {
		close(l.hit)
		l.hit = nil
	}
}

// after returns a channel that is closed once n more records are acknowledged by consumers.
func (l *ledger) after(n int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	hit := make(chan struct{})
	l.goal, l.hit = len(l.acks)+n, hit
	return hit
}

// strike notes a blow.
func (l *ledger) strike(b blow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blows = append(l.blows, b)
}

// settled reports whether consumers have acknowledged all that publishers were told is stored.
func (l *ledger) settled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks) >= l.stored
}

// promise is what a subscription's type says of the order of first deliveries.
type promise int

const (
	noOrder promise = iota
	byPartition
	byKey      // and a key's records are with one consumer at a time
	oneAtATime // byPartition, and nobody is handed anything but one consumer until that one is gone
	byTurns    // the same, but that one who comes may go before it
)

func promiseOf(typ client.SubscriptionType) promise {
	switch typ {
	case client.Exclusive, client.Failover:
		return byPartition
	case client.KeyShared:
		return byKey
	}
	return noOrder
}

// verdict is what a ledger comes to.
type verdict struct {
	Published, Delivered, Acked, Durable, Nacked int
	InFlight                                     int           // handed out again, not having been acknowledged
	Lost                                         int           // handed out again, its acknowledgement lost to a fault that may cost it
	Oldest                                       time.Duration // of those, as of the fault
	Blows                                        int
	Held                                         int // of InFlight: not given back
	Cut                                          int // of Lost: with the consumer, and not the broker, before it was told that it has arrived
	Repeated                                     int // published more than once
	Forgotten                                    int // of Lost: said to be durable by another broker process than the one that had handed it out
}

func (v verdict) String() string {
	return fmt.Sprintf("%d faults; %d published, all acknowledged by consumers (%d durably, %d given back first); %d deliveries, of which %d again of what was in flight and %d again of what had been acknowledged, at most %v before the fault (%d of these durably, after a restart)",
		v.Blows, v.Published, v.Durable, v.Nacked, v.Delivered, v.InFlight, v.Lost, v.Oldest.Round(time.Millisecond), v.Forgotten)
}

// judge says what the ledger comes to. It fails the test where something is not as promised.
func (l *ledger) judge(t *testing.T, order promise) (v verdict) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	v.Blows = len(l.blows)
	j := &judge{
		t: t, l: l, v: &v, records: map[place]*fate{}, last: map[[2]int32]int64{}, values: map[uint64]place{}, order: order,
		holders: map[int32]holder{}, keys: map[[2]int32]*keyHolder{},
	}
	for i := range l.events { // a consumer may be quicker than the answer to the publisher
		switch e := &l.events[i]; e.kind {
		case published:
			v.Published++
			j.of(e).stored = true
			j.valueIs(e)
		case accepted:
			v.Published++
		}
	}
	for i := range l.events {
		j.see(&l.events[i])
	}
	j.allAcknowledged()
	if j.wrong > mostTold {
		t.Errorf("and %d more", j.wrong-mostTold)
	}
	return v
}

// allAcknowledged checks that a consumer has acknowledged all that was published.
func (j *judge) allAcknowledged() {
	j.t.Helper()
	values := map[uint64]bool{}
	for at, f := range j.records {
		if f.stored && !f.acked {
			j.complain("partition %d, offset %d: no consumer has acknowledged it (delivered %d times)", at.partition, at.offset, f.times)
		}
		if f.acked {
			values[f.value] = true
		}
	}
	for i := range j.l.events {
		if e := &j.l.events[i]; e.kind == accepted && !values[e.value] {
			at, known := j.values[e.value]
			j.complain("%x: no consumer has acknowledged it (delivered: %v, %v)", e.value, known, at)
		}
	}
}

// fate is what has become of a record so far.
type fate struct {
	stored, acked, durable bool
	heard                  bool // the broker has the last acknowledgement
	lost                   bool // it was handed out again since
	resent                 bool // acknowledged durably, but to another broker process than the one that handed it out
	nacked                 bool // since the last delivery
	times                  int
	value                  uint64
	valued                 bool
	givenAt, ackedAt       int64 // last
	givenTo, ackedBy       int32
}

type judge struct {
	t       *testing.T
	l       *ledger
	v       *verdict
	records map[place]*fate
	values  map[uint64]place
	last    map[[2]int32]int64 // by partition and key: the newest offset delivered
	holders map[int32]holder   // by partition
	keys    map[[2]int32]*keyHolder
	order   promise
	wrong   int
}

// holder is who was handed something last.
type holder struct {
	who int32
	at  int64
}

// keyHolder is who was handed something of a key last, and what of it that one has not settled.
type keyHolder struct {
	holder
	open map[int64]bool // offsets
}

const mostTold = 20

func (j *judge) complain(format string, args ...any) {
	j.t.Helper()
	if j.wrong++; j.wrong <= mostTold {
		j.t.Errorf(format, args...)
	}
}

func (j *judge) of(e *event) *fate {
	f := j.records[e.place]
	if f == nil {
		f = &fate{}
		j.records[e.place] = f
	}
	return f
}

// valueIs checks that an offset has one value, and a value one offset, and that somebody has published it.
func (j *judge) valueIs(e *event) {
	j.t.Helper()
	f := j.of(e)
	if f.valued && f.value != e.value {
		j.complain("%v is %x and was %x", e.place, e.value, f.value)
	}
	if at, known := j.values[e.value]; known && !f.valued {
		if j.v.Repeated++; j.v.Repeated > j.l.repeats {
			j.complain("%x is at %v and at %v", e.value, at, e.place)
		}
	}
	f.value, f.valued = e.value, true
	j.values[e.value] = e.place
	if pub, seq := int32(e.value>>32), e.value&0xffffffff; seq >= j.l.begun[pub] {
		j.complain("%v is %x, which nobody has published", e.place, e.value)
	}
}

func (j *judge) see(e *event) {
	j.t.Helper()
	if e.kind == accepted {
		return
	}
	f := j.of(e)
	switch e.kind {
	case given:
		j.v.Delivered++
		j.valueIs(e)
		j.alone(e)
		j.keyAlone(e, f)
		j.delivered(e, f)
	case acked:
		j.keySettled(e)
		j.v.Acked++
		f.acked, f.ackedAt, f.ackedBy = true, e.at, e.who
		f.heard, f.lost = f.heard && !f.lost, false
	case heard:
		f.heard = true
	case nacked:
		j.keySettled(e)
		j.v.Nacked++
		f.nacked = true
	case durable:
		j.v.Durable++
		f.durable = !j.struck(everybody, f.givenAt, e.at)
		f.resent = !f.durable
	}
}

// delivered judges a delivery: its order if it is the first, what it is due to if it is not.
func (j *judge) delivered(e *event, f *fate) {
	j.t.Helper()
	f.times++
	before := *f
	f.givenAt, f.givenTo, f.nacked = e.at, e.who, false
	if f.times == 1 {
		j.inOrder(e)
		return
	}
	switch {
	case f.durable:
		j.complain("%v was handed out again (%d) though its acknowledgement was durable; acknowledged %v before", e.place, e.count, time.Duration(e.at-f.ackedAt))
	case f.acked && !f.lost:
		age, excused := j.excuse(e, &before)
		if !excused {
			j.complain("%v was handed out again (%d), %v after it was acknowledged, and no fault explains it (%v after the last)", e.place, e.count,
				time.Duration(e.at-f.ackedAt), j.sinceLast(e.at))
			return
		}
		f.lost = true
		j.v.Lost++
		if f.resent {
			j.v.Forgotten++
		}
		j.v.Oldest = max(j.v.Oldest, age)
	default:
		j.v.InFlight++
		if before.nacked {
			return
		}
		j.v.Held++
		if !j.mayPass(holder{before.givenTo, before.givenAt}, e) {
			j.complain("%v was handed out again (%d), %v after the last time, and nothing has happened to who had it", e.place, e.count, time.Duration(e.at-before.givenAt))
		}
	}
}

func (j *judge) inOrder(e *event) {
	j.t.Helper()
	at := [2]int32{e.partition, -1}
	switch {
	case j.order == noOrder, j.order == byKey && e.key < 0:
		return
	case j.order == byKey:
		at[1] = e.key
	}
	if last, seen := j.last[at]; seen && e.offset < last {
		j.complain("partition %d, key %d: offset %d was handed out for the first time after %d", e.partition, at[1], e.offset, last)
		return
	}
	j.last[at] = e.offset
}

// alone checks that nobody else was being handed records of this partition, where the type says so.
func (j *judge) alone(e *event) {
	j.t.Helper()
	if j.order != oneAtATime && j.order != byTurns {
		return
	}
	h, known := j.holders[e.partition]
	j.holders[e.partition] = holder{e.who, e.at}
	if !known || h.who == e.who || j.mayPass(h, e) {
		return
	}
	j.complain("%v was handed to consumer %d, %v after consumer %d was handed something, and nothing has happened to that one", e.place, e.who, time.Duration(e.at-h.at), h.who)
}

// keyAlone checks that nobody else has records of this key to work on, where the type says so.
func (j *judge) keyAlone(e *event, f *fate) {
	j.t.Helper()
	if j.order != byKey || e.key < 0 {
		return
	}
	if f.acked && e.at-f.ackedAt <= int64(onTheWay) {
		return // it is settled once that acknowledgement arrives, and others may be handed the next one before this is seen
	}
	at := [2]int32{e.partition, e.key}
	h := j.keys[at]
	if h == nil {
		h = &keyHolder{holder{e.who, e.at}, map[int64]bool{}}
		j.keys[at] = h
	}
	if h.who != e.who {
		if len(h.open) > 0 && !j.mayPass(h.holder, e) {
			j.complain("%v of key %d was handed to consumer %d while consumer %d had %d of that key", e.place, e.key, e.who, h.who, len(h.open))
		}
		clear(h.open)
	}
	h.holder = holder{e.who, e.at}
	h.open[e.offset] = true
}

func (j *judge) keySettled(e *event) {
	if h := j.keys[[2]int32{e.partition, e.key}]; h != nil {
		delete(h.open, e.offset)
	}
}

// mayPass reports whether somebody else may be handed what a consumer had: something has happened to that one; or to who
// is handed it, and that one may go before others, or had it first and says so late.
func (j *judge) mayPass(h holder, e *event) bool {
	return slices.ContainsFunc(j.l.blows, func(b blow) bool {
		return b.at < e.at && h.at < b.over && (b.who == h.who || b.who == everybody || j.mayComeFirst(&b, h, e))
	})
}

func (j *judge) mayComeFirst(b *blow, h holder, e *event) bool {
	return b.who == e.who && (j.order == byTurns || b.left && e.at-h.at < int64(onTheWay))
}

// excuse looks for a fault that may have taken an acknowledgement with it: of who gave it and was not told that it has
// arrived, of who has it since, or of the broker; not so long after it; and when the delivery was made before. What is acknowledged after the
// fault may have been handed out again already, though that is seen later.
func (j *judge) excuse(e *event, f *fate) (age time.Duration, ok bool) {
	cut := true
	for _, b := range j.l.blows {
		told := f.heard && f.ackedAt <= b.at
		own := b.who == f.ackedBy && !told || f.ackedAt > b.at && j.mayComeFirst(&b, holder{f.givenTo, f.givenAt}, e)
		// It was handed on to that one while who had it first worked on it, and goes back as the acknowledgement is on its way.
		back := b.who == f.givenTo && f.givenTo != f.ackedBy && !told
		if (own || back || b.who == everybody) && b.at < e.at && f.givenAt < b.over && f.ackedAt > b.at-int64(b.costs) {
			if !ok {
				age, ok = max(0, time.Duration(b.at-f.ackedAt)), true
			}
			cut = cut && own && b.costs > 0
		}
	}
	if ok && cut {
		j.v.Cut++
	}
	return age, ok
}

// struck reports whether somebody, or the broker, was struck between two times.
func (j *judge) struck(who int32, from, to int64) bool {
	return slices.ContainsFunc(j.l.blows, func(b blow) bool { return (b.who == who || b.who == everybody) && b.at < to && from < b.over })
}

func (j *judge) sinceLast(at int64) time.Duration {
	var last int64
	for _, b := range j.l.blows {
		if b.at < at {
			last = max(last, b.at)
		}
	}
	return time.Duration(at - last)
}

// keep writes the ledger to dir, if the test has failed.
func (l *ledger) keep(t *testing.T, dir string) {
	if !t.Failed() {
		return
	}
	f, err := os.Create(filepath.Join(dir, "ledger.txt"))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.blows {
		fmt.Fprintf(w, "blow %+v\n", b)
	}
	for _, e := range l.events {
		fmt.Fprintf(w, "%d %c %d %d %d %d %d %x\n", e.at, e.kind, e.partition, e.offset, e.who, e.count, e.key, e.value)
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
}
