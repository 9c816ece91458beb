package dispatch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"pgregory.net/rapid"
)

// drawer draws from 0 to n-1.
type drawer func(n int) int

func (draw drawer) config() Config {
	pick := func(list ...int) int { return list[draw(len(list))] }
	cfg := Config{
		Type:          Type(draw(4)),
		AtMostOnce:    draw(8) == 1,
		AckTimeout:    time.Duration(pick(0, 1, 10)) * time.Second,
		MaxDeliveries: int32(pick(0, 0, 1, 2, 5)),
		Backoff:       Backoff{time.Duration(pick(0, 200)) * time.Millisecond, 5 * time.Second, draw(2) == 0},
		Poison:        Poison(draw(3)),
		Consumer:      Window{pick(1000, 3, 10), int64(pick(1<<20, 15, 75))},
		Total:         Window{pick(1000, 7, 20), int64(pick(1<<20, 105))},
		KeyInFlight:   pick(0, 1, 3),
		MaxDelayed:    pick(1000, 1, 4),
		MaxSpan:       int64(pick(100_000, 20)),
		SkipTrimmed:   draw(2) == 0,
	}
	if cfg.AtMostOnce {
		cfg.MaxDeliveries = 0
	}
	if cfg.Type != KeyShared && draw(2) == 0 {
		cfg.LookAhead = Window{5, 100}
	}
	return cfg.WithDefaults()
}

// modelRun drives a dispatcher and the model.
type modelRun struct {
	m    *model
	s    *shell
	draw drawer
	ids  ConsumerID
	keys int
}

func newModelRun(draw drawer) *modelRun {
	cfg := draw.config()
	s := newShell(cfg)
	s.most = 1 + draw(30)
	return &modelRun{m: &model{cfg: cfg, s: s, failed: -1, now: s.now}, s: s, draw: draw, keys: 1 + draw(6)}
}

func (r *modelRun) publish() {
	if len(r.m.open()) > 100 {
		return
	}
	n, key, due := 1, "", int64(0)
	switch r.draw(4) {
	case 0:
		n = 1 + r.draw(12)
	case 1:
		due = r.s.now.WallMs + []int64{1, 500, 5000, 50_000, 100_000, 300_000}[r.draw(6)]
	}
	if r.m.cfg.Type == KeyShared && r.draw(4) > 0 {
		n, key = 1, fmt.Sprintf("k%d", r.draw(r.keys))
	}
	from := r.s.end
	r.s.publish(n, msgSize, key, due)
	for off := from; off < r.s.end; off++ {
		r.m.msgs = append(r.m.msgs, &msg{off: off, key: key, due: due})
	}
}

func (r *modelRun) someone() ConsumerID {
	if n := len(r.m.consumers); n > 0 && r.draw(20) > 0 {
		return r.m.consumers[r.draw(n)].id
	}
	return ConsumerID(1 + r.draw(int(r.ids)+2))
}

// ranges are mostly of what is open.
func (r *modelRun) ranges() (out []cursor.Range) {
	for range 1 + r.draw(2) {
		from := r.m.position + int64(r.draw(40))
		switch r.draw(12) {
		case 0:
			from = int64(r.draw(len(r.m.msgs) + 5))
		case 1, 2, 3, 4:
			from = r.m.position + int64(r.draw(4))
		}
		out = append(out, cursor.Range{From: from, To: from + int64([]int{0, 0, 0, 1, 7, 30}[r.draw(6)])})
	}
	return out
}

func (r *modelRun) event() Event {
	e := Event{Kind: Tick, Delay: -1}
	if r.m.stopped() && r.draw(15) == 0 { // nobody leaves a subscription like that
		return Event{Kind: Seek, Offset: min(r.m.position+int64(r.draw(4)), r.s.end)}
	}
	switch kind := r.draw(100); {
	case kind < 35:
		return Event{Kind: Ask, Consumer: r.someone(), Bytes: int64([]int{1000, 1, 10, 35, 95}[r.draw(5)])}
	case kind < 60:
		return Event{Kind: Ack, Ranges: r.ranges()}
	case kind < 63:
		return Event{Kind: AckBelow, Offset: r.m.position + int64(r.draw(20))}
	case kind < 72:
		e.Kind, e.Ranges = Nack, r.ranges()
		e.Delay = []time.Duration{-1, 0, time.Millisecond, 3 * time.Second}[r.draw(4)]
		if r.draw(3) == 0 {
			e.Consumer = r.someone()
		}
	case kind < 77:
		return r.joining()
	case kind < 80:
		return Event{Kind: Leave, Consumer: r.someone()}
	case kind < 83:
		return Event{Kind: Heartbeat, Consumer: r.someone()}
	case kind < 84:
		return Event{Kind: Unask, Consumer: r.someone()}
	case kind < 89:
		return Event{Kind: Poisoned, Ranges: r.ranges(), Failed: r.draw(3) == 0}
	case kind < 90 && r.draw(2) == 0:
		return Event{Kind: Seek, Offset: min(max(0, r.m.position+int64(r.draw(30))-20), r.s.end)}
	case kind < 91 && r.draw(2) == 0:
		from := r.m.position + int64(r.draw(40))
		return Event{Kind: Lost, Ranges: []cursor.Range{{From: from, To: min(from+int64(r.draw(20)), r.s.end-1)}}}
	case kind < 92 && r.draw(3) == 0:
		return Event{Kind: Trimmed, Offset: min(r.m.position+int64(r.draw(5)), r.s.end)}
	case kind < 93:
		cfg := r.draw.config()
		cfg.Type, cfg.AtMostOnce, cfg.LookAhead = r.m.cfg.Type, r.m.cfg.AtMostOnce, r.m.cfg.LookAhead
		if cfg.AtMostOnce {
			cfg.MaxDeliveries = 0
		}
		return Event{Kind: Reconfigure, Config: &cfg}
	}
	return e
}

func (r *modelRun) joining() Event {
	if len(r.m.consumers) >= 6 {
		return Event{Kind: Tick}
	}
	r.ids++
	m := Member{Name: string(rune('a' + r.draw(8))), Priority: int32(r.draw(3))}
	if r.draw(4) == 0 {
		m.Window.Messages = 2
	}
	if r.m.cfg.Type == KeyShared && r.draw(4) == 0 {
		m.Filters = []string{fmt.Sprintf("k[0-%d]", r.draw(6)), "k9"}
	}
	return Event{Kind: Join, Consumer: r.ids, Member: m}
}

func (r *modelRun) restart() {
	set, err := cursor.NewSet(r.s.d.Set().State())
	if err != nil {
		r.m.fail("restart: %v", err)
		return
	}
	r.s.d = New(r.m.cfg, set, r.s.d.Counts(1000))
	r.m.restart()
}

func (r *modelRun) step(i int) error {
	if r.draw(3) == 0 {
		wait := time.Duration([]int{1, 1, 100, 1000, 7000, 60_000}[r.draw(6)]) * time.Millisecond
		r.s.now.Mono += wait
		r.s.now.WallMs += wait.Milliseconds()
		if err := r.give(i, Event{Kind: Tick}); err != nil { // what time brings is seen by itself
			return err
		}
	}
	if r.draw(3) == 0 {
		r.publish()
	}
	if r.draw(400) == 1 {
		r.restart()
	}
	return r.give(i, r.event())
}

func (r *modelRun) give(i int, e Event) error {
	before := r.m.position
	r.m.elapse(r.s.now)
	r.m.event(&e)
	effects := r.s.effects(e)
	for i := range effects {
		r.m.effect(&effects[i])
	}
	r.m.rest()
	if r.m.position < before && e.Kind != Seek || r.s.d.set.Position() > r.s.end && e.Kind != Seek && e.Kind != Lost {
		r.m.fail("position %d after %d of %d", r.s.d.set.Position(), before, r.s.end)
	}
	if r.m.err == nil && i%50 == 0 {
		r.m.err = r.s.d.audit()
	}
	if r.m.err != nil {
		return fmt.Errorf("step %d, %+v, type %d: %v: %w\n%+v\n%+v, position %d, next %d, saved %v", i, e, r.m.cfg.Type, r.s.texts(effects), r.m.err,
			r.m.cfg, r.s.d.Stats(), r.s.d.set.Position(), r.s.d.next, r.s.d.saved)
	}
	return nil
}

// TestModel runs dispatchers of all types and many configurations through faults of consumers: crashes, stalls, what is
// acknowledged twice, late, out of order, or never handed out. Small runs that shrink well, then long ones.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.Uint16()
		r := newModelRun(func(n int) int { return int(g.Draw(t, "d")) % n })
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if err := r.step(i); err != nil {
				t.Fatal(err)
			}
		}
	})
	seeds, steps := 50, 10_000
	if testing.Short() {
		seeds, steps = 8, 1500
	}
	first := uint64(1)
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, seeds = seed, 1
	}
	var delivered, redelivered, poisoned, expired int
	start := time.Now()
	for seed := first; seed < first+uint64(seeds); seed++ {
		random := rand.New(rand.NewPCG(seed, 7))
		r := newModelRun(random.IntN)
		for i := range steps {
			if err := r.step(i); err != nil {
				t.Fatalf("LEVEE_SEED=%d repeats it: %v", seed, err)
			}
		}
		delivered += r.m.delivered
		redelivered += r.m.redelivered
		poisoned += r.m.poisoned
		expired += r.m.expired
	}
	t.Logf("%d x %d steps in %v: %d handed out, %d of them again, %d expired, %d poisoned", seeds, steps, time.Since(start), delivered, redelivered, expired, poisoned)
	if total := seeds * steps; seeds > 5 && (delivered < total/4 || redelivered < total/40 || poisoned < total/100 || expired < total/40) {
		t.Error("that is too little to show anything")
	}
}
