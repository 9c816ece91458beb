package simulation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// bug is a fault that a counter has on purpose.
type bug int

const (
	noBug      bug = iota
	earlyReply     // answers before the flush
	lostUpdate     // decides on a state that may have moved when the decision takes effect
	mapOrder       // lets the order of a map be seen
	noNameSync     // does not make the name of its log durable
)

// counter is a small core: clients add to it and read it, and each addition is in the log before it is answered. One
// that is sent again is recognised.
type counter struct {
	bug     bug
	j       journal
	ready   bool
	named   bool // the log's name is durable
	total   int
	applied uint64
	seen    map[string]int // request to the total it led to
	queue   []Request
	group   []Request
	entries []entry
}

func (c *counter) Step(_ Now, e Event) []Effect {
	switch e := e.(type) {
	case Boot:
		c.seen = map[string]int{}
		entries, effects := c.j.open(e.Files, 0)
		for _, e := range entries {
			c.apply(e)
		}
		return effects
	case Request:
		return c.request(e)
	case DiskDone:
		if e.Err != nil {
			return []Effect{Halt{e.Err.Error()}}
		}
		if more := c.j.done(e, !c.named && c.bug != noNameSync); more != nil {
			c.named = true
			return more
		}
		if !c.j.idle() {
			return nil
		}
		c.ready = true
		return append(c.settle(), c.pump()...)
	}
	return nil
}

func requestKey(r Request) string { return fmt.Sprintf("%s/%d", r.From, r.ID) }

func (c *counter) request(r Request) []Effect {
	if !c.ready {
		return nil // the client asks again
	}
	if total, ok := c.seen[requestKey(r)]; ok {
		return []Effect{Reply{r.From, r.ID, []byte(strconv.Itoa(total))}}
	}
	if string(r.Body) == "get" {
		return []Effect{Reply{r.From, r.ID, []byte(strconv.Itoa(c.total))}}
	}
	for _, known := range slices.Concat(c.group, c.queue) {
		if requestKey(known) == requestKey(r) {
			return nil // its answer is on the way
		}
	}
	c.queue = append(c.queue, r)
	return c.pump()
}

// pump starts a group when none is being written.
func (c *counter) pump() []Effect {
	if len(c.queue) == 0 || len(c.group) > 0 {
		return nil
	}
	c.group, c.queue = c.queue, nil
	total := c.total
	var early []Effect
	c.entries = nil
	for _, r := range c.group {
		n, _ := strconv.Atoi(strings.TrimPrefix(string(r.Body), "add "))
		if c.bug == lostUpdate {
			total = c.total
		}
		total += n
		c.entries = append(c.entries, entry{c.applied + 1 + uint64(len(c.entries)), fmt.Appendf(nil, "%s %d", requestKey(r), total)})
		if c.bug == earlyReply {
			early = append(early, Reply{r.From, r.ID, []byte(strconv.Itoa(total))})
		}
	}
	return append(early, c.j.write(c.entries)...)
}

// settle applies and answers what was written.
func (c *counter) settle() []Effect {
	for _, e := range c.entries {
		c.apply(e)
	}
	var out []Effect
	if c.bug == mapOrder {
		for id := range map[NodeID]bool{"client-1": true, "client-2": true, "client-3": true} {
			out = append(out, Send{id, fmt.Appendf(nil, "total is %d", c.total)})
		}
	}
	for _, r := range c.group {
		if c.bug != earlyReply {
			out = append(out, Reply{r.From, r.ID, []byte(strconv.Itoa(c.seen[requestKey(r)]))})
		}
	}
	c.group, c.entries = nil, nil
	return out
}

func (c *counter) apply(e entry) {
	key, total, _ := strings.Cut(string(e.body), " ")
	c.total, _ = strconv.Atoi(total)
	c.seen[key] = c.total
	c.applied = e.index
}

// asker is a client: it asks for what draw says, one thing at a time, and asks again when no answer comes.
type asker struct {
	draw    func(now Now, step int) (to NodeID, body []byte) // no body: nothing this time
	answer  func(body []byte)                                // sees late answers, too; nil: nobody cares
	steps   int                                              // how often to draw
	retries int                                              // before it gives up; the last step never does
	step    int
	id      uint64
	to      NodeID
	asked   []byte
	tries   int
}

func (a *asker) Step(now Now, e Event) []Effect {
	switch e := e.(type) {
	case Boot:
		return []Effect{SetTimer{"next", time.Millisecond}}
	case Response:
		if a.answer != nil {
			a.answer(e.Body)
		}
		if e.ID != a.id || a.asked == nil {
			return nil
		}
		a.asked = nil
		return []Effect{StopTimer{"again"}, SetTimer{"next", 2 * time.Millisecond}}
	case Timer:
		switch {
		case e.Name == "next":
			return a.next(now)
		case a.tries >= a.retries && a.step < a.steps:
			a.asked = nil
			return a.next(now)
		}
		a.tries++
		return a.call()
	}
	return nil
}

func (a *asker) next(now Now) []Effect {
	for a.step < a.steps {
		a.step++
		if a.to, a.asked = a.draw(now, a.step); a.asked != nil {
			a.id++
			a.tries = 0
			return a.call()
		}
	}
	return nil
}

func (a *asker) call() []Effect {
	return []Effect{Call{a.to, a.id, a.asked}, SetTimer{"again", 40 * time.Millisecond}}
}

func (a *asker) finished() bool { return a.step == a.steps && a.asked == nil }

// roughNet and roughDay are what a world meets unless a test says otherwise.
var (
	roughNet = Network{Jitter: 4 * time.Millisecond, Delay: 8, Drop: 6, Double: 6}
	roughDay = Faults{Every: 15 * time.Millisecond, Until: 600 * time.Millisecond, ProcessCrash: 4, MachineCrash: 8, CrashAtDisk: 14, SyncError: 2,
		CutOneWay: 3, CutBoth: 3, Isolate: 2, Heal: 12, ClockJump: 3}
)

// counterWorld is one counter and its clients.
func counterWorld(b bug, o Options) Scenario {
	return func(c *Choices, t *Trace) error {
		w := NewWorld(c, t, o)
		w.AddNode("counter", NodeOptions{Boot: func() Core { return &counter{bug: b} }})
		finished := func() bool { return true }
		for i := range 3 {
			stream := fmt.Sprintf("client-%d", i+1)
			a := &asker{steps: 12, retries: 2, draw: func(_ Now, step int) (NodeID, []byte) {
				if step == 12 {
					return "counter", []byte("get")
				}
				switch c.Pick(stream, 2, 3, 2) {
				case 1:
					return "counter", fmt.Appendf(nil, "add %d", 1+c.Draw(stream, 3))
				case 2:
					return "counter", []byte("get")
				}
				return "", nil
			}}
			w.AddNode(NodeID(stream), NodeOptions{Steady: true, Boot: func() Core { return a }})
			before := finished
			finished = func() bool { return before() && a.finished() }
		}
		if err := w.Run(20*time.Second, finished); err != nil {
			return err
		}
		return linearizable(w.History(), counterModel)
	}
}

// linearizable asks a checker of histories. What was not answered may have happened at any later time.
func linearizable(ops []*Operation, m porcupine.Model) error {
	var history []porcupine.Operation
	for i, op := range ops {
		p := porcupine.Operation{ClientId: i, Input: op.Input, Output: op.Output, Call: int64(op.Called), Return: int64(op.Returned)}
		if op.Returned == 0 {
			p.Output, p.Return = []byte(nil), math.MaxInt64
		}
		history = append(history, p)
	}
	if !porcupine.CheckOperations(m, history) {
		var b strings.Builder
		for _, op := range ops {
			fmt.Fprintf(&b, "\n    [%d, %d] %s #%d %s = %s", op.Called, op.Returned, op.Client, op.ID, op.Input, op.Output)
		}
		return &Failure{"linearizable", b.String()}
	}
	return nil
}

var counterModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		total, out := state.(int), output.([]byte)
		if n, add := strings.CutPrefix(string(input.([]byte)), "add "); add {
			k, _ := strconv.Atoi(n)
			total += k
		}
		return out == nil || string(out) == strconv.Itoa(total), total
	},
}
