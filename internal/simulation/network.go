package simulation

import (
	"slices"
	"time"
)

// Network says what becomes of messages. The weights are out of their sum with Deliver's 100; zero means never.
type Network struct {
	Latency time.Duration // least time a message takes; default 1ms
	Jitter  time.Duration // up to this much more, so that messages overtake each other
	Delay   int           // weight of a message that takes up to 50 times the jitter
	Drop    int
	Double  int
	// Ordered keeps the order of each link and delivers nothing twice, as a connection does; messages may still be lost.
	Ordered bool
}

// link is one direction between two nodes.
type link struct {
	cut  bool
	last time.Duration // latest arrival so far
}

func (w *World) link(from, to NodeID) *link {
	key := [2]NodeID{from, to}
	if w.links[key] == nil {
		w.links[key] = &link{}
	}
	return w.links[key]
}

// transmit decides what becomes of a message.
func (w *World) transmit(from, to NodeID, e Event) {
	w.Stats.Sent++
	l := w.link(from, to)
	if l.cut {
		w.Stats.Cut++
		w.Trace.Step("%s %s | cut off from %s", w.stamp(), from, to)
		return
	}
	o, stream := w.options.Net, "net "+string(from)+">"+string(to)
	drop, double, delay := o.Drop, o.Double, o.Delay
	if w.calm {
		drop, double, delay = 0, 0, 0
	}
	if o.Ordered {
		double = 0
	}
	switch w.choices.Pick(stream, 100, delay, drop, double) {
	case 1:
		w.arrive(l, from, to, e, 50)
	case 2:
		w.Stats.Dropped++
		w.Trace.Step("%s %s | drop to %s", w.stamp(), from, to)
	case 3:
		w.Stats.Duplicated++
		w.arrive(l, from, to, e, 1)
		w.arrive(l, from, to, e, 20)
	default:
		w.arrive(l, from, to, e, 1)
	}
}

// arrive has the message delivered after the latency and a drawn share of the jitter, which is multiplied.
func (w *World) arrive(l *link, from, to NodeID, e Event, times int) {
	o := w.options.Net
	at := w.now + o.Latency
	if o.Latency <= 0 {
		at = w.now + time.Millisecond
	}
	if o.Jitter > 0 {
		share := times * w.choices.Draw("jitter "+string(from)+">"+string(to), 64)
		at += o.Jitter * time.Duration(share) / 64
	}
	if at < l.last {
		if o.Ordered {
			at = l.last
		} else {
			w.Stats.Reordered++
		}
	}
	l.last = max(l.last, at)
	w.at(at, func() {
		n := w.nodes[to]
		if n == nil || n.core == nil {
			w.Stats.Dropped++
			return
		}
		w.Stats.Delivered++
		w.step(n, copyEvent(e)) // two deliveries share nothing
	})
}

func copyEvent(e Event) Event {
	switch e := e.(type) {
	case Receive:
		e.Body = slices.Clone(e.Body)
		return e
	case Request:
		e.Body = slices.Clone(e.Body)
		return e
	case Response:
		e.Body = slices.Clone(e.Body)
		return e
	}
	return e
}

// heal joins everything again.
func (w *World) heal() {
	for _, l := range w.links {
		l.cut = false
	}
	w.cuts = 0
}
