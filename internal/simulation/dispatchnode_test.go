package simulation

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/dispatch"
)

// dispatchBug is a fault that the shell around a dispatcher has on purpose.
type dispatchBug int

const (
	dispatchRight    dispatchBug = iota
	dispatchAckAny               // settles what was never handed out
	dispatchNoBlocks             // opens a cursor without what is settled above the position
	dispatchAhead                // saves what is handed out as settled
	dispatchNoKeys               // reads records without their keys
	dispatchWide                 // has a larger window than was configured
	dispatchHole                 // leaves out a record while reading
	dispatchEarly                // does not know that records are delayed
	dispatchDeaf                 // does not notice that a consumer is gone
	dispatchUnheard              // leaves out what failed to be saved
)

// simRecord is one record of the log, which outlives everything.
type simRecord struct {
	key   string
	due   int64 // wall clock
	batch int
}

const simBytes = 10 // of each record

// dispatchSetup is one subscription and its log.
type dispatchSetup struct {
	cfg     dispatch.Config
	base    int64 // offset of the first record
	records []simRecord
	visible int64 // end of what is published by now
	bug     dispatchBug
}

func (s *dispatchSetup) end() int64 { return s.base + int64(len(s.records)) }

func (s *dispatchSetup) at(off int64) *simRecord { return &s.records[off-s.base] }

// Messages are an op, the session of the consumer, and numbers.
const (
	opJoin   byte = iota // priority, filter
	opLeave              //
	opAsk                // bytes
	opBeat               //
	opAck                // from, to, …
	opBelow              // offset
	opNack               // delay in ms, -1: backoff; from, to, …
	opData               // to the consumer: from, to, …
	opGone               // to the consumer: the session is none
	opIdle               // to the consumer: it is known
	opRefuse             // to the consumer: another one is there
)

func packMessage(op byte, session int64, numbers ...int64) []byte {
	b := binary.AppendVarint([]byte{op}, session)
	for _, n := range numbers {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func unpackMessage(b []byte) (op byte, session int64, numbers []int64) {
	for rest := b[1:]; len(rest) > 0; {
		v, n := binary.Varint(rest)
		if n <= 0 {
			panic("a damaged message came")
		}
		numbers, rest = append(numbers, v), rest[n:]
	}
	return b[0], numbers[0], numbers[1:]
}

// simSession is a consumer as the broker knows it.
type simSession struct {
	id      dispatch.ConsumerID
	node    NodeID
	session int64
	heard   time.Duration
}

// dispatchNode is a broker with one subscription: it feeds a dispatcher from the log and the network, and saves its
// cursor to the disk.
type dispatchNode struct {
	setup *dispatchSetup
	judge *dispatchJudge
	c     *Choices

	d        *dispatch.Dispatcher
	sessions []*simSession
	newest   map[NodeID]int64 // highest session of a node in this life
	ids      dispatch.ConsumerID
	saves    uint64
	saving   *cursor.Change
	stored   cursor.State // what the file under way, or the newest, has
	previous cursor.State // what is known to be on the disk
	dead     []cursor.Range
	out      []Effect
}

const (
	cursorFile   = "cursor"
	saveEvery    = 40 * time.Millisecond
	idleAfter    = 150 * time.Millisecond
	publishEvery = 20 * time.Millisecond
)

func (b *dispatchNode) Step(now Now, e Event) []Effect {
	b.out = nil
	switch e := e.(type) {
	case Boot:
		b.boot(e)
	case Receive:
		b.receive(now, e)
	case DiskDone:
		b.saved(e)
	case Timer:
		b.timer(now, e.Name)
	}
	if after, ok := b.d.Wake(dispatch.Now(now)); ok {
		b.out = append(b.out, SetTimer{"wake", after})
	} else {
		b.out = append(b.out, StopTimer{"wake"})
	}
	return b.out
}

func (b *dispatchNode) boot(e Boot) {
	b.newest = map[NodeID]int64{}
	b.stored.Position = b.setup.base
	for _, f := range e.Files {
		if f.Name == cursorFile {
			if err := json.Unmarshal(f.Data, &b.stored); err != nil {
				b.judge.w.Fail("disk", "the cursor is damaged: %v", err)
			}
		}
	}
	state := b.stored
	if b.setup.bug == dispatchNoBlocks {
		state.Blocks = nil
	}
	set, err := cursor.NewSet(state)
	if err != nil {
		b.judge.w.Fail("disk", "%v", err)
		set, _ = cursor.NewSet(cursor.State{Position: b.setup.base})
	}
	b.previous = b.stored
	set.Failed(cursor.Change{Blocks: state.Blocks}) // what was found need not be durable: it is saved again
	cfg := b.setup.cfg
	if b.setup.bug == dispatchWide {
		cfg.Consumer.Messages *= 2
	}
	b.d = dispatch.New(cfg, set, state.Counts)
	b.judge.booted(b.d)
	b.out = append(b.out, SetTimer{"save", saveEvery}, SetTimer{"idle", idleAfter / 2}, SetTimer{"publish", publishEvery})
}

// give gives an event to the dispatcher and carries out what comes of it.
func (b *dispatchNode) give(now Now, e dispatch.Event) {
	b.one(now, e)
	for range 1000 {
		if from, ok := b.d.WantsRead(); ok && from < b.setup.visible {
			items, next := b.read(from, from+7)
			b.one(now, dispatch.Event{Kind: dispatch.Read, Items: items, Next: next})
			continue
		}
		from, to, ok := b.d.WantsScan(dispatch.Now(now))
		if !ok {
			return
		}
		items, _ := b.read(from, to+1)
		b.one(now, dispatch.Event{Kind: dispatch.Scanned, Items: items})
	}
	b.judge.w.Fail("reading", "it reads without end")
}

func (b *dispatchNode) one(now Now, e dispatch.Event) {
	b.judge.before(now, &e)
	effects := b.d.Step(dispatch.Now(now), &e)
	b.judge.after(now, b.d, &e, effects)
	for i := range effects {
		b.perform(&effects[i])
	}
	if n := b.d.Stats().Consumers; n != len(b.sessions) {
		b.judge.w.Fail("consumers", "%d are connected, it knows %d", len(b.sessions), n)
	}
}

func (b *dispatchNode) read(from, end int64) (items []dispatch.Item, next int64) {
	end = min(end, b.setup.visible)
	for off := max(from, b.setup.base); off < end; off++ {
		r := *b.setup.at(off)
		if b.setup.bug == dispatchHole && off%11 == 5 {
			continue
		}
		if n := len(items); n > 0 && r.key == "" && r.due == 0 && *b.setup.at(off - 1) == r && items[n-1].To == off-1 {
			items[n-1].To++
			items[n-1].Bytes += simBytes
			continue
		}
		it := dispatch.Item{From: off, To: off, Bytes: simBytes, DueMs: r.due}
		if r.key != "" && b.setup.bug != dispatchNoKeys {
			it.Key, it.HasKey = uint64(r.key[1]), true
			if b.d.NeedsKeys() {
				it.KeyText = []byte(r.key)
			}
		}
		if b.setup.bug == dispatchEarly {
			it.DueMs = 0
		}
		items = append(items, it)
	}
	return items, max(end, from)
}

func (b *dispatchNode) perform(f *dispatch.Effect) {
	switch f.Kind {
	case dispatch.Deliver:
		if s := b.byID(f.Consumer); s != nil {
			var numbers []int64
			for _, span := range f.Spans {
				numbers = append(numbers, span.From, span.To)
			}
			b.out = append(b.out, Send{s.node, packMessage(opData, s.session, numbers...)})
		}
	case dispatch.Refused, dispatch.Evicted:
		if s := b.byID(f.Consumer); s != nil {
			op := opGone
			if f.Kind == dispatch.Refused {
				op = opRefuse
			}
			b.out = append(b.out, Send{s.node, packMessage(op, s.session)})
			b.forget(s)
		}
	case dispatch.ToDeadLetter:
		b.dead = append(b.dead, cursor.Range{From: f.From, To: f.To})
		b.out = append(b.out, SetTimer{"dead", 5 * time.Millisecond})
	}
}

func (b *dispatchNode) byID(id dispatch.ConsumerID) *simSession {
	for _, s := range b.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (b *dispatchNode) forget(s *simSession) {
	b.sessions = slices.DeleteFunc(b.sessions, func(o *simSession) bool { return o == s })
}

func (b *dispatchNode) receive(now Now, e Receive) {
	op, session, numbers := unpackMessage(e.Body)
	var s *simSession
	for _, known := range b.sessions {
		if known.node == e.From && known.session == session {
			s = known
		}
	}
	if s != nil {
		s.heard = now.Mono
	}
	switch {
	case op == opJoin && session > b.newest[e.From]:
		b.newest[e.From] = session
		b.join(now, e.From, session, numbers)
	case op == opAck || op == opBelow || op == opNack: // they count whoever sends them
		b.settle(now, s, op, numbers)
	case s == nil && op == opAsk:
		b.out = append(b.out, Send{e.From, packMessage(opGone, session)})
	case s == nil || op == opJoin:
	case op == opAsk:
		b.out = append(b.out, Send{e.From, packMessage(opIdle, session)})
		b.give(now, dispatch.Event{Kind: dispatch.Ask, Consumer: s.id, Bytes: numbers[0]})
	case op == opBeat:
		b.give(now, dispatch.Event{Kind: dispatch.Heartbeat, Consumer: s.id})
	case op == opLeave:
		b.gone(now, s)
	}
}

func (b *dispatchNode) gone(now Now, s *simSession) {
	b.forget(s)
	if b.setup.bug != dispatchDeaf {
		b.give(now, dispatch.Event{Kind: dispatch.Leave, Consumer: s.id})
	}
}

func (b *dispatchNode) join(now Now, node NodeID, session int64, numbers []int64) {
	b.ids++
	b.sessions = append(b.sessions, &simSession{b.ids, node, session, now.Mono})
	m := dispatch.Member{Name: string(node), Priority: int32(numbers[0])}
	if numbers[1] > 0 {
		m.Filters = []string{fmt.Sprintf("k[0-%d]", numbers[1]-1)}
	}
	b.give(now, dispatch.Event{Kind: dispatch.Join, Consumer: b.ids, Member: m})
}

func (b *dispatchNode) settle(now Now, s *simSession, op byte, numbers []int64) {
	e := dispatch.Event{Kind: dispatch.Ack, Delay: -1}
	switch op {
	case opBelow:
		e.Kind, e.Offset = dispatch.AckBelow, numbers[0]
		b.give(now, e)
		return
	case opNack:
		if s == nil {
			return
		}
		e.Kind, e.Consumer, e.Reason = dispatch.Nack, s.id, "no"
		if numbers[0] >= 0 {
			e.Delay = time.Duration(numbers[0]) * time.Millisecond
		}
		numbers = numbers[1:]
	}
	for i := 0; i < len(numbers); i += 2 {
		e.Ranges = append(e.Ranges, cursor.Range{From: numbers[i], To: numbers[i+1]})
		if op == opAck && b.setup.bug == dispatchAckAny {
			b.d.Set().Add(numbers[i], min(numbers[i+1], b.setup.visible-1))
		}
	}
	b.give(now, e)
}

func (b *dispatchNode) timer(now Now, name string) {
	switch name {
	case "wake":
		b.give(now, dispatch.Event{Kind: dispatch.Tick})
	case "publish":
		if b.setup.visible < b.setup.end() {
			b.setup.visible = min(b.setup.visible+1+int64(b.c.Draw("publish", 3)), b.setup.end())
			b.out = append(b.out, SetTimer{"publish", publishEvery})
		}
		b.give(now, dispatch.Event{Kind: dispatch.Tick})
	case "idle":
		for _, s := range slices.Clone(b.sessions) {
			if now.Mono-s.heard > idleAfter {
				b.gone(now, s)
			}
		}
		b.out = append(b.out, SetTimer{"idle", idleAfter / 2})
	case "dead":
		dead := b.dead
		b.dead = nil
		failed := b.c.Pick("dead", 5, 1) == 1
		b.give(now, dispatch.Event{Kind: dispatch.Poisoned, Ranges: dead, Failed: failed})
	case "save":
		b.save()
		b.out = append(b.out, SetTimer{"save", saveEvery})
	}
}

// save writes the cursor: what is on the disk, with what changed.
func (b *dispatchNode) save() {
	set := b.d.Set()
	if b.saving != nil {
		return
	}
	if !set.Dirty() {
		b.judge.clean(set)
		return
	}
	c := set.Changes()
	b.saving = &c
	next := cursor.State{Position: c.Position, Counts: b.d.Counts(20)}
	for _, old := range b.previous.Blocks {
		if (old.Number+1)*cursor.BlockSize > c.Position && !slices.ContainsFunc(c.Blocks, func(n cursor.Block) bool { return n.Number == old.Number }) {
			next.Blocks = append(next.Blocks, old)
		}
	}
	next.Blocks = append(next.Blocks, c.Blocks...)
	slices.SortFunc(next.Blocks, func(x, y cursor.Block) int { return int(x.Number - y.Number) })
	if b.setup.bug == dispatchAhead {
		next.Position = max(next.Position, b.judge.highest+1)
	}
	b.stored = next
	data, err := json.Marshal(next)
	if err != nil {
		panic(err)
	}
	b.saves++
	b.out = append(b.out, Disk{ID: b.saves, Op: DiskReplace, File: cursorFile, Data: data})
}

func (b *dispatchNode) saved(e DiskDone) {
	c := *b.saving
	b.saving = nil
	if e.Err != nil && b.setup.bug != dispatchUnheard {
		b.d.Set().Failed(c)
		return
	}
	b.d.Set().Saved(c)
	if e.Err == nil {
		b.previous = b.stored
		b.judge.saved(b.previous)
	}
}
