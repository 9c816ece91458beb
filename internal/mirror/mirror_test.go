package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLog is a log of frames that say their ordinal.
type fakeLog struct {
	mu          sync.Mutex
	first, last uint64
	floor       uint64
	salt        string
	wake        chan struct{}
}

func newFakeLog() *fakeLog { return &fakeLog{first: 1, floor: 1, wake: make(chan struct{})} }

func (l *fakeLog) frame(seq uint64) []byte { return fmt.Appendf(nil, "frame %d %s", seq, l.salt) }

func (l *fakeLog) change(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
	close(l.wake)
	l.wake = make(chan struct{})
}

func (l *fakeLog) grow(n int) { l.change(func() { l.last += uint64(n) }) }

func (l *fakeLog) Frames(from uint64, maxBytes int, memory func(int) []byte) (list []writebuf.Entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < l.first {
		return nil, fault.New(fault.Trimmed, "seq %d, the oldest is %d", from, l.first)
	}
	for size := 0; from <= l.last && (len(list) == 0 || size < maxBytes) && len(list) < 7; from++ {
		frame := l.frame(from)
		if memory != nil { // as much as is used again
			frame = append(memory(smallPage)[:0], frame...)
		}
		list = append(list, writebuf.Entry{Seq: from, Frame: frame})
		size += len(list[len(list)-1].Frame)
	}
	return list, nil
}

func (l *fakeLog) number(n *uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *n
}

func (l *fakeLog) First() uint64 { return l.number(&l.first) }
func (l *fakeLog) Last() uint64  { return l.number(&l.last) }
func (l *fakeLog) Floor() uint64 { return l.number(&l.floor) }

func (l *fakeLog) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wake
}

var testID = writebuf.ID{Topic: [16]byte{1}, Partition: 3}

type rig struct {
	t     *testing.T
	log   *fakeLog
	store *writebuf.Mem
	group *task.Group
	*Mirror
}

func start(t *testing.T, l *fakeLog, store *writebuf.Mem, generation uint32, notify func(State)) *rig {
	g := task.NewGroup(context.Background())
	m := New(Config{Name: "default/a/3", Source: l, Buffer: store.Buffer(testID), Generation: generation, Patience: time.Second, Tasks: g, Notify: notify})
	m.Start()
	t.Cleanup(func() {
		m.Stop()
		g.Stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &rig{t, l, store, g, m}
}

// holds checks that the buffer has what the log has, from the log's floor or below it to its end.
func (r *rig) holds() {
	r.t.Helper()
	st, err := r.store.Buffer(testID).Bounds(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	if !st.Whole() || st.Last != r.log.Last() || st.Floor > r.log.Floor() {
		r.t.Fatalf("it holds %+v of a log from %d to %d", st, r.log.Floor(), r.log.Last())
	}
	for seq := max(st.Floor, 1); seq <= st.Last; {
		list, err := r.store.Buffer(testID).Read(context.Background(), seq, writebuf.Limit{})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range list {
			if e.Seq != seq || !bytes.Equal(e.Frame, r.log.frame(seq)) {
				r.t.Fatalf("seq %d: %q where %q was expected", e.Seq, e.Frame, r.log.frame(seq))
			}
			seq++
		}
	}
}

func (r *rig) caughtUp() {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), time.Minute)
	defer stop()
	if err := r.Wait(ctx, r.log.Last()); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	if s := r.State(); !s.Ready || s.Stalled || s.Err != nil || s.Confirmed != r.log.Last() {
		r.t.Fatalf("%+v, the log ends at %d", s, r.log.Last())
	}
	r.holds()
}

func TestFollowsAndTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeLog()
		l.grow(20)
		r := start(t, l, writebuf.NewMem(), 2, nil)
		r.caughtUp()
		l.grow(1)
		r.caughtUp()
		if head := r.State().Head; string(head) != string(l.frame(21)) {
			t.Fatalf("%q", head)
		}
		l.change(func() { l.floor = 15 })
		r.Poke()
		synctest.Wait()
		r.caughtUp()
		if st, _ := r.store.Buffer(testID).Bounds(t.Context()); st.Floor != 15 {
			t.Fatalf("%+v", st)
		}
		r.Stop()

		// Another run of the same owner goes on, without filling it again.
		fills := 0
		r.store.Fail = func(op string, _ writebuf.ID) (bool, error) {
			if op == "append" || op == "reset" {
				fills++
			}
			return false, nil
		}
		r = start(t, l, r.store, 2, nil)
		r.caughtUp()
		if fills != 0 {
			t.Fatalf("%d changes", fills)
		}
	})
}

func TestWhatTheBufferHasOtherwiseIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(*fakeLog, *writebuf.Mem){
		"nothing":        func(_ *fakeLog, s *writebuf.Mem) { s.Lose(testID) },
		"a hole":         func(_ *fakeLog, s *writebuf.Mem) { s.Lose(testID, 5) },
		"other bytes":    func(l *fakeLog, _ *writebuf.Mem) { l.salt = "changed" },
		"more than we":   func(l *fakeLog, _ *writebuf.Mem) { l.last = 12 },
		"a higher floor": func(_ *fakeLog, s *writebuf.Mem) { _ = s.Buffer(testID).Trim(context.Background(), 2, 10) },
		"too old": func(l *fakeLog, _ *writebuf.Mem) {
			l.first, l.floor, l.last = 30, 30, 35 // retention has removed what it was not told of
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, store := newFakeLog(), writebuf.NewMem()
				l.grow(20)
				r := start(t, l, store, 2, nil)
				r.caughtUp()
				r.Stop()
				spoil(l, store)
				start(t, l, store, 3, nil).caughtUp()
			})
		})
		t.Run(name+" meanwhile", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, store := newFakeLog(), writebuf.NewMem()
				l.grow(20)
				r := start(t, l, store, 2, nil)
				r.caughtUp()
				if name == "more than we" || name == "other bytes" || name == "a higher floor" {
					return // a log does not do that while it is open, nor does anybody else trim
				}
				l.change(func() { spoil(l, store) })
				l.grow(3)
				r.caughtUp()
			})
		})
	}
}

func TestStallsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := newFakeLog(), writebuf.NewMem()
		var notes []string
		r := start(t, l, store, 2, func(s State) {
			if note := fmt.Sprint(s.Confirmed, s.Ready, s.Stalled, s.Err != nil); len(notes) == 0 || notes[len(notes)-1] != note {
				notes = append(notes, note)
			}
		})
		r.caughtUp()
		var away atomic.Bool
		store.Fail = func(string, writebuf.ID) (bool, error) {
			if away.Load() {
				return false, writebuf.ErrUnavailable
			}
			return false, nil
		}
		away.Store(true)
		l.grow(1)
		<-time.After(900 * time.Millisecond)
		synctest.Wait()
		if s := r.State(); s.Stalled || s.Err == nil || !errors.Is(s.Err, writebuf.ErrUnavailable) {
			t.Fatalf("%+v", s)
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		if s := r.State(); !s.Stalled || s.Confirmed != 0 {
			t.Fatalf("%+v", s)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := r.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, writebuf.ErrUnavailable) {
			t.Fatal(err)
		}
		away.Store(false)
		r.caughtUp()
		if s := strings.Join(notes, ", "); s != "0 true false false, 0 true false true, 0 true true true, 1 true false false" {
			t.Fatal(s)
		}
	})
}

func TestFencedIsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := newFakeLog(), writebuf.NewMem()
		r := start(t, l, store, 2, nil)
		r.caughtUp()
		if _, err := store.Buffer(testID).Fence(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		l.grow(1)
		if err := r.Wait(t.Context(), 1); fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
		if s := r.State(); !s.Fenced || s.Confirmed != 0 {
			t.Fatalf("%+v", s)
		}
		r.Stop()
		// Nor does one begin that is too late.
		r = start(t, l, store, 2, nil)
		if err := r.Wait(t.Context(), 1); fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
	})
}

// TestThroughEveryFault: a buffer that fails, loses, and answers nothing at random never has the mirror confirm what it does
// not hold, and has everything in the end.
func TestThroughEveryFault(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rnd, dice := rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))
			l, store := newFakeLog(), writebuf.NewMem()
			var mu sync.Mutex
			faulty := true
			store.Fail = func(string, writebuf.ID) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if !faulty {
					return false, nil
				}
				switch dice.IntN(12) {
				case 0:
					return false, writebuf.ErrUnavailable
				case 1:
					return true, writebuf.ErrOutcomeUnknown
				case 2:
					return false, writebuf.ErrOutcomeUnknown
				case 3:
					return true, writebuf.ErrUnconfirmed
				}
				return false, nil
			}
			var lost atomic.Bool
			r := start(t, l, store, 2, func(s State) {
				if lost.Load() || s.Confirmed < l.Floor() {
					return
				}
				st, err := store.Buffer(testID).Bounds(context.Background())
				if err != nil || st.Last < s.Confirmed || !st.Whole() {
					t.Errorf("seed %d: %d is confirmed, and it holds %+v (%v)", seed, s.Confirmed, st, err)
				}
			})
			for range 40 {
				switch rnd.IntN(10) {
				case 0:
					l.change(func() { l.floor = l.floor + uint64(rnd.IntN(int(l.last-l.floor+2))) })
					r.Poke()
				case 1:
					if rnd.IntN(4) == 0 {
						lost.Store(true)
						store.Lose(testID)
					}
				case 2:
					if n := l.Last(); n > 0 && rnd.IntN(4) == 0 {
						lost.Store(true)
						store.Lose(testID, uint64(rnd.IntN(int(n)))+1)
					}
				case 3:
					<-time.After(time.Duration(rnd.IntN(300)) * time.Millisecond)
				default:
					l.grow(rnd.IntN(30))
				}
				synctest.Wait()
			}
			mu.Lock()
			faulty = false
			mu.Unlock()
			l.grow(1) // a loss shows with the next frame
			r.caughtUp()
		})
	}
}

// TestEmptiedWhereOnlyThatHelps: a server whose stream once had entries that its record does not know of looks whole, and
// takes nothing until it is emptied.
func TestEmptiedWhereOnlyThatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := newFakeLog(), writebuf.NewMem()
		l.grow(20)
		r := start(t, l, store, 2, nil)
		r.caughtUp()
		emptied := false
		l.change(func() {
			store.Fail = func(op string, id writebuf.ID) (bool, error) {
				emptied = emptied || op == "reset"
				if op == "append" && !emptied {
					return false, &writebuf.LostError{ID: id, Seq: 21, Next: 1, Reset: true}
				}
				return false, nil
			}
		})
		l.grow(3)
		r.caughtUp()
	})
}
