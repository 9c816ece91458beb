package dispatch

import "github.com/leveemq/levee/internal/cursor"

// Stats is what a dispatcher has in hand.
type Stats struct {
	Consumers        int
	InFlightMessages int64 // with consumers
	InFlightBytes    int64
	Redeliver        int64 // handed out before, not settled, and with nobody: waiting, ready, or on the way to the dead letters
	Delayed          int   // never handed out and not due, one by one
	DelayedBlocks    int   // blocks that hold more of them
	LookAhead        int64 // read, and ready to be handed out for the first time
	LookAheadBytes   int64
	Poisoning        int   // runs on the way to the dead letters
	Blocked          int64 // the offset at which the subscription is blocked; -1: it is not
	FailedOldest     int64 // where the log begins, when it was trimmed past the position; -1: it was not
	Ignored          int64 // offsets acknowledged that were never handed out, or settled already
	Span             int64 // how far above the position what was read reaches
	MaxSpan          int64 // at which nothing new is handed out
}

// Stats returns what the dispatcher has in hand.
func (d *Dispatcher) Stats() Stats {
	s := Stats{
		Consumers:        len(d.members.order),
		InFlightMessages: d.inFlight.messages,
		InFlightBytes:    d.inFlight.bytes,
		Redeliver:        d.unsettled.messages - d.inFlight.messages,
		Delayed:          d.delayed.len(),
		DelayedBlocks:    len(d.far.due),
		LookAhead:        d.queued.messages,
		LookAheadBytes:   d.queued.bytes,
		Poisoning:        d.poisoning,
		Blocked:          -1,
		FailedOldest:     d.failed,
		Ignored:          d.ignored,
		MaxSpan:          d.cfg.MaxSpan,
	}
	s.Span, _ = d.Span()
	if n := d.lists.stuck.first(); n != nil {
		s.Blocked = n.from
	}
	return s
}

// Span returns how far above the position what was read reaches, and how far it may.
func (d *Dispatcher) Span() (now, most int64) {
	return max(d.next-d.set.Position(), 0), d.cfg.MaxSpan
}

// Set returns the cursor. It changes with every step.
func (d *Dispatcher) Set() *cursor.Set { return d.set }

// Counts returns how often records were handed out, in the order of offsets, at most so many: those that were handed
// out more than once, or that came back. Of all others a later life may think that they never were.
func (d *Dispatcher) Counts(most int) []cursor.Count {
	var out []cursor.Count
	saved := d.saved
	before := func(off int64) { // what this life has not come to
		for len(saved) > 0 && saved[0].Offset < off && len(out) < most {
			if !d.set.Has(saved[0].Offset) {
				out = append(out, saved[0])
			}
			saved = saved[1:]
		}
	}
	d.held.each(0, func(n *node) bool {
		if n.count > 1 || n.count == 1 && n.place != placeLeased {
			before(n.from)
			for off := n.from; off <= n.to && len(out) < most; off++ {
				out = append(out, cursor.Count{Offset: off, Deliveries: n.count})
			}
		}
		return len(out) < most
	})
	if len(saved) > 0 {
		before(saved[len(saved)-1].Offset + 1)
	}
	return out
}
