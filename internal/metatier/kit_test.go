package metatier

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hooked is a store whose every call is told of, before and after it does something.
type hooked struct {
	objstore.Store
	n      int
	before func(n int) error
	after  func(n int) error
}

func (h *hooked) around(do func() error) error {
	h.n++
	n := h.n
	if h.before != nil {
		if err := h.before(n); err != nil {
			return err
		}
	}
	err := do()
	if h.after != nil {
		if lost := h.after(n); lost != nil {
			return lost
		}
	}
	return err
}

func (h *hooked) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (info objstore.Info, err error) {
	err = h.around(func() (err error) { info, err = h.Store.PutIfAbsent(ctx, key, src); return err })
	return info, err
}

func (h *hooked) PutIfMatch(ctx context.Context, key string, v objstore.Version, src objstore.Source) (info objstore.Info, err error) {
	err = h.around(func() (err error) { info, err = h.Store.PutIfMatch(ctx, key, v, src); return err })
	return info, err
}

func (h *hooked) Get(ctx context.Context, key string, off, n int64) (body *objstore.Body, err error) {
	err = h.around(func() (err error) { body, err = h.Store.Get(ctx, key, off, n); return err })
	return body, err
}

func (h *hooked) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	err = h.around(func() (err error) { info, err = h.Store.Head(ctx, key); return err })
	return info, err
}

func (h *hooked) Delete(ctx context.Context, key string) error {
	return h.around(func() error { return h.Store.Delete(ctx, key) })
}

func (h *hooked) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := h.around(func() error { return nil }); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		h.Store.List(ctx, prefix, after)(yield)
	}
}

// broker is a data directory and what runs on it.
type broker struct {
	t      *testing.T
	name   string
	place  Place
	bufs   *Buffers // nil: none
	claim  *Claim
	state  *meta.Memory
	term   uint32
	epoch  uint64
	starts byte
	ids    uint64
	keeper *Keeper
	log    *frames
}

func newBroker(t *testing.T, name string, store objstore.Store) *broker {
	t.Helper()
	return &broker{t: t, name: name, place: Place{Store: store, Prefix: "some/prefix", Cluster: "c"}}
}

// Claim implements Notes.
func (b *broker) Claim() (Claim, bool, error) {
	if b.claim == nil {
		return Claim{}, false, nil
	}
	return *b.claim, true, nil
}

// Note implements Notes.
func (b *broker) Note(c Claim) error {
	b.claim = &c
	return nil
}

func (b *broker) newID() (id ID) {
	b.ids++
	copy(id[:], b.name)
	binary.BigEndian.PutUint64(id[8:], b.ids)
	return id
}

func (b *broker) self() Self {
	return Self{Run: ID{0xff, b.name[0], b.starts}, Broker: "1", Who: "host:/" + b.name, Dir: "/" + b.name}
}

// take takes the cluster's data over, as a new process does.
func (b *broker) take(ctx context.Context) (Taken, error) {
	b.starts++
	b.state, b.term, b.keeper = nil, 1, nil
	t := &Taker{Place: b.place, Self: b.self(), Buffers: b.bufs, Notes: b, NewID: b.newID, Now: time.Now, Logger: obs.Logger(nil), Install: func(snapshot []byte) error {
		c, err := raft.ParseCopy(snapshot)
		if err != nil {
			return err
		}
		b.term = c.Term
		if b.state, err = meta.NewMemoryFrom(c.Payload); err == nil {
			b.log = newFrames(c.Seq, c.Term)
		}
		return err
	}}
	taken, err := t.Take(ctx)
	if err == nil && b.state == nil {
		b.state, b.log = meta.NewMemory(), newFrames(0, 1)
	}
	b.epoch = taken.Epoch
	return taken, err
}

// View implements Source.
func (b *broker) View() *meta.View { return b.state.View() }

// Changed implements Source.
func (b *broker) Changed() <-chan struct{} { return b.state.Changed() }

// Term implements Source.
func (b *broker) Term() uint32 { return b.term }

func (b *broker) keep() *Keeper {
	b.keeper = NewKeeper(KeeperConfig{Place: b.place, Self: b.self(), Claim: b.claim.ID, Source: b, NewID: b.newID, Now: time.Now})
	return b.keeper
}

// create makes a topic.
func (b *broker) create(topic string) {
	b.t.Helper()
	id := meta.TopicID{1}
	copy(id[1:], topic)
	c := meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: topic}, ID: id, TimeMs: 1, Partitions: 2, Dispatch: meta.Reliable}
	if _, err := b.state.Propose(context.Background(), c); err != nil {
		b.t.Fatal(err)
	}
}

// generation returns that of a topic, 0 where there is no such topic.
func (b *broker) generation(topic string) uint32 {
	t, err := b.View().Topic(meta.Name{Namespace: "default", Topic: topic})
	if err != nil {
		return 0
	}
	return t.Partitions[0].Generation
}

// owner returns the record.
func (b *broker) owner() Owner {
	b.t.Helper()
	o, _, err := b.place.read(b.t.Context())
	if err != nil || o == nil {
		b.t.Fatalf("%v, %v", o, err)
	}
	return *o
}

// founded returns a broker that founded its cluster, has a topic, and has copied it.
func founded(t *testing.T, store objstore.Store, topics ...string) *broker {
	t.Helper()
	b := newBroker(t, "first", store)
	if _, err := b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		b.create(topic)
	}
	if err := b.keep().attempt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

var errCrash = errors.New("crash")

func fenced(err error) bool {
	var f *FencedError
	return errors.As(err, &f)
}

func names(b *broker) (all []string) {
	for topic := range b.View().Topics("") {
		all = append(all, fmt.Sprintf("%s@%d", topic.Name.Topic, topic.Partitions[0].Generation))
	}
	return all
}
