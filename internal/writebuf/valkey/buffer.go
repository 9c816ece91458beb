package valkey

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

// buffer implements writebuf.Buffer.
type buffer struct {
	s    *Store
	id   writebuf.ID
	keys [2]string // the stream, the record: one hash tag, so that one node has both
	hash uint32
	slot uint16

	wrote   atomic.Uint32 // the highest generation of a change that succeeded
	largest atomic.Int64  // bytes of the largest entry of the page that was read last
	barred  atomic.Bool   // a page is not to be had in a transaction: see plainPage
}

// note remembers the generation of a change that succeeded.
func (b *buffer) note(generation uint32, err error) {
	for err == nil {
		if old := b.wrote.Load(); old >= generation || b.wrote.CompareAndSwap(old, generation) {
			return
		}
	}
}

// change sends one call on the partition's lane and returns what the script answered with its OK.
func (b *buffer) change(ctx context.Context, op string, c *call) (answer, error) {
	l, err := b.lane(ctx)
	if err == nil {
		c.keys = b.keys
		err = l.do(ctx, c)
	}
	return b.settle(op, c, err)
}

func (b *buffer) lane(ctx context.Context) (*lane, error) {
	if why := b.s.unfit.Load(); why != nil {
		return nil, *why
	}
	n, err := b.s.route(ctx, b.slot)
	if err != nil {
		return nil, err
	}
	return n.lanes[b.hash%uint32(len(n.lanes))], nil
}

// settle says what became of a call: err is why the script did not answer, or was not confirmed.
func (b *buffer) settle(op string, c *call, err error) (answer, error) {
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, b.id, err)
	}
	switch c.word {
	case "OK":
		return c.rest, nil
	case "FENCED":
		seen, _ := c.rest.number(0)
		return nil, fmt.Errorf("%s %s: %w: generation %d", op, b.id, writebuf.ErrFenced, seen)
	case "CORRUPT":
		seq, _ := c.rest.number(0)
		return nil, fmt.Errorf("%s %s seq %d: %w", op, b.id, seq, writebuf.ErrCorrupt)
	case "NEXT", "RESET":
		next, _ := c.rest.number(0)
		return nil, &writebuf.LostError{ID: b.id, Seq: c.first, Next: next, Reset: c.word == "RESET"}
	}
	return nil, fmt.Errorf("%s %s: %w: %s", op, b.id, writebuf.ErrForeign, c.word)
}

// Append implements writebuf.Buffer.
func (b *buffer) Append(ctx context.Context, batch writebuf.Batch) error {
	start := time.Now()
	c, size, err := b.appendCall(batch)
	if err == nil {
		_, err = b.change(ctx, "append", c)
	}
	return b.appended(c, batch, size, start, err)
}

// Submit implements writebuf.Buffer.
func (b *buffer) Submit(ctx context.Context, batch writebuf.Batch, done func(error)) {
	start := time.Now()
	c, size, err := b.appendCall(batch)
	if err != nil {
		done(b.appended(c, batch, size, start, err))
		return
	}
	c.keys = b.keys
	c.then = func() {
		_, err := b.settle("append", c, c.err)
		done(b.appended(c, batch, size, start, err))
	}
	l, err := b.lane(ctx)
	if err != nil {
		c.finish(err)
		return
	}
	l.put(ctx, c)
}

func (b *buffer) appendCall(batch writebuf.Batch) (c *call, size int, err error) {
	if err := writebuf.CheckBatch(batch); err != nil {
		return nil, 0, err
	}
	first := batch.Entries[0].Seq
	wrote := "0"
	if b.wrote.Load() > 0 {
		wrote = "1"
	}
	c = newCall(appendScript, true, decimal(uint64(batch.Generation)), decimal(batch.Floor), decimal(first), wrote)
	c.first = first
	for _, e := range batch.Entries {
		c.frames = append(c.frames, valkey.BinaryString(e.Frame)) // not copied: nothing holds it once the call has answered
		size += len(e.Frame)
	}
	c.size += size
	return c, size, nil
}

// appended counts an append that has ended.
func (b *buffer) appended(c *call, batch writebuf.Batch, size int, start time.Time, err error) error {
	if err != nil && isSmallID(err) {
		err = &writebuf.LostError{ID: b.id, Seq: c.first, Next: batch.Floor, Reset: true}
	}
	b.note(batch.Generation, err)
	if err == nil {
		since(b.s.metrics.confirm, start)
		b.s.metrics.entries.Add(float64(len(batch.Entries)))
		b.s.metrics.bytes.Add(float64(size))
	}
	return b.s.count("append", err)
}

// Fence implements writebuf.Buffer.
func (b *buffer) Fence(ctx context.Context, generation uint32) (writebuf.State, error) {
	if err := writebuf.CheckGeneration(generation); err != nil {
		return writebuf.State{}, b.s.count("fence", err)
	}
	got, err := b.change(ctx, "fence", newCall(fenceScript, true, decimal(uint64(generation))))
	if err != nil {
		return writebuf.State{}, b.s.count("fence", err)
	}
	s, err := got.state(true)
	b.note(generation, err)
	return s, b.s.count("fence", err)
}

// Bounds implements writebuf.Buffer.
func (b *buffer) Bounds(ctx context.Context) (writebuf.State, error) {
	wrote := b.wrote.Load()
	rest, err := b.ask(ctx, "bounds", boundsScript)
	if err != nil {
		return writebuf.State{}, b.s.count("bounds", err)
	}
	s, err := rest.state(true)
	if err == nil {
		err = writebuf.CheckKnown(s, wrote)
	}
	if err != nil {
		return writebuf.State{}, b.s.count("bounds", fmt.Errorf("bounds %s: %w", b.id, err))
	}
	return s, nil
}

func (b *buffer) ask(ctx context.Context, op string, sc script, args ...string) (answer, error) {
	n, err := b.s.route(ctx, b.slot)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, b.id, err)
	}
	msg, err := b.s.askScript(ctx, n, sc, b.keys, args...)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, b.id, err)
	}
	word, rest, err := readAnswer(msg)
	if err == nil && word != "OK" {
		err = fmt.Errorf("%w: %s", writebuf.ErrForeign, word)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, b.id, err)
	}
	return rest, nil
}

// Trim implements writebuf.Buffer.
func (b *buffer) Trim(ctx context.Context, generation uint32, below uint64) error {
	err := writebuf.CheckSeq(below)
	if err == nil {
		err = b.simple(ctx, "trim", trimScript, generation, false, decimal(below))
	}
	if err == nil {
		b.s.metrics.trims.Inc()
	}
	return b.s.count("trim", err)
}

// Reset implements writebuf.Buffer.
func (b *buffer) Reset(ctx context.Context, generation uint32) error {
	err := b.simple(ctx, "reset", resetScript, generation, true)
	if err == nil {
		b.s.metrics.resets.Inc()
	}
	return b.s.count("reset", err)
}

// Delete implements writebuf.Buffer.
func (b *buffer) Delete(ctx context.Context, generation uint32) error {
	return b.s.count("delete", b.simple(ctx, "delete", deleteScript, generation, true))
}

func (b *buffer) simple(ctx context.Context, op string, sc script, generation uint32, wait bool, args ...string) error {
	if err := writebuf.CheckGeneration(generation); err != nil {
		return err
	}
	_, err := b.change(ctx, op, newCall(sc, wait, append([]string{decimal(uint64(generation))}, args...)...))
	if wait {
		b.note(generation, err)
	}
	return err
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
