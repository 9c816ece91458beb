package metatier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/record"
)

// frames is a log of commands in memory.
type frames struct {
	mu      sync.Mutex
	first   uint64
	term    uint32
	entries []writebuf.Entry
	changed chan struct{}
}

func newFrames(before uint64, term uint32) *frames {
	return &frames{first: before + 1, term: term, changed: make(chan struct{})}
}

func (f *frames) Frames(from uint64, _ int) ([]writebuf.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.entries[from-f.first:]), nil
}

func (f *frames) First() uint64 { return f.first }

func (f *frames) Last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first + uint64(len(f.entries)) - 1
}

func (f *frames) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *frames) append(t *testing.T, c meta.Command) uint64 {
	t.Helper()
	b, err := meta.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	batch := record.NewBuilder(record.None)
	if err := batch.Append(record.Record{Value: b}); err != nil {
		t.Fatal(err)
	}
	built, err := batch.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	seq := f.first + uint64(len(f.entries))
	f.entries = append(f.entries, writebuf.Entry{Seq: seq, Frame: segfmt.AppendFrame(nil, segfmt.KindData, 0, seq, int64(seq), f.term, built)})
	close(f.changed)
	f.changed = make(chan struct{})
	return seq
}

func topicOf(name string) meta.CreateTopic {
	id := meta.TopicID{1}
	copy(id[1:], name)
	return meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: name}, ID: id, TimeMs: 1, Partitions: 2, Dispatch: meta.Reliable}
}

// metadataIn are the parts of a write buffer in memory.
func metadataIn(m *writebuf.Mem) *Buffers {
	return &Buffers{Log: m.Buffer(idOf(0)), Snapshots: m.Buffer(idOf(1)), Cluster: "c"}
}

func idOf(n uint32) writebuf.ID { return writebuf.ID{Topic: [16]byte{9}, Partition: n} }

// confirming returns a broker's Confirmer, started and enabled. It is stopped with the test.
func (b *broker) confirming(degrade bool) *Confirmer {
	b.t.Helper()
	c := NewConfirmer(ConfirmerConfig{Buffers: *b.bufs, Dir: "/" + b.name, Log: b.log, Source: b, Degrade: degrade, Entries: 20, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))})
	if err := c.Check(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	c.Start()
	c.Enable()
	return c
}

// propose does what a group of one does: append, wait, apply.
func (b *broker) propose(c *Confirmer, cmd meta.Command) error {
	b.t.Helper()
	seq := b.log.append(b.t, cmd)
	if err := c.Confirm(seq); err != nil {
		return err
	}
	_, err := b.state.Propose(context.Background(), cmd)
	return err
}

func stopped(t *testing.T, c *Confirmer) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// Whatever was confirmed is found again by a broker with nothing, however far the snapshot is behind; and the one before
// is shut out.
func TestTakeOverFromTheWriteBuffer(t *testing.T) {
	for _, n := range []int{0, 1, 5, 50} {
		synctest.Test(t, func(t *testing.T) {
			mem := writebuf.NewMem()
			a := newBroker(t, "A", nil)
			a.bufs = metadataIn(mem)
			if taken, err := a.take(t.Context()); err != nil || taken.Found {
				t.Fatalf("%+v, %v", taken, err)
			}
			c := a.confirming(false)
			for i := range n {
				if err := a.propose(c, topicOf(fmt.Sprint("t", i))); err != nil {
					t.Fatal(err)
				}
				if i%7 == 0 {
					time.Sleep(11 * time.Second) // a new snapshot, where one is due
				}
			}
			b := newBroker(t, "B", nil)
			b.bufs = metadataIn(mem)
			taken, err := b.take(t.Context())
			if err != nil || taken.Holes || taken.Topics != n {
				t.Fatalf("%+v, %v", taken, err)
			}
			for i := range n {
				if g := b.generation(fmt.Sprint("t", i)); g != 2 {
					t.Errorf("%d: topic %d has generation %d", n, i, g)
				}
			}
			if err := a.propose(c, topicOf("late")); fault.KindOf(err) != fault.OutcomeUnknown {
				t.Errorf("the old one goes on: %v", err)
			}
			<-c.Fenced()
			var out *ShutOutError
			if !errors.As(c.Err(), &out) || c.Refused() == nil {
				t.Errorf("%v", c.Err())
			}
			stopped(t, c)
			again := NewConfirmer(ConfirmerConfig{Buffers: *a.bufs, Dir: "/A", Log: a.log, Source: a})
			if err := again.Check(t.Context()); !errors.As(err, &out) {
				t.Errorf("it starts again: %v", err)
			}
			d := b.confirming(false)
			if err := b.propose(d, topicOf("more")); err != nil {
				t.Error(err)
			}
			stopped(t, d)
			third := newBroker(t, "C", nil)
			third.bufs = metadataIn(mem)
			if taken, err := third.take(t.Context()); err != nil || taken.Topics != n+1 || third.generation("more") != 2 {
				t.Errorf("%+v, %v", taken, err)
			}
		})
	}
}

// A process that dies at any change of the write buffer, made or not, is followed by one that has everything.
func TestTakeOverFromTheWriteBufferCrashesAnywhere(t *testing.T) {
	states := 0
	for at := 1; ; at++ {
		reached := false
		for _, made := range []bool{false, true} {
			for _, withStore := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					mem, store := writebuf.NewMem(), objstore.Store(nil)
					if withStore {
						store = objstore.NewMem()
					}
					a := newBroker(t, "A", store)
					a.bufs = metadataIn(mem)
					if _, err := a.take(t.Context()); err != nil {
						t.Fatal(err)
					}
					c := a.confirming(false)
					for i := range 5 {
						if err := a.propose(c, topicOf(fmt.Sprint("t", i))); err != nil {
							t.Fatal(err)
						}
					}
					stopped(t, c)
					ctx, cancel := context.WithCancel(t.Context())
					n := 0
					mem.Fail = func(string, writebuf.ID) (bool, error) {
						if n++; n >= at {
							reached = true
							cancel()
							return made && n == at, errCrash
						}
						return false, nil
					}
					b := newBroker(t, "B", store)
					b.bufs = metadataIn(mem)
					_, err := b.take(ctx)
					if err == nil {
						d := NewConfirmer(ConfirmerConfig{Buffers: *b.bufs, Dir: "/B", Log: b.log, Source: b})
						d.Start()
						d.Enable()
						synctest.Wait()
						stopped(t, d)
					}
					cancel()
					mem.Fail = nil
					last := newBroker(t, "C", store)
					if at%2 == 0 {
						last = b // it is the same directory
						last.name = "B"
					}
					last.bufs = metadataIn(mem)
					if last.claim == nil || last.claim.State == Taking {
						if taken, err := last.take(t.Context()); err != nil || taken.Holes || taken.Topics != 5 {
							t.Fatalf("change %d, made %v, store %v: %+v, %v", at, made, withStore, taken, err)
						}
					}
					for i := range 5 {
						if g := last.generation(fmt.Sprint("t", i)); g < 2 {
							t.Errorf("change %d, made %v, store %v: topic %d has generation %d", at, made, withStore, i, g)
						}
					}
					e := last.confirming(false)
					if err := last.propose(e, topicOf("more")); err != nil {
						t.Errorf("change %d, made %v, store %v: %v", at, made, withStore, err)
					}
					stopped(t, e)
					states++
				})
			}
		}
		if !reached {
			break
		}
	}
	t.Logf("%d states", states)
	if states < 20 {
		t.Error("too few")
	}
}

// Changes wait while the write buffer is away, are refused once that shows, and are confirmed when it is back; whoever
// chose so goes on without it.
func TestAWriteBufferThatIsAway(t *testing.T) {
	for _, degrade := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := writebuf.NewMem()
			var away atomic.Bool
			mem.Fail = func(string, writebuf.ID) (bool, error) {
				if away.Load() {
					return false, writebuf.ErrUnavailable
				}
				return false, nil
			}
			a := newBroker(t, "A", nil)
			a.bufs = metadataIn(mem)
			if _, err := a.take(t.Context()); err != nil {
				t.Fatal(err)
			}
			c := a.confirming(degrade)
			if err := a.propose(c, topicOf("one")); err != nil {
				t.Fatal(err)
			}
			away.Store(true)
			began := time.Now()
			done := make(chan error, 1)
			go func() { done <- a.propose(c, topicOf("two")) }()
			if degrade {
				if err := <-done; err != nil || time.Since(began) > 6*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if err := a.propose(c, topicOf("three")); err != nil || c.Problem() == "" || c.Refused() != nil {
					t.Errorf("%v, %q, %v", err, c.Problem(), c.Refused())
				}
			} else {
				time.Sleep(7 * time.Second)
				if fault.KindOf(c.Refused()) != fault.Unavailable || c.Problem() == "" || a.generation("two") != 0 {
					t.Errorf("%v, %q", c.Refused(), c.Problem())
				}
			}
			away.Store(false)
			if !degrade {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			time.Sleep(5 * time.Second)
			if c.Refused() != nil || c.Problem() != "" {
				t.Errorf("%v, %q", c.Refused(), c.Problem())
			}
			if err := a.propose(c, topicOf("four")); err != nil {
				t.Error(err)
			}
			stopped(t, c)
			b := newBroker(t, "B", nil)
			b.bufs = metadataIn(mem)
			if taken, err := b.take(t.Context()); err != nil || taken.Topics != a.View().TopicCount() {
				t.Errorf("%+v, %v", taken, err)
			}
		})
	}
}

// letLook lets a look at the snapshot come, in a bubble of testing/synctest.
func letLook() { <-time.After(11 * time.Second) }

// A write buffer that forgets everything, or the snapshot, or entries, at any time, has all again with the next change or
// soon after.
func TestAWriteBufferThatForgets(t *testing.T) {
	for what, lose := range map[string]func(m *writebuf.Mem){
		"all":      func(m *writebuf.Mem) { m.Lose(idOf(0)); m.Lose(idOf(1)) },
		"log":      func(m *writebuf.Mem) { m.Lose(idOf(0)) },
		"snapshot": func(m *writebuf.Mem) { m.Lose(idOf(1)); letLook() },
		"a piece":  func(m *writebuf.Mem) { m.Lose(idOf(1), 1, 3, 5); letLook() },
		"an entry": func(m *writebuf.Mem) { m.Lose(idOf(0), 24); letLook() },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := writebuf.NewMem()
				a := newBroker(t, "A", nil)
				a.bufs = metadataIn(mem)
				if _, err := a.take(t.Context()); err != nil {
					t.Fatal(err)
				}
				c := a.confirming(false)
				for i := range 25 {
					if err := a.propose(c, topicOf(fmt.Sprint("t", i))); err != nil {
						t.Fatal(err)
					}
					if i == 22 {
						time.Sleep(11 * time.Second) // a snapshot
					}
				}
				lose(mem)
				if err := a.propose(c, topicOf("after")); err != nil {
					t.Fatal(err)
				}
				stopped(t, c)
				b := newBroker(t, "B", nil)
				b.bufs = metadataIn(mem)
				if taken, err := b.take(t.Context()); err != nil || taken.Topics != 26 || taken.Holes {
					t.Errorf("%+v, %v", taken, err)
				}
			})
		})
	}
}
