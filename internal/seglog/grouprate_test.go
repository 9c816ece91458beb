package seglog

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// TestGroupCommitRate covers LOG-08 on a device whose flush takes a millisecond and nothing else any time: 64 publishers,
// each waiting for its answer before it goes on, reach at least 40 times the rate of one.
func TestGroupCommitRate(t *testing.T) {
	rate := func(publishers int) (perSecond float64) {
		synctest.Test(t, func(t *testing.T) {
			const each = 50
			fs := vfs.NewMem()
			cfg := testConfig(fs)
			cfg.SegmentBytes = 64 << 20
			l := mustOpen(t, cfg)
			mustAppend(t, l, batch(t, noProducer, "makes the file"))
			fs.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpSync {
					<-time.After(time.Millisecond)
				}
				return nil
			})
			b := batch(t, noProducer, "x")
			start := time.Now()
			var wg sync.WaitGroup
			for range publishers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range each {
						if _, err := l.Append(context.Background(), b); err != nil {
							t.Error(err)
						}
					}
				}()
			}
			wg.Wait()
			perSecond = float64(publishers*each) / time.Since(start).Seconds()
			fs.SetHook(nil)
			mustClose(t, l)
		})
		return perSecond
	}
	one, best := rate(1), 0.0
	for range 5 { // how goroutines are scheduled is not the log's: the best of some attempts is what it can do
		best = max(best, rate(64)/one)
		if best >= 40 {
			break
		}
	}
	t.Logf("one publisher: %.0f a second; 64: %.1f times as many", one, best)
	if best < 40 {
		t.Errorf("64 publishers reach %.1f times the rate of one", best)
	}
}
