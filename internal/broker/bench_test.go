package broker

import (
	"context"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// BenchmarkSubmit is the broker's own share of a publish: memory below it, nothing flushed.
func BenchmarkSubmit(b *testing.B) {
	for _, dispatch := range []Dispatch{Reliable, NonReliable} {
		b.Run(string(dispatch), func(b *testing.B) {
			fs := vfs.NewMem()
			if err := fs.MkdirAll("/data"); err != nil {
				b.Fatal(err)
			}
			br, err := New(Config{Meta: meta.NewMemory(), FS: fs, DataDir: "/data"})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- br.Run(ctx) }()
			spec := TopicSpec{Name: "a", Dispatch: dispatch}
			if dispatch == Reliable {
				none := "none"
				spec.Settings.Fsync = &none
			}
			if _, err := br.CreateTopic(ctx, spec); err != nil {
				b.Fatal(err)
			}
			p, err := br.OpenPublisher(ctx, "a", nil)
			if err != nil {
				b.Fatal(err)
			}
			batch := pack(b, record.NoProducer, string(make([]byte, 128)))
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			var wg sync.WaitGroup
			done := func(r PublishResult) {
				if r.Err != nil {
					b.Error(r.Err)
				}
				wg.Done()
			}
			b.ResetTimer()
			for range b.N {
				wg.Add(1)
				if err := p.Submit(ctx, 0, batch, done); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
			b.StopTimer()
			p.Close()
			stop()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}
