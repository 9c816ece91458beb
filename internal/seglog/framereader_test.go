package seglog

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// One reader that goes on, while the log grows, is cut back and trimmed, reads what a new one reads: the place that it
// remembers is never one of before.
func TestFrameReader(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	cfg.SegmentBytes = segfmt.SegmentHeaderSize + 6000
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	r, next, last := l.NewFrameReader(), uint64(1), uint64(0)
	wentOn := 0
	for round := range 400 {
		grow := func(n int) {
			for range n {
				last++
				e := Entry{Seq: last, Generation: uint32(1 + round), Kind: segfmt.KindData, Batch: batch(t, noProducer, fmt.Sprintf("%0*d", 50+random.IntN(900), last))}
				if err := l.AppendEntries(ctx, []Entry{e}); err != nil {
					t.Fatal(err)
				}
			}
		}
		grow(1 + random.IntN(4))
		switch random.IntN(12) {
		case 0: // what comes now stands elsewhere than what was there, under the same ordinals
			before := last
			last = max(l.Bounds().FirstSeq, last-min(last-1, uint64(2+random.IntN(8))))
			if err := l.TruncateAfter(ctx, last); err != nil {
				t.Fatal(err)
			}
			grow(int(before-last) + 1)
		case 1:
			if err := l.TrimBefore(ctx, last-min(last-1, uint64(random.IntN(20)))); err != nil {
				t.Fatal(err)
			}
		case 2:
			next = last
		}
		next = max(next, l.Bounds().FirstSeq)
		want, err := l.ReadFrames(next, 2000)
		if err != nil {
			t.Fatal(err)
		}
		knew := r.place.seg != nil && r.place.seq == next
		var memory []byte
		got, err := r.Read(next, 2000, func(n int) []byte { memory = make([]byte, n); return memory })
		if err != nil || len(got) != len(want) {
			t.Fatalf("round %d: %d frames from %d on, not %d: %v", round, len(got), next, len(want), err)
		}
		for i := range got {
			if got[i].Seq != next || got[i].Next != want[i].Next || !bytes.Equal(got[i].Bytes, want[i].Bytes) {
				t.Fatalf("round %d: frame %d is another one", round, next)
			}
			next++
		}
		if len(got) > 0 && &got[0].Bytes[0] != &memory[0] {
			t.Fatal("the frames are not in the memory that was given")
		}
		if knew {
			wentOn++
		}
	}
	if wentOn < 100 {
		t.Fatalf("it knew the place %d times", wentOn)
	}
}
