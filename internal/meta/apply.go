package meta

import (
	"slices"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

func (c CreateNamespace) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	if _, ok := v.namespaces.get(c.Name); ok {
		return Result{}, fault.New(fault.AlreadyExists, "namespace %q exists already", c.Name).With("namespace", c.Name)
	}
	if v.namespaces.len() >= MaxNamespaces {
		return Result{}, fault.New(fault.Exhausted, "there are %d namespaces, the most there may be: delete one first", MaxNamespaces)
	}
	v.namespaces = v.namespaces.set(c.Name, &Namespace{Name: c.Name, CreatedMs: c.TimeMs})
	return Result{}, nil
}

func (c DeleteNamespace) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	n, ok := v.namespaces.get(c.Name)
	if !ok {
		return Result{}, v.noNamespace(c.Name)
	}
	if n.Topics > 0 {
		return Result{}, fault.New(fault.Conflict, "namespace %q has %d topics: delete them first", c.Name, n.Topics).With("topics", n.Topics)
	}
	v.namespaces = v.namespaces.remove(c.Name)
	return Result{}, nil
}

func (c CreateTopic) apply(s *State, v *View, index uint64) (Result, *fault.Error) {
	if refused := s.mayCreate(v, c); refused != nil {
		return Result{}, refused
	}
	incarnation, generation := v.incarnationFloor, v.generationFloor
	if t, ok := v.tombstones.get(c.Name.String()); ok {
		incarnation, generation = max(incarnation, t.Through), max(generation, t.Generation)
	}
	if generation >= maxGeneration {
		return Result{}, fault.New(fault.Exhausted, "topic %s: its predecessor used up all generations: choose another name", c.Name)
	}
	t := &Topic{
		Name: c.Name, ID: c.ID, Incarnation: incarnation + 1, Version: index, Dispatch: c.Dispatch, Settings: c.Settings,
		CreatedMs: c.TimeMs, Partitions: make([]Partition, c.Partitions),
	}
	for i := range t.Partitions {
		t.Partitions[i] = Partition{Generation: generation + 1, Reserved: c.Reserved}
	}
	v.topics = v.topics.set(c.Name.String(), t)
	v.ids = v.ids.set(string(c.ID[:]), c.Name)
	v.countTopics(c.Name.Namespace, 1)
	s.countPartName(c.Name, 1)
	return Result{Topic: t}, nil
}

// mayCreate says why a topic cannot be made, or nil.
func (s *State) mayCreate(v *View, c CreateTopic) *fault.Error {
	if _, ok := v.namespaces.get(c.Name.Namespace); !ok {
		return v.noNamespace(c.Name.Namespace)
	}
	if _, ok := v.topics.get(c.Name.String()); ok {
		return fault.New(fault.AlreadyExists, "topic %s exists already", c.Name).With("topic", c.Name)
	}
	if base, ok := partitionOf(c.Name.Topic); ok {
		whole := Name{c.Name.Namespace, base}
		if _, ok := v.topics.get(whole.String()); ok {
			return fault.New(fault.AlreadyExists, "topic %s cannot exist beside %s: clients would take it for one of its partitions; choose another name",
				c.Name, whole).With("topic", whole)
		}
	}
	if s.partNames[c.Name.String()] > 0 {
		return fault.New(fault.AlreadyExists, "topic %s cannot exist beside a topic named %s-part-N: clients would take that for one of its partitions; choose another name",
			c.Name, c.Name).With("topic", c.Name)
	}
	if n, ok := v.ids.get(string(c.ID[:])); ok {
		return fault.New(fault.Conflict, "topic id %s is that of %s: choose another id", c.ID, n)
	}
	if v.topics.len() >= MaxTopics {
		return fault.New(fault.Exhausted, "there are %d topics, the most there may be: delete one first", MaxTopics)
	}
	return nil
}

func (c SetTopic) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Name, c.ID)
	if refused != nil {
		return Result{}, refused
	}
	if t.Version != c.Version {
		return Result{}, fault.New(fault.Conflict, "topic %s: its settings changed meanwhile (version %d, now %d): read them again", c.Name, c.Version, t.Version).
			With("version", t.Version)
	}
	settings := t.Settings.Merge(c.Settings, c.Unset)
	if err := settings.check(t.Dispatch); err != nil {
		return Result{}, err
	}
	changed := *t
	changed.Settings, changed.Version = settings, index
	v.topics = v.topics.set(c.Name.String(), &changed)
	return Result{Topic: &changed}, nil
}

func (c DeleteTopic) apply(s *State, v *View, index uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Name, c.ID)
	if refused != nil {
		return Result{}, refused
	}
	key := c.Name.String()
	old, ok := v.tombstones.get(key)
	if ok {
		s.evictable = s.evictable.remove(old.Index)
	}
	stone := tombstone{Name: c.Name, Through: t.Incarnation, Generation: old.Generation, Index: index}
	for _, p := range t.Partitions {
		stone.Generation = max(stone.Generation, p.Generation)
	}
	d := &Deletion{Name: c.Name, Incarnation: t.Incarnation, ID: t.ID, Partitions: int32(len(t.Partitions)), DeletedMs: c.TimeMs}
	v.topics = v.topics.remove(key)
	v.ids = v.ids.remove(string(t.ID[:]))
	v.subscriptions = withoutPrefix(v.subscriptions, string(t.ID[:]))
	v.cursors = withoutPrefix(v.cursors, string(t.ID[:]))
	v.exports = withoutPrefix(v.exports, string(t.ID[:]))
	v.custody = withoutPrefix(v.custody, string(t.ID[:]))
	v.topicSchemas = v.topicSchemas.remove(string(t.ID[:]))
	v.countTopics(c.Name.Namespace, -1)
	s.countPartName(c.Name, -1)
	v.tombstones = v.tombstones.set(key, stone)
	v.deletions = v.deletions.set(deletionKey(c.Name, t.Incarnation), d)
	return Result{Deletion: d}, nil
}

func (c TopicPurged) apply(s *State, v *View, _ uint64) (Result, *fault.Error) {
	key := deletionKey(c.Name, c.Incarnation)
	stone, _ := v.tombstones.get(c.Name.String())
	d, ok := v.deletions.get(key)
	switch {
	case !ok && c.Incarnation <= stone.Through:
		return Result{}, nil // said before
	case !ok:
		return Result{}, fault.New(fault.NotFound, "topic %s@%d was not deleted: its data must not be removed", c.Name, c.Incarnation)
	}
	v.deletions = v.deletions.remove(key)
	if !v.pending(c.Name) {
		s.evictable = s.evictable.set(stone.Index, c.Name.String())
		s.evict(v)
	}
	return Result{Deletion: d}, nil
}

// evict drops the tombstones deleted longest ago beyond the bound and raises the floors in their place, so that the
// names still never see an incarnation or a generation twice. One whose data is not removed yet stays.
func (s *State) evict(v *View) {
	for v.tombstones.len() > s.tombstones {
		dropped := false
		for index, key := range s.evictable.all() {
			stone, _ := v.tombstones.get(key)
			v.incarnationFloor = max(v.incarnationFloor, stone.Through)
			v.generationFloor = max(v.generationFloor, stone.Generation)
			v.tombstones = v.tombstones.remove(key)
			s.evictable = s.evictable.remove(index)
			dropped = true
			break
		}
		if !dropped {
			return
		}
	}
}

func (c ReserveOffsets) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, refused := v.partition(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	if p := t.Partitions[c.Partition]; c.Through > p.Reserved {
		t = v.setPartition(t, c.Partition, Partition{Generation: p.Generation, Reserved: c.Through})
	}
	return Result{Topic: t}, nil
}

func (c NewGeneration) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, refused := v.partition(c.Name, c.ID, c.Partition, c.From)
	if refused != nil {
		return Result{}, refused
	}
	reserved := max(t.Partitions[c.Partition].Reserved, c.Reserved)
	return Result{Topic: v.setPartition(t, c.Partition, Partition{Generation: c.To, Reserved: reserved})}, nil
}

func (c ReserveProducerIDs) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	first := v.nextProducerID
	if first > 1<<63-1-c.Count {
		return Result{}, fault.New(fault.Exhausted, "all producer ids were given out")
	}
	v.nextProducerID += c.Count
	return Result{FirstProducerID: first}, nil
}

func (c RaiseRegistration) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	now, _ := v.brokers.get(c.Broker)
	if now != c.From || now == 1<<64-1 {
		return Result{}, fault.New(fault.Conflict, "broker %s: its registration is %d, not %d: another process may run under its id", c.Broker, now, c.From).
			With("registration", now)
	}
	v.brokers = v.brokers.set(c.Broker, now+1)
	return Result{Registration: now + 1}, nil
}

// current returns the topic where that incarnation is the one that exists.
func (v *View) current(n Name, id TopicID) (*Topic, *fault.Error) {
	t, ok := v.topics.get(n.String())
	switch {
	case ok && t.ID == id:
		return t, nil
	case ok:
		return nil, fault.New(fault.Deleted, "topic %s was deleted and created again: open it anew", n).With("topic", n).With("id", t.ID)
	case v.DeletedThrough(n) > 0:
		return nil, fault.New(fault.Deleted, "topic %s was deleted", n).With("topic", n)
	}
	return nil, noTopic(n)
}

// partition returns the topic where that incarnation exists and its partition is at that generation.
func (v *View) partition(n Name, id TopicID, partition int32, generation uint32) (*Topic, *fault.Error) {
	t, refused := v.current(n, id)
	if refused != nil {
		return nil, refused
	}
	if int(partition) >= len(t.Partitions) {
		return nil, fault.New(fault.NotFound, "topic %s has no partition %d: it has %d", n, partition, len(t.Partitions))
	}
	if g := t.Partitions[partition].Generation; g != generation {
		return nil, fault.New(fault.Fenced, "%s/%d is at generation %d, not %d: another owner took over", n, partition, g, generation).
			With("generation", g)
	}
	return t, nil
}

func (v *View) setPartition(t *Topic, partition int32, p Partition) *Topic {
	changed := *t
	changed.Partitions = slices.Clone(t.Partitions)
	changed.Partitions[partition] = p
	v.topics = v.topics.set(t.Name.String(), &changed)
	return &changed
}

func (v *View) countTopics(namespace string, by int) {
	n, _ := v.namespaces.get(namespace)
	changed := *n
	changed.Topics += by
	v.namespaces = v.namespaces.set(namespace, &changed)
}

// pending reports whether data of any incarnation of that name is still to be removed.
func (v *View) pending(n Name) bool {
	prefix := n.String() + "@" // "@" is in no name
	for key := range v.deletions.from(prefix) {
		return strings.HasPrefix(key, prefix)
	}
	return false
}
