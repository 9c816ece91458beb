package meta

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// View is the metadata as it was after one command. It never changes, may be kept and used from any goroutine, and what
// it returns must not be changed either. Iteration is in the order of names.
//
// size: facts, one kind a field
type View struct {
	index      uint64 // of the last command applied, refused ones included
	namespaces tree[string, *Namespace]
	topics     tree[string, *Topic]    // by full name
	ids        tree[string, Name]      // by the bytes of the topic id; live topics only
	tombstones tree[string, tombstone] // by full name
	deletions  tree[string, *Deletion] // by deletionKey
	brokers    tree[string, uint64]    // broker id to registration number

	subscriptions tree[string, *Subscription] // by subscriptionKey
	cursors       tree[string, *Cursor]       // by cursorKey: apart, since they change all the time

	exports tree[string, *Export]  // by exportKey
	custody tree[string, *Custody] // by exportKey

	subjects     tree[string, *Subject]    // by name
	schemas      tree[uint64, *Schema]     // by id; each has a version that has it
	fingerprints tree[string, uint64]      // of schemas, to their ids
	schemaUses   tree[string, struct{}]    // by useKey
	referrers    tree[string, struct{}]    // by referrerKey
	topicSchemas tree[string, TopicSchema] // by the bytes of the topic id

	compatibility string // of subjects that have none of their own; empty: not set
	lastSchemaID  uint64 // the highest given out

	nextProducerID int64
	// Every tombstone that was dropped to keep their number bounded is at or below these, so names without a tombstone
	// start above them.
	incarnationFloor uint64
	generationFloor  uint32
}

// Namespace is a namespace.
type Namespace struct {
	Name      string
	CreatedMs int64 // since the epoch
	Topics    int
}

// Topic is one incarnation of a topic.
type Topic struct {
	Name        Name
	ID          TopicID
	Incarnation uint64 // 1, 2, 3 … under one name; never used twice
	Version     uint64 // moves with every change of Settings
	Dispatch    Dispatch
	Settings    Settings
	CreatedMs   int64 // since the epoch
	Partitions  []Partition
}

// Partition is what the metadata knows of a partition.
type Partition struct {
	Generation uint32
	Reserved   int64 // offsets below it may be assigned; 0 where nothing is reserved
}

// Deletion is a deleted incarnation whose data may still be on the disk.
type Deletion struct {
	Name        Name    `json:"name"`
	Incarnation uint64  `json:"incarnation"`
	ID          TopicID `json:"id"`
	Partitions  int32   `json:"partitions"`
	DeletedMs   int64   `json:"deleted_ms"` // since the epoch
}

// tombstone is what stays of a deleted name.
type tombstone struct {
	Name       Name   `json:"name"`
	Through    uint64 `json:"through"`    // incarnations up to it are deleted
	Generation uint32 `json:"generation"` // the highest any of them reached
	Index      uint64 `json:"index"`      // of the last deletion
}

// Index returns the position of the last command this view includes.
func (v *View) Index() uint64 { return v.index }

// Topic returns the topic of that name. Its error is not_found, and says whether the topic or the namespace is missing.
func (v *View) Topic(n Name) (*Topic, error) {
	if t, ok := v.topics.get(n.String()); ok {
		return t, nil
	}
	if _, ok := v.namespaces.get(n.Namespace); !ok {
		return nil, v.noNamespace(n.Namespace)
	}
	return nil, noTopic(n)
}

// TopicByID returns the live topic with that id.
func (v *View) TopicByID(id TopicID) (*Topic, bool) {
	n, ok := v.ids.get(string(id[:]))
	if !ok {
		return nil, false
	}
	return v.topics.get(n.String())
}

// Topics visits the topics of a namespace, or all of them where namespace is empty.
func (v *View) Topics(namespace string) iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		prefix := ""
		if namespace != "" {
			prefix = namespace + "/" // no name has a slash in it, so this is no match by prefix
		}
		for key, t := range v.topics.from(prefix) {
			if !strings.HasPrefix(key, prefix) || !yield(t) {
				return
			}
		}
	}
}

// ChangedTopics visits the names whose topic is not what it was in an older view: made, replaced, deleted, or changed in
// any way. It takes time for what changed, not for what there is. nil stands for the view in which there is nothing.
func (v *View) ChangedTopics(since *View) iter.Seq[Name] {
	if since == nil {
		since = &View{}
	}
	return func(yield func(Name) bool) {
		for key := range v.topics.changes(since.topics, func(a, b *Topic) bool { return a == b }) {
			t, ok := v.topics.get(key)
			if !ok {
				t, _ = since.topics.get(key)
			}
			if !yield(t.Name) {
				return
			}
		}
	}
}

// TopicCount returns how many topics there are.
func (v *View) TopicCount() int { return v.topics.len() }

// Namespaces visits all namespaces.
func (v *View) Namespaces() iter.Seq[*Namespace] {
	return func(yield func(*Namespace) bool) {
		for _, n := range v.namespaces.all() {
			if !yield(n) {
				return
			}
		}
	}
}

// Namespace returns a namespace. Its error is not_found.
func (v *View) Namespace(name string) (*Namespace, error) {
	if n, ok := v.namespaces.get(name); ok {
		return n, nil
	}
	return nil, v.noNamespace(name)
}

// Deletions visits the incarnations whose data is still to be removed.
func (v *View) Deletions() iter.Seq[*Deletion] {
	return func(yield func(*Deletion) bool) {
		for _, d := range v.deletions.all() {
			if !yield(d) {
				return
			}
		}
	}
}

// DeletedThrough returns the highest incarnation of that name that was deleted, 0 where none is known to be. Only
// incarnations up to it may have their data removed; an older one than the topic's is not deleted by that alone.
func (v *View) DeletedThrough(n Name) uint64 {
	t, _ := v.tombstones.get(n.String())
	return t.Through
}

// Registration returns a broker's registration number, 0 where it never registered.
func (v *View) Registration(broker string) uint64 {
	r, _ := v.brokers.get(broker)
	return r
}

// NextProducerID returns the lowest producer id that was never given out.
func (v *View) NextProducerID() int64 { return v.nextProducerID }

func (v *View) noNamespace(name string) *fault.Error {
	return fault.New(fault.NotFound, "namespace %q does not exist: create it first", name).With("namespace", name)
}

func noTopic(n Name) *fault.Error {
	return fault.New(fault.NotFound, "topic %s does not exist: create it first", n).With("topic", n)
}

// deletionKey sorts by name, then incarnation; "@" is in no name.
func deletionKey(n Name, incarnation uint64) string { return fmt.Sprintf("%s@%020d", n, incarnation) }

// MarshalJSON writes [generation, reserved]: a snapshot may hold millions of these.
func (p Partition) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", p.Generation, p.Reserved), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Partition) UnmarshalJSON(b []byte) error {
	var pair []json.Number
	if err := json.Unmarshal(b, &pair); err != nil {
		return fmt.Errorf("partition: %w", err)
	}
	if len(pair) != 2 {
		return fmt.Errorf("partition: want [generation, reserved], have %d numbers", len(pair))
	}
	generation, err := pair[0].Int64()
	if err != nil || generation < 0 || generation > maxGeneration {
		return fmt.Errorf("partition: generation %q is out of range", pair[0])
	}
	reserved, err := pair[1].Int64()
	if err != nil || reserved < 0 {
		return fmt.Errorf("partition: reserved offset %q is out of range", pair[1])
	}
	*p = Partition{Generation: uint32(generation), Reserved: reserved}
	return nil
}
