package seglog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testID = [16]byte{1, 2, 3}

func testConfig(fs vfs.FS) Config {
	return Config{FS: fs, Dir: "/data/p", SalvageDir: "/salvage", Topic: "default/t", TopicID: testID, SegmentBytes: 4 << 10, IndexInterval: 256}
}

func mustOpen(t testing.TB, cfg Config) *Log {
	t.Helper()
	l, _, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// batch returns a batch of records with these values.
func batch(t testing.TB, p record.ProducerInfo, values ...string) []byte {
	t.Helper()
	return batchAt(t, p, 1000, values...)
}

var noProducer = record.ProducerInfo{ID: -1, Epoch: -1, Sequence: -1}

func batchAt(t testing.TB, p record.ProducerInfo, ms int64, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: ms}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustAppend(t testing.TB, l *Log, b []byte) Result {
	t.Helper()
	r, err := l.Append(context.Background(), b)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return r
}

// readAll returns every record from offset on.
func readAll(t testing.TB, l *Log, from int64) []record.Record {
	t.Helper()
	recs, err := collectFrom(l, from)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return recs
}

func collectFrom(l *Log, from int64) ([]record.Record, error) {
	var out []record.Record
	r := l.NewReader(from)
	for {
		c, err := r.Next(1<<10, 100)
		if err != nil {
			return out, err
		}
		if c.Data == nil && c.Lost == nil {
			return out, nil
		}
		for data := c.Data; len(data) > 0; {
			b, rest, err := record.Next(data)
			if err != nil {
				return out, err
			}
			data = rest
			recs, err := record.Records(b)
			if err != nil {
				return out, err
			}
			for _, rec := range recs {
				if rec.Offset >= from {
					out = append(out, rec)
				}
			}
		}
	}
}

func TestAppendReadReopen(t *testing.T) {
	for _, mode := range []Mode{OnCommit, Periodic, None} {
		t.Run(mode.String(), func(t *testing.T) {
			fs := vfs.NewMem()
			cfg := testConfig(fs)
			cfg.Mode = mode
			l := mustOpen(t, cfg)
			if b := l.Bounds(); b.End != 0 || b.Segments != 0 {
				t.Fatalf("an empty log: %+v", b)
			}
			const n = 500
			for i := range n {
				r := mustAppend(t, l, batch(t, noProducer, fmt.Sprint("a", i), fmt.Sprint("b", i)))
				if r.Offset != int64(2*i) || r.LastOffset != int64(2*i+1) {
					t.Fatalf("append %d went to %+v", i, r)
				}
			}
			check := func(l *Log) {
				t.Helper()
				for _, from := range []int64{0, 1, 2, 777, 999, 1000} {
					got := readAll(t, l, from)
					if int64(len(got)) != 2*n-from {
						t.Fatalf("from %d: %d records", from, len(got))
					}
					for i, rec := range got {
						want := fmt.Sprint("a", (from+int64(i))/2)
						if rec.Offset%2 == 1 {
							want = "b" + want[1:]
						}
						if rec.Offset != from+int64(i) || string(rec.Value) != want {
							t.Fatalf("from %d: record %d is %d %q, want %q", from, i, rec.Offset, rec.Value, want)
						}
					}
				}
				if b := l.Bounds(); b.Segments < 5 || b.End != 2*n || b.First != 0 {
					t.Fatalf("bounds %+v", b)
				}
			}
			check(l)
			mustClose(t, l)
			l = mustOpen(t, cfg)
			check(l)
			var beyond *BeyondEndError
			if _, err := l.NewReader(2*n+1).Next(100, 100); !errors.As(err, &beyond) || beyond.End != 2*n {
				t.Fatalf("beyond the end: %v", err)
			}
			if _, err := l.Append(context.Background(), []byte("no batch")); fault.KindOf(err) != fault.InvalidArgument {
				t.Fatalf("garbage: %v", err)
			}
			mustClose(t, l)
		})
	}
}

func TestConcurrentPublishersShareFlushes(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes = 1 << 20
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	var wg sync.WaitGroup
	seen := make([]string, 64*50)
	for w := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 50 {
				v := fmt.Sprint(w, "-", i)
				r, err := l.Append(context.Background(), batch(t, noProducer, v))
				if err != nil {
					t.Error(err)
					return
				}
				seen[r.Offset] = v
			}
		}()
	}
	wg.Wait()
	for i, rec := range readAll(t, l, 0) {
		if string(rec.Value) != seen[i] {
			t.Fatalf("offset %d holds %q, acknowledged was %q", i, rec.Value, seen[i])
		}
	}
}

func TestRetentionTrimsWholeSegmentsFromTheHead(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	now := time.UnixMilli(1_000_000)
	cfg.Now = func() time.Time { return now }
	l := mustOpen(t, cfg)
	for i := range 400 {
		mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0100d", i)))
		now = now.Add(time.Second)
	}
	before := l.Bounds()
	l.SetRetention(Retention{Bytes: before.Bytes / 2})
	if n, err := l.Retain(context.Background()); err != nil || n == 0 {
		t.Fatalf("retain: %d, %v", n, err)
	}
	b := l.Bounds()
	if b.First == 0 || b.End != 400 || b.Bytes > before.Bytes/2 {
		t.Fatalf("after bytes: %+v", b)
	}
	var trimmed *TrimmedError
	if _, err := l.NewReader(0).Next(1, 1); !errors.As(err, &trimmed) || trimmed.Oldest != b.First {
		t.Fatalf("below the oldest: %v", err)
	}
	l.SetRetention(Retention{Age: time.Nanosecond})
	if _, err := l.Retain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if b = l.Bounds(); b.Segments != 1 || b.First >= b.End {
		t.Fatalf("the active segment must stay: %+v", b)
	}
	mustClose(t, l)
	l = mustOpen(t, cfg)
	if b2 := l.Bounds(); b2.First != b.First || b2.End != 400 {
		t.Fatalf("reopened: %+v", b2)
	}
	readAll(t, l, b.First)
	mustClose(t, l)
}
