package subscription

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// ledger is what consumers have acknowledged.
type ledger struct {
	mu    sync.Mutex
	acked map[int64]bool // guarded by mu
}

// TestRandomSchedules has consumers come, take, acknowledge, give back, forget and go while records are published in
// batches of any shape. Whatever happens, what they are handed is what was published, nothing is handed out after it was
// acknowledged, and in the end every record was.
func TestRandomSchedules(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any will do
	if s := os.Getenv("LEVEE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 0, 64)
	}
	t.Logf("LEVEE_SEED=%d", seed)
	for i, typ := range []dispatch.Type{dispatch.Exclusive, dispatch.Shared, dispatch.Failover, dispatch.KeyShared} {
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			conf := dispatch.Config{
				Type: typ, AckTimeout: 5 * time.Second, Backoff: dispatch.Backoff{Base: 10 * time.Millisecond},
				Consumer: dispatch.Window{Messages: 20, Bytes: 100 << 10}, LookAhead: dispatch.Window{Messages: 60, Bytes: 200 << 10},
			}
			with(t, conf, func(b *bench) {
				b.run.cache.most = 100 << 10
				l := &ledger{acked: map[int64]bool{}}
				const records = 600
				var wg sync.WaitGroup
				wg.Go(func() { publishRandomly(b, rand.New(rand.NewPCG(seed, uint64(i))), records) }) //nolint:gosec // repeatable
				for n := range 3 {
					rng := rand.New(rand.NewPCG(seed, uint64(100+10*i+n))) //nolint:gosec // repeatable
					wg.Go(func() {
						for b.run.State().Position < records && !b.t.Failed() {
							b.consumeRandomly(rng, fmt.Sprint("c", n), l)
						}
					})
				}
				wg.Wait()
				l.mu.Lock()
				defer l.mu.Unlock()
				if len(l.acked) != records {
					t.Errorf("%d of %d acknowledged", len(l.acked), records)
				}
				synctest.Wait()
				if s := b.run.State().Stats; s.InFlightMessages != 0 || s.LookAhead != 0 {
					t.Errorf("left over: %+v", s)
				}
			})
		})
	}
}

func publishRandomly(b *bench, rng *rand.Rand, records int) {
	for n := 0; n < records; {
		var values []string
		for range min(1+rng.IntN(12), records-n) {
			size := rng.IntN(100)
			if rng.IntN(10) == 0 {
				size = rng.IntN(20 << 10)
			}
			values = append(values, fmt.Sprintf("k%d/%d%s", rng.IntN(8), n, strings.Repeat("x", size)))
			n++
		}
		b.log.add([]record.Codec{record.None, record.LZ4, record.Snappy}[rng.IntN(3)], values...)
		<-time.After(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
}

// consumeRandomly is the life of one consumer.
func (b *bench) consumeRandomly(rng *rand.Rand, name string, l *ledger) {
	ctx := b.t.Context()
	c, err := b.run.Join(ctx, Member{Name: name})
	if err != nil {
		if fault.KindOf(err) != fault.Conflict {
			b.t.Error(err)
		}
		<-time.After(100 * time.Millisecond)
		return
	}
	defer c.Close()
	for range 1 + rng.IntN(20) {
		wait, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(200))*time.Millisecond)
		l.mu.Lock()
		before := make(map[int64]bool, len(l.acked))
		for o := range l.acked {
			before[o] = true
		}
		l.mu.Unlock()
		e, err := c.Next(wait, 1+rng.IntN(30<<10))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		if err != nil {
			b.t.Error(err)
			return
		}
		if e.Kind != Data {
			continue
		}
		b.checkRandom(e, before)
		b.settleRandomly(rng, c, e, l)
	}
}

func (b *bench) checkRandom(e Event, before map[int64]bool) {
	n := 0
	for _, part := range strings.Fields(b.read(e)) {
		offset, _, _ := strings.Cut(part, "=")
		o, err := strconv.ParseInt(offset, 10, 64)
		if err != nil {
			b.t.Error(err)
		}
		if before[o] {
			b.t.Errorf("%d is handed out, and was acknowledged", o)
		}
		n++
	}
	if n != e.Records {
		b.t.Errorf("%d records of %d", n, e.Records)
	}
}

func (b *bench) settleRandomly(rng *rand.Rand, c *Consumer, e Event, l *ledger) {
	for _, r := range e.Offsets {
		for o := r.From; o <= r.To; o++ {
			one := seglog.Range{From: o, To: o}
			s := Settlement{Below: -1}
			switch rng.IntN(10) {
			case 0:
				s.Nacks = []Nack{{Range: one, Delay: time.Duration(rng.IntN(50)) * time.Millisecond}}
			case 1:
				continue // its time will be over
			default:
				s.Acks = []seglog.Range{one}
			}
			if err := c.Settle(s); err != nil {
				b.t.Error(err)
			}
			if len(s.Acks) > 0 {
				l.mu.Lock()
				l.acked[o] = true
				l.mu.Unlock()
			}
		}
	}
}
