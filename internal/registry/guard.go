package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/schema"
	"github.com/leveemq/levee/record"
)

// HeaderSchemaID is the header of a record that names the schema it was written with, by its id in decimal.
const HeaderSchemaID = "levee-schema-id"

// Guard holds the records of one topic against its schema. It is safe for concurrent use.
type Guard struct {
	r      *Registry
	topic  string
	policy meta.TopicSchema
	state  atomic.Pointer[guarded]
}

// guarded is what the guard knows of the subject as it was at one moment.
type guarded struct {
	subject *meta.Subject
	latest  uint64 // id; 0: the subject has no version
}

// Guard returns what publishes to a topic have to pass; nil where the topic has no policy, which costs nothing.
func (r *Registry) Guard(topic meta.Name, id meta.TopicID) *Guard {
	set, ok := r.store.View().TopicSchema(id)
	if !ok || set.Policy == meta.PolicyNone || set.Policy == "" {
		return nil
	}
	return &Guard{r: r, topic: topic.String(), policy: set}
}

// Is reports whether the guard does what another one would do.
func (g *Guard) Is(other *Guard) bool {
	return g == other || g != nil && other != nil && g.topic == other.topic && g.policy == other.policy
}

// Check looks at every record of an encoded batch. Under enforce it returns an error about the first one that does not
// match; it is of kind invalid_argument and names the record. Under warn it only counts and logs.
func (g *Guard) Check(batch []byte, partition int32) error {
	view := g.r.store.View()
	state := g.current(view)
	index := 0
	err := record.Each(batch, func(rec record.Record) error {
		g.r.metrics.checked.Inc()
		err := g.record(view, state, rec)
		if err != nil {
			g.r.metrics.mismatched.WithLabelValues(g.policy.Policy).Inc()
			err = g.mismatch(err, partition, index)
			if g.policy.Policy == meta.PolicyWarn {
				g.warn(err)
				err = nil
			}
		}
		index++
		return err
	})
	var re *record.Error
	if errors.As(err, &re) {
		return fault.New(fault.InvalidArgument, "publish to %s/%d: %w: nothing was written", g.topic, partition, err)
	}
	return err
}

// current returns the state of the subject in a view.
func (g *Guard) current(v *meta.View) *guarded {
	subject, err := v.Subject(g.policy.Subject)
	if err != nil {
		return &guarded{}
	}
	if state := g.state.Load(); state != nil && state.subject == subject {
		return state
	}
	state := &guarded{subject: subject}
	if there, err := pick(subject, Latest, Live); err == nil {
		state.latest = there.SchemaID
	}
	g.state.Store(state)
	return state
}

// has reports whether some version of the subject that is not deleted has the schema.
func (s *guarded) has(id uint64) bool {
	if s.subject == nil {
		return false
	}
	if id == s.latest {
		return true
	}
	for _, there := range s.subject.Versions {
		if there.SchemaID == id && !there.Deleted {
			return true
		}
	}
	return false
}

// record returns what of one record does not match.
func (g *Guard) record(v *meta.View, state *guarded, rec record.Record) error {
	if state.latest == 0 {
		return fmt.Errorf("subject %q has no version to hold it against", g.policy.Subject)
	}
	id, payload, framed, err := g.named(v, state, rec)
	if err != nil {
		return err
	}
	if !state.has(id) {
		return fmt.Errorf("it names schema %d, which no version of subject %q has", id, g.policy.Subject)
	}
	if !g.policy.Validate || rec.Value == nil {
		return nil // a record without a value deletes its key
	}
	registered, err := v.Schema(id)
	if err != nil {
		return err
	}
	p, err := g.r.load(v, registered, 0)
	if err != nil {
		return err
	}
	var message []int
	if framed && p.Type() == schema.Protobuf {
		if message, payload, err = messageIndexes(payload); err != nil {
			return err
		}
	}
	if err := p.ValidateMessage(message, payload); err != nil {
		return fmt.Errorf("it does not match schema %d of subject %q: %w", id, g.policy.Subject, err)
	}
	return nil
}

// named finds out which schema a record was written with: its header says so, or the first bytes of its value do as
// Confluent's serializers write them, or nothing does and it is the latest.
func (g *Guard) named(v *meta.View, state *guarded, rec record.Record) (id uint64, payload []byte, framed bool, err error) {
	for _, h := range rec.Headers {
		if h.Key != HeaderSchemaID {
			continue
		}
		id, err := strconv.ParseUint(string(h.Value), 10, 64)
		if err != nil {
			return 0, nil, false, fmt.Errorf("its header %s is no number", HeaderSchemaID)
		}
		return id, rec.Value, false, nil
	}
	if len(rec.Value) >= 5 && rec.Value[0] == 0 {
		id := uint64(binary.BigEndian.Uint32(rec.Value[1:5]))
		if _, err := v.Schema(id); err == nil {
			return id, rec.Value[5:], true, nil
		}
	}
	return state.latest, rec.Value, false, nil
}

// maxMessageDepth bounds how deep in its file a message may be nested.
const maxMessageDepth = 100

// messageIndexes reads which message of a Protobuf schema follows: a count and as many indexes, zigzag encoded; a count
// of 0 stands for the first message.
func messageIndexes(b []byte) (indexes []int, rest []byte, err error) {
	next := func() (int, bool) {
		n, size := binary.Varint(b)
		if size <= 0 || n < 0 || n > 1<<20 {
			return 0, false
		}
		b = b[size:]
		return int(n), true
	}
	count, ok := next()
	if !ok || count > maxMessageDepth {
		return nil, nil, errors.New("it does not say which message of the schema it is")
	}
	for range count {
		i, ok := next()
		if !ok {
			return nil, nil, errors.New("it does not say which message of the schema it is")
		}
		indexes = append(indexes, i)
	}
	return indexes, b, nil
}

func (g *Guard) mismatch(err error, partition int32, index int) error {
	return fault.New(fault.InvalidArgument, "publish to %s/%d: record %d of the batch: %w: nothing was written", g.topic, partition, index, err).
		With("reason", "schema_mismatch").With("topic", g.topic).With("partition", partition).With("record", index).With("subject", g.policy.Subject)
}

// warn logs a mismatch, one a topic in a while. What does not match may be what somebody wrote, and stays out of the log.
func (g *Guard) warn(err error) {
	if held, ok := g.r.quiet.Allow(g.topic, g.r.now()); ok {
		d := fault.DetailsOf(err)
		g.r.log.Warn("a record does not match its topic's schema", "topic", g.topic, "partition", d["partition"], "record", d["record"],
			"subject", g.policy.Subject, "more", held)
	}
}
