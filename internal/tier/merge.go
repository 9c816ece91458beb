package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

const (
	// mergeAtOnce is of how many small objects one is made, even if it is small as well.
	mergeAtOnce = 8
	// mergeMost bounds how many are merged at a time.
	mergeMost = 512
	// mergeSmall is what part of the most that a merged object may have a small one has less than.
	mergeSmall = 4
)

// MergeLimit says what neighbouring objects may be merged into.
type MergeLimit struct {
	Bytes int64 // its segment has no more; objects with less than a quarter are small
	// Age, unless 0, is after which time since they were recorded objects are removed: what was recorded far apart stays
	// apart, so that what is merged is not kept for much longer.
	Age time.Duration
}

// MergeLimitOf is the limit for a log's segments of that size and a retention of their objects: neither undoes the other.
func MergeLimitOf(segmentBytes int64, keep Retention) MergeLimit {
	l := MergeLimit{Bytes: min(segmentBytes, mergedBytes), Age: keep.Age}
	if keep.Bytes > 0 {
		l.Bytes = min(l.Bytes, keep.Bytes/8)
	}
	return l
}

// mergedBytes bounds what is written at a time of what was written before.
const mergedBytes = 256 << 20

// epoch says which of the pieces that time is cut into an object was recorded in.
func (l MergeLimit) epoch(o *Object) int64 {
	if l.Age < 8*time.Millisecond {
		return 0
	}
	return o.StoredMs / (l.Age / 8).Milliseconds()
}

// joins reports whether o may be merged with the object before it.
func (l MergeLimit) joins(before, o *Object) bool {
	return before.Next == o.Base && before.NextSeq == o.BaseSeq && before.Generation <= o.Generation && l.epoch(before) == l.epoch(o)
}

// Ripe finds neighbouring small objects among a partition's, oldest first, that are to be merged: all[from:to]. Where it
// finds none there are few of them beside the others, however small they are: it takes what fills half of an object, what
// nothing can come to any more, and else so many that none of them is most of what is made of them. So each byte is written
// again a few times at most. What skip says cannot be read stays as it is.
func Ripe(all []Object, limit MergeLimit, skip func(*Object) bool) (from, to int, ok bool) {
	small := func(o *Object) bool {
		return o.SegmentBytes < limit.Bytes/mergeSmall && (skip == nil || !skip(o))
	}
	for from = 0; from < len(all); from++ {
		if !small(&all[from]) {
			continue
		}
		total, largest := all[from].SegmentBytes, all[from].SegmentBytes
		closed := false // nothing can come to them
		for to = from + 1; to < len(all) && !closed; to++ {
			o := &all[to]
			if closed = !small(o) || !limit.joins(&all[to-1], o) || total+o.SegmentBytes > limit.Bytes || to-from == mergeMost; closed {
				break
			}
			total, largest = total+o.SegmentBytes, max(largest, o.SegmentBytes)
		}
		if n := to - from; n > 1 && (closed || total >= limit.Bytes/2 || n >= mergeAtOnce && largest <= total/2) {
			return from, to, true
		}
	}
	return 0, 0, false
}

// Merge makes one object of neighbouring ones, oldest first, and stores it as Upload does: when it returns nil, every frame
// of theirs was checked, continued the one before, and was read from the store again as part of the new object. It may be
// repeated, and changes nothing of theirs. Its error is a *CorruptError or a *MissingError, which names the object, where
// one of them is not what it should be.
func (x *Exporter) Merge(ctx context.Context, place Place, sources []Object) (Object, error) {
	j, err := join(ctx, x.store, place, sources)
	if err != nil {
		return Object{}, err
	}
	first, last := &sources[0], &sources[len(sources)-1]
	seg := Segment{
		Name: fmt.Sprintf("objects of offsets %d to %d of %x/%d, merged", first.Base, last.Next-1, place.TopicID, place.Partition), Reader: j, Size: j.size,
		Base: first.Base, Next: last.Next, BaseSeq: first.BaseSeq, NextSeq: last.NextSeq, Generation: last.Generation,
	}
	soft := newPace(gentlest)
	seg.Reader = soft.reader(ctx, j)
	o, err := upload(ctx, x.store, place, seg, x.pace.reader(ctx, soft.reader(ctx, j)), soft)
	if err != nil {
		return Object{}, j.blame(seg.Name, err)
	}
	o.StoredMs = last.StoredMs
	return o, nil
}

// joined is the segment that several objects' segments make together: the first one's header, and the frames of all.
type joined struct {
	ctx   context.Context // of the one merge that it is for
	store objstore.Store
	parts []part
	size  int64

	mu   sync.Mutex
	of   int    // guarded by mu; which part data is of
	at   int64  // guarded by mu; where in the part
	data []byte // guarded by mu; the stretch that was read last
}

// part is what one object gives.
type part struct {
	Object
	key  string
	at   int64 // where it stands in what is joined
	skip int64 // bytes of the object before it
}

func (p *part) size() int64 { return p.SegmentBytes - p.skip }

func join(ctx context.Context, store objstore.Store, place Place, sources []Object) (*joined, error) {
	j := &joined{ctx: ctx, store: store}
	for i, o := range sources {
		if err := o.Validate(); err != nil {
			return nil, err
		}
		p := part{Object: o, key: o.Key(place), at: j.size}
		if i > 0 {
			p.skip = segfmt.SegmentHeaderSize
		}
		j.parts = append(j.parts, p)
		j.size += p.size()
	}
	return j, nil
}

// find returns which part a position lies in.
func (j *joined) find(position int64) int {
	return sort.Search(len(j.parts), func(i int) bool { return j.parts[i].at > position }) - 1
}

// ReadAt implements io.ReaderAt.
func (j *joined) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		position := off + int64(n)
		if position >= j.size {
			return n, io.EOF
		}
		data, err := j.stretch(position)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], data)
	}
	return n, nil
}

// stretch returns bytes from a position on, as many as are at hand.
func (j *joined) stretch(position int64) ([]byte, error) {
	i := j.find(position)
	part := &j.parts[i]
	at := position - part.at
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.of == i && at >= j.at && at < j.at+int64(len(j.data)) {
		return j.data[at-j.at:], nil
	}
	var data []byte
	err := objstore.Retry(j.ctx, fetchTries, func() (err error) {
		once, cancel := context.WithTimeout(j.ctx, fetchTimeout)
		defer cancel()
		data, err = readRange(once, j.store, part.key, part.skip+at, min(stretch, part.size()-at))
		return err
	})
	if errors.Is(err, objstore.ErrNotFound) {
		err = &MissingError{Key: part.key, Base: part.Base, Next: part.Next, Cause: err}
	}
	if err == nil {
		j.of, j.at, j.data = i, at, data
	}
	return data, err
}

// blame says which of the objects it is, where a merge of that name fails for what one of them holds.
func (j *joined) blame(name string, err error) error {
	var gone *MissingError
	var bad *CorruptError
	switch {
	case errors.As(err, &gone):
		return gone
	case errors.As(err, &bad) && bad.Where == name:
		p := &j.parts[j.find(min(bad.Position, j.size-1))]
		return &CorruptError{Where: p.key, Position: p.skip + bad.Position - p.at, Offset: bad.Offset, Cause: bad.Cause}
	case errors.As(err, &bad) && j.has(bad.Where):
		return bad
	}
	return err
}

func (j *joined) has(key string) bool {
	for i := range j.parts {
		if j.parts[i].key == key {
			return true
		}
	}
	return false
}
