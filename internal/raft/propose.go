package raft

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
)

// Bounds of what is appended at once. The log writes so much in one piece, so that an append that fails leaves nothing.
const (
	maxGroupEntries = 1024
	maxGroupBytes   = 1 << 20
)

// proposal is one command on its way. Whoever wins the change of state away from waiting decides what becomes of it.
type proposal struct {
	batch   []byte
	command []byte
	state   atomic.Uint32
	done    chan struct{} // closed once value and err are set
	value   any
	err     error
}

const (
	waiting   uint32 = iota
	taken            // the owner answers it
	abandoned        // its proposer gave up: nobody else will see it
)

func (p *proposal) become(state uint32) bool { return p.state.CompareAndSwap(waiting, state) }

func (p *proposal) answer(value any, err error) {
	p.value, p.err = value, err
	close(p.done)
}

var errClosed = fault.New(fault.Unavailable, "the metadata is closed here: the broker is stopping")

// Propose appends a command and applies it, and returns the machine's answer once both are done. The command is the
// caller's again when it returns. The error's kind says what became of the command: outcome_unknown (ctx ended when the
// command was already being written) and stopped (the log failed under it) mean that it may take effect, now or at the
// next start; every other kind means that it did not and will not.
func (g *Group) Propose(ctx context.Context, command []byte) (any, error) {
	start := time.Now()
	p, err := g.prepare(ctx, command)
	if err != nil {
		return nil, err
	}
	select {
	case g.queue <- p:
	case <-ctx.Done():
		return nil, gaveUp(ctx)
	case <-g.done:
		return nil, errClosed
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.become(abandoned) {
			return nil, gaveUp(ctx)
		}
		select {
		case <-p.done: // it made it in time after all
		default:
			return nil, fault.New(fault.OutcomeUnknown, "the command was being written when its time was over; it may take effect: look before you repeat it: %w", context.Cause(ctx))
		}
	case <-g.done:
		if p.become(abandoned) {
			return nil, errClosed
		}
		<-p.done // the owner answers whatever it took before it returns
	}
	if p.err == nil {
		g.metrics.proposeSeconds.Observe(time.Since(start).Seconds())
	}
	return p.value, p.err
}

func (g *Group) prepare(ctx context.Context, command []byte) (*proposal, error) {
	if ctx.Err() != nil {
		return nil, gaveUp(ctx)
	}
	if err := g.Err(); err != nil {
		return nil, err
	}
	if len(command) == 0 {
		return nil, fault.New(fault.InvalidArgument, "a command must not be empty")
	}
	if len(command) > MaxCommandBytes {
		return nil, fault.New(fault.TooLarge, "a command of %d bytes is larger than %d, the most there may be", len(command), MaxCommandBytes).With("limit", MaxCommandBytes)
	}
	batch, err := encodeCommand(command, g.cfg.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	return &proposal{batch: batch, command: bytes.Clone(command), done: make(chan struct{})}, nil
}

func gaveUp(ctx context.Context) error {
	return fault.New(fault.KindOf(ctx.Err()), "the command was not proposed: %w", context.Cause(ctx))
}

// run is the owner: it alone appends, applies and takes hold of states. One hand-off to it costs a hundredth of the
// flush behind it, and it lets a proposer leave when its time is over, which one that committed for others could not.
func (g *Group) run(ctx context.Context) error {
	defer close(g.done)
	for {
		g.snapshotIfDue(ctx)
		select {
		case p := <-g.queue:
			g.commit(g.gather(p))
		case r := <-g.written:
			g.snapshotWritten(r)
		case <-ctx.Done():
			return nil // whoever is still queued sees done
		}
	}
}

// gather takes what waits, so that one flush serves all of it.
func (g *Group) gather(first *proposal) []*proposal {
	// Those that the last flush released are about to propose again; a flush without them would be one of many.
	runtime.Gosched()
	var group []*proposal
	size := 0
	for p := first; ; {
		if p.become(taken) {
			group = append(group, p)
			size += len(p.batch)
		}
		if len(group) >= maxGroupEntries || size >= maxGroupBytes {
			return group
		}
		select {
		case p = <-g.queue:
		default:
			return group
		}
	}
}

// commit appends and applies a group and answers each of its proposals.
func (g *Group) commit(group []*proposal) {
	if len(group) == 0 {
		return
	}
	if err := g.Err(); err != nil { // stopped after they were queued
		answerAll(group, err)
		return
	}
	o := &g.owner
	entries := make([]Entry, len(group))
	for i, p := range group {
		entries[i] = Entry{Seq: o.last + 1 + uint64(i), Term: o.term, Kind: segfmt.KindData, Batch: p.batch}
	}
	// No proposer's context: one that ends must not fail the others' commands.
	if err := g.cfg.Log.Append(context.Background(), entries); err != nil {
		g.metrics.appendFailures.Inc()
		g.appendFailed(err)
		answerAll(group, fmt.Errorf("append to the metadata log: %w", err))
		return
	}
	o.last += uint64(len(group))
	g.metrics.commitEntries.Observe(float64(len(group)))
	for i, p := range group {
		value, err := g.cfg.Machine.Apply(entries[i].Seq, p.command)
		if err != nil {
			err = fmt.Errorf("apply entry %d: %w", entries[i].Seq, err)
			g.stop(err)
			p.answer(nil, err)
			answerAll(group[i+1:], fault.New(fault.OutcomeUnknown, "the command is stored, but one before it could not be applied; restart the broker: %w", err))
			return
		}
		o.entries++
		o.bytes += int64(len(p.command))
		g.applied.Store(entries[i].Seq)
		p.answer(value, nil)
	}
}

// appendFailed decides whether the group can go on.
func (g *Group) appendFailed(err error) {
	switch fault.KindOf(err) {
	case fault.Stopped, fault.OutcomeUnknown:
		g.stop(fault.New(fault.Stopped, "the log of this group takes nothing until a restart: %w", err)) // certain, for later commands
		return
	}
	// A log that kept entries it failed to take would number the next ones otherwise than this group does.
	if _, last := g.cfg.Log.Bounds(); last != g.owner.last {
		g.stop(fmt.Errorf("the log ends at entry %d instead of %d after a failed append: %w", last, g.owner.last, err))
	}
}

func answerAll(group []*proposal, err error) {
	for _, p := range group {
		p.answer(nil, err)
	}
}
