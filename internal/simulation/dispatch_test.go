package simulation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
)

// simConsumer is a consumer that does everything wrong that one can do, a few times; then it acknowledges what it gets.
type simConsumer struct {
	c       *Choices
	setup   *dispatchSetup
	stream  string
	joins   *int64 // outlives a crash, as a clock would
	naughty *int   // what is left of it

	session int64
	silent  int // polls without an answer
	later   map[string][]byte
	timers  int
	beating int
}

const (
	simPoll  = 15 * time.Millisecond
	simSoon  = 10 * time.Millisecond
	simBurst = 12 // wrongs of one consumer
)

func (s *simConsumer) Step(now Now, e Event) []Effect {
	switch e := e.(type) {
	case Boot:
		s.later = map[string][]byte{}
		return []Effect{SetTimer{"join", time.Duration(1+s.c.Draw(s.stream, 20)) * time.Millisecond}}
	case Timer:
		return s.timer(e.Name)
	case Receive:
		op, session, numbers := unpackMessage(e.Body)
		if session != s.session {
			return nil
		}
		s.silent = 0
		switch op {
		case opGone:
			return s.rejoin(simSoon)
		case opRefuse:
			return s.rejoin(6 * simSoon)
		case opData:
			return s.data(numbers)
		}
	}
	return nil
}

// rejoin ends the session from the consumer's side.
func (s *simConsumer) rejoin(after time.Duration) []Effect {
	s.session = 0
	return []Effect{StopTimer{"poll"}, SetTimer{"join", after}}
}

func (s *simConsumer) timer(name string) []Effect {
	switch name {
	case "join":
		*s.joins++
		s.session, s.silent = *s.joins, 0
		priority, filter := int64(s.c.Draw(s.stream, 3)), int64(0)
		if s.c.Pick(s.stream, 6, 1) == 1 && *s.naughty > 0 && s.stream != "consumer-1" { // one takes every key
			filter = 1 + int64(s.c.Draw(s.stream, 3))
			*s.naughty--
		}
		return []Effect{Send{"broker", packMessage(opJoin, s.session, priority, filter)}, SetTimer{"poll", simPoll}}
	case "poll":
		if s.silent++; s.silent > 8 {
			return s.rejoin(simSoon)
		}
		out := []Effect{Send{"broker", packMessage(opAsk, s.session, []int64{1000, 10, 35}[s.c.Draw(s.stream, 3)])}, SetTimer{"poll", simPoll}}
		if s.beating > 0 {
			s.beating--
			out = append(out, Send{"broker", packMessage(opBeat, s.session)})
		}
		return out
	}
	if body := s.later[name]; body != nil {
		delete(s.later, name)
		return []Effect{Send{"broker", body}}
	}
	return nil
}

// soon sends something after a while, also when the session is another one by then.
func (s *simConsumer) soon(after time.Duration, body []byte) Effect {
	s.timers++
	name := fmt.Sprintf("later-%d", s.timers)
	s.later[name] = body
	return SetTimer{name, after}
}

// data does something with what came.
func (s *simConsumer) data(ranges []int64) []Effect {
	kind := 0
	if *s.naughty > 0 {
		kind = s.c.Pick(s.stream, 8, 3, 3, 2, 3, 2, 2, 2, 2, 2, 2, 2)
	}
	if kind > 0 {
		*s.naughty--
	}
	ack := Send{"broker", packMessage(opAck, s.session, ranges...)}
	delay := int64(s.c.Draw(s.stream, 4)*20) - 1
	switch kind {
	case 1: // after a while, with heartbeats or without
		s.beating = s.c.Draw(s.stream, 12)
		return []Effect{s.soon(simSoon*time.Duration(1+s.c.Draw(s.stream, 12)), ack.Body)}
	case 2:
		return s.oneByOne(ranges)
	case 3: // twice
		return []Effect{ack, ack}
	case 4:
		return []Effect{Send{"broker", packMessage(opNack, s.session, append([]int64{delay}, ranges...)...)}}
	case 5: // never
		return nil
	case 6:
		return []Effect{Send{"broker", packMessage(opBelow, s.session, ranges[len(ranges)-1]+1)}}
	case 7: // when it is somebody else's
		return []Effect{s.soon(s.setup.cfg.AckTimeout*3/2, ack.Body)}
	case 8: // it leaves, as one does
		leave := Send{"broker", packMessage(opLeave, s.session)}
		return append([]Effect{leave}, s.rejoin(4*simSoon)...)
	case 9: // what it never got
		from := s.setup.base + int64(s.c.Draw(s.stream, len(s.setup.records)+9)) - 4
		return []Effect{ack, Send{"broker", packMessage(opAck, s.session, from, from+int64(s.c.Draw(s.stream, 9)))}}
	case 10: // the first is bad
		nack := Send{"broker", packMessage(opNack, s.session, delay, ranges[0], ranges[0])}
		return append([]Effect{nack}, s.oneByOne(append([]int64{ranges[0] + 1}, ranges[1:]...))...)
	case 11: // half open: it is silent, and comes back under its name
		return s.rejoin(time.Duration(1+s.c.Draw(s.stream, 30)) * simSoon)
	}
	return []Effect{ack}
}

// oneByOne acknowledges each record by itself, in some order.
func (s *simConsumer) oneByOne(ranges []int64) (out []Effect) {
	for i := 0; i < len(ranges); i += 2 {
		for off := ranges[i]; off <= ranges[i+1]; off++ {
			body := packMessage(opAck, s.session, off, off)
			out = slices.Insert(out, s.c.Draw(s.stream, len(out)+1), Effect(Send{"broker", body}))
		}
	}
	return out
}

// drawSetup is one subscription out of all that there may be.
func drawSetup(c *Choices, bug dispatchBug) *dispatchSetup {
	draw := func(n int) int { return c.Draw("setup", n) }
	s := &dispatchSetup{bug: bug, base: int64([]int{0, 4080, 8000}[draw(3)])}
	s.visible = s.base
	s.cfg = dispatch.Config{
		Type:          dispatch.Type(draw(4)),
		AckTimeout:    time.Duration(100+50*draw(4)) * time.Millisecond,
		MaxDeliveries: int32([]int{0, 0, 2, 4}[draw(4)]),
		Backoff:       dispatch.Backoff{Base: time.Duration(draw(3)*15) * time.Millisecond, Max: 100 * time.Millisecond, Exponential: draw(2) == 0},
		Consumer:      dispatch.Window{Messages: []int{1000, 4, 9}[draw(3)], Bytes: 1 << 20},
		Total:         dispatch.Window{Messages: []int{1000, 10}[draw(2)], Bytes: 1 << 20},
		KeyInFlight:   []int{0, 1, 2}[draw(3)],
		MaxDelayed:    []int{1000, 2}[draw(2)],
	}
	batch, keys := 0, 1+draw(5)
	for len(s.records) < 15+draw(4)*15 {
		batch++
		switch c.Pick("setup", 4, 4, 1) {
		case 1:
			s.records = append(s.records, simRecord{key: fmt.Sprintf("k%d", draw(keys)), batch: batch})
		case 2:
			r := simRecord{due: epochMs + int64(draw(8))*100, batch: batch}
			if draw(2) == 1 {
				r.key = fmt.Sprintf("k%d", draw(keys))
			}
			s.records = append(s.records, r)
		default:
			s.records = append(s.records, slices.Repeat([]simRecord{{batch: batch}}, 1+draw(5))...)
		}
	}
	return s
}

var (
	dispatchDay = Faults{Every: 20 * time.Millisecond, Until: 500 * time.Millisecond, ProcessCrash: 9, MachineCrash: 9, CrashAtDisk: 8, SyncError: 8,
		CutOneWay: 3, CutBoth: 3, Isolate: 3, Heal: 14}
	dispatchRough = Options{Net: Network{Jitter: 2 * time.Millisecond, Delay: 6, Drop: 4, Double: 5}, Faults: dispatchDay, Skew: 30, Disk: DiskDelays{Jitter: 2 * time.Millisecond}}
)

// dispatchWorld is a broker with one subscription, and three consumers.
func dispatchWorld(bug dispatchBug, o Options, after func(*dispatchJudge)) Scenario {
	return func(c *Choices, t *Trace) error {
		w := NewWorld(c, t, o)
		setup := drawSetup(c, bug)
		judge := newDispatchJudge(w, setup)
		var broker *dispatchNode
		w.AddNode("broker", NodeOptions{Boot: func() Core {
			broker = &dispatchNode{setup: setup, judge: judge, c: c}
			return broker
		}})
		for i := range 3 {
			stream := fmt.Sprintf("consumer-%d", i+1)
			joins, naughty := new(int64), new(int)
			*naughty = simBurst
			w.AddNode(NodeID(stream), NodeOptions{Boot: func() Core {
				return &simConsumer{c: c, setup: setup, stream: stream, joins: joins, naughty: naughty}
			}})
		}
		done := func() bool { return broker != nil && broker.d != nil && broker.d.Set().Position() == setup.end() }
		if err := w.Run(15*time.Second, done); err != nil {
			return err
		}
		if after != nil {
			after(judge)
		}
		return judge.verdict()
	}
}

// TestDispatch runs a subscription of each type, with a broker and consumers that crash, behind a network that loses,
// doubles and reorders, and a disk that fails: nothing is lost, nothing is with two consumers, order is kept where it
// is promised, what was saved is not handed out again, and everything is settled in the end.
func TestDispatch(t *testing.T) {
	start := time.Now()
	var delivered, again, dead, boots, saves, expired int
	s := dispatchWorld(dispatchRight, dispatchRough, func(g *dispatchJudge) {
		delivered += g.delivered
		again += g.again
		dead += g.dead
		boots += g.boots - 1
		saves += g.saves
		expired += g.expired
	})
	n := Explore(t, s, Amount(150, 10_000))
	t.Logf("%d runs in %v: %d records handed out, %d of them again, %d leases expired, %d dead letters, %d broker crashes, %d saves", n, time.Since(start), delivered, again, expired, dead, boots, saves)
	if n > 10 && (delivered < 20*n || again < 5*n || expired < n/2 || dead < n/4 || boots < n/2 || saves < n) {
		t.Error("that is too little to show anything")
	}
}

// TestBrokenDispatchIsFound: the rules above bite.
func TestBrokenDispatchIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		bug   dispatchBug
		rules []string
	}{
		"settles what was never handed out":       {dispatchAckAny, []string{"lost"}},
		"opens a cursor without its blocks":       {dispatchNoBlocks, []string{"saved"}},
		"saves what is handed out as settled":     {dispatchAhead, []string{"lost", "saved"}},
		"reads records without their keys":        {dispatchNoKeys, []string{"key", "order", "filter"}},
		"has a larger window than was configured": {dispatchWide, []string{"window"}},
		"leaves out a record while reading":       {dispatchHole, []string{"lost"}},
		"does not know that records are delayed":  {dispatchEarly, []string{"delayed"}},
		"does not notice that a consumer is gone": {dispatchDeaf, []string{"liveness", "in flight", "consumers"}},
		"forgets what it could not save":          {dispatchUnheard, []string{"saved"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := dispatchWorld(c.bug, dispatchRough, nil)
			f := Find(s, 1, 1000, Amount(15, 300))
			if f == nil {
				t.Fatal("not found")
			}
			t.Logf("%v", f)
			if f.Shrunk.Failure == nil || !slices.Contains(c.rules, f.Shrunk.Failure.Rule) {
				t.Errorf("found %v, shrunk %v", f.Outcome.Failure, f.Shrunk.Failure)
			}
			again, err := ParseSchedule(f.Shrunk.Schedule.String())
			if err != nil {
				t.Fatal(err)
			}
			if o := Run(s, Replay(again), false); o.Hash != f.Shrunk.Hash {
				t.Error("the printed schedule runs differently")
			}
		})
	}
}

// TestDispatchRepeats: the same seed is the same run.
func TestDispatchRepeats(t *testing.T) {
	s := dispatchWorld(dispatchRight, dispatchRough, nil)
	for seed := range uint64(Amount(5, 60)) {
		a, b := Run(s, Seeded(seed), false), Run(s, Seeded(seed), false)
		if c := Run(s, Replay(a.Schedule), false); a.Hash != b.Hash || a.Hash != c.Hash {
			t.Fatalf("seed %d: %x, %x, and %x by its schedule", seed, a.Hash, b.Hash, c.Hash)
		}
	}
}
