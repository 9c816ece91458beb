package seglog

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/invariants"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// request is one step of the log's queue: batches to append, or something that needs the tail to itself.
type request struct {
	a  *Append
	op func() error // instead of a

	err  error         // of op
	done chan struct{} // of op, and of a waiting Append; buffered, one value
	own  Append        // for Log.Append, so that one allocation serves
	info record.BatchInfo
}

// newRequest returns a request for Append, used before or new.
func (l *Log) newRequest() *request {
	if r, ok := l.pool().Get().(*request); ok {
		return r
	}
	return &request{done: make(chan struct{}, 1)}
}

// pool returns the requests that Append uses again. Most logs are only ever submitted to, and have none.
func (l *Log) pool() *sync.Pool {
	if p := l.requests.Load(); p != nil {
		return p
	}
	l.requests.CompareAndSwap(nil, &sync.Pool{})
	return l.requests.Load()
}

// Submit queues a batch and returns; a.Done tells the outcome. It blocks only while the queue is full. An error means
// that the batch was not queued: Done is not called. Batches submitted by one goroutine keep their order.
func (l *Log) Submit(ctx context.Context, a *Append) error {
	lead, err := l.enqueue(ctx, &request{a: a})
	if lead {
		l.startCommitter()
	}
	return err
}

// Append appends one batch and returns where it went, once the bar of the fsync mode is passed. The batch must not be
// changed before Append returns, nor, when it returns early because ctx is done, afterwards: the outcome is unknown
// then (kind OutcomeUnknown).
func (l *Log) Append(ctx context.Context, batch []byte) (Result, error) {
	r := l.newRequest()
	r.own = Append{Batch: batch}
	r.a = &r.own
	lead, err := l.enqueue(ctx, r)
	if err != nil {
		l.pool().Put(r)
		return Result{}, err
	}
	if lead {
		l.commitOnce() // answers r, too
	}
	if err := r.wait(ctx); err != nil { // r stays with the committer; the pool makes another
		return Result{}, fault.New(fault.OutcomeUnknown, "%s/%d: append: %w: the batch may still be written", l.cfg.Topic, l.cfg.Partition, err)
	}
	res, err := r.own.Result, r.own.Err
	r.own, r.a = Append{}, nil
	l.pool().Put(r)
	return res, err
}

// exclusive runs op as a step of the queue: nothing is appended, sealed or removed meanwhile.
func (l *Log) exclusive(ctx context.Context, op func() error) error {
	r := &request{op: op, done: make(chan struct{}, 1)}
	lead, err := l.enqueue(ctx, r)
	if err != nil {
		return err
	}
	if lead {
		l.commitOnce()
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	return r.err
}

// wait returns once r is answered, or why it does not wait any longer.
func (r *request) wait(ctx context.Context) error {
	select {
	case <-r.done: // at once for who was the committer
		return nil
	default:
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueue puts r into the queue, waiting for room where it must. lead says that the caller is the committer now.
func (l *Log) enqueue(ctx context.Context, r *request) (lead bool, err error) {
	size := int64(0)
	if r.a != nil {
		if r.info, err = l.admit(r.a.Batch); err != nil {
			return false, err
		}
		size = int64(len(r.a.Batch))
	}
	l.mu.Lock()
	for l.mu.bytes > 0 && l.mu.bytes+size > l.cfg.QueueBytes && !l.mu.closed {
		if l.mu.room == nil {
			l.mu.room = make(chan struct{})
		}
		room := l.mu.room
		l.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		l.mu.Lock()
	}
	if l.mu.closed {
		l.mu.Unlock()
		return false, errClosed
	}
	l.mu.queue = append(l.mu.queue, r)
	l.mu.bytes += size
	l.waiting.Add(1)
	lead = !l.mu.busy
	l.mu.busy = true
	l.mu.Unlock()
	return lead, nil
}

// admit checks that batch is one whole record batch that the log can take.
func (l *Log) admit(batch []byte) (record.BatchInfo, error) {
	if len(batch) > l.cfg.MaxBatchBytes {
		return record.BatchInfo{}, fault.New(fault.TooLarge, "%s/%d: a batch of %d bytes is over the limit of %d", l.cfg.Topic, l.cfg.Partition, len(batch), l.cfg.MaxBatchBytes).With("limit", l.cfg.MaxBatchBytes)
	}
	info, err := record.Check(batch)
	if err == nil && (info.Count <= 0 || info.LastOffsetDelta != info.Count-1) {
		err = fmt.Errorf("it says that it holds %d records over %d offsets", info.Count, info.LastOffsetDelta+1)
	}
	if err != nil {
		return info, fault.New(fault.InvalidArgument, "%s/%d: not a record batch: %w", l.cfg.Topic, l.cfg.Partition, err)
	}
	return info, nil
}

// take returns what is queued; nothing means that the caller is no longer the committer.
func (l *Log) take() []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.mu.queue
	if len(q) == 0 {
		l.mu.busy = false
		return nil
	}
	l.mu.queue, l.mu.bytes = nil, 0
	l.waiting.Add(-int64(len(q)))
	if l.mu.room != nil {
		close(l.mu.room)
		l.mu.room = nil
	}
	return q
}

// commitOnce commits what is queued in the caller's goroutine, which saves the lone publisher a hand-off. What was
// queued meanwhile goes to a committer of its own: the caller has its answer.
func (l *Log) commitOnce() {
	if q := l.take(); q != nil {
		l.commit(q)
	}
	l.mu.Lock()
	more := len(l.mu.queue) > 0
	l.mu.busy = more
	l.mu.Unlock()
	if more {
		l.startCommitter()
	}
}

// startCommitter hands the tail to a goroutine that lives until the queue is empty.
func (l *Log) startCommitter() {
	started := l.tasks.Go("committer", func(context.Context) error {
		if l.mode() != OnCommit {
			runtime.Gosched() // who else is about to publish saves a write: there is no flush during which they gather
		}
		for q := l.take(); q != nil; q = l.take() {
			l.commit(q)
			l.gather(len(q))
		}
		return nil
	})
	if !started {
		panic("seglog: BUG: queued on a closed log")
	}
}

// gather gives the publishers that were just released a chance to be part of the next flush. Without it the next group
// is whoever was awake first: half the records a flush, half the rate. A timer would be far too coarse.
func (l *Log) gather(released int) {
	if l.mode() != OnCommit {
		return
	}
	for i := 0; i < 100 && l.waiting.Load() < int64(released); i++ {
		runtime.Gosched()
	}
}

// commit carries out queued requests in order.
func (l *Log) commit(q []*request) {
	for len(q) > 0 {
		if err := l.Err(); err != nil {
			for _, r := range q {
				r.finish(err)
			}
			return
		}
		if q[0].op != nil {
			q[0].finish(q[0].op())
			q = q[1:]
			continue
		}
		n := l.commitGroup(q)
		q = q[n:]
	}
}

// finish answers a request. An append's result is set already.
func (r *request) finish(err error) {
	if r.op != nil {
		r.err = err
		r.done <- struct{}{}
		return
	}
	r.a.Err = err
	if r.a == &r.own {
		r.done <- struct{}{}
		return
	}
	r.a.Done(r.a)
}

// commitGroup appends as many of the leading batches of q as one write takes, makes them durable where the mode asks
// for it, and answers them. It returns how many requests it answered.
func (l *Log) commitGroup(q []*request) int {
	start := time.Now()
	g := group{l: l, at: l.tail.chain, durable: l.durable.Load().seq}
	l.tail.producers.begin()
	l.roomFor(q)
	n, err := g.build(q)
	if err == nil && len(l.tail.buf) > 0 {
		err = l.write()
	}
	if err != nil {
		l.tail.producers.rollback()
		l.trimBuffer()
		for _, r := range q[:n] {
			if r.a.Err == nil {
				r.a.Err = err
			}
			r.finish(r.a.Err)
		}
		return n
	}
	l.tail.producers.settle()
	l.trimBuffer()
	l.cfg.Metrics.committed(time.Since(start))
	for _, r := range q[:n] {
		r.finish(r.a.Err)
	}
	return n
}

// groupBuffers are the buffers that logs do not keep.
var groupBuffers = sync.Pool{New: func() any { b := make([]byte, 0, maxGroupBytes); return &b }}

// roomFor makes the buffer large enough for what one write takes of q.
func (l *Log) roomFor(q []*request) {
	need := 0
	for i := 0; i < len(q) && q[i].op == nil && need <= keptBuffer/2; i++ {
		need += segfmt.FrameHeaderSize + len(q[i].a.Batch)
	}
	l.room(need)
}

// room makes the buffer large enough for one write of so many bytes, or for as much as one takes.
func (l *Log) room(need int) {
	if need > keptBuffer/2 {
		l.tail.buf = *groupBuffers.Get().(*[]byte)
	}
}

// trimBuffer empties the group's buffer.
func (l *Log) trimBuffer() {
	b := l.tail.buf[:0]
	if l.tail.buf = b; cap(b) > keptBuffer {
		l.tail.buf = nil
	}
	if cap(b) == maxGroupBytes {
		groupBuffers.Put(&b)
	}
}

// group is one write in the making.
type group struct {
	l       *Log
	at      chain
	durable uint64
}

// build encodes the leading batches of q into the tail's buffer until one does not fit, and sets their results. Batches
// that are refused get their error and take no room. It returns how many it dealt with, at least one.
func (g *group) build(q []*request) (int, error) {
	l := g.l
	segmentBytes := l.segmentBytes()
	for i, r := range q {
		if r.op != nil {
			return i, nil
		}
		size := int64(segfmt.FrameHeaderSize + len(r.a.Batch))
		pending := int64(len(l.tail.buf))
		if pending > 0 && pending+size > maxGroupBytes {
			return i, nil
		}
		if end := max(l.tail.end, segfmt.SegmentHeaderSize) + pending; end > segfmt.SegmentHeaderSize && end+size > segmentBytes && (pending > 0 || !l.bare()) {
			if i > 0 {
				return i, nil // what is built goes into this segment; the rest rolls
			}
			if err := l.roll(); err != nil {
				return 1, err
			}
			g.durable = l.durable.Load().seq
		}
		batch := r.a.Batch
		if r.info.ProducerID >= 0 {
			v, err := l.tail.producers.check(&r.info)
			if err != nil {
				r.a.Err = err
				continue
			}
			if v.known > 0 {
				if i > 0 {
					return i, nil // the originals may be in this very group: write them first
				}
				return 1, g.resend(r, v)
			}
		}
		if err := g.place(r, batch); err != nil {
			return i + 1, err
		}
	}
	return len(q), nil
}

// place encodes one new batch at the end of the buffer.
func (g *group) place(r *request, batch []byte) error {
	l, info := g.l, r.info
	if lim := l.cfg.Limit; lim != nil && g.at.offset+int64(info.Count) > lim.Offset() {
		if err := lim.Extend(g.at.offset + int64(info.Count)); err != nil {
			return fmt.Errorf("%s/%d: reserve offsets: %w", l.cfg.Topic, l.cfg.Partition, err)
		}
	}
	r.a.Offset, r.a.LastOffset = g.at.offset, g.at.offset+int64(info.Count)-1
	l.tail.buf = segfmt.AppendFrame(l.tail.buf, segfmt.KindData, g.at.seq-1-g.durable, g.at.seq, g.at.offset, g.at.generation, batch)
	if info.ProducerID >= 0 {
		l.tail.producers.add(&info, g.at.offset, l.cfg.Now().UnixMilli())
	}
	g.at.seq++
	g.at.offset += int64(info.Count)
	return nil
}

// write writes the buffer behind the tail, flushes it where the mode asks for it, and lets readers see it. On an error
// the log is as it was, or stopped.
func (l *Log) write() error {
	if l.tail.active == nil {
		if err := l.create(l.tail.chain, nil); err != nil {
			return err
		}
	}
	seg, at, buf := l.tail.active, l.tail.end, l.tail.buf
	h, err := l.cfg.Files.acquire(l.cfg.FS, seg, false)
	if err != nil {
		return l.refuse("open", seg.path, err)
	}
	defer l.cfg.Files.release(h)
	if n, err := h.WriteAt(buf, at); err != nil {
		return l.cutBack(h, seg, at, n, err)
	}
	l.noteWritten(buf)
	l.share.add(0, int64(len(buf)), int64(len(buf)))
	if l.mode() == OnCommit {
		l.writeAhead(h, len(buf))
		if err := l.syncTo(h, position{l.tail.chain.seq - 1, l.tail.chain.offset, seg.BaseOffset, l.tail.end, l.tail.records}); err != nil {
			return unflushed(err)
		}
	} else {
		l.holdDirty(h)
		l.laterFlush()
	}
	l.publish()
	l.reserve(h)
	return nil
}

// unflushed is the error of batches that are in the file, or may be, and whose flush failed: the next open finds them or
// does not. Kind stopped, which later appends get, would say that nothing was written.
func unflushed(cause error) error {
	return fault.New(fault.OutcomeUnknown, "%w (whether this batch is on the device is not known until then)", cause)
}

// noteWritten moves the tail behind frames that are in the file now.
func (l *Log) noteWritten(buf []byte) {
	for len(buf) > 0 {
		f, err := segfmt.ParseFrame(buf)
		if err != nil {
			panic("seglog: BUG: wrote what it cannot read: " + err.Error())
		}
		if invariants.Enabled {
			c := chain{l.tail.chain.seq, l.tail.chain.offset, l.tail.lastGen}
			if err := errors.Join(segfmt.CheckFrame(&f, buf[:f.Size()]), c.accept(&f, buf[:f.Size()])); err != nil {
				panic("seglog: BUG: wrote a frame that does not follow: " + err.Error())
			}
		}
		l.tail.index.Note(l.tail.end, &f)
		l.tail.end += int64(f.Size())
		l.tail.chain.seq, l.tail.chain.offset = f.Seq+1, f.NextOffset()
		l.tail.lastGen = uint32(f.Batch.Generation)
		if f.Kind == segfmt.KindData {
			l.tail.records += int64(f.Batch.Count)
		}
		buf = buf[f.Size():]
	}
}

// cutBack takes back a write that failed: the file is as long as before, on the device too, so that no later frame can
// stand in front of what is left of this one.
func (l *Log) cutBack(h *handle, seg *segment, at int64, written int, cause error) error {
	l.syncing <- struct{}{}
	err := h.Truncate(at)
	if err == nil && written > 0 {
		if err = h.Sync(); err != nil {
			l.cfg.Metrics.flushFailed()
		}
	}
	<-l.syncing
	l.tail.reserved, l.tail.ahead = 0, 0
	if err != nil {
		return unflushed(l.stopAt(seg.path, "%s: write failed (%v) and so did cutting it back: %w: restart the broker, which re-reads the device", seg.path, cause, err))
	}
	return l.refuse("write", seg.path, cause)
}

// refuse turns a file system's error into the log's, and counts full disks.
func (l *Log) refuse(op, name string, err error) error {
	if errors.Is(err, vfs.ErrNoSpace) {
		l.cfg.Metrics.RefusedFull()
		return fault.New(fault.NoSpace, "%s/%d: %s %s: %w: nothing was written; it goes on by itself once there is room", l.cfg.Topic, l.cfg.Partition, op, name, err).With("file", name)
	}
	return ioError(l.cfg.Topic, l.cfg.Partition, op, name, err)
}
