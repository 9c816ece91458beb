package broker

import (
	"sync"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
)

// registry is what exists as this broker runs it: a copy of the metadata's topics that trails it by one sync.
type registry struct {
	mu     sync.RWMutex
	topics map[meta.Name]*topic    // guarded by mu
	ended  map[meta.TopicID]*topic // guarded by mu; deleted, their logs not closed yet
	parts  int                     // guarded by mu; partitions of topics

	syncing sync.Mutex // orders changes; nothing waits under it
	schemas *Schemas   // what topics with a policy are held against

	reconciled *meta.View // what Broker.reconcile has seen; owned by whoever calls it
}

func newRegistry() *registry {
	return &registry{topics: map[meta.Name]*topic{}, ended: map[meta.TopicID]*topic{}}
}

func (r *registry) get(n meta.Name) *topic {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.topics[n]
}

// all returns every topic, in no order.
func (r *registry) all() []*topic {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*topic, 0, len(r.topics))
	for _, t := range r.topics {
		list = append(list, t)
	}
	return list
}

func (r *registry) counts() (topics, partitions int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.topics), r.parts
}

// add makes t the topic of its name.
func (r *registry) add(t *topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics[t.Name] = t
	r.parts += t.partitions()
}

// retire takes t out and ends its life with why. Both are one step: whoever finds it among the retired closes its logs
// with the reason that it has ended for.
func (r *registry) retire(t *topic, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.life.End(why)
	delete(r.topics, t.Name)
	r.parts -= t.partitions()
	r.ended[t.ID] = t
}

// retired returns a topic that was retired and not forgotten, or nil.
func (r *registry) retired(id meta.TopicID) *topic {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ended[id]
}

// allRetired returns every topic that was retired and not forgotten.
func (r *registry) allRetired() []*topic {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*topic, 0, len(r.ended))
	for _, t := range r.ended {
		list = append(list, t)
	}
	return list
}

// forget drops a retired topic once its logs are closed.
func (r *registry) forget(id meta.TopicID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, id)
}

// sync brings one name to what the metadata says now: it ends an incarnation that is gone, makes the one that came, and
// takes over changed settings, which the caller then applies (see applySettings). It returns the topic, nil where there
// is none.
func (b *Broker) sync(n meta.Name) *topic {
	b.topics.syncing.Lock()
	defer b.topics.syncing.Unlock()
	want, err := b.cfg.Meta.View().Topic(n)
	if err != nil {
		want = nil
	}
	have := b.topics.get(n)
	if have != nil && (want == nil || want.ID != have.ID) {
		why := errReplaced(n)
		if want == nil {
			why = errDeleted(n)
		}
		b.topics.retire(have, why)
		b.endOf(have)
		b.remover.kick()
		have = nil
	}
	switch {
	case want == nil, have == nil && b.draining.Err() != nil:
		return nil
	case have == nil:
		have = b.newTopic(want)
		b.topics.add(have)
	case have.meta.Load().Version != want.Version:
		have.meta.Store(want)
	}
	b.topics.setGuard(have)
	return have
}

// reconcile brings every name to what the metadata says, and returns the topics whose settings changed. It looks at the
// names that the metadata changed since the last call; those before it stand as sync left them. One goroutine at a time
// calls it.
func (b *Broker) reconcile() (changed []*topic) {
	v := b.cfg.Meta.View()
	for n := range v.ChangedTopics(b.topics.reconciled) {
		m, err := v.Topic(n)
		have := b.topics.get(n)
		switch {
		case err != nil && have == nil:
		case err != nil || have == nil || have.ID != m.ID:
			b.sync(n)
		case have.meta.Load().Version != m.Version:
			if t := b.sync(n); t != nil {
				changed = append(changed, t)
			}
		}
	}
	for id := range v.ChangedTopicSchemas(b.topics.reconciled) {
		if m, ok := v.TopicByID(id); ok {
			b.sync(m.Name)
		}
	}
	b.topics.reconciled = v
	for range v.Deletions() {
		b.remover.kick()
		break
	}
	return changed
}

// lookup returns the running topic of that name, of the incarnation id where id is not empty.
func (b *Broker) lookup(name string, id []byte) (*topic, error) {
	n, err := meta.ParseTopic(name)
	if err != nil {
		return nil, err
	}
	if b.draining.Err() != nil {
		return nil, errDraining()
	}
	t := b.topics.get(n)
	if t == nil {
		if t = b.sync(n); t == nil { // the metadata may be ahead: the caller's own creation, say
			if len(id) > 0 && b.cfg.Meta.View().DeletedThrough(n) > 0 {
				b.metrics.incarnationRefused.Inc()
				return nil, errDeleted(n)
			}
			return nil, errNoTopic(n)
		}
	}
	switch {
	case len(id) == 0 || string(id) == string(t.ID[:]):
		return t, nil
	case len(id) != len(t.ID):
		return nil, fault.New(fault.InvalidArgument, "topic id of %d bytes: it has %d", len(id), len(t.ID))
	}
	b.metrics.incarnationRefused.Inc()
	return nil, errReplaced(n)
}

// census counts topics, and partitions by state.
func (r *registry) census() (topics int, states map[partition.State]int) {
	states = map[partition.State]int{}
	all := r.all()
	for _, t := range all {
		for _, p := range t.parts {
			states[p.Status().State]++
		}
	}
	return len(all), states
}
