package partition

import (
	"context"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/tier"
)

// age returns the time that ages are measured by.
func (c *Config) age() time.Time {
	if c.Log.Now == nil {
		return time.Now()
	}
	return c.Log.Now()
}

// expiry is what a partition remembers of its objects' retention, so that it is looked at where something can have changed.
type expiry struct {
	mu   sync.Mutex
	seen *meta.Export   // guarded by mu; nothing of it had expired
	keep tier.Retention // guarded by mu; by this retention
	next time.Time      // guarded by mu; and nothing will before; zero: ever
}

// due reports whether there is anything to look at.
func (x *expiry) due(e *meta.Export, keep tier.Retention, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen != e || x.keep != keep || !x.next.IsZero() && !now.Before(x.next)
}

// nothing notes that nothing of e had expired.
func (x *expiry) nothing(e *meta.Export, keep tier.Retention, next time.Time) {
	x.mu.Lock()
	x.seen, x.keep, x.next = e, keep, next
	x.mu.Unlock()
}

// expiring bounds how many partitions read what describes their objects side by side, to see what has expired.
const expirings = 4

var expiringSlots = make(chan struct{}, expirings)

// expire forgets the objects that their own retention no longer keeps, and has them deleted once that is recorded. What is
// forgotten and not deleted after a crash is an orphan, which a scrub finds. The log's retention has no part in it. Where
// the store has to be asked it returns at once, and goes on by itself.
func (x *exporting) expire(ctx context.Context) error {
	p := (*Partition)(x)
	t, e := p.cfg.Tier, p.exported()
	p.mu.Lock()
	keep, state := p.mu.settings.Objects, p.mu.status.State
	p.mu.Unlock()
	if e == nil || t.Remover == nil || !keep.Limits() || state == Closed || !p.expiry.due(e, keep, p.cfg.age()) || !p.tidy.Try() {
		return nil
	}
	if e = p.exported(); e.Manifest == nil && t.MetadataCopied == nil { // nobody changes it now, and nothing is waited for
		defer p.tidy.Give()
		return x.expireNow(ctx, e, keep)
	}
	if !p.aside("expire objects", expiringSlots, func(ctx context.Context) {
		if err := x.expireNow(ctx, e, keep); err != nil && ctx.Err() == nil {
			p.cfg.logger().Warn("objects were not looked at for their retention; it is tried again", "partition", p.ledger.where(), "error", err)
		}
	}, p.tidy.Give) {
		p.tidy.Give()
	}
	return nil
}

// aside has work done that ends with the partition, once there is a slot for it, and then calls end. It reports whether
// that will happen.
func (p *Partition) aside(name string, slots chan struct{}, work func(context.Context), end func()) bool {
	return p.cfg.Tasks.Go(name, func(ctx context.Context) error {
		defer end()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(&p.life, cancel)()
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		defer func() { <-slots }()
		work(ctx)
		return nil
	})
}

// expireNow is expire, for whoever holds the turn.
func (x *exporting) expireNow(ctx context.Context, e *meta.Export, keep tier.Retention) error {
	p := (*Partition)(x)
	t := p.cfg.Tier
	all, err := x.everything(ctx, e)
	if err != nil {
		return err
	}
	n := keep.Expired(len(all), func(i int) tier.Object { return all[i] }, p.cfg.age())
	if n == 0 {
		p.expiry.nothing(e, keep, keep.Due(all))
	}
	if n = min(n, t.Remover.Room()); n == 0 {
		return nil
	}
	l, below := &p.ledger, all[n-1].Next
	r, err := l.store.Propose(ctx, meta.DropObjects{Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Below: below})
	if err != nil {
		return fault.New(fault.KindOf(err), "forget the objects of %s below offset %d: %w", l.where(), below, err)
	}
	if err := t.copied(ctx, r); err != nil {
		return err
	}
	place := x.Place()
	for _, o := range all[:n] {
		t.Remover.Remove(place, o)
	}
	if m := e.Manifest; m != nil && below >= m.Next {
		t.Remover.RemoveKey(refOf(m).Key(place), 0)
	}
	return nil
}
