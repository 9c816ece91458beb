package partition

import (
	"context"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
)

// Apply makes s the settings in force. Where no log is open it only notes them for the next open. After an error the log
// may still have the mode it had.
func (p *Partition) Apply(ctx context.Context, s Settings) error {
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.turn.Give()
	p.mu.Lock()
	old := p.mu.settings
	p.mu.settings = s
	p.mu.Unlock()
	l := p.log.Load()
	if l == nil {
		return nil
	}
	l.SetRetention(s.Retention)
	l.SetSegmentBytes(s.SegmentBytes)
	if s.Mode == old.Mode && s.FsyncInterval == old.FsyncInterval {
		return nil
	}
	err := l.Err() // a stopped log flushes nothing any more
	if err == nil && s.Mode != seglog.OnCommit {
		err = p.limit.loosen(ctx)
	}
	if err == nil {
		err = l.SetMode(ctx, s.Mode, s.FsyncInterval)
	}
	if err != nil {
		p.mu.Lock()
		p.mu.settings.Mode, p.mu.settings.FsyncInterval, p.mu.settings.ModeChosen = old.Mode, old.FsyncInterval, old.ModeChosen
		p.mu.Unlock()
	}
	return p.explain(err)
}

// Unload flushes and closes the log; the next use opens and verifies it again, also where it was unavailable. Readers end
// with kind unavailable.
func (p *Partition) Unload(ctx context.Context) error {
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.turn.Give()
	p.mu.Lock()
	s := &p.mu.status
	if s.State == Closed {
		defer p.mu.Unlock()
		return s.Err
	}
	if p.mu.attempt == nil { // otherwise one waits for this turn, and opens again right away
		s.State, s.Err = Unloaded, nil
	}
	p.mu.failures = 0
	p.mu.Unlock()
	l := p.log.Swap(nil)
	if l == nil {
		return nil
	}
	err := p.shut(l)
	p.setResting(p.rest())
	if err != nil {
		// What was not flushed may be gone from the device though the page cache has it: open as after a power loss.
		p.mu.Lock()
		p.mu.crash, p.mu.status.Settled = seglog.MachineCrash, false
		p.mu.Unlock()
	}
	return err
}

// Close ends the partition for good: whatever uses it fails with reason from now on, and the log is flushed and closed. It
// returns why the log cannot be vouched for, if so: it stood stopped by a failed flush, or the last flush failed. ctx
// bounds the wait for a step that is under way. A second Close returns what the first did.
func (p *Partition) Close(ctx context.Context, reason error) error {
	p.mu.Lock()
	if s := &p.mu.status; s.State != Closed {
		s.State, s.Err = Closed, reason
	}
	p.mu.Unlock()
	p.life.End(reason)
	if !p.turn.Take(ctx.Done()) {
		return fault.New(fault.KindOf(context.Cause(ctx)), "close %s: it is still being opened: %w", p.ledger.where(), context.Cause(ctx))
	}
	defer p.turn.Give()
	if l := p.log.Swap(nil); l != nil {
		p.closeLog(l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.closing
}

// closeLog closes l for good. The caller holds the turn.
func (p *Partition) closeLog(l *seglog.Log) {
	err := p.shut(l)
	p.mu.Lock()
	p.mu.closing = err
	p.mu.Unlock()
}

// shut flushes and closes l, and returns why it cannot be vouched for, if so.
func (p *Partition) shut(l *seglog.Log) error {
	if c := p.cover.Swap(nil); c != nil {
		c.stop()
	}
	stopped := l.Err()
	if err := l.Close(); stopped == nil {
		return err
	}
	return stopped
}

// takeTurn waits until nobody opens, unloads, applies or closes.
func (p *Partition) takeTurn(ctx context.Context) error {
	for !p.turn.Try() {
		select {
		case <-p.turn.Freed():
		case <-ctx.Done():
			return p.stopping(ctx)
		case <-p.life.Done():
			return context.Cause(&p.life)
		}
	}
	if p.life.Err() != nil {
		p.turn.Give()
		return context.Cause(&p.life)
	}
	return nil
}

func (p *Partition) stopping(ctx context.Context) error {
	return fault.New(fault.KindOf(context.Cause(ctx)), "%s: %w", p.ledger.where(), context.Cause(ctx))
}
