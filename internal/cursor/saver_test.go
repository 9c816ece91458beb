package cursor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted is a store that keeps what was proposed, and fails where it is told to.
type counted struct {
	meta.Store
	mu       sync.Mutex
	commands []meta.SaveCursors
	fail     error
	slow     time.Duration
}

func (c *counted) Propose(ctx context.Context, p meta.Command) (meta.Result, error) {
	if err := ctx.Err(); err != nil {
		return meta.Result{}, err
	}
	if c.slow > 0 {
		<-time.After(c.slow)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return meta.Result{}, c.fail
	}
	c.commands = append(c.commands, p.(meta.SaveCursors))
	return meta.Result{}, nil
}

func (c *counted) set(fail error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fail
}

// position is a cursor that is only a number.
type position struct {
	mu           sync.Mutex
	name         string
	at, saved    int64
	taken, dones int
	blocks       int
}

func (p *position) Take() (meta.CursorSave, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == p.saved {
		return meta.CursorSave{}, false
	}
	p.taken++
	s := meta.CursorSave{Subscription: p.name, Position: p.at}
	for i := range p.blocks {
		s.Blocks = append(s.Blocks, meta.AckBlock{Number: int64(i), Bits: make([]byte, 500)})
	}
	return s, true
}

func (p *position) Done(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dones++
	if err == nil {
		p.saved = p.at
	}
}

// counts returns what became of the cursor so far.
func (p *position) counts() (taken, dones int, saved int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, p.dones, p.saved
}

func rig(t *testing.T) (*counted, *Saver) {
	store := &counted{}
	s := NewSaver(store, time.Second, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return store, s
}

func TestManyCursorsShareACommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		var all []*position
		for i := range 500 {
			p := &position{name: fmt.Sprint("s", i), at: 1}
			all = append(all, p)
			s.Dirty(p)
		}
		for range 50 { // again and again within the second
			<-time.After(10 * time.Millisecond)
			for _, p := range all {
				p.at++
				s.Dirty(p)
			}
		}
		<-time.After(600 * time.Millisecond)
		synctest.Wait()
		if len(store.commands) != 1 || len(store.commands[0].Cursors) != 500 {
			t.Fatalf("%d commands", len(store.commands))
		}
		for _, p := range all {
			if p.saved != 51 {
				t.Fatalf("%+v", p)
			}
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(store.commands) != 1 {
			t.Fatalf("%d commands though nothing changed", len(store.commands))
		}
	})
}

func TestLargeCursorsAreParted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		for i := range 10 {
			s.Dirty(&position{name: fmt.Sprint(i), at: 1, blocks: 100})
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(store.commands); n < 4 || n > 6 {
			t.Fatalf("%d commands", n)
		}
	})
}

func TestWhoWaitsIsServedAtOnceAndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		store.slow = 100 * time.Millisecond
		began := time.Now()
		done := make(chan error)
		for i := range 20 {
			p := &position{name: fmt.Sprint(i), at: 1}
			go func() {
				err := s.Save(t.Context(), p)
				if p.saved != 1 {
					err = errors.New("not saved")
				}
				done <- err
			}()
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 200*time.Millisecond || len(store.commands) > 2 {
			t.Fatalf("%v, %d commands", took, len(store.commands))
		}
	})
}

func TestSavesThatFailAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		noRoom := errors.New("no room")
		store.set(noRoom)
		p := &position{name: "s", at: 1}
		if err := s.Save(t.Context(), p); !errors.Is(err, noRoom) {
			t.Fatal(err)
		}
		<-time.After(5500 * time.Millisecond)
		if taken, dones, _ := p.counts(); taken < 5 || taken > 7 || dones != taken {
			t.Fatalf("taken %d times, told %d", taken, dones)
		}
		store.set(nil)
		<-time.After(1100 * time.Millisecond)
		if _, _, saved := p.counts(); saved != 1 {
			t.Fatalf("saved at %d", saved)
		}
	})
}

func TestSaveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		store.slow = time.Hour
		go func() { _ = s.Flush(t.Context()) }() // nothing is dirty: it does not hold the turn for long
		p := &position{name: "s", at: 1}
		go func() { _ = s.Save(t.Context(), p) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Save(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		<-time.After(2 * time.Hour)
	})
}

// Who gives up takes nobody along: those that waited for the same round make another one.
func TestOthersOutliveWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := rig(t)
		s.turn.Try()
		p := &position{name: "a", at: 1}
		saved, flushed := make(chan error), make(chan error)
		go func() { saved <- s.Save(t.Context(), p) }()
		go func() { flushed <- s.Flush(t.Context()) }()
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		s.round(gone, nil)
		s.turn.Give()
		if err := errors.Join(<-saved, <-flushed); err != nil || len(store.commands) != 1 {
			t.Errorf("%v, %d commands", err, len(store.commands))
		}
	})
}
