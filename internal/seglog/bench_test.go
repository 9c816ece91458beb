package seglog

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/vfs"
)

// BenchmarkAppend measures one log on the real file system: records a second is n times the batch over the time. Run
// it with -cpu 2 -benchtime 2s; `levee bench log` shows the device's own figures beside it.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []Mode{None, OnCommit} {
		for _, size := range []int{1, 16} {
			for _, publishers := range []int{1, 64} {
				b.Run(fmt.Sprintf("%v/batch=%d/publishers=%d", mode, size, publishers), func(b *testing.B) {
					cfg := Config{FS: vfs.OS{}, Dir: b.TempDir() + "/p", Topic: "default/bench", Mode: mode}
					l := mustOpen(b, cfg)
					defer mustClose(b, l)
					values := make([]string, size)
					for i := range values {
						values[i] = strings.Repeat("x", 128)
					}
					data := batch(b, noProducer, values...)
					b.SetBytes(int64(len(data)))
					b.SetParallelism(publishers / 2)
					b.ReportAllocs()
					b.ResetTimer()
					if publishers == 1 {
						for range b.N {
							if _, err := l.Append(context.Background(), data); err != nil {
								b.Fatal(err)
							}
						}
					} else {
						b.RunParallel(func(pb *testing.PB) {
							for pb.Next() {
								if _, err := l.Append(context.Background(), data); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "records/s")
				})
			}
		}
	}
}

// BenchmarkRead measures a replay from the page cache.
func BenchmarkRead(b *testing.B) {
	cfg := Config{FS: vfs.OS{}, Dir: b.TempDir() + "/p", Topic: "default/bench", Mode: None}
	l := mustOpen(b, cfg)
	defer mustClose(b, l)
	values := make([]string, 256)
	for i := range values {
		values[i] = strings.Repeat("x", 128)
	}
	data := batch(b, noProducer, values...)
	for range 2000 {
		mustAppend(b, l, data)
	}
	b.ReportAllocs()
	b.ResetTimer()
	r, records := l.NewReader(0), 0
	for range b.N {
		c, err := r.Next(1<<20, 10_000)
		if err != nil {
			b.Fatal(err)
		}
		if c.Data == nil {
			r = l.NewReader(0)
		}
		b.SetBytes(int64(len(c.Data)))
		records += c.Records
	}
	b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
}
