package subscription

import (
	"context"
	"errors"
	"hash/maphash"
	"strconv"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// feed reads for a Run while it has consumers.
type feed struct {
	r      *Run
	source Source
	cancel context.CancelFunc

	// Guarded by the Run's mutex: what the feed waits for, so that nobody wakes it for nothing.
	parked bool
	reads  bool          // it waits for more to read
	from   int64         // there
	until  time.Duration // it wakes by itself then, on the Run's clock; 0: it does not

	wake  chan struct{} // one slot
	items []dispatch.Item
}

// start begins to feed. The caller holds mu.
func (r *Run) start(source Source) {
	ctx, cancel := context.WithCancel(r.cfg.Tasks.Context())
	f := &feed{r: r, source: source, cancel: cancel, wake: make(chan struct{}, 1)}
	r.feed = f
	if !r.cfg.Tasks.Go("subscription feed", func(context.Context) error {
		defer source.Close()
		defer cancel()
		f.run(ctx)
		return nil
	}) {
		cancel()
		source.Close()
	}
}

// nudge wakes the feed where there is something for it to do that it does not wait for. The caller holds mu.
func (r *Run) nudge() {
	f := r.feed
	if f == nil || !f.parked {
		return
	}
	now := r.now()
	from, read := r.core.WantsRead()
	after, timed := r.core.Wake(now)
	if read && (!f.reads || from != f.from) || timed && (f.until == 0 || now.Mono+after < f.until) {
		f.parked = false
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// run feeds until ctx is done or the source fails for good.
func (f *feed) run(ctx context.Context) {
	for ctx.Err() == nil {
		more, err := f.turn(ctx)
		if err != nil {
			f.fail(err)
			return
		}
		if more == nil {
			continue
		}
		f.wait(ctx, more)
	}
}

// pause is what the feed waits for.
type pause struct {
	changed <-chan struct{} // the source has more; nil: nothing is to be read
	after   time.Duration
	timed   bool
}

// turn does the next thing there is to do, or returns what to wait for.
func (f *feed) turn(ctx context.Context) (*pause, error) {
	r := f.r
	r.mu.Lock()
	if r.feed != f {
		r.mu.Unlock()
		return &pause{}, nil // it is being ended
	}
	after, timed := r.core.Wake(r.now())
	if timed && after <= 0 {
		r.tell(dispatch.Tick, 0)
		after, timed = r.core.Wake(r.now())
	}
	look := r.look()
	if from, to, ok := r.core.WantsScan(r.now()); ok {
		r.mu.Unlock()
		return nil, f.scan(ctx, from, to, look)
	}
	from, read := r.core.WantsRead()
	var changed <-chan struct{}
	if read {
		changed = f.source.Changed()
		r.mu.Unlock()
		atEnd, err := f.read(ctx, from, look)
		if err != nil || !atEnd {
			return nil, err
		}
		r.mu.Lock()
		if now, still := r.core.WantsRead(); !still || now != from {
			r.mu.Unlock()
			return nil, nil
		}
		after, timed = r.core.Wake(r.now())
	}
	defer r.mu.Unlock()
	if timed && after <= 0 || f.missed(read) {
		return nil, nil
	}
	f.parked, f.reads, f.from, f.until = true, read, from, 0
	if timed {
		f.until = r.now().Mono + after
	}
	return &pause{changed, after, timed}, nil
}

// missed reports whether there is something to read now that the feed is not about to wait for. The caller holds mu.
func (f *feed) missed(reads bool) bool {
	_, read := f.r.core.WantsRead()
	return read && !reads
}

func (f *feed) wait(ctx context.Context, p *pause) {
	var due <-chan time.Time
	if p.timed {
		t := time.NewTimer(p.after)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-p.changed:
	case <-f.wake:
	case <-due:
	case <-ctx.Done():
	}
	f.r.mu.Lock()
	f.parked = false
	f.r.mu.Unlock()
}

// fail ends the Run's consumers, since nothing more can come to them.
func (f *feed) fail(err error) {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feed == f {
		r.endConsumers(err)
	}
}

// read reads on at from and tells the dispatcher what there is.
func (f *feed) read(ctx context.Context, from int64, look lookup) (atEnd bool, err error) {
	r := f.r
	c, err := f.source.Read(ctx, from, r.cfg.readBytes(), r.cfg.readCount(), r.cache.memory)
	var at places
	if err == nil && c.Data != nil {
		f.items, err = look.items(f.items[:0], &at, c.Data, from, c.Next-1)
	}
	var trimmed *seglog.TrimmedError
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feed != f {
		return true, nil
	}
	switch {
	case errors.As(err, &trimmed):
		r.tell(dispatch.Trimmed, trimmed.Oldest)
		r.changed()
		return false, nil
	case err != nil:
		return false, err
	case c.Lost != nil:
		r.event.Kind = dispatch.Lost
		r.about(*c.Lost)
		r.step()
		r.changed()
	case c.Data == nil && c.Next <= from:
		return true, nil
	}
	if now := r.look(); now != look && c.Data != nil { // somebody came or went meanwhile; what was read may not be there again
		if f.items, err = now.items(f.items[:0], &at, c.Data, from, c.Next-1); err != nil {
			return false, err
		}
	}
	if c.Data != nil { // otherwise there is nothing for consumers up to Next
		r.cache.add(c, at)
		r.event.Items = append(r.event.Items, f.items...)
	}
	r.event.Kind, r.event.Next = dispatch.Read, c.Next
	r.step()
	return false, nil
}

// scan looks at a stretch of the log again, for records whose time has come. Who comes or goes meanwhile changes nothing
// of it: delayed records are told one by one, and where keys are wanted now the dispatcher begins anew.
func (f *feed) scan(ctx context.Context, from, to int64, look lookup) error {
	r := f.r
	f.items = f.items[:0]
	find := f.readAgain
	if r.cache.shared {
		find = f.lookAgain
	}
	if err := find(ctx, from, to, look); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feed == f {
		r.event.Kind, r.event.Items = dispatch.Scanned, append(r.event.Items, f.items...)
		r.event.Offset, r.event.Next = from, to+1
		r.step()
	}
	return nil
}

// readAgain finds the items of a stretch of the log.
func (f *feed) readAgain(ctx context.Context, from, to int64, look lookup) error {
	r := f.r
	for at := from; at <= to; {
		c, err := f.source.Read(ctx, at, r.cfg.readBytes(), r.cfg.readCount(), r.cache.memory)
		var trimmed *seglog.TrimmedError
		if errors.As(err, &trimmed) {
			at = trimmed.Oldest
			continue
		}
		if err == nil && c.Data != nil {
			f.items, err = look.items(f.items, nil, c.Data, at, to)
			r.cache.put(c.Data)
		}
		if err != nil {
			return err
		}
		if c.Next <= at {
			break
		}
		at = c.Next
	}
	return nil
}

// lookAgain is readAgain for what cannot be read again: reading would take what passes by now away from everybody. It looks
// at what is still here; what is not is lost.
func (f *feed) lookAgain(_ context.Context, from, to int64, look lookup) (err error) {
	for _, data := range f.kept(from, to) {
		if f.items, err = look.items(f.items, nil, data, from, to); err != nil {
			return err
		}
	}
	return nil
}

// kept returns what is here of some offsets. It is never used again, so it can be looked at without the mutex.
func (f *feed) kept(from, to int64) (all [][]byte) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	for _, s := range f.r.cache.stretches {
		if s.next > from && s.first <= to {
			all = append(all, s.data)
		}
	}
	return all
}

// lookup is how closely records are looked at.
type lookup struct {
	r     *Run
	texts bool // keys are wanted as they are: a consumer filters by them
	limit int  // the largest record that every consumer can take; 0: any
}

// look returns how closely records have to be looked at now. The caller holds mu.
func (r *Run) look() lookup {
	l := lookup{r: r, texts: r.core.NeedsKeys()}
	for _, c := range r.consumers {
		if n := c.maxRecord; n > 0 && (l.limit == 0 || n < l.limit) {
			l.limit = n
		}
	}
	return l
}

// seed makes the hashes of keys; which they are matters to nobody but this process.
var seed = maphash.MakeSeed()

// items appends what the dispatcher has to know of the records of batches from an offset to another. at, unless it is nil,
// learns where those records begin that are looked at one by one.
func (l lookup) items(items []dispatch.Item, at *places, batches []byte, from, to int64) ([]dispatch.Item, error) {
	typ := l.r.spec.Dispatch.Type
	timed := typ == dispatch.Shared || typ == dispatch.KeyShared
	begin := int64(-1) // of all batches
	for rest := batches; len(rest) > 0; {
		place := len(batches) - len(rest)
		batch, more, err := record.Next(rest)
		if err != nil {
			return items, l.r.corrupt(err)
		}
		rest = more
		info, err := record.ParseHeader(batch)
		if err != nil {
			return items, l.r.corrupt(err)
		}
		if begin < 0 {
			begin = info.BaseOffset
		}
		first, last := max(info.BaseOffset, from), min(info.LastOffset(), to)
		if info.Count == 0 || info.Control() || first > last {
			continue
		}
		whole := typ != dispatch.KeyShared && info.Count == info.LastOffsetDelta+1 && (l.limit == 0 || len(batch) <= l.limit && info.Codec() == record.None) &&
			!(timed && record.HasHeader(batch, record.HeaderDeliverAt))
		if whole {
			share := int64(len(batch)) * (last - first + 1) / int64(info.Count)
			items = append(items, dispatch.Item{From: first, To: last, Bytes: share})
			continue
		}
		err = record.Scan(batch, func(g *record.Glimpse) error {
			if g.Offset >= first && g.Offset <= last {
				items = append(items, l.item(g, typ == dispatch.KeyShared, timed))
				if at != nil && g.At > 0 {
					at.note(g.Offset-begin, place+g.At)
				}
			}
			return nil
		})
		if err != nil {
			return items, l.r.corrupt(err)
		}
	}
	return items, nil
}

// item returns what the dispatcher has to know of one record.
func (l lookup) item(g *record.Glimpse, keyed, timed bool) dispatch.Item {
	it := dispatch.Item{From: g.Offset, To: g.Offset, Bytes: int64(g.Bytes)}
	if keyed && g.HasKey {
		it.HasKey, it.Key = true, maphash.Bytes(seed, g.Key)
		if l.texts {
			it.KeyText = append([]byte{}, g.Key...) // g.Key may lie in memory that is used again; an empty key is one
		}
	}
	if timed {
		if v, ok := g.Header(record.HeaderDeliverAt); ok {
			it.DueMs, _ = strconv.ParseInt(string(v), 10, 64) // what is no time is no reason to hold a record back
		}
	}
	return it
}

func (r *Run) corrupt(err error) error {
	return fault.New(fault.Corrupt, "subscription %s on %s/%d: %w", r.spec.Name, r.spec.Topic, r.spec.Partition, err)
}
