package meta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestAnySequenceSurvivesSnapshots: the same commands give the same results and the same bytes, whatever snapshots lie
// between; and what must hold of every state holds.
func TestAnySequenceSurvivesSnapshots(t *testing.T) { rapid.Check(t, checkSequence) }

// FuzzSequence is the same, led by coverage.
func FuzzSequence(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkSequence)) }

func checkSequence(t *rapid.T) {
	plain, restored := NewState(), NewState()
	plain.tombstones, restored.tombstones = 3, 3
	seen := history{incarnations: map[string]uint64{}, generations: map[string]uint32{}, ids: map[TopicID]string{}, subjects: map[string]int32{}, schemas: map[uint64]string{}}
	index := uint64(0)
	for range rapid.IntRange(1, 60).Draw(t, "commands") {
		if rapid.IntRange(0, 5).Draw(t, "snapshot?") == 0 {
			restored = throughSnapshot(t, restored)
		}
		index += uint64(rapid.IntRange(1, 3).Draw(t, "step")) // other entries of a log take indexes, too
		b, err := Encode(drawCommand(t, plain.View()))
		if err != nil {
			t.Fatal(err)
		}
		r1, err1 := plain.ApplyEncoded(index, b)
		r2, err2 := restored.ApplyEncoded(index, b)
		if err1 != nil || err2 != nil {
			t.Fatalf("%s: %v, %v", b, err1, err2)
		}
		if d1, d2 := describe(r1), describe(r2); d1 != d2 {
			t.Fatalf("%s gave\n%s\n%s", b, d1, d2)
		}
		seen.check(t, r1)
	}
	s1, s2 := rapidSnapshot(t, plain), rapidSnapshot(t, restored)
	if !bytes.Equal(s1, s2) {
		t.Fatalf("states differ:\n%s\n%s", s1, s2)
	}
	checkView(t, plain)
}

func describe(r Result) string {
	text := fmt.Sprint(r.Index, r.FirstProducerID, r.Registration, r.Skipped)
	if r.Subscription != nil {
		text += " " + subscriptionText(r.Subscription)
	}
	if r.Subject != nil {
		text += " " + subjectText(r.Subject)
	}
	if r.Schema != nil {
		text += fmt.Sprintf(" %+v %+v", *r.Schema, *r.SchemaVersion)
	}
	if r.Cursor != nil {
		text += " " + cursorText(r.Cursor)
	}
	if r.Topic != nil {
		b, err := json.Marshal(r.Topic)
		text += fmt.Sprintf(" %s %v", b, err)
	}
	if r.Deletion != nil {
		text += fmt.Sprintf(" %+v", *r.Deletion)
	}
	if r.Refused != nil {
		text += " " + r.Refused.Kind.String() + " " + r.Refused.Error()
	}
	return text
}

func rapidSnapshot(t *rapid.T, s *State) []byte {
	b, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func throughSnapshot(t *rapid.T, s *State) *State {
	again := NewState()
	again.tombstones = s.tombstones
	if err := again.Restore(rapidSnapshot(t, s)); err != nil {
		t.Fatal(err)
	}
	return again
}

// drawCommand draws out of a small world, and mostly what the state can accept.
func drawCommand(t *rapid.T, v *View) Command {
	names := []Name{{"default", "a"}, {"default", "a-part-0"}, {"default", "a-part-0-part-1"}, {"n", "a"}, {"n", "b"}, {"n-1", "b"}}
	name := rapid.SampledFrom(names).Draw(t, "name")
	id := testID(rapid.IntRange(1, 500).Draw(t, "id"))
	partition, generation, version := int32(rapid.IntRange(0, 2).Draw(t, "partition")), uint32(1), uint64(1)
	if topic, err := v.Topic(name); err == nil && rapid.IntRange(0, 9).Draw(t, "stale?") > 0 {
		id, version = topic.ID, topic.Version
		if int(partition) < len(topic.Partitions) {
			generation = topic.Partitions[partition].Generation
		}
	}
	offset := rapid.SampledFrom([]int64{-1, 0, 1, 1000, math.MaxInt64}).Draw(t, "offset")
	switch kind := rapid.IntRange(0, 38).Draw(t, "command"); kind {
	case 12, 13, 14, 15, 16, 17, 18, 19:
		return drawSubscriptionCommand(t, v, kind, name, id, partition)
	case 20, 21, 22, 23, 24, 25, 26:
		return drawSchemaCommand(t, v, kind, name, id)
	case 27, 28, 29:
		return drawExport(t, v, name, id, partition, generation)
	case 30:
		return DropObjects{Name: name, ID: id, Partition: partition, Below: v.Export(id, partition).Frontier() - int64(rapid.IntRange(-1, 30).Draw(t, "below"))}
	case 35, 36:
		return drawFold(t, v, name, id, partition, generation)
	case 37, 38:
		return drawMerge(t, v, name, id, partition, generation)
	case 31:
		return TakeOver{AtMs: offset, From: "a", By: rapid.SampledFrom([]string{"b", ""}).Draw(t, "by")}
	case 32:
		return AcceptLoss{Name: name, ID: id, Partition: partition}
	case 33:
		report := TakeoverReport{AtMs: 1, From: "a", Objects: 1, Replayed: 5}
		if rapid.Bool().Draw(t, "lost?") {
			report.Lost = &OffsetRange{5, offset}
		}
		if rapid.Bool().Draw(t, "returned?") {
			report.Directory = rapid.SampledFrom([]string{"/old", "", "/a\nb"}).Draw(t, "directory")
			report.Returned = &OffsetRange{offset, 4}
		}
		return SettleTakeover{Name: name, ID: id, Partition: partition, Generation: generation, Report: report}
	case 34:
		return SetUncovered{Name: name, ID: id, Partition: partition, Generation: generation, From: offset}
	case 0:
		return CreateNamespace{Name: name.Namespace, TimeMs: offset}
	case 1:
		return DeleteNamespace{Name: name.Namespace}
	case 2, 3, 4:
		dispatch := rapid.SampledFrom([]Dispatch{Reliable, Reliable, NonReliable}).Draw(t, "dispatch")
		return CreateTopic{Name: name, ID: id, TimeMs: 1, Partitions: int32(rapid.IntRange(0, 3).Draw(t, "partitions")), Dispatch: dispatch, Settings: drawSettings(t), Reserved: offset}
	case 5:
		return SetTopic{Name: name, ID: id, Version: version, Settings: drawSettings(t), Unset: rapid.SliceOfN(rapid.SampledFrom(SettingKeys()), 0, 2).Draw(t, "unset")}
	case 6:
		return DeleteTopic{Name: name, ID: id, TimeMs: 1}
	case 7:
		return TopicPurged{Name: name, Incarnation: uint64(rapid.IntRange(0, 4).Draw(t, "incarnation"))}
	case 8:
		return ReserveOffsets{Name: name, ID: id, Partition: partition, Generation: generation, Through: offset}
	case 9:
		to := rapid.SampledFrom([]uint32{generation + 1, generation + 5, generation, maxGeneration}).Draw(t, "to")
		return NewGeneration{Name: name, ID: id, Partition: partition, From: generation, To: to, Reserved: offset}
	case 10:
		return ReserveProducerIDs{Count: int64(rapid.IntRange(0, 5).Draw(t, "count"))}
	}
	broker := rapid.SampledFrom([]string{"b-1", "b-2", "."}).Draw(t, "broker")
	return RaiseRegistration{Broker: broker, From: v.Registration(broker) + uint64(rapid.IntRange(0, 1).Draw(t, "off"))}
}

// drawFold draws one that mostly fits what is exported.
func drawFold(t *rapid.T, v *View, name Name, id TopicID, partition int32, generation uint32) Command {
	e := v.Export(id, partition)
	c := FoldObjects{Name: name, ID: id, Partition: partition, Generation: generation, Objects: 1, Through: 1, Manifest: Manifest{Next: 1, Count: 1}}
	if e == nil {
		return c
	}
	c.Objects = rapid.IntRange(1, max(1, len(e.Objects)-rapid.IntRange(0, 1).Draw(t, "all of them?"))).Draw(t, "objects")
	c.Base, c.Through = e.Objects[0].Base, e.Objects[c.Objects-1].Next
	c.Manifest = Manifest{First: c.Base, Base: c.Base, Next: c.Through, Count: int64(c.Objects), CRC: uint32(rapid.IntRange(0, 2).Draw(t, "crc"))}
	if e.Manifest != nil {
		c.Manifest.First, c.Manifest.Base, c.Manifest.Count = e.Manifest.First, e.Manifest.First, e.Manifest.Count+int64(c.Objects)
		if rapid.IntRange(0, 9).Draw(t, "as if there were none?") > 0 {
			from := *e.Manifest
			c.From = &from
		}
	}
	return c
}

// drawMerge draws one that mostly fits what is exported.
func drawMerge(t *rapid.T, v *View, name Name, id TopicID, partition int32, generation uint32) Command {
	e := v.Export(id, partition)
	c := MergeObjects{Name: name, ID: id, Partition: partition, Generation: generation, Sources: []uint32{0, 0}, Object: ExportedObject{
		Next: 1, BaseSeq: 1, NextSeq: 2, Generation: 1, SegmentBytes: 100, Size: 200,
	}}
	if e == nil || len(e.Objects) < 2 {
		return c
	}
	from := rapid.IntRange(0, len(e.Objects)-2).Draw(t, "from")
	to := rapid.IntRange(from+2, len(e.Objects)).Draw(t, "to")
	c.Sources = nil
	for _, o := range e.Objects[from:to] {
		c.Sources = append(c.Sources, o.CRC)
	}
	first, last := e.Objects[from], e.Objects[to-1]
	c.Object = first
	c.Object.Next, c.Object.NextSeq, c.Object.Generation = last.Next, last.NextSeq, last.Generation
	c.Object.CRC = uint32(rapid.IntRange(0, 2).Draw(t, "crc"))
	c.Object.Next -= rapid.SampledFrom([]int64{0, 0, 0, 1}).Draw(t, "another end?")
	return c
}

// drawExport draws an object that mostly follows those that are exported.
func drawExport(t *rapid.T, v *View, name Name, id TopicID, partition int32, generation uint32) Command {
	frontier := v.Export(id, partition).Frontier()
	base := frontier + int64(rapid.SampledFrom([]int{0, 0, 0, 5, -1}).Draw(t, "gap"))
	o := ExportedObject{
		Base: base, Next: base + int64(rapid.IntRange(0, 20).Draw(t, "records")), BaseSeq: uint64(base + 1), NextSeq: uint64(base + 2), Generation: generation,
		SegmentBytes: 100, Size: 200,
	}
	return ExportObject{Name: name, ID: id, Partition: partition, Generation: generation, Frontier: frontier + int64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "stale frontier?")), Object: o}
}

// drawSubscriptionCommand draws a command about one of few subscriptions of that topic.
func drawSubscriptionCommand(t *rapid.T, v *View, kind int, topic Name, id TopicID, partition int32) Command {
	name := rapid.SampledFrom([]string{"s", "s-1", "t"}).Draw(t, "subscription")
	created, version, epoch, starts := uint64(1), uint64(1), uint64(1), 1
	if sub, err := v.Subscription(topic, name); err == nil && rapid.IntRange(0, 9).Draw(t, "stale subscription?") > 0 {
		created, version = sub.Created, sub.Version
		if c, ok := v.Cursor(id, name, partition); ok {
			epoch = c.Epoch
		}
	}
	if found, err := v.Topic(topic); err == nil {
		starts = len(found.Partitions)
	}
	position := rapid.SampledFrom([]int64{0, 1, 4095, 4096, 5000, 1 << 20, math.MaxInt64, -1}).Draw(t, "position")
	switch kind {
	case 12, 13:
		c := CreateSubscription{Topic: topic, ID: id, Name: name, Type: Shared, TimeMs: 5, Starts: make([]int64, starts)}
		c.Starts[0] = position
		if rapid.Bool().Draw(t, "settings?") {
			c.Settings.DeadLetterTopic = ptr(rapid.SampledFrom([]string{"a", "n/a", "", "x"}).Draw(t, "dead letters"))
		}
		return c
	case 14:
		return SetSubscription{
			Topic: topic, ID: id, Name: name, Version: version, Settings: SubscriptionSettings{WindowMessages: ptr(int32(rapid.IntRange(0, 2).Draw(t, "window")))},
			Unset: rapid.SliceOfN(rapid.SampledFrom([]string{"dead_letter_topic", "poison"}), 0, 2).Draw(t, "unset"),
		}
	case 15:
		return DeleteSubscription{Topic: topic, ID: id, Name: name, Created: created}
	case 16:
		return SeekCursor{Topic: topic, ID: id, Subscription: name, Created: created, Partition: partition, Epoch: epoch, Position: position}
	}
	save := CursorSave{ID: id, Subscription: name, Created: created, Partition: partition, Epoch: epoch, Position: position, ActiveMs: int64(rapid.IntRange(0, 9).Draw(t, "active"))}
	for n := range int64(4) {
		switch rapid.IntRange(0, 3).Draw(t, "block") {
		case 0:
			save.Blocks = append(save.Blocks, AckBlock{Number: n})
		case 1:
			save.Blocks = append(save.Blocks, AckBlock{Number: n, Bits: []byte{byte(rapid.IntRange(0, 255).Draw(t, "bits"))}})
		case 2:
			save.Counts = append(save.Counts, DeliveryCount{Offset: n * 2000, Deliveries: 2})
		}
	}
	return SaveCursors{[]CursorSave{save, {ID: testID(1), Subscription: "s", Created: 1, Epoch: 1, Position: 3}}}
}

// drawSchemaCommand draws a command about one of few subjects and schemas.
func drawSchemaCommand(t *rapid.T, v *View, kind int, topic Name, id TopicID) Command {
	names := []string{"x", "x-value", "y z/ü"}
	name := rapid.SampledFrom(names).Draw(t, "subject")
	revision, version := uint64(0), int32(1)
	if s, err := v.Subject(name); err == nil && rapid.IntRange(0, 9).Draw(t, "stale subject?") > 0 {
		revision = s.Revision
		if len(s.Versions) > 0 {
			version = rapid.SampledFrom(s.Versions).Draw(t, "version").Version
		}
	}
	permanent := rapid.Bool().Draw(t, "permanent")
	switch kind {
	case 20, 21, 22:
		definition := rapid.SampledFrom([]string{"1", "2", "<3>"}).Draw(t, "definition")
		c := RegisterSchema{Subject: name, Type: "avro", Definition: definition, Fingerprint: "f" + definition, Revision: revision}
		if rapid.IntRange(0, 2).Draw(t, "reference?") == 0 {
			c.References = []SchemaReference{{"n", rapid.SampledFrom(names).Draw(t, "other"), int32(rapid.IntRange(1, 3).Draw(t, "other version"))}}
			c.Fingerprint += fmt.Sprint(c.References)
		}
		return c
	case 23:
		return DeleteSchemaVersion{Subject: name, Version: version, Permanent: permanent, Revision: revision}
	case 24:
		return DeleteSubject{Subject: name, Permanent: permanent, Revision: revision}
	case 25:
		return SetCompatibility{Subject: rapid.SampledFrom(append(names, "")).Draw(t, "whose"), Mode: rapid.SampledFrom([]string{"", "full", "none", "x"}).Draw(t, "mode")}
	}
	policy := rapid.SampledFrom([]string{PolicyNone, PolicyWarn, PolicyEnforce}).Draw(t, "policy")
	return SetTopicSchema{Topic: topic, ID: id, Subject: rapid.SampledFrom(append(names, "")).Draw(t, "topic's subject"), Policy: policy}
}

func drawSettings(t *rapid.T) Settings {
	var s Settings
	if rapid.Bool().Draw(t, "fsync?") {
		s.Fsync = ptr(rapid.SampledFrom([]string{FsyncOnCommit, FsyncPeriodic, FsyncNone}).Draw(t, "fsync"))
	}
	if rapid.Bool().Draw(t, "retention?") {
		s.RetentionBytes = ptr(int64(rapid.IntRange(-1, 3).Draw(t, "retention")))
	}
	return s
}

// history is what a sequence showed so far: what must never come twice.
type history struct {
	incarnations map[string]uint64  // name to highest
	generations  map[string]uint32  // name to highest of all its deleted incarnations
	ids          map[TopicID]string // topic and incarnation
	producers    int64
	subjects     map[string]int32 // to highest version
	schemas      map[uint64]string
}

func (h *history) check(t *rapid.T, r Result) {
	if r.FirstProducerID != 0 {
		if r.FirstProducerID <= h.producers {
			t.Fatalf("producer id %d was given out twice", r.FirstProducerID)
		}
		h.producers = r.FirstProducerID
	}
	if r.SchemaVersion != nil {
		if r.Subject.Revision == r.Index {
			if r.SchemaVersion.Version <= h.subjects[r.Subject.Name] {
				t.Fatalf("version %d of %s was given twice", r.SchemaVersion.Version, r.Subject.Name)
			}
			h.subjects[r.Subject.Name] = r.SchemaVersion.Version
		}
		if was, ok := h.schemas[r.Schema.ID]; ok && was != r.Schema.Fingerprint {
			t.Fatalf("schema id %d was that of %s and is that of %s", r.Schema.ID, was, r.Schema.Fingerprint)
		}
		h.schemas[r.Schema.ID] = r.Schema.Fingerprint
	}
	if r.Topic == nil {
		return
	}
	name := r.Topic.Name.String()
	switch known := h.incarnations[name]; {
	case r.Topic.Incarnation < known:
		t.Fatalf("%s went back from incarnation %d to %d", name, known, r.Topic.Incarnation)
	case r.Topic.Incarnation > known:
		for _, p := range r.Topic.Partitions {
			if p.Generation <= h.generations[name] {
				t.Fatalf("%s@%d starts at generation %d, and one before it reached %d", name, r.Topic.Incarnation, p.Generation, h.generations[name])
			}
		}
	}
	h.incarnations[name] = r.Topic.Incarnation
	for _, p := range r.Topic.Partitions {
		h.generations[name] = max(h.generations[name], p.Generation)
	}
}

// checkView checks what ties the parts of a state together.
func checkView(t *rapid.T, s *State) {
	v := s.View()
	topics := map[string]int{}
	for topic := range v.Topics("") {
		topics[topic.Name.Namespace]++
		if byID, ok := v.TopicByID(topic.ID); !ok || byID != topic {
			t.Fatalf("%s is not found by its id", topic.Name)
		}
		if base, ok := partitionOf(topic.Name.Topic); ok {
			if _, err := v.Topic(Name{topic.Name.Namespace, base}); err == nil {
				t.Fatalf("%s and %s exist at once", topic.Name, base)
			}
		}
		if topic.Incarnation <= v.DeletedThrough(topic.Name) {
			t.Fatalf("%s@%d lives and is deleted", topic.Name, topic.Incarnation)
		}
	}
	checkSchemaView(t, v)
	cursors := 0
	for sub := range v.AllSubscriptions() {
		topic, ok := v.TopicByID(sub.TopicID)
		if !ok || topic.Name != sub.Topic || topic.Dispatch != Reliable {
			t.Fatalf("subscription %s of %s has no topic", sub.Name, sub.Topic)
		}
		if same, err := v.Subscription(sub.Topic, sub.Name); err != nil || same != sub {
			t.Fatalf("subscription %s of %s is not found: %v", sub.Name, sub.Topic, err)
		}
		for i := range topic.Partitions {
			c, ok := v.Cursor(sub.TopicID, sub.Name, int32(i))
			if !ok {
				t.Fatalf("subscription %s of %s has no cursor in partition %d", sub.Name, sub.Topic, i)
			}
			if cursors++; len(c.Blocks) > 0 && c.Blocks[0].Number < c.Position/AckBlockOffsets || len(c.Counts) > 0 && c.Counts[0].Offset < c.Position {
				t.Fatalf("subscription %s of %s keeps what is below its position: %s", sub.Name, sub.Topic, cursorText(c))
			}
		}
	}
	if n := v.cursors.len(); n != cursors {
		t.Fatalf("%d cursors, and %d of subscriptions", n, cursors)
	}
	for n := range v.Namespaces() {
		if n.Topics != topics[n.Name] {
			t.Fatalf("namespace %s counts %d topics and has %d", n.Name, n.Topics, topics[n.Name])
		}
		seen := 0
		for topic := range v.Topics(n.Name) {
			if seen++; topic.Name.Namespace != n.Name {
				t.Fatalf("%s is listed in namespace %s", topic.Name, n.Name)
			}
		}
		if seen != n.Topics {
			t.Fatalf("namespace %s lists %d topics of %d", n.Name, seen, n.Topics)
		}
	}
	if v.ids.len() != v.TopicCount() {
		t.Fatalf("%d ids of %d topics", v.ids.len(), v.TopicCount())
	}
	if pending := v.deletions.len(); v.tombstones.len() > s.tombstones && s.evictable.len() > 0 {
		t.Fatalf("%d tombstones with %d deletions pending: over the bound of %d", v.tombstones.len(), pending, s.tombstones)
	}
}

// checkSchemaView checks what is kept beside the subjects and schemas to find them by.
func checkSchemaView(t *rapid.T, v *View) {
	uses, referrers, live := 0, 0, map[uint64]bool{}
	for _, s := range v.subjects.all() {
		for _, there := range s.Versions {
			uses++
			live[there.SchemaID] = live[there.SchemaID] || !there.Deleted
			if _, ok := v.schemaUses.get(useKey(there.SchemaID, s.Name, there.Version)); !ok {
				t.Fatalf("version %d of %s is no use of schema %d", there.Version, s.Name, there.SchemaID)
			}
		}
	}
	if n := v.schemaUses.len(); n != uses || len(live) != v.schemas.len() || v.fingerprints.len() != len(live) {
		t.Fatalf("%d uses of %d, %d schemas of %d, %d fingerprints", n, uses, v.schemas.len(), len(live), v.fingerprints.len())
	}
	for id, schema := range v.schemas.all() {
		if again, ok := v.fingerprints.get(schema.Fingerprint); !ok || again != id || id > v.lastSchemaID {
			t.Fatalf("schema %d has the fingerprint of %d", id, again)
		}
		for _, r := range schema.References {
			referrers++
			s, _ := v.subjects.get(r.Subject)
			if s == nil {
				t.Fatalf("schema %d refers to subject %s, which is gone", id, r.Subject)
			}
			if there, ok := s.Find(r.Version); !ok || there.Deleted && live[id] {
				t.Fatalf("schema %d refers to version %d of %s, which is gone", id, r.Version, r.Subject)
			}
			if _, ok := v.referrers.get(referrerKey(r.Subject, r.Version, id)); !ok {
				t.Fatalf("schema %d is no referrer of version %d of %s", id, r.Version, r.Subject)
			}
		}
	}
	if n := v.referrers.len(); n != referrers {
		t.Fatalf("%d referrers of %d", n, referrers)
	}
	for key := range v.topicSchemas.all() {
		if _, ok := v.TopicByID(TopicID([]byte(key))); !ok {
			t.Fatalf("a topic that is gone has a schema")
		}
	}
}

// FuzzDecode: whatever is read as a command is written and read again alike.
func FuzzDecode(f *testing.F) {
	for _, c := range everyCommand() {
		b, err := Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(bytes.Replace(b, []byte("}"), []byte(`,"x":1}`), 1))
		f.Add(bytes.Replace(b, []byte(`"v":1`), []byte(`"v":2`), 1))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil || c.Validate() != nil {
			return
		}
		first, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(first)
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		second, err := Encode(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s\n%s\n%v", first, second, err)
		}
		s := NewState()
		if _, err := s.Apply(1, c); err != nil {
			t.Fatal(err)
		}
		if err := NewState().Restore(mustSnapshot(t, s)); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRestore: whatever is read as a snapshot is written and read again alike, and what is refused changes nothing.
func FuzzRestore(f *testing.F) {
	s := NewState()
	for i, c := range everyCommand() {
		if _, err := s.Apply(uint64(i+1), c); err != nil {
			f.Fatal(err)
		}
		b := mustSnapshot(f, s)
		f.Add(b)
		f.Add(b[:len(b)-2])
		f.Add(append(b, b...))
	}
	s = NewState()
	for i, c := range whole() {
		if _, err := s.Apply(uint64(i+1), c); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(mustSnapshot(f, s))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewState()
		before := mustSnapshot(t, s)
		if err := s.Restore(b); err != nil {
			if after := mustSnapshot(t, s); !bytes.Equal(before, after) {
				t.Fatalf("refused with %v, but the state is now\n%s", err, after)
			}
			return
		}
		first := mustSnapshot(t, s)
		if err := s.Restore(first); err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		if second := mustSnapshot(t, s); !bytes.Equal(first, second) {
			t.Fatalf("%s\n%s", first, second)
		}
		for topic := range s.View().Topics("") {
			if strings.Count(topic.Name.String(), "/") != 1 {
				t.Fatalf("name %q", topic.Name)
			}
		}
	})
}
