package simulation

import (
	"slices"
	"strings"

	"github.com/leveemq/levee/internal/meta"
)

// What clients of the metadata do about subscriptions and schemas, and what of it the judge holds to be right.

var (
	metaSubscriptions = []string{"s", "s-1"}
	metaSubjects      = []string{"x", "y"}
)

// subscribed is a subscription as a read shows it.
type subscribed struct {
	*meta.Subscription
	Cursors []*meta.Cursor
}

func subscribedTo(v *meta.View, t *meta.Topic) (all []subscribed) {
	for s := range v.Subscriptions(t.ID) {
		one := subscribed{Subscription: s}
		for i := range t.Partitions {
			c, _ := v.Cursor(t.ID, s.Name, int32(i))
			one.Cursors = append(one.Cursors, c)
		}
		all = append(all, one)
	}
	return all
}

// subscriptionKey names a subscription of an incarnation of a topic.
type subscriptionKey struct {
	id   meta.TopicID
	name string
}

// metaSeen is what a client knows of subscriptions and subjects; it may be old.
type metaSeen struct {
	subscriptions map[subscriptionKey]subscribed
	subjects      map[string]*meta.Subject
	deleting      bool // it asked for a subject to be deleted, and the answer will say what that was
}

// read reports whether the answer is that to a read.
func (a answer) read() bool { return strings.HasPrefix(a.Text, "deleted through") }

func (m *metaSeen) learn(a answer) {
	if s := a.Subscription; s != nil {
		one := m.subscriptions[subscriptionKey{s.TopicID, s.Name}]
		one.Subscription = s
		if a.Cursor != nil { // of partition 0: no other is ever moved
			one.Cursors = []*meta.Cursor{a.Cursor}
		}
		m.subscriptions[subscriptionKey{s.TopicID, s.Name}] = one
	}
	for _, one := range a.Subscribed {
		m.subscriptions[subscriptionKey{one.TopicID, one.Name}] = one
	}
	if a.read() {
		clear(m.subjects) // it lists all there are
	}
	for _, s := range append(a.Subjects, a.Subject) {
		if s != nil {
			s.Deleted = len(s.Versions) > 0 && !slices.ContainsFunc(s.Versions, func(v meta.SubjectVersion) bool { return !v.Deleted })
			m.subjects[s.Name] = s
		}
	}
	if s := a.Subject; s != nil && m.deleting {
		s.Revision, s.Deleted = a.Index, true
	}
	m.deleting = false
}

// subscriptionCommand draws a command about a subscription of a topic that the client knows.
func (m *metaClient) subscriptionCommand(t *meta.Topic, ms, amount int64) meta.Command {
	name := metaSubscriptions[m.c.Draw(m.stream, len(metaSubscriptions))]
	if m.c.Draw(m.stream, 4) != 1 {
		t, name = m.anySubscription(t, name)
	}
	one := m.metaSeen.subscriptions[subscriptionKey{t.ID, name}]
	if one.Subscription == nil {
		return meta.CreateSubscription{Topic: t.Name, ID: t.ID, Name: name, Type: meta.Shared, TimeMs: ms, Starts: make([]int64, len(t.Partitions))}
	}
	epoch, position := uint64(1), int64(0)
	if len(one.Cursors) > 0 {
		epoch, position = one.Cursors[0].Epoch, one.Cursors[0].Position
	}
	window := int32(amount)
	switch m.c.Pick(m.stream, 6, 5, 1, 2) {
	case 1:
		return meta.SeekCursor{Topic: t.Name, ID: t.ID, Subscription: name, Created: one.Created, Epoch: epoch, Position: amount * 1000}
	case 2:
		return meta.DeleteSubscription{Topic: t.Name, ID: t.ID, Name: name, Created: one.Created}
	case 3:
		return meta.SetSubscription{Topic: t.Name, ID: t.ID, Name: name, Version: one.Version, Settings: meta.SubscriptionSettings{WindowMessages: &window}}
	}
	if epoch > 1 && m.c.Draw(m.stream, 3) == 1 {
		epoch-- // as if it were still on its way when the cursor was moved
	}
	save := meta.CursorSave{ID: t.ID, Subscription: name, Created: one.Created, Epoch: epoch, Position: position + (amount-3)*1000, ActiveMs: ms}
	save.Position = max(0, save.Position)
	block := save.Position / meta.AckBlockOffsets
	save.Blocks = []meta.AckBlock{{Number: block, Bits: []byte{byte(amount)}}, {Number: block + amount%3 + 1, Bits: []byte{2}[:amount%2]}}
	other := save
	other.Partition, other.Counts = int32(len(t.Partitions)-1), []meta.DeliveryCount{{Offset: save.Position + amount, Deliveries: 2}}
	return meta.SaveCursors{Cursors: []meta.CursorSave{save, other}}
}

// anySubscription returns the first subscription that the client knows to be there; where there is none, what it is given.
func (m *metaClient) anySubscription(t *meta.Topic, name string) (*meta.Topic, string) {
	for _, topic := range metaNames {
		for _, s := range metaSubscriptions {
			if known := m.known[topic]; known != nil && m.metaSeen.subscriptions[subscriptionKey{known.ID, s}].Subscription != nil {
				return known, s
			}
		}
	}
	return t, name
}

// schemaCommand draws a command about a subject, or about what a topic is held against.
func (m *metaClient) schemaCommand(t *meta.Topic, ms, amount int64) meta.Command {
	name := metaSubjects[m.c.Draw(m.stream, len(metaSubjects))]
	revision, version, register := uint64(0), int32(1), 20
	if s := m.metaSeen.subjects[name]; s != nil && (len(s.Versions) > 0 || s.Compatibility != "") {
		revision = s.Revision
		if n := len(s.Versions); n > 0 {
			version, register = s.Versions[int(amount)%n].Version, 5
		}
	}
	switch m.c.Pick(m.stream, register, 1, 6, 1, 1) {
	case 1:
		return meta.DeleteSchemaVersion{Subject: name, Version: version, Permanent: amount%2 == 0, Revision: revision}
	case 2:
		c := meta.DeleteSubject{Subject: name, Revision: revision}
		if s := m.metaSeen.subjects[name]; s != nil && s.Deleted {
			c.Permanent = true
			delete(m.metaSeen.subjects, name) // what comes next is for a new one
		}
		m.deleting = !c.Permanent
		return c
	case 3:
		return meta.SetCompatibility{Subject: name, Mode: []string{"", "full"}[amount%2]}
	case 4:
		return meta.SetTopicSchema{Topic: t.Name, ID: t.ID, Subject: name, Policy: meta.PolicyWarn}
	}
	definition := []string{"1", "2", "3"}[amount%3]
	c := meta.RegisterSchema{Subject: name, Type: "avro", Definition: definition, Fingerprint: "f" + definition, TimeMs: ms, Revision: revision}
	if amount > 7 {
		c.References = []meta.SchemaReference{{Name: "n", Subject: metaSubjects[amount%2], Version: 1}}
		c.Fingerprint += "-" + metaSubjects[amount%2]
	}
	return c
}

// metaGiven is what was given out once and must not be again, and how much the rules below had to look at.
type metaGiven struct {
	versions map[string]int32 // subject to highest
	schema   uint64           // highest id

	saved, seeks, left, refused, registered, deleted int
}

// subscriptionRules checks what must hold of subscriptions and cursors from one state to the next.
func (g *metaJudge) subscriptionRules(before, v *meta.View, r meta.Result, bad func(string, ...any)) {
	n := 0
	for s := range v.AllSubscriptions() {
		n++
		t, ok := v.TopicByID(s.TopicID)
		if !ok || t.Name != s.Topic {
			bad("subscription %s outlives its topic %s", s.Name, s.Topic)
			return
		}
		old, err := before.Subscription(s.Topic, s.Name)
		same := err == nil && old.TopicID == s.TopicID && old.Created == s.Created
		if !same && s.Created != v.Index() || same && (s.Version < old.Version || s.ActiveMs < old.ActiveMs) {
			bad("subscription %s of %s was %+v and is %+v", s.Name, s.Topic, old, s)
		}
		for i := range t.Partitions {
			c, ok := v.Cursor(s.TopicID, s.Name, int32(i))
			if !ok {
				bad("subscription %s of %s has no cursor in partition %d", s.Name, s.Topic, i)
				continue
			}
			was, had := before.Cursor(s.TopicID, s.Name, int32(i))
			if !same || !had || was == c {
				continue
			}
			if c.Epoch < was.Epoch || c.Epoch > was.Epoch+1 || c.Epoch == was.Epoch && c.Position < was.Position {
				bad("the cursor of %s in %s/%d went from %+v to %+v", s.Name, s.Topic, i, was, c)
			}
			g.given.saved++
		}
	}
	if n != v.SubscriptionCount() {
		bad("%d subscriptions, and it counts %d", n, v.SubscriptionCount())
	}
	g.leftovers(before, v, r, bad)
}

// leftovers checks that what is gone is gone with all that was its own.
func (g *metaJudge) leftovers(before, v *meta.View, r meta.Result, bad func(string, ...any)) {
	for t := range before.Topics("") {
		_, lives := v.TopicByID(t.ID)
		if _, ok := v.TopicSchema(t.ID); ok && !lives {
			bad("topic %s is gone, and what it is held against is not", t.Name)
		}
		for s := range before.Subscriptions(t.ID) {
			if now, err := v.Subscription(t.Name, s.Name); err == nil && now.TopicID == t.ID {
				continue
			}
			if r.Refused != nil || lives && r.Subscription == nil {
				bad("subscription %s of %s is gone, and nobody deleted it", s.Name, t.Name)
			}
			for i := range t.Partitions {
				if _, ok := v.Cursor(t.ID, s.Name, int32(i)); ok {
					bad("subscription %s of %s is gone, and its cursor in partition %d is not", s.Name, t.Name, i)
				}
			}
		}
	}
}

// schemaRules checks what must hold of schemas and subjects.
func (g *metaJudge) schemaRules(before, v *meta.View, bad func(string, ...any)) {
	if g.given.versions == nil {
		g.given.versions = map[string]int32{}
	}
	highest := g.given.schema
	for s := range v.Subjects() {
		old, err := before.Subject(s.Name)
		if err != nil {
			old = &meta.Subject{}
		}
		for _, there := range s.Versions {
			was, had := old.Find(there.Version)
			switch {
			case had && (was.SchemaID != there.SchemaID || was.Deleted && !there.Deleted):
				bad("version %d of %s was %+v and is %+v", there.Version, s.Name, was, there)
			case !had && there.Version <= g.given.versions[s.Name]:
				bad("version %d of %s was given out before", there.Version, s.Name)
			}
			schema, err := v.Schema(there.SchemaID)
			if err != nil {
				bad("version %d of %s: %v", there.Version, s.Name, err)
				continue
			}
			earlier, err := before.Schema(there.SchemaID)
			if err != nil && there.SchemaID <= g.given.schema || err == nil && earlier.Fingerprint != schema.Fingerprint {
				bad("schema id %d was given out before", there.SchemaID)
			}
			highest = max(highest, there.SchemaID)
			g.given.versions[s.Name] = max(g.given.versions[s.Name], there.Version)
			for _, ref := range schema.References {
				target, err := v.Subject(ref.Subject)
				if err != nil {
					bad("schema %d refers to subject %s: %v", schema.ID, ref.Subject, err)
				} else if to, ok := target.Find(ref.Version); !ok || to.Deleted && !there.Deleted {
					bad("schema %d refers to version %d of %s, which is gone", schema.ID, ref.Version, ref.Subject)
				}
			}
		}
	}
	g.given.schema = highest
}

// decisions checks that a command took effect only where what it was decided on had not moved.
func (g *metaJudge) decisions(before, v *meta.View, c meta.Command, r meta.Result, bad func(string, ...any)) {
	moved := func(ok bool) {
		switch {
		case r.Refused != nil:
			g.given.refused++
		case !ok:
			bad("%+v was carried out, and what it was decided on had moved", c)
		}
	}
	find := func(topic meta.Name, id meta.TopicID, name string) *meta.Subscription {
		if s, err := before.Subscription(topic, name); err == nil && s.TopicID == id {
			return s
		}
		return &meta.Subscription{}
	}
	revision := func(name string) uint64 {
		s, err := before.Subject(name)
		if err != nil {
			return 0
		}
		return s.Revision
	}
	switch c := c.(type) {
	case meta.SetSubscription:
		moved(find(c.Topic, c.ID, c.Name).Version == c.Version)
	case meta.DeleteSubscription:
		moved(find(c.Topic, c.ID, c.Name).Created == c.Created)
	case meta.SeekCursor:
		was, ok := before.Cursor(c.ID, c.Subscription, c.Partition)
		moved(ok && was.Epoch == c.Epoch && find(c.Topic, c.ID, c.Subscription).Created == c.Created)
		if r.Refused == nil {
			g.given.seeks++
		}
	case meta.DeleteSchemaVersion:
		moved(revision(c.Subject) == c.Revision)
	case meta.DeleteSubject:
		moved(revision(c.Subject) == c.Revision)
		if r.Refused == nil {
			g.given.deleted++
		}
	case meta.RegisterSchema:
		again := r.Subject != nil && r.Subject.Revision != v.Index() // it lived already
		moved(revision(c.Subject) == c.Revision || again)
		if r.Refused == nil {
			g.given.registered++
		}
	case meta.SaveCursors:
		left := 0
		for _, s := range c.Cursors {
			t, live := before.TopicByID(s.ID)
			was, ok := before.Cursor(s.ID, s.Subscription, s.Partition)
			if live && ok && was.Epoch == s.Epoch && find(t.Name, s.ID, s.Subscription).Created == s.Created {
				now, _ := v.Cursor(s.ID, s.Subscription, s.Partition)
				if now == nil || now.Position < s.Position || !slices.ContainsFunc(now.Blocks, func(b meta.AckBlock) bool { return b.Number == s.Blocks[0].Number }) && now.Position <= s.Position {
					bad("%+v was saved and is %+v", s, now)
				}
				continue
			}
			left++
		}
		if g.given.left += left; r.Refused != nil || r.Skipped != left {
			bad("%d of the cursors in %+v no longer fit, and %d were left out: %v", left, c, r.Skipped, r.Refused)
		}
	}
}
