package valkey

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
	"github.com/valkey-io/valkey-go"
)

// BenchmarkAppend appends beside a client that pipelines plain XADDs in batches of the same size, one batch at a time.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, count int
	}{{"64KiBx1", 64 << 10, 1}, {"64KiBx16", 64 << 10, 16}, {"1KiBx256", 1 << 10, 256}} {
		frames := writebuftest.Frames(1, uint64(c.count), c.size, "f")
		b.Run(c.name+"/levee", func(b *testing.B) {
			srv := start(b)
			buf := srv.open(func(c *Config) { c.Timeout = 10 * time.Second }).Buffer(writebuftest.ID())
			last := uint64(0)
			bench(b, c.size*c.count, func() error {
				entries := make([]writebuf.Entry, c.count)
				for i := range entries {
					last++
					entries[i] = writebuf.Entry{Seq: last, Frame: frames[i].Frame}
				}
				return buf.Append(b.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: entries})
			}, func() error { return buf.Reset(b.Context(), 1) }, func() { last = 0 })
		})
		b.Run(c.name+"/raw", func(b *testing.B) {
			srv := start(b)
			client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{srv.addr}, DisableRetry: true, DisableCache: true, ForceSingleClient: true})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			conn, release := client.Dedicate()
			defer release()
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			last := uint64(0)
			bench(b, c.size*c.count, func() error {
				cmds := make(valkey.Commands, c.count)
				for i := range cmds {
					last++
					cmds[i] = conn.B().Xadd().Key("s").Id(decimal(last)+"-0").FieldValue().FieldValue("f", valkey.BinaryString(frames[i].Frame)).Build()
				}
				for _, r := range conn.DoMulti(ctx, cmds...) {
					if err := r.Error(); err != nil {
						return err
					}
				}
				return nil
			}, func() error { return conn.Do(ctx, conn.B().Unlink().Key("s").Build()).Error() }, func() { last = 0 })
		})
	}
}

// BenchmarkPartitions appends one frame of 1 KiB at a time to each of many partitions, one batch of each on its way.
func BenchmarkPartitions(b *testing.B) {
	for _, parts := range []int{1, 16, 256} {
		b.Run(strconv.Itoa(parts), func(b *testing.B) {
			st := start(b).open(func(c *Config) { c.Timeout = 10 * time.Second })
			frame := writebuftest.Frames(1, 1, 1<<10, "f")[0].Frame
			var left atomic.Int64
			left.Store(int64(b.N))
			b.SetBytes(1 << 10)
			var all sync.WaitGroup
			for range parts {
				buf := st.Buffer(writebuftest.ID())
				all.Go(func() {
					for seq := uint64(1); left.Add(-1) >= 0; seq++ {
						if err := buf.Append(b.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: []writebuf.Entry{{Seq: seq, Frame: frame}}}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// bench keeps what the server holds below 256 MiB.
func bench(b *testing.B, size int, add, wipe func() error, again func()) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	held := 0
	for b.Loop() {
		if held += size; held > 256<<20 {
			b.StopTimer()
			if err := wipe(); err != nil {
				b.Fatal(err)
			}
			again()
			held = size
			b.StartTimer()
		}
		if err := add(); err != nil {
			b.Fatal(err)
		}
	}
}
