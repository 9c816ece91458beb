package tier

import (
	"bytes"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/dir"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// benchLog exports objects of 32 MiB with batches of 16 KiB to a directory.
func benchLog(b *testing.B) (objstore.Store, []Object, int64) {
	b.Helper()
	store, err := dir.Open(dir.Config{Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	l := newTestLog(b, seeded(b))
	build := record.NewBuilder(record.None)
	for i := range 16 {
		if err := build.Append(record.Record{Value: bytes.Repeat([]byte{byte(i)}, 1000), Timestamp: 1}); err != nil {
			b.Fatal(err)
		}
	}
	batch, err := build.Build(record.ProducerInfo{ID: -1, Epoch: -1, Sequence: -1})
	if err != nil {
		b.Fatal(err)
	}
	var size int64
	for range 2 {
		seg := Segment{Base: l.offset, BaseSeq: l.seq, Generation: 1}
		file := segfmt.SegmentHeader{BaseOffset: l.offset, BaseSeq: l.seq, PrevGeneration: 1, TopicID: l.place.TopicID, Partition: uint32(l.place.Partition)}.Append(nil)
		for len(file) < 32<<20 {
			file = segfmt.AppendFrame(file, segfmt.KindData, 0, l.seq, l.offset, 1, batch)
			l.seq, l.offset = l.seq+1, l.offset+16
		}
		seg.Reader, seg.Size, seg.Next, seg.NextSeq = bytes.NewReader(file), int64(len(file)), l.offset, l.seq
		l.of = append(l.of, seg)
		size += seg.Size
	}
	return store, l.export(store), size
}

// BenchmarkColdRead reads two objects in order, with nothing in the cache.
func BenchmarkColdRead(b *testing.B) {
	store, all, size := benchLog(b)
	b.SetBytes(size)
	b.ReportAllocs()
	memory := make([]byte, 2<<20)
	for b.Loop() {
		c, err := NewCold(b.Context(), store, ColdConfig{})
		if err != nil {
			b.Fatal(err)
		}
		r := c.NewReader(testPlace, lookup(all), 0)
		for r.Offset() < all[len(all)-1].Next {
			if _, err := r.Next(b.Context(), 1<<20, 1<<20, func(n int) []byte { return memory[:n] }); err != nil {
				b.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRangedGets is what the store gives at best to one that asks for a stretch after the other and checks nothing.
func BenchmarkRangedGets(b *testing.B) {
	store, all, size := benchLog(b)
	b.SetBytes(size)
	for b.Loop() {
		for _, o := range all {
			for at := int64(0); at < o.SegmentBytes; at += 1 << 20 {
				if _, err := readRange(b.Context(), store, o.Key(testPlace), at, min(1<<20, o.SegmentBytes-at)); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

// BenchmarkWarmRead reads one object again and again, out of the cache.
func BenchmarkWarmRead(b *testing.B) {
	store, all, _ := benchLog(b)
	b.SetBytes(all[0].SegmentBytes)
	c, err := NewCold(b.Context(), store, ColdConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	memory := make([]byte, 2<<20)
	for b.Loop() {
		r := c.NewReader(testPlace, lookup(all[:1]), 0)
		for r.Offset() < all[0].Next {
			if _, err := r.Next(b.Context(), 1<<20, 1<<20, func(n int) []byte { return memory[:n] }); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkUpload exports a segment of 32 MiB: checked, put, and read back.
func BenchmarkUpload(b *testing.B) {
	store, all, _ := benchLog(b)
	key := all[0].Key(testPlace)
	data, _, err := objstore.Read(b.Context(), store, key, 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	o := all[0]
	seg := Segment{Reader: bytes.NewReader(data), Size: o.SegmentBytes, Base: o.Base, Next: o.Next, BaseSeq: o.BaseSeq, NextSeq: o.NextSeq, Generation: o.Generation}
	b.SetBytes(o.Size)
	for b.Loop() {
		if err := store.Delete(b.Context(), key); err != nil {
			b.Fatal(err)
		}
		if _, err := Upload(b.Context(), store, testPlace, seg); err != nil {
			b.Fatal(err)
		}
	}
}
