package main

import (
	"bytes"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/tier"
)

func TestColdReadsEverySegment(t *testing.T) {
	store := objstore.NewMem()
	if _, err := measureCold(t.Context(), store, "cold"); err == nil {
		t.Error("nothing was there to read")
	}
	batch, err := encode(0, 5, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for partition := range int32(2) {
		seq, offset := uint64(1), int64(0)
		place := tier.Place{Cluster: "c", TopicID: [16]byte{1}, Partition: partition}
		for range 3 {
			seg := tier.Segment{Base: offset, BaseSeq: seq, Generation: 1}
			file := segfmt.SegmentHeader{BaseOffset: offset, BaseSeq: seq, PrevGeneration: 1, TopicID: place.TopicID, Partition: uint32(partition)}.Append(nil)
			for range 7 {
				file = segfmt.AppendFrame(file, segfmt.KindData, 0, seq, offset, 1, batch)
				seq, offset = seq+1, offset+5
			}
			seg.Reader, seg.Size, seg.Next, seg.NextSeq = bytes.NewReader(file), int64(len(file)), offset, seq
			if _, err := tier.Upload(t.Context(), store, place, seg); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err := measureCold(t.Context(), store, "cold")
	if err != nil || r.Msgs != 2*3*7*5 || r.Partitions != 2 || r.MBPerS <= 0 || r.Size != len(batch)/5 {
		t.Errorf("%+v, %v", r, err)
	}
}
