package meta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/leveemq/levee/internal/fault"
)

// The form of a snapshot: one JSON object a line, so that it can be read with line tools and written and read piece by
// piece. First the header, then every namespace, topic, tombstone, deletion, broker, subscription, cursor, topic's schema,
// schema and subject, each kind in this order and each in the order of its names (what belongs to a topic: of topic ids,
// then names, then partitions; schemas: of ids), what is exported of partitions, their custody, then the end with the number of lines before it.
//
//	{"levee_meta":2,"index":…,"next_producer_id":…,"incarnation_floor":…,"generation_floor":…,"last_schema_id":…,"compatibility":…}
//	{"namespace":{"name":…,"created_ms":…}}
//	{"topic":{"name":…,"id":…,"incarnation":…,"version":…,"dispatch":…,"settings":{…},"created_ms":…,"partitions":[[generation,reserved],…]}}
//	{"tombstone":{"name":…,"through":…,"generation":…,"index":…}}
//	{"deletion":{"name":…,"incarnation":…,"id":…,"partitions":…,"deleted_ms":…}}
//	{"broker":{"id":…,"registration":…}}
//	{"subscription":{"id":…,"name":…,"created":…,"version":…,"type":…,"settings":{…},"created_ms":…,"active_ms":…}}
//	{"cursor":{"id":…,"subscription":…,"partition":…,"epoch":…,"position":…,"blocks":[{"n":…,"b":…},…],"counts":[[offset,deliveries],…]}}
//	{"topic_schema":{"id":…,"subject":…,"policy":…,"validate":…}}
//	{"schema":{"id":…,"type":…,"definition":…,"references":[…],"fingerprint":…}}
//	{"subject":{"name":…,"revision":…,"last_version":…,"versions":[{"version":…,"schema_id":…,…},…],"compatibility":…}}
//	{"export":{"id":…,"partition":…,"manifest":{…},"objects":[{"o":…,"n":…,…},…]}}
//	{"custody":{"id":…,"partition":…,"uncovered":…,"pending":{…},"report":{…}}}
//	{"end":{"lines":…}}
//
// The same state always gives the same bytes. Its version is the lowest that has lines for all that is in it: a program
// that knows no subscriptions, schemas, exports, custody, manifests and directories opens what has none, and refuses everything else.
const (
	snapshotVersion          = 6 // the newest: some report of custody names a directory
	snapshotVersionManifests = 5 // some export has a manifest
	snapshotVersionCustody   = 4 // ends with the custody
	snapshotVersionExports   = 3 // ends with the exports
	snapshotVersionSchemas   = 2 // ends with the subjects
	snapshotVersionPlain     = 1 // ends with the brokers
)

// The ranks of their lines; see snapshotReader.order.
const (
	sectionExports = 11
	sectionCustody = 12
)

type snapshotHeader struct {
	Version          int    `json:"levee_meta"`
	Index            uint64 `json:"index"`
	NextProducerID   int64  `json:"next_producer_id"`
	IncarnationFloor uint64 `json:"incarnation_floor"`
	GenerationFloor  uint32 `json:"generation_floor"`
	LastSchemaID     uint64 `json:"last_schema_id,omitempty"`
	Compatibility    string `json:"compatibility,omitempty"`
}

type snapshotLine struct {
	Namespace *snapshotNamespace `json:"namespace,omitempty"`
	Topic     *snapshotTopic     `json:"topic,omitempty"`
	Tombstone *tombstone         `json:"tombstone,omitempty"`
	Deletion  *Deletion          `json:"deletion,omitempty"`
	Broker    *snapshotBroker    `json:"broker,omitempty"`

	Subscription *snapshotSubscription `json:"subscription,omitempty"`
	Cursor       *snapshotCursor       `json:"cursor,omitempty"`
	TopicSchema  *snapshotTopicSchema  `json:"topic_schema,omitempty"`
	Schema       *Schema               `json:"schema,omitempty"`
	Subject      *Subject              `json:"subject,omitempty"`
	Export       *snapshotExport       `json:"export,omitempty"`
	Custody      *snapshotCustody      `json:"custody,omitempty"`

	End *snapshotEnd `json:"end,omitempty"`
}

type snapshotNamespace struct {
	Name      string `json:"name"`
	CreatedMs int64  `json:"created_ms"`
}

type snapshotTopic struct {
	Name        Name        `json:"name"`
	ID          TopicID     `json:"id"`
	Incarnation uint64      `json:"incarnation"`
	Version     uint64      `json:"version"`
	Dispatch    Dispatch    `json:"dispatch"`
	Settings    Settings    `json:"settings"`
	CreatedMs   int64       `json:"created_ms"`
	Partitions  []Partition `json:"partitions"`
}

type snapshotBroker struct {
	ID           string `json:"id"`
	Registration uint64 `json:"registration"`
}

type snapshotEnd struct {
	Lines int `json:"lines"`
}

// snapshotVersion returns the version of the view's snapshot.
func (v *View) snapshotVersion() int {
	for _, c := range v.custody.all() {
		if c.Report != nil && c.Report.Directory != "" {
			return snapshotVersion
		}
	}
	for _, e := range v.exports.all() {
		if e.Manifest != nil {
			return snapshotVersionManifests
		}
	}
	if v.custody.len() > 0 {
		return snapshotVersionCustody
	}
	if v.exports.len() > 0 {
		return snapshotVersionExports
	}
	if v.subscriptions.len() == 0 && v.subjects.len() == 0 && v.topicSchemas.len() == 0 && v.lastSchemaID == 0 && v.compatibility == "" {
		return snapshotVersionPlain
	}
	return snapshotVersionSchemas
}

// Snapshot returns the state of the view in a form that Restore reads. It may take long for many topics and may run
// while commands are applied.
func (v *View) Snapshot() ([]byte, error) {
	w := snapshotWriter{}
	w.write(snapshotHeader{v.snapshotVersion(), v.index, v.nextProducerID, v.incarnationFloor, v.generationFloor, v.lastSchemaID, v.compatibility})
	for _, n := range v.namespaces.all() {
		w.write(snapshotLine{Namespace: &snapshotNamespace{n.Name, n.CreatedMs}})
	}
	for _, t := range v.topics.all() {
		w.write(snapshotLine{Topic: &snapshotTopic{t.Name, t.ID, t.Incarnation, t.Version, t.Dispatch, t.Settings, t.CreatedMs, t.Partitions}})
	}
	for _, t := range v.tombstones.all() {
		w.write(snapshotLine{Tombstone: &t})
	}
	for _, d := range v.deletions.all() {
		w.write(snapshotLine{Deletion: d})
	}
	for id, n := range v.brokers.all() {
		w.write(snapshotLine{Broker: &snapshotBroker{id, n}})
	}
	w.writeSubscriptions(v)
	w.writeSchemas(v)
	w.writeExports(v)
	w.writeCustody(v)
	w.write(snapshotLine{End: &snapshotEnd{w.lines}})
	if w.err != nil {
		return nil, fmt.Errorf("encode metadata snapshot: %w", w.err)
	}
	return w.buf.Bytes(), nil
}

type snapshotWriter struct {
	buf   bytes.Buffer
	lines int
	err   error
}

func (w *snapshotWriter) write(line any) {
	b, err := json.Marshal(line)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.buf.Write(b)
	w.buf.WriteByte('\n')
	w.lines++
}

// Snapshot returns the newest state in a form that Restore reads.
func (s *State) Snapshot() ([]byte, error) { return s.View().Snapshot() }

// Restore replaces the state by that of a snapshot. It refuses an unknown version with unsupported and anything that
// Snapshot would not have written with corrupt; the state is then as it was.
func (s *State) Restore(b []byte) error {
	r := snapshotReader{rest: b, v: &View{}}
	if err := r.read(); err != nil {
		if k := fault.KindOf(err); k != fault.Internal && k != fault.InvalidArgument {
			return fault.New(k, "restore metadata snapshot, line %d: %w", r.line, err)
		}
		return fault.New(fault.Corrupt, "restore metadata snapshot, line %d: %w", r.line, err)
	}
	s.adopt(r.v)
	return nil
}

type snapshotReader struct {
	rest    []byte
	line    int // number of the line being read, from 1
	section int // rank of the last line's kind
	last    string
	version int // as the header says
	v       *View
}

func (r *snapshotReader) next() ([]byte, error) {
	r.line++
	line, rest, ok := bytes.Cut(r.rest, []byte{'\n'})
	if !ok {
		return nil, fmt.Errorf("it ends in the middle")
	}
	r.rest = rest
	return line, nil
}

func (r *snapshotReader) read() error {
	if err := r.header(); err != nil {
		return err
	}
	for {
		b, err := r.next()
		if err != nil {
			return err
		}
		var line snapshotLine
		if err := decodeStrict(b, &line); err != nil {
			return err
		}
		if line.End != nil {
			return r.end(line)
		}
		if err := r.take(line); err != nil {
			return err
		}
	}
}

func (r *snapshotReader) header() error {
	b, err := r.next()
	if err != nil {
		return err
	}
	var probe struct {
		Version int `json:"levee_meta"`
	}
	if err := json.Unmarshal(b, &probe); err != nil {
		return err
	}
	if probe.Version > snapshotVersion {
		return fault.New(fault.Unsupported, "it has version %d, and this program knows up to %d: a newer one wrote it, so run that", probe.Version, snapshotVersion)
	}
	var h snapshotHeader
	if err := decodeStrict(b, &h); err != nil {
		return err
	}
	if h.Version < 1 || h.NextProducerID < 1 || checkCompatibility(h.Compatibility) != nil || h.GenerationFloor > maxGeneration {
		return fmt.Errorf("the header is out of range")
	}
	r.version, r.v.index, r.v.nextProducerID = h.Version, h.Index, h.NextProducerID
	r.v.incarnationFloor, r.v.generationFloor = h.IncarnationFloor, h.GenerationFloor
	r.v.lastSchemaID, r.v.compatibility = h.LastSchemaID, h.Compatibility
	return nil
}

func (r *snapshotReader) end(line snapshotLine) error {
	if line != (snapshotLine{End: line.End}) || len(r.rest) > 0 {
		return fmt.Errorf("something stands beside or behind the end")
	}
	if line.End.Lines != r.line-1 {
		return fmt.Errorf("it should have %d lines before the end and has %d", line.End.Lines, r.line-1)
	}
	if _, ok := r.v.namespaces.get(DefaultNamespace); !ok {
		return fmt.Errorf("namespace %q is missing", DefaultNamespace)
	}
	if v := r.v.snapshotVersion(); v != r.version {
		return fmt.Errorf("it says version %d, and what is in it is written as version %d", r.version, v)
	}
	return firstError(r.checkCursors(), r.checkSchemas())
}

// take adds one line to the view.
func (r *snapshotReader) take(line snapshotLine) error {
	v := r.v
	switch {
	case line.Namespace != nil && line == (snapshotLine{Namespace: line.Namespace}):
		n := line.Namespace
		if err := firstError(r.order(1, n.Name), ValidateNamespace(n.Name), checkTime(n.CreatedMs)); err != nil {
			return err
		}
		v.namespaces = v.namespaces.set(n.Name, &Namespace{Name: n.Name, CreatedMs: n.CreatedMs})
		return nil
	case line.Topic != nil && line == (snapshotLine{Topic: line.Topic}):
		return r.takeTopic(line.Topic)
	case line.Tombstone != nil && line == (snapshotLine{Tombstone: line.Tombstone}):
		t := line.Tombstone
		if err := firstError(r.order(3, t.Name.String()), t.Name.Validate()); err != nil {
			return err
		}
		if t.Through == 0 || t.Generation > maxGeneration || t.Index > v.index {
			return fmt.Errorf("tombstone of %s is out of range", t.Name)
		}
		if live, ok := v.topics.get(t.Name.String()); ok && live.Incarnation <= t.Through {
			return fmt.Errorf("topic %s@%d lives and is deleted at once", t.Name, live.Incarnation)
		}
		v.tombstones = v.tombstones.set(t.Name.String(), *t)
		return nil
	case line.Deletion != nil && line == (snapshotLine{Deletion: line.Deletion}):
		d := line.Deletion
		key := deletionKey(d.Name, d.Incarnation)
		if err := firstError(r.order(4, key), checkTopic(d.Name, d.ID), checkTime(d.DeletedMs)); err != nil {
			return err
		}
		if d.Incarnation == 0 || d.Incarnation > v.DeletedThrough(d.Name) {
			return fmt.Errorf("deletion of %s@%d has no tombstone", d.Name, d.Incarnation)
		}
		v.deletions = v.deletions.set(key, d)
		return nil
	case line.Broker != nil && line == (snapshotLine{Broker: line.Broker}):
		b := line.Broker
		if err := firstError(r.order(5, b.ID), RaiseRegistration{Broker: b.ID}.Validate()); err != nil {
			return err
		}
		v.brokers = v.brokers.set(b.ID, b.Registration)
		return nil
	case line.Subscription != nil && line == (snapshotLine{Subscription: line.Subscription}):
		return r.takeSubscription(line.Subscription)
	case line.Cursor != nil && line == (snapshotLine{Cursor: line.Cursor}):
		return r.takeCursor(line.Cursor)
	case line.TopicSchema != nil && line == (snapshotLine{TopicSchema: line.TopicSchema}):
		return r.takeTopicSchema(line.TopicSchema)
	case line.Schema != nil && line == (snapshotLine{Schema: line.Schema}):
		return r.takeSchema(line.Schema)
	case line.Subject != nil && line == (snapshotLine{Subject: line.Subject}):
		return r.takeSubject(line.Subject)
	case line.Export != nil && line == (snapshotLine{Export: line.Export}):
		return r.takeExport(line.Export)
	case line.Custody != nil && line == (snapshotLine{Custody: line.Custody}):
		return r.takeCustody(line.Custody)
	}
	return fmt.Errorf("it is not one of the lines a snapshot has")
}

func (r *snapshotReader) takeTopic(t *snapshotTopic) error {
	v := r.v
	if err := firstError(r.order(2, t.Name.String()), checkTopic(t.Name, t.ID), checkTime(t.CreatedMs), t.Settings.Validate(t.Dispatch)); err != nil {
		return err
	}
	if _, ok := v.namespaces.get(t.Name.Namespace); !ok {
		return fmt.Errorf("topic %s has no namespace", t.Name)
	}
	if _, twice := v.ids.get(string(t.ID[:])); twice {
		return fmt.Errorf("topic %s has the id of another", t.Name)
	}
	if t.Incarnation == 0 || len(t.Partitions) == 0 || len(t.Partitions) > MaxPartitions {
		return fmt.Errorf("topic %s is out of range", t.Name)
	}
	v.countTopics(t.Name.Namespace, 1)
	v.ids = v.ids.set(string(t.ID[:]), t.Name)
	v.topics = v.topics.set(t.Name.String(), &Topic{
		Name: t.Name, ID: t.ID, Incarnation: t.Incarnation, Version: t.Version, Dispatch: t.Dispatch, Settings: t.Settings,
		CreatedMs: t.CreatedMs, Partitions: slices.Clip(t.Partitions),
	})
	return nil
}

// order refuses a line that does not stand behind the one before it.
func (r *snapshotReader) order(section int, key string) error {
	if section < r.section || section == r.section && key <= r.last {
		return fmt.Errorf("%q stands out of order", key)
	}
	r.section, r.last = section, key
	return nil
}
