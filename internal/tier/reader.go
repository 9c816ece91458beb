package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// Range is a closed range of offsets.
type Range struct{ From, To int64 }

// Chunk is what one read returned.
type Chunk struct {
	// Data holds whole record batches, back to back, each with its base offset set; nil when there were none. It
	// belongs to the caller. The first batch may begin below the offset asked for: batches are never cut.
	Data    []byte
	First   int64  // base offset of the first batch
	Next    int64  // the offset to go on at
	Records int    // records in Data
	Lost    *Range // set, with Data nil, when the next offsets were lost: skip to Next and say so
}

// Objects returns the object that holds an offset, as the metadata has it now; false where the offset is not exported, or
// its object was removed by retention.
type Objects func(offset int64) (Object, bool)

// Reader reads a partition's objects in order from one offset on. It holds nothing of them between calls but its place.
// It is not safe for concurrent use.
type Reader struct {
	c       *Cold
	place   Place
	objects Objects

	next       int64     // the offset to go on at
	after      uint64    // seq of the last frame whose offsets were given out
	expect     uint64    // seq that an object which begins at next must begin with; 0: not known
	generation uint32    // of that frame
	at         *position // nil: to be found
}

// position is where a reader stands in an object.
type position struct {
	Object
	key  string
	byte int64 // where the next frame stands
	chain
	entered bool // byte and chain are checked
	reading bool // frames were taken: what stands behind is likely to be wanted

	data    []byte // the stretch at hand; only during a call
	dataAt  int64
	scratch []byte // a frame that lies in several stretches
}

// NewReader returns a reader that starts at the offset from.
func (c *Cold) NewReader(place Place, objects Objects, from int64) *Reader {
	return &Reader{c: c, place: place, objects: objects, next: from}
}

// Offset returns the offset that Next will go on at.
func (r *Reader) Offset() int64 { return r.next }

// Next returns the batches that follow, whole, at most maxBytes and maxRecords of them but at least one where there is
// one. Where no object holds the next offset it returns an empty chunk at once. memory, unless nil, gives the memory of
// the chunk's data. Every byte returned was checked. The error is a *CorruptError for bytes that are not what was
// written, a *MissingError for an object that is gone, or the store's; after that it may be called again.
func (r *Reader) Next(ctx context.Context, maxBytes, maxRecords int, memory func(int) []byte) (Chunk, error) {
	if memory == nil {
		memory = func(size int) []byte { return make([]byte, size) }
	}
	start := time.Now()
	defer func() { r.c.cfg.Metrics.Read.Observe(time.Since(start).Seconds()) }()
	for again := false; ; {
		chunk, more, err := r.step(ctx, maxBytes, maxRecords, memory)
		if r.at != nil {
			r.at.data, r.at.scratch = nil, nil // memory is the cache's to bound
		}
		switch {
		case err == nil && (chunk.Data != nil || chunk.Lost != nil || !more):
			return chunk, nil
		case err == nil:
		case errors.Is(err, objstore.ErrNotFound):
			if err = r.missing(err); err != nil && again {
				return Chunk{}, err
			}
			again = again || err != nil
		case fault.KindOf(err) == fault.Corrupt && !again:
			again = true // it may have happened on the way to here
			r.c.cfg.Metrics.Damaged.Inc()
			r.c.cache.forget(r.at.key)
			if !r.at.entered {
				r.at = nil
			}
		case fault.KindOf(err) == fault.Corrupt:
			r.at = nil // somebody may put another object in its place
			return Chunk{}, err
		default:
			return Chunk{}, err
		}
	}
}

// missing returns the error for an object that is not there, unless the metadata names another one for the next offset by
// now, or none.
func (r *Reader) missing(cause error) error {
	was := r.at
	r.at = nil
	if o, ok := r.objects(r.next); !ok || o != was.Object {
		return nil
	}
	return &MissingError{Key: was.key, Base: was.Base, Next: was.Object.Next, Cause: cause}
}

// step reads one stretch of the object that holds the next offset. more says that there may be something behind an empty
// chunk.
func (r *Reader) step(ctx context.Context, maxBytes, maxRecords int, memory func(int) []byte) (chunk Chunk, more bool, err error) {
	chunk = Chunk{First: r.next, Next: r.next}
	if r.at == nil {
		if err := ctx.Err(); err != nil {
			return chunk, false, err
		}
		o, ok := r.objects(r.next)
		if !ok {
			return chunk, false, nil
		}
		if err := r.open(ctx, o); err != nil {
			return chunk, false, err
		}
	}
	err = r.collect(ctx, &chunk, maxBytes, maxRecords, memory)
	return chunk, true, err
}

// open finds the reader's place in an object. Before the first frame is taken it is known of which partition the object
// is: from its footer or from the segment's header.
func (r *Reader) open(ctx context.Context, o Object) error {
	key := o.Key(r.place)
	if err := o.Validate(); err != nil {
		return err
	}
	if r.next < o.Base || r.next >= o.Next {
		return fault.New(fault.Internal, "object %s was named for offset %d", key, r.next)
	}
	r.at = &position{Object: o, key: key, byte: segfmt.SegmentHeaderSize, chain: chain{o.BaseSeq, o.Base, 0}}
	err := r.enter(ctx)
	r.at.entered = err == nil
	if err != nil && !errors.Is(err, objstore.ErrNotFound) && fault.KindOf(err) != fault.Corrupt {
		r.at = nil
	}
	return err
}

// enter goes to the frame that an index entry names, or to the first one.
func (r *Reader) enter(ctx context.Context) error {
	p := r.at
	if r.next > p.Base {
		index, _, err := r.c.sides(ctx, r.place, &p.Object, p.key)
		if err == nil {
			if e, ok := entryFor(index, r.next); ok {
				return r.follow(ctx, e)
			}
		} else if fault.KindOf(err) != fault.Corrupt {
			return err
		}
		r.c.cfg.Logger.Warn("an exported segment's index is damaged; reading the segment from its start", "object", p.key, "error", err)
	}
	head, err := r.bytes(ctx, 0, segfmt.SegmentHeaderSize)
	if err != nil {
		return err
	}
	h, err := parseHeader(p.key, head)
	if err != nil {
		return err
	}
	switch {
	case h.TopicID != r.place.TopicID || h.Partition != uint32(r.place.Partition) || h.BaseOffset != p.Base || h.BaseSeq != p.BaseSeq:
		err = fmt.Errorf("it is the segment of offset %d of partition %d of topic %x", h.BaseOffset, h.Partition, h.TopicID)
	case r.expect > 0 && r.next == p.Base && r.expect != p.BaseSeq:
		err = fmt.Errorf("it begins with frame %d where frame %d must follow", p.BaseSeq, r.expect)
	}
	if err != nil {
		return &CorruptError{Where: p.key, Offset: p.Base, Cause: err}
	}
	p.generation = h.PrevGeneration
	return nil
}

// follow goes to an index entry's frame.
func (r *Reader) follow(ctx context.Context, e segfmt.IndexEntry) error {
	p := r.at
	bad := func(cause error) error {
		return &CorruptError{Where: p.key, Position: e.Position, Offset: e.Offset, Cause: cause}
	}
	if e.Position < segfmt.SegmentHeaderSize || e.Position >= p.SegmentBytes {
		return bad(fmt.Errorf("%w: its index names byte %d of %d", segfmt.ErrField, e.Position, p.SegmentBytes))
	}
	p.byte, p.chain = e.Position, chain{e.Seq, e.Offset, 0}
	f, b, _, err := r.frame(ctx, true)
	if err != nil {
		return err
	}
	if f.Seq != e.Seq || f.Batch.BaseOffset != e.Offset {
		return bad(fmt.Errorf("frame %d of offset %d stands where the index has frame %d of offset %d", f.Seq, f.Batch.BaseOffset, e.Seq, e.Offset))
	}
	if f.Kind == segfmt.KindLost { // its base offset is the one behind the range
		p.offset, _, err = segfmt.ParseLost(b[segfmt.FrameHeaderSize:])
	}
	return err
}

// collect takes frames at the reader's place and puts their batches together, up to the end of the stretch at hand. Once
// there is something to give, what is wrong behind it is left to the next call.
func (r *Reader) collect(ctx context.Context, chunk *Chunk, maxBytes, maxRecords int, memory func(int) []byte) error {
	p := r.at
	var out []byte
	for p.byte < p.SegmentBytes {
		f, b, ok, err := r.frame(ctx, len(out) == 0)
		take := ok && f.NextOffset() > r.next
		if g := uint32(f.Batch.Generation); take && (f.Seq <= r.after || g < r.generation) {
			err = p.corrupt(fmt.Errorf("frame %d of generation %d follows frame %d of generation %d", f.Seq, g, r.after, r.generation))
		}
		full := take && len(out) > 0 && (len(out)+f.Batch.Length > maxBytes || chunk.Records+int(f.Batch.Count) > maxRecords || f.Kind == segfmt.KindLost)
		if err == nil && ok && !full {
			if err = p.accept(&f, b); err != nil {
				err = p.corrupt(err)
			}
		}
		if len(out) > 0 && (err != nil || !ok || full) {
			break
		}
		if err != nil {
			return err
		}
		p.byte += int64(f.Size())
		if !take { // below what was asked for, or without records
			continue
		}
		from := r.next
		r.next, r.after, r.generation, r.expect = f.NextOffset(), f.Seq, p.generation, 0
		if f.Kind == segfmt.KindLost {
			chunk.Lost = &Range{from, f.NextOffset() - 1}
			break
		}
		if out == nil {
			chunk.First = f.Batch.BaseOffset
			behind := max(0, p.dataAt+int64(len(p.data))-p.byte) // at hand, so what is given here fits
			out = memory(max(f.Batch.Length, int(min(int64(maxBytes), int64(f.Batch.Length)+behind))))[:0]
		}
		out = append(out, b[segfmt.FrameHeaderSize:]...)
		chunk.Records += int(f.Batch.Count)
	}
	if len(out) > 0 {
		chunk.Data = out
	}
	p.reading = true
	if p.byte == p.SegmentBytes && chunk.Data == nil && chunk.Lost == nil {
		if err := r.leave(); err != nil {
			return err
		}
	}
	chunk.Next = r.next
	return nil
}

// leave ends with an object, which must have ended where it says.
func (r *Reader) leave() error {
	p := r.at
	end := chain{p.NextSeq, p.Object.Next, p.Generation}
	if p.chain != end {
		return p.corrupt(fmt.Errorf("it ends before frame %d and offset %d in generation %d, not %d and %d in %d",
			p.seq, p.offset, p.generation, end.seq, end.offset, end.generation))
	}
	r.next, r.after, r.generation, r.expect, r.at = end.offset, p.NextSeq-1, p.generation, end.seq, nil
	return nil
}

// frame returns the frame at the place, and its bytes, which have been checked. Unless it may wait, ok is false for a
// frame that is not whole in the stretch at hand.
func (r *Reader) frame(ctx context.Context, wait bool) (f segfmt.Frame, b []byte, ok bool, err error) {
	p := r.at
	left := p.SegmentBytes - p.byte
	if left < segfmt.MinFrame {
		return f, nil, false, p.corrupt(segfmt.ErrShort)
	}
	if !wait && !p.holds(p.byte, segfmt.MinFrame) {
		return f, nil, false, nil
	}
	if b, err = r.bytes(ctx, p.byte, segfmt.MinFrame); err != nil {
		return f, nil, false, err
	}
	if f, err = segfmt.ParseFrame(b); err == nil && int64(f.Size()) > left {
		err = segfmt.ErrShort
	}
	if err != nil {
		return f, nil, false, p.corrupt(err)
	}
	if !wait && !p.holds(p.byte, f.Size()) {
		return f, nil, false, nil
	}
	if b, err = r.bytes(ctx, p.byte, f.Size()); err != nil {
		return f, nil, false, err
	}
	if err := segfmt.CheckFrame(&f, b); err != nil {
		return f, nil, false, p.corrupt(err)
	}
	return f, b, true, nil
}

// corrupt makes an error of what is wrong with the frame at the place.
func (p *position) corrupt(cause error) error {
	return &CorruptError{Where: p.key, Position: p.byte, Offset: p.offset, Cause: cause}
}

func (p *position) holds(at int64, n int) bool {
	return at >= p.dataAt && at+int64(n) <= p.dataAt+int64(len(p.data))
}

// bytes returns n bytes of the segment, which has them. They stand until the next call.
func (r *Reader) bytes(ctx context.Context, at int64, n int) ([]byte, error) {
	p := r.at
	if !p.holds(at, 1) {
		if err := r.load(ctx, at); err != nil {
			return nil, err
		}
	}
	if p.holds(at, n) {
		return p.data[at-p.dataAt:][:n], nil
	}
	if cap(p.scratch) < n {
		p.scratch = make([]byte, n)
	}
	got := copy(p.scratch[:n], p.data[at-p.dataAt:])
	for got < n {
		if err := r.load(ctx, at+int64(got)); err != nil {
			return nil, err
		}
		got += copy(p.scratch[got:n], p.data)
	}
	return p.scratch[:n], nil
}

// load brings the stretch to hand that a byte of the segment lies in.
func (r *Reader) load(ctx context.Context, at int64) (err error) {
	p := r.at
	if p.reading || p.data != nil {
		r.ahead(at)
	}
	p.data, p.dataAt, err = r.c.stretchAt(ctx, &p.Object, p.key, at)
	return err
}

// ahead asks for the stretch that a byte of the segment lies in and for what stands behind it, in this object and the next ones.
func (r *Reader) ahead(from int64) {
	size := r.c.cfg.StretchBytes
	o, key, at := r.at.Object, r.at.key, from/size*size
	for left := r.c.cfg.ReadAhead; left > 0; {
		if at >= o.SegmentBytes {
			var ok bool
			if o, ok = r.objects(o.Next); !ok || o.Validate() != nil {
				return
			}
			key, at = o.Key(r.place), 0
		}
		end := r.c.ahead(&o, key, at)
		left -= int((end - at + size - 1) / size)
		at = end
	}
}
