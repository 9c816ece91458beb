package tier

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// resealed makes the checksums of a segment's header and frames right, as far as they can be told.
func resealed(segment []byte) []byte {
	segment = slices.Clone(segment)
	if len(segment) < segfmt.SegmentHeaderSize {
		return segment
	}
	le.PutUint32(segment[60:], checksum(segment[:60]))
	for b := segment[segfmt.SegmentHeaderSize:]; len(b) >= segfmt.MinFrame; {
		size := int(binary.BigEndian.Uint32(b[24:])) + 28
		if size < segfmt.MinFrame || size > len(b) {
			break
		}
		binary.BigEndian.PutUint32(b[33:], checksum(b[37:size]))
		le.PutUint32(b, checksum(b[4:segfmt.MinFrame]))
		b = b[size:]
	}
	return segment
}

// FuzzRead reads objects whose checksums are all right, and whose contents are anything: readers must come to an end, with
// an error or with whole batches in order.
func FuzzRead(f *testing.F) {
	l := newTestLog(f, rand.New(rand.NewPCG(1, 1)))
	l.plain = true
	l.seal(6, 30)
	o := l.export(objstore.NewMem())[0]
	_, sides, err := describe(context.Background(), l.place, l.of[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(l.segments[0], sides[:o.IndexBytes], sides[o.IndexBytes:], o.Next, o.NextSeq, int64(0))
	f.Add(l.segments[0], sides[:o.IndexBytes], sides[o.IndexBytes:], o.Next, o.NextSeq, int64(1))
	f.Fuzz(func(t *testing.T, segment, index, times []byte, next int64, nextSeq uint64, from int64) {
		segment, index, times = resealed(segment), index[:len(index)/segfmt.IndexEntrySize*segfmt.IndexEntrySize], times[:len(times)/segfmt.TimeEntrySize*segfmt.TimeEntrySize]
		body := slices.Concat(segment, index, times)
		foot := Footer{
			Object: Object{
				Base: 0, Next: next, BaseSeq: 1, NextSeq: nextSeq, Generation: o.Generation, MaxTime: o.MaxTime,
				SegmentBytes: int64(len(segment)), IndexBytes: int64(len(index)), TimesBytes: int64(len(times)),
				Size: int64(len(body)) + FooterSize, CRC: checksum(body),
			},
			TopicID: l.place.TopicID, Partition: l.place.Partition, SegmentCRC: checksum(segment), SidesCRC: checksum(body[len(segment):]),
		}
		if foot.Validate() != nil || from < 0 || from >= next {
			return
		}
		store := objstore.NewMem()
		if _, err := store.PutIfAbsent(t.Context(), foot.Key(l.place), objstore.Bytes(foot.Append(body))); err != nil {
			t.Fatal(err)
		}
		c := newCold(t, store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 64 << 10})
		// Records are not unpacked before they are looked at, so its errors may be theirs; it only has to end.
		if at, found, err := c.OffsetForTime(t.Context(), l.place, lookup([]Object{foot.Object}), from, o.MaxTime); err == nil && found && (at < from || at >= next) {
			t.Fatalf("offset %d of %d to %d", at, from, next-1)
		}
		r := c.NewReader(l.place, lookup([]Object{foot.Object}), from)
		for r.Offset() < next {
			at := r.Offset()
			chunk, err := r.Next(t.Context(), 100, 10, nil)
			if err != nil {
				if fault.KindOf(err) != fault.Corrupt && fault.KindOf(err) != fault.Unsupported {
					t.Fatal(err)
				}
				return
			}
			if chunk.Next <= at || chunk.Next != r.Offset() || (chunk.Data == nil) == (chunk.Lost == nil) {
				t.Fatalf("from %d: %+v", at, chunk)
			}
			for data := chunk.Data; len(data) > 0; {
				if _, data, err = record.Next(data); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
