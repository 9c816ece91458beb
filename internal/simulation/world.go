package simulation

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// Options is what a world is like. The zero value is one without faults.
type Options struct {
	Net    Network
	Faults Faults
	Disk   DiskDelays
	// Skew bounds how much faster or slower than the world's the clock of a node may run, in thousandths.
	Skew int
}

// Failure is a rule that a run broke.
type Failure struct {
	Rule   string // what was broken; a shrunk schedule breaks the same rule
	Detail string
}

func (f *Failure) Error() string { return f.Rule + ": " + f.Detail }

// Operation is one call of a client, as the client saw it. Step numbers order calls and returns of all clients.
type Operation struct {
	Client   NodeID
	ID       uint64
	Input    []byte
	Output   []byte
	Called   int
	Returned int // 0: no answer came
}

// Stats counts what happened in a world.
type Stats struct {
	Sent, Delivered, Dropped, Duplicated, Reordered, Cut int
	ProcessCrashes, MachineCrashes, Boots, ClockJumps    int
	SyncErrors                                           int
	UnsyncedFound, UnsyncedHurt                          int // changes that power losses decided about, and did not keep whole
}

// World runs nodes against one simulated network, clock and set of disks, in the caller's goroutine. What happens next is
// the queue's first item; everything that chance decides is drawn from its Choices.
type World struct {
	Trace *Trace
	Stats Stats

	choices *Choices
	options Options
	now     time.Duration
	queued  uint64
	queue   queue
	nodes   map[NodeID]*node
	order   []*node
	links   map[[2]NodeID]*link
	cuts    int
	calm    bool // no faults any more
	failure *Failure
	history []*Operation
	open    map[opKey]*Operation
}

type opKey struct {
	client NodeID
	id     uint64
}

// NodeOptions is what one node is like.
type NodeOptions struct {
	// Boot makes the core of a new life.
	Boot func() Core
	// Steady nodes never crash, and their clocks are right: clients whose own losses are not the question.
	Steady bool
	// After, where not nil, looks at the core after each of its steps.
	After func(Core)
}

type node struct {
	id    NodeID
	o     NodeOptions
	core  Core // nil while it is down
	life  int
	disk  *disk
	clock clock

	timers map[string]int // to the number of the setting in force
	set    int
	down   bool // a restart is under way
}

// NewWorld returns a world without nodes.
func NewWorld(c *Choices, t *Trace, o Options) *World {
	return &World{Trace: t, choices: c, options: o, nodes: map[NodeID]*node{}, links: map[[2]NodeID]*link{}, open: map[opKey]*Operation{}}
}

// AddNode adds a node, which boots when the world runs.
func (w *World) AddNode(id NodeID, o NodeOptions) {
	n := &node{id: id, o: o, disk: newDisk(w, id), timers: map[string]int{}}
	if !o.Steady && w.options.Skew > 0 {
		n.clock.skew = w.signed("clock "+string(id), w.options.Skew)
	}
	w.nodes[id] = n
	w.order = append(w.order, n)
	w.after(0, func() { w.boot(n, Fresh) })
}

// Now returns the time since the world began.
func (w *World) Now() time.Duration { return w.now }

// Choices returns where the world's decisions come from.
func (w *World) Choices() *Choices { return w.choices }

// Fail ends the run: a rule is broken. Only the first counts.
func (w *World) Fail(rule, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{rule, fmt.Sprintf(format, args...)}
		w.Trace.Step("%s BROKEN %v", w.stamp(), w.failure)
	}
}

// History returns the operations of all clients, in the order of their calls.
func (w *World) History() []*Operation { return w.history }

// Run goes on until done says so, nothing is left to happen, or a rule is broken. Past the limit of virtual time it fails
// with the rule "liveness". done may be nil.
func (w *World) Run(limit time.Duration, done func() bool) error {
	w.planFaults()
	for w.failure == nil && len(w.queue) > 0 && (done == nil || !done()) {
		it := heap.Pop(&w.queue).(item)
		if it.at < w.now {
			panic("simulation: BUG: time goes back")
		}
		if it.at > limit {
			w.Fail("liveness", "not done after %v of virtual time", limit)
			break
		}
		w.now = it.at
		it.run()
	}
	if w.failure == nil && done != nil && !done() {
		w.Fail("liveness", "nothing is left to happen at %v, and it is not done", w.now)
	}
	if w.failure != nil {
		return w.failure
	}
	return nil
}

// after queues something. Things due at the same time happen in the order in which they were queued.
func (w *World) after(d time.Duration, run func()) { w.at(w.now+max(d, 0), run) }

func (w *World) at(t time.Duration, run func()) {
	w.queued++
	heap.Push(&w.queue, item{t, w.queued, run})
}

// whileAlive is after for something that ends with the node's life.
func (w *World) whileAlive(n *node, d time.Duration, run func()) {
	life := n.life
	w.after(d, func() {
		if n.life == life && n.core != nil {
			run()
		}
	})
}

func (w *World) stamp() string { return fmt.Sprintf("%8.2fms", float64(w.now.Microseconds())/1000) }

// signed draws from -bound to bound: 0, -1, 1, -2, 2 …
func (w *World) signed(stream string, bound int) int {
	v := w.choices.Draw(stream, 2*bound+1)
	if v%2 == 0 {
		return v / 2
	}
	return -(v + 1) / 2
}

func (w *World) boot(n *node, crash Crash) {
	n.life++
	n.down = false
	n.core = n.o.Boot()
	n.clock.boot(w.now)
	n.disk.boot()
	clear(n.timers)
	w.Stats.Boots++
	w.step(n, Boot{Files: n.disk.files(), Crash: crash})
}

// step gives one event to a node and carries out what it wants.
func (w *World) step(n *node, e Event) {
	now := n.clock.now(w.now)
	w.traceEvent(n.id, e)
	if r, ok := e.(Response); ok {
		w.noteResponse(n.id, r)
	}
	life := n.life
	effects := n.core.Step(now, e)
	if n.o.After != nil {
		n.o.After(n.core)
	}
	for _, f := range effects {
		if w.failure != nil || n.life != life || n.core == nil {
			return
		}
		w.perform(n, f)
	}
}

func (w *World) perform(n *node, f Effect) {
	w.traceEffect(n.id, f)
	switch f := f.(type) {
	case Send:
		w.transmit(n.id, f.To, Receive{From: n.id, Body: f.Body})
	case Call:
		w.noteCall(n.id, f)
		w.transmit(n.id, f.To, Request{From: n.id, ID: f.ID, Body: f.Body})
	case Reply:
		w.transmit(n.id, f.To, Response{From: n.id, ID: f.ID, Body: f.Body})
	case SetTimer:
		n.set++
		n.timers[f.Name] = n.set
		set := n.set
		w.whileAlive(n, n.clock.due(w.now, f.After)-w.now, func() {
			if n.timers[f.Name] == set {
				delete(n.timers, f.Name)
				w.step(n, Timer{f.Name})
			}
		})
	case StopTimer:
		delete(n.timers, f.Name)
	case Disk:
		w.queueDisk(n, f)
	case Halt:
		w.crash(n, ProcessCrash, n.disk.fs.Crash(vfs.KeepAll), "halt: "+f.Reason)
	default:
		panic(fmt.Sprintf("simulation: BUG: effect of type %T", f))
	}
}

func (w *World) noteCall(client NodeID, c Call) {
	key := opKey{client, c.ID}
	if w.open[key] == nil {
		op := &Operation{Client: client, ID: c.ID, Input: c.Body, Called: w.Trace.Steps()}
		w.open[key] = op
		w.history = append(w.history, op)
	}
}

func (w *World) noteResponse(client NodeID, r Response) {
	if op := w.open[opKey{client, r.ID}]; op != nil && op.Returned == 0 {
		op.Returned, op.Output = w.Trace.Steps(), r.Body
	}
}

// crash ends a node's life; disk is what it will find. It boots again after a while.
func (w *World) crash(n *node, kind Crash, disk *vfs.Mem, why string) {
	w.Trace.Step("%s %s %s", w.stamp(), n.id, why)
	if kind == MachineCrash {
		w.Stats.MachineCrashes++
	} else {
		w.Stats.ProcessCrashes++
	}
	n.core = nil
	n.life++ // what was on its way to this life is lost
	n.down = true
	n.disk.fs = disk
	n.disk.dying = nil
	pause := time.Duration(1+w.choices.Draw("restart "+string(n.id), 40)) * 5 * time.Millisecond
	w.after(pause, func() { w.boot(n, kind) })
}

// clock is a node's own time.
type clock struct {
	skew   int           // thousandths by which it runs fast
	booted time.Duration // the world's time
	jumped int64         // milliseconds the wall clock is ahead
}

// epochMs is the wall clock of a world's beginning: an ordinary day.
const epochMs = 1_700_000_000_000

func (c *clock) boot(now time.Duration) { c.booted = now }

func (c *clock) now(now time.Duration) Now {
	return Now{Mono: c.local(now - c.booted), WallMs: epochMs + c.local(now).Milliseconds() + c.jumped}
}

// local is in whole microseconds, which are longer than what the world counts in: no two of them are one instant there.
func (c *clock) local(d time.Duration) time.Duration {
	return (d * time.Duration(1000+c.skew) / 1000).Truncate(time.Microsecond)
}

// due returns the world's time at which that much of the node's time will have passed: the first instant at which the
// node's clock says so, so that timers go off in the order in which the node sees them due, and never early.
func (c *clock) due(now, after time.Duration) time.Duration {
	rate := time.Duration(1000 + c.skew)
	return c.booted + ((c.local(now-c.booted)+max(after, 0))*1000+rate-1)/rate
}

type item struct {
	at  time.Duration
	seq uint64
	run func()
}

type queue []item

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(item)) }
func (q *queue) Pop() any {
	old := *q
	it := old[len(old)-1]
	old[len(old)-1] = item{}
	*q = old[:len(old)-1]
	return it
}
