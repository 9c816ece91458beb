package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeded returns a source of randomness that LEVEE_SEED repeats.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LEVEE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LEVEE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

var testPlace = Place{Prefix: "a/b", Cluster: "c1", TopicID: [16]byte{1, 2, 3, 15: 0xff}, Partition: 7}

// item is what a reader of a log must get next: a batch, or a lost range.
type item struct {
	base, next int64
	batch      []byte // nil: lost
	records    int
	times      []int64 // of the records
}

// testLog makes the segments of a log, and remembers what readers must get.
type testLog struct {
	tb         testing.TB
	rng        *rand.Rand
	place      Place
	seq        uint64
	offset     int64
	generation uint32
	items      []item
	segments   [][]byte
	of         []Segment
	time       int64
	plain      bool // no compression: its pools do not live in a bubble of synctest
}

func newTestLog(tb testing.TB, rng *rand.Rand) *testLog {
	return &testLog{tb: tb, rng: rng, place: testPlace, seq: 1, generation: 1, time: 1_000_000}
}

// batch makes a random one of n records.
func (l *testLog) batch(n, size int) []byte {
	codec := record.Codec(l.rng.IntN(5))
	if l.plain {
		codec = record.None
	}
	b := record.NewBuilder(codec)
	for range n {
		l.time += int64(l.rng.IntN(7)) - 2
		value := make([]byte, l.rng.IntN(size+1))
		for i := 0; i+8 <= len(value); i += 8 {
			binary.LittleEndian.PutUint64(value[i:], l.rng.Uint64())
		}
		if err := b.Append(record.Record{Key: []byte("k"), Value: value, Timestamp: l.time}); err != nil {
			l.tb.Fatal(err)
		}
	}
	batch, err := b.Build(record.ProducerInfo{ID: -1, Epoch: -1, Sequence: -1})
	if err != nil {
		l.tb.Fatal(err)
	}
	return batch
}

// seal makes a segment of about so many frames and returns it.
func (l *testLog) seal(frames, size int) Segment {
	seg := Segment{Base: l.offset, BaseSeq: l.seq, Name: fmt.Sprintf("%020d.log", l.offset)}
	h := segfmt.SegmentHeader{BaseOffset: l.offset, BaseSeq: l.seq, PrevGeneration: l.generation, TopicID: l.place.TopicID, Partition: uint32(l.place.Partition)}
	if l.seq == 1 {
		h.PrevGeneration = 0
	}
	b := h.Append(nil)
	for i := 0; i < frames || l.offset == seg.Base; i++ {
		switch l.rng.IntN(12) {
		case 0:
			l.generation += uint32(l.rng.IntN(2))
			b = segfmt.AppendFrame(b, segfmt.KindGenerationStart, 0, l.seq, l.offset, l.generation, segfmt.ControlBatch(nil))
		case 1:
			kind := segfmt.KindMembership + uint8(l.rng.IntN(2))
			b = segfmt.AppendFrame(b, kind, 0, l.seq, l.offset, l.generation, segfmt.ControlBatch([]byte("payload")))
		case 2:
			to := l.offset + int64(l.rng.IntN(1000))
			b = segfmt.AppendFrame(b, segfmt.KindLost, 0, l.seq, to+1, l.generation, segfmt.LostBatch(l.offset, to))
			l.items = append(l.items, item{base: l.offset, next: to + 1})
			l.offset = to + 1
		default:
			n := 1 + l.rng.IntN(5)
			batch := l.batch(n, size)
			record.SetPlacement(batch, l.offset, int32(l.generation))
			it := item{base: l.offset, next: l.offset + int64(n), batch: batch, records: n}
			if err := record.Each(batch, func(r record.Record) error { it.times = append(it.times, r.Timestamp); return nil }); err != nil {
				l.tb.Fatal(err)
			}
			l.items = append(l.items, it)
			b = segfmt.AppendFrame(b, segfmt.KindData, 0, l.seq, l.offset, l.generation, batch)
			l.offset = it.next
		}
		l.seq++
	}
	seg.Reader, seg.Size, seg.Next, seg.NextSeq, seg.Generation = bytes.NewReader(b), int64(len(b)), l.offset, l.seq, l.generation
	l.segments = append(l.segments, b)
	l.of = append(l.of, seg)
	return seg
}

// export uploads every segment.
func (l *testLog) export(store objstore.Store) []Object {
	var all []Object
	for _, seg := range l.of {
		o, err := Upload(context.Background(), store, l.place, seg)
		if err != nil {
			l.tb.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func lookup(all []Object) Objects {
	return func(offset int64) (Object, bool) {
		for _, o := range all {
			if o.Base <= offset && offset < o.Next {
				return o, true
			}
		}
		return Object{}, false
	}
}

// newCold returns one that is closed with the test.
func newCold(t testing.TB, store objstore.Store, cfg ColdConfig) *Cold {
	t.Helper()
	c, err := NewCold(context.Background(), store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// follow reads on until an empty chunk and compares everything with the log's items.
func (l *testLog) follow(r *Reader, maxBytes, maxRecords int) error {
	i := slices.IndexFunc(l.items, func(it item) bool { return it.next > r.Offset() })
	for {
		at := r.Offset()
		chunk, err := r.Next(context.Background(), maxBytes, maxRecords, nil)
		if err != nil {
			return err
		}
		if chunk.Next != r.Offset() {
			return fmt.Errorf("next is %d, the reader at %d", chunk.Next, r.Offset())
		}
		if chunk.Lost != nil {
			it := l.items[i]
			if it.batch != nil || *chunk.Lost != (Range{at, it.next - 1}) || chunk.Next != it.next || chunk.Data != nil {
				return fmt.Errorf("at %d: lost %v, expected %d to %d (%d bytes)", at, *chunk.Lost, it.base, it.next-1, len(it.batch))
			}
			i++
			continue
		}
		if chunk.Data == nil {
			if i != len(l.items) && i >= 0 {
				return fmt.Errorf("ended at %d before item %d of %d", at, i, len(l.items))
			}
			return nil
		}
		if len(chunk.Data) > maxBytes && len(chunk.Data) != len(l.items[i].batch) || chunk.Records > maxRecords && chunk.Records != l.items[i].records {
			return fmt.Errorf("%d bytes and %d records, at most %d and %d", len(chunk.Data), chunk.Records, maxBytes, maxRecords)
		}
		if chunk.First != l.items[i].base {
			return fmt.Errorf("first is %d, not %d", chunk.First, l.items[i].base)
		}
		records := 0
		for data := chunk.Data; len(data) > 0; i++ {
			if i == len(l.items) || !bytes.HasPrefix(data, l.items[i].batch) || l.items[i].batch == nil {
				return fmt.Errorf("at %d: not the batch of item %d", at, i)
			}
			data = data[len(l.items[i].batch):]
			records += l.items[i].records
		}
		if chunk.Next != l.items[i-1].next || chunk.Records != records {
			return fmt.Errorf("next %d and %d records, not %d and %d", chunk.Next, chunk.Records, l.items[i-1].next, records)
		}
	}
}
