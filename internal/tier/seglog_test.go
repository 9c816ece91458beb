package tier

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sort"
	"testing"

	"github.com/leveemq/levee/internal/objstore/dir"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// sealedFiles returns the sealed segments of a log's directory.
func sealedFiles(t *testing.T, path string) (all []Segment) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(path, "*"+segfmt.LogSuffix))
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(names)
	for i, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h, err := segfmt.ParseSegmentHeader(data)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			last := &all[i-1]
			last.Next, last.NextSeq, last.Generation = h.BaseOffset, h.BaseSeq, h.PrevGeneration
		}
		all = append(all, Segment{Name: name, Reader: bytes.NewReader(data), Size: int64(len(data)), Base: h.BaseOffset, BaseSeq: h.BaseSeq})
	}
	return all[:len(all)-1]
}

// What a real log wrote is exported, and read back is what the log itself gives its readers.
func TestARealLog(t *testing.T) {
	rng := seeded(t)
	path := filepath.Join(t.TempDir(), "log")
	l, _, err := seglog.Open(seglog.Config{
		FS: vfs.OS{}, Dir: path, SalvageDir: t.TempDir(), Topic: "default/t", TopicID: testPlace.TopicID, Partition: testPlace.Partition,
		SegmentBytes: 16 << 10, Mode: seglog.None,
	})
	if err != nil {
		t.Fatal(err)
	}
	made := newTestLog(t, rng)
	for i := range 400 {
		if _, err := l.Append(t.Context(), made.batch(1+rng.IntN(4), 300)); err != nil {
			t.Fatal(err)
		}
		if i%60 == 59 {
			end := l.Bounds().End
			lost := &seglog.Range{From: end, To: end + 9}
			if i%120 == 59 {
				lost = nil
			}
			if err := l.StartGeneration(t.Context(), uint32(2+i), lost); err != nil {
				t.Fatal(err)
			}
		}
	}
	store, err := dir.Open(dir.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var all []Object
	for _, seg := range sealedFiles(t, path) {
		o, err := Upload(t.Context(), store, testPlace, seg)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	if len(all) < 5 {
		t.Fatalf("%d segments", len(all))
	}
	c := newCold(t, store, ColdConfig{StretchBytes: 8 << 10, CacheBytes: 128 << 10})
	end := all[len(all)-1].Next
	for range 30 {
		from := rng.Int64N(end)
		warm, cold := flat(t, from, end, warmSteps(l.NewReader(from))), flat(t, from, end, coldSteps(t, c.NewReader(testPlace, lookup(all), from)))
		if !bytes.Equal(warm, cold) {
			t.Fatalf("from %d: %d bytes from the log, %d others from objects", from, len(warm), len(cold))
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

type stepper func() (data []byte, lost *Range, next int64, err error)

func warmSteps(r *seglog.Reader) stepper {
	return func() ([]byte, *Range, int64, error) {
		chunk, err := r.Next(1, 1) // one batch at a time
		if chunk.Lost != nil {
			return nil, &Range{chunk.Lost.From, chunk.Lost.To}, chunk.Next, err
		}
		return chunk.Data, nil, chunk.Next, err
	}
}

func coldSteps(t *testing.T, r *Reader) stepper {
	return func() ([]byte, *Range, int64, error) {
		chunk, err := r.Next(t.Context(), 3000, 100, nil)
		return chunk.Data, chunk.Lost, chunk.Next, err
	}
}

// flat is all that a reader gives from one offset up to another, as bytes.
func flat(t *testing.T, from, end int64, step stepper) (all []byte) {
	t.Helper()
	for from < end {
		data, lost, next, err := step()
		if err != nil || next <= from {
			t.Fatalf("at %d: next %d, %v", from, next, err)
		}
		if lost != nil {
			all = binary.BigEndian.AppendUint64(append(all, "lost"...), uint64(lost.From))
			all = binary.BigEndian.AppendUint64(all, uint64(lost.To))
		}
		for len(data) > 0 {
			batch, rest, err := record.Next(data)
			if err != nil {
				t.Fatal(err)
			}
			all, data = append(all, batch...), rest
		}
		from = next
	}
	return all
}
