package subscription

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// What is acknowledged is saved within a second, nothing is saved twice, and what failed is saved again with what came
// since.
func TestAcksAreSaved(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		b.log.add(record.None, "0", "1", "2", "3", "4", "5")
		c := b.join(Member{Name: "c"})
		b.next(c)
		b.ack(c, seglog.Range{From: 0, To: 1}, seglog.Range{From: 3, To: 3})
		<-time.After(1100 * time.Millisecond)
		s, n := b.store.last()
		if n != 1 || s.Position != 2 || len(s.Blocks) != 1 || s.Epoch != 1 || s.Created != 1 {
			t.Fatalf("%d saves, %+v", n, s)
		}
		<-time.After(time.Minute)
		if _, n := b.store.last(); n != 1 {
			t.Fatalf("%d saves of nothing", n-1)
		}
		failed := errors.New("no")
		b.store.set(failed, nil)
		b.ack(c, seglog.Range{From: 2, To: 2}, seglog.Range{From: 5, To: 5})
		if err := b.run.Save(b.t.Context()); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		b.store.set(nil, nil)
		<-time.After(1100 * time.Millisecond)
		if s, n := b.store.last(); n != 2 || s.Position != 4 || len(s.Blocks) != 1 {
			t.Fatalf("%d saves, %+v", n, s)
		}
	})
}

// What is settled, and where is sought to, while a save is under way.
func TestSaveUnderWay(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		b.log.add(record.None, "0", "1", "2", "3", "4")
		c := b.join(Member{Name: "c"})
		b.next(c)
		during := func(do func()) {
			held := make(chan struct{})
			b.store.set(nil, held)
			done := make(chan error)
			go func() { done <- b.run.Save(b.t.Context()) }()
			synctest.Wait()
			do()
			b.store.set(nil, nil)
			close(held)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		b.ack(c, seglog.Range{From: 0, To: 0})
		during(func() { b.ack(c, seglog.Range{From: 1, To: 1}) })
		if err := b.run.Save(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, _ := b.store.last(); s.Position != 2 {
			t.Fatalf("%+v", s)
		}
		b.ack(c, seglog.Range{From: 2, To: 3})
		during(func() { b.run.SeekTo(1, 2) })
		b.within(0, c, "1=1 2=2 3=3 4=4")
		b.ack(c, seglog.Range{From: 1, To: 1}, seglog.Range{From: 4, To: 4})
		if err := b.run.Save(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, _ := b.store.last(); s.Epoch != 2 || s.Position != 2 || len(s.Blocks) != 1 {
			t.Fatalf("%+v", s)
		}
	})
}

// Seeks side by side reach the Run in any order: the one that the metadata has last counts, and what is acknowledged after
// it is saved as of it. One that the Run began with takes nothing back.
func TestSeeksOutOfOrder(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		b.log.add(record.None, "0", "1", "2", "3", "4")
		c := b.join(Member{Name: "c"})
		b.next(c)
		b.run.SeekTo(3, 3)
		b.run.SeekTo(1, 2)
		b.within(0, c, "3=3 4=4")
		b.ack(c, seglog.Range{From: 3, To: 3})
		b.run.SeekTo(3, 3)
		if err := b.run.Save(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, _ := b.store.last(); s.Epoch != 3 || s.Position != 4 {
			t.Fatalf("%+v", s)
		}
		b.nothing(c, time.Second)
	})
}

// A dead letter is settled once it is buried and not before; what fails is tried again after the backoff, and a seek
// takes everything back.
func TestBury(t *testing.T) {
	conf := dispatch.Config{Type: dispatch.Shared, MaxDeliveries: 1, Backoff: dispatch.Backoff{Base: time.Second}}
	with(t, conf, func(b *bench) {
		b.log.add(record.LZ4, "0", "1", "2", "3")
		b.log.add(record.None, "4")
		b.bury = func(l Letter) error {
			if b.run.State().Position != 0 {
				t.Error("settled before it is buried")
			}
			if l.Offset == 2 {
				return errors.New("no")
			}
			return nil
		}
		c := b.join(Member{Name: "c"})
		for b.run.State().Stats.InFlightMessages < 5 {
			b.next(c)
		}
		b.nack(c, 0, 3, 0)
		synctest.Wait()
		if p := b.run.State().Position; p != 2 || len(b.buried()) != 2 || b.run.Retire() {
			t.Fatalf("position %d, %d buried", p, len(b.buried()))
		}
		b.mu.Lock()
		b.bury = nil
		b.mu.Unlock()
		<-time.After(5 * time.Second)
		l := b.buried()
		if p := b.run.State().Position; p != 4 || len(l) != 4 {
			t.Fatalf("position %d, %d buried", p, len(l))
		}
		for i := range l {
			if l[i].Offset != int64(i) || string(l[i].Record.Value) != itoa(int64(i)) || l[i].Deliveries != 1 || l[i].Reason != "no" || l[i].Topic != "default/a" || l[i].Name != "s" {
				t.Errorf("%+v", l[i])
			}
		}
		// A seek while one is being buried: it counts for nothing.
		held := make(chan struct{})
		b.log.set(func() { b.log.held = held })
		b.nack(c, 4, 4, 0)
		synctest.Wait()
		b.run.SeekTo(0, 2)
		b.log.set(func() { b.log.held = nil })
		close(held)
		synctest.Wait()
		if p := b.run.State().Position; p != 0 {
			t.Errorf("position %d", p)
		}
		b.within(0, c, "0=0 1=1 2=2 3=3 4=4")
	})
}

// What is to be buried and was trimmed meanwhile is done; what cannot be read is not.
func TestBuryWhatIsGone(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared, MaxDeliveries: 1, Backoff: dispatch.Backoff{Base: time.Second}, SkipTrimmed: true}, func(b *bench) {
		b.log.add(record.None, "0")
		b.log.add(record.None, "1")
		c := b.join(Member{Name: "c"})
		for b.run.State().Stats.InFlightMessages < 2 {
			b.next(c)
		}
		b.log.set(func() {
			b.log.oldest = 1
			b.log.readErr = func(from int64) error {
				if from == 1 {
					return fault.New(fault.Stopped, "EIO")
				}
				return nil
			}
		})
		b.nack(c, 0, 1, 0)
		synctest.Wait()
		if p := b.run.State().Position; p != 1 || len(b.buried()) != 0 {
			t.Errorf("position %d, %d buried", p, len(b.buried()))
		}
		b.log.set(func() { b.log.readErr = nil })
		<-time.After(2 * time.Second)
		if p := b.run.State().Position; p != 2 || len(b.buried()) != 1 {
			t.Errorf("position %d, %d buried", p, len(b.buried()))
		}
	})
}

// A Run goes once nobody uses it and everything is saved; whoever comes is either in it or told to look again.
func TestRetire(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		b.log.add(record.None, "0")
		c := b.join(Member{Name: "c"})
		b.next(c)
		b.ack(c, seglog.Range{From: 0, To: 0})
		if b.run.Retire() {
			t.Error("retired with a consumer")
		}
		c.Close()
		if b.run.Retire() {
			t.Error("retired with something to save")
		}
		<-time.After(2 * time.Second)
		var wg sync.WaitGroup
		var retired bool
		var joined error
		wg.Go(func() { retired = b.run.Retire() })
		wg.Go(func() { c, joined = b.run.Join(b.t.Context(), Member{Name: "d"}) })
		wg.Wait()
		if retired == (joined == nil) || joined != nil && !Retired(joined) {
			t.Errorf("retired %v, joined %v", retired, joined)
		}
		if joined != nil {
			if err := b.run.Settle(Settlement{Below: 1}); !Retired(err) {
				t.Error(err)
			}
			if err := b.run.Discharge(seglog.Range{From: 1, To: 1}); !Retired(err) {
				t.Error(err)
			}
		}
	})
}

// The end comes to whoever waits, also while the source reads, and to nobody twice.
func TestEnd(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		over := fault.New(fault.Deleted, "gone")
		c, d := b.join(Member{Name: "c"}), b.join(Member{Name: "d"})
		b.nothing(d, time.Second)
		held := make(chan struct{})
		b.log.set(func() { b.log.held = held })
		b.log.add(record.None, "0")
		errs := make(chan error)
		go func() { _, err := c.Next(b.t.Context(), 1); errs <- err }()
		synctest.Wait()
		d.Close()
		b.fails(d, fault.Canceled)
		b.run.End(over)
		if err := <-errs; !errors.Is(err, over) {
			t.Error(err)
		}
		b.run.End(errors.New("another"))
		if err := c.Settle(Settlement{Below: 1}); !errors.Is(err, over) {
			t.Error(err)
		}
		if _, err := b.run.Join(b.t.Context(), Member{Name: "e"}); !errors.Is(err, over) {
			t.Error(err)
		}
		c.Close()
		c.Heartbeat()
		b.log.set(func() { b.log.held = nil })
		close(held)
	})
}
