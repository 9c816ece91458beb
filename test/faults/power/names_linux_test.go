package power

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// named is one topic name, as the one worker that uses it knows it.
type named struct {
	name        string
	exists      bool
	mode        string
	id          []byte
	incarnation uint64
	values      []string // acknowledged since it was created, and not lost in a cut
	open        string   // the change whose outcome is not known; "" for none
	value       string   // with open "publish"
	next        int
	past        []snapshot
}

// snapshot is a name as it was known from a moment on.
type snapshot struct {
	from time.Time
	w    named
}

// note remembers the name as it is known now.
func (w *named) note() {
	now := snapshot{time.Now(), *w}
	now.w.past = nil
	w.past = append(w.past, now)
}

// at returns the name as it was known at a moment.
func (w *named) at(moment time.Time) *named {
	was := named{name: w.name}
	for i := range w.past {
		if w.past[i].from.After(moment) {
			break
		}
		was = w.past[i].w
	}
	return &was
}

// names is workers that make topics, publish to them, delete them and make them again.
type names struct {
	t       *testing.T
	load    *load
	workers [][]*named
	running sync.WaitGroup
	stop    context.CancelFunc
	conn    interface{ Close() error }

	mu      sync.Mutex
	changes int   // acknowledged; guarded by mu
	err     error // what no change may meet; guarded by mu

	cutOff, lost int
}

func newNames(l *load) *names {
	n := &names{t: l.t, load: l, workers: make([][]*named, 3)}
	for i := range n.workers {
		for k := range 3 {
			n.workers[i] = append(n.workers[i], &named{name: fmt.Sprintf("w%d-%d", i, k)})
		}
	}
	return n
}

// start has every worker change its topics until the broker is gone.
func (n *names) start(b *proc.Broker) {
	n.t.Helper()
	raw := b.Raw()
	ctx, stop := context.WithTimeout(context.Background(), proc.Patience)
	n.stop, n.conn = stop, raw.Conn
	for _, list := range n.workers {
		draw := rand.New(rand.NewPCG(n.load.rng.Uint64(), 0))
		n.running.Go(func() {
			for {
				err := list[draw.IntN(len(list))].change(ctx, raw, draw, n.load.blind.Load)
				n.mu.Lock()
				if err == nil {
					n.changes++
				} else if !errors.Is(err, errBlind) && status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unknown && n.err == nil { // io, stopped, outcome unknown
					n.err = err
				}
				n.mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
}

// wait waits until all have noticed that the broker is gone.
func (n *names) wait() {
	n.t.Helper()
	n.running.Wait()
	n.stop()
	_ = n.conn.Close()
	if n.err != nil {
		n.t.Errorf("a change failed, and not because of the cut: %v", n.err)
	}
}

// errBlind says that a change was answered while answers count for nothing.
var errBlind = errors.New("answered while the power was being cut")

// change makes one change that suits what there is. After an error its outcome is not known.
func (w *named) change(ctx context.Context, raw *proc.Raw, rng *rand.Rand, blind func() bool) error {
	switch {
	case !w.exists:
		w.open = "create"
		w.mode = []string{history.FsyncOnCommit, history.FsyncPeriodic, history.FsyncNone}[rng.IntN(3)]
		w.note()
		r, err := raw.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: w.name, Settings: &leveev1.TopicSettings{Fsync: &w.mode}})
		if err != nil {
			return err
		}
		if blind() {
			return errBlind
		}
		w.exists, w.id, w.incarnation, w.values = true, r.GetTopic().GetId(), r.GetTopic().GetIncarnation(), nil
	case rng.IntN(3) == 0:
		w.open = "delete"
		w.note()
		if _, err := raw.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: w.name}); err != nil {
			return err
		}
		if blind() {
			return errBlind
		}
		w.exists, w.values = false, nil
	default:
		w.open, w.value = "publish", fmt.Sprintf("%s %d", w.name, w.next)
		w.next++
		w.note()
		if _, err := raw.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: w.name, Records: []*leveev1.Record{{Value: []byte(w.value)}}}); err != nil {
			return err
		}
		if blind() {
			return errBlind
		}
		w.values = append(w.values, w.value)
	}
	w.open = ""
	w.note()
	return nil
}

// check finds out what became of every name after a cut.
func (n *names) check(b *proc.Broker) {
	n.t.Helper()
	raw, c := b.Raw(), b.Dial()
	defer raw.Conn.Close()
	defer c.Close()
	for _, list := range n.workers {
		for _, w := range list {
			if w.open != "" {
				n.cutOff++
			}
			n.resolve(w, raw, c)
		}
	}
	n.noLeftovers(b, n.workers)
}

// checkAt compares a broker whose disk stopped at a moment with what was known then.
func (n *names) checkAt(b *proc.Broker, moment time.Time) {
	n.t.Helper()
	raw, c := b.Raw(), b.Dial()
	defer raw.Conn.Close()
	defer c.Close()
	var known []*named
	for _, list := range n.workers {
		for _, w := range list {
			was := w.at(moment)
			n.resolve(was, raw, c)
			known = append(known, was)
		}
	}
	n.noLeftovers(b, [][]*named{known})
}

func (n *names) resolve(w *named, raw *proc.Raw, c *client.Client) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	d, err := raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: w.name})
	there := err == nil
	if err != nil && status.Code(err) != codes.NotFound {
		n.t.Errorf("describe %s: %v", w.name, err)
		return
	}
	topic := d.GetTopic()
	switch {
	case w.open == "create" && there:
		if w.incarnation >= topic.GetIncarnation() {
			n.t.Errorf("%s is incarnation %d, and there was a %d before", w.name, topic.GetIncarnation(), w.incarnation)
		}
		w.exists, w.id, w.incarnation, w.values = true, topic.GetId(), topic.GetIncarnation(), nil
	case w.open == "delete" && !there:
		w.exists, w.values = false, nil
	case there != w.exists:
		n.t.Errorf("%s exists: %v, and was known to: %v (open: %q)", w.name, there, w.exists, w.open)
	case there && (!bytes.Equal(topic.GetId(), w.id) || topic.GetIncarnation() != w.incarnation):
		n.t.Errorf("%s is incarnation %d, and was %d", w.name, topic.GetIncarnation(), w.incarnation)
	}
	if there {
		n.values(ctx, w, c)
	}
	w.open = ""
}

// values compares what a topic holds with what was acknowledged: all of it, or where the mode allows that, its beginning.
func (n *names) values(ctx context.Context, w *named, c *client.Client) {
	n.t.Helper()
	got, err := n.read(ctx, w.name, c)
	if err != nil {
		n.t.Errorf("read %s: %v", w.name, err)
		return
	}
	known := w.values
	if w.open == "publish" {
		known = append(known[:len(known):len(known)], w.value)
	}
	for i := range got {
		if i >= len(known) || got[i] != known[i] {
			n.t.Errorf("%s (%s), incarnation %d, holds %q, want %q", w.name, w.mode, w.incarnation, got, known)
			return
		}
	}
	if short := len(w.values) - len(got); short > 0 {
		if w.mode == history.FsyncOnCommit {
			n.t.Errorf("%s (%s), incarnation %d, holds %q, and these were acknowledged: %q", w.name, w.mode, w.incarnation, got, w.values)
		}
		n.lost += short
	}
	w.values = got
}

// read reads the values of a topic to its end.
func (n *names) read(ctx context.Context, name string, c *client.Client) (values []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := false
	consumer, err := c.Consume(ctx, name, client.ConsumerConfig{OnCaughtUp: func(int32, int64) { done = true; cancel() }})
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	for {
		m, err := consumer.Next(ctx)
		switch {
		case err == nil:
			values = append(values, string(m.Value))
		case done:
			return values, nil
		default:
			return nil, err
		}
	}
}

// noLeftovers waits until the disk holds nothing of topics that do not exist.
func (n *names) noLeftovers(b *proc.Broker, workers [][]*named) {
	n.t.Helper()
	known := map[string]bool{}
	for _, list := range workers {
		for _, w := range list {
			known[fmt.Sprintf("%s@%d", w.name, w.incarnation)] = w.exists
		}
	}
	b.Await("rid of deleted topics", func() bool {
		deleted, err := os.ReadDir(filepath.Join(b.Dir, ".deleted"))
		if err != nil && !os.IsNotExist(err) {
			n.t.Fatal(err)
		}
		topics, err := os.ReadDir(filepath.Join(b.Dir, "topics", "default"))
		if err != nil && !os.IsNotExist(err) {
			n.t.Fatal(err)
		}
		for _, e := range topics {
			if exists, ours := known[e.Name()]; ours && !exists || !ours && e.Name()[0] == 'w' {
				return false
			}
		}
		return len(deleted) == 0
	})
}
