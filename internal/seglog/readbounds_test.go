package seglog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// TestReadIsBounded covers LOG-14 and LOG-15: whatever the bounds, over segments of many sizes, a read returns no more
// than both of them allow, at least one batch, and together everything once; at the end it returns nothing and no error.
func TestReadIsBounded(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	for i := range 150 {
		values := make([]string, 1+i%5)
		for k := range values {
			values[k] = strings.Repeat("x", 10+(i*37)%400)
		}
		mustAppend(t, l, batch(t, noProducer, values...))
	}
	b := l.Bounds()
	if b.Segments < 10 {
		t.Fatalf("%d segments do not make a read cross many", b.Segments)
	}
	for _, c := range []struct{ bytes, records int }{{1, 1}, {1, 1000}, {1 << 20, 1}, {300, 7}, {2000, 4}, {5000, 1000}, {1 << 20, 9}, {1 << 20, 1 << 20}} {
		r, at, most := l.NewReader(0), int64(0), 0
		for at < b.End {
			chunk, err := r.Next(c.bytes, c.records)
			if err != nil {
				t.Fatalf("%+v at %d: %v", c, at, err)
			}
			batches, records := countBatches(t, chunk.Data, at)
			if batches == 0 || chunk.First != at || chunk.Next != at+int64(records) || chunk.Records != records {
				t.Fatalf("%+v at %d: %d batches of %d records, chunk from %d to %d says %d", c, at, batches, records, chunk.First, chunk.Next, chunk.Records)
			}
			if batches > 1 && (len(chunk.Data) > c.bytes || records > c.records) {
				t.Fatalf("%+v at %d: %d bytes, %d records in %d batches", c, at, len(chunk.Data), records, batches)
			}
			at, most = chunk.Next, max(most, batches)
		}
		if c.bytes > 1 && c.records > 5 && most < 2 {
			t.Errorf("%+v: no read returned more than one batch", c)
		}
		for range 2 {
			if chunk, err := r.Next(c.bytes, c.records); err != nil || chunk.Data != nil || chunk.Next != b.End || chunk.End != b.End {
				t.Fatalf("%+v at the end: %+v, %v", c, chunk, err)
			}
		}
	}
	if chunk, err := l.NewReader(b.End).Next(100, 100); err != nil || chunk.Data != nil {
		t.Fatalf("a read at the end: %+v, %v", chunk, err)
	}
}

// countBatches counts batches and records of data, whose first offset must be at.
func countBatches(t *testing.T, data []byte, at int64) (batches, records int) {
	t.Helper()
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err != nil {
			t.Fatal(err)
		}
		info, err := record.Check(b)
		if err != nil || info.BaseOffset != at+int64(records) {
			t.Fatalf("batch %d: %s, %v", batches, fmt.Sprint(info.BaseOffset), err)
		}
		batches, records, data = batches+1, records+int(info.Count), rest
	}
	return batches, records
}
