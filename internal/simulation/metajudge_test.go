package simulation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/meta"
)

// metaJudge knows everything, and says what is not as it must be.
type metaJudge struct {
	w       *World
	log     []judged // by index, from 1
	views   []*meta.View
	durable map[NodeID]uint64 // what each replica has had on its disk
	highest map[meta.Name]highest

	given metaGiven

	snapshots, boots int
}

// judged is a command as the first node that applied it saw it.
type judged struct {
	body []byte
	text string
	step int
}

// highest is the most that any incarnation of a name reached.
type highest struct {
	incarnation, through uint64
	generation           uint32
}

func newMetaJudge(w *World) *metaJudge {
	return &metaJudge{w: w, log: make([]judged, 1), views: []*meta.View{meta.NewState().View()}, durable: map[NodeID]uint64{}, highest: map[meta.Name]highest{}}
}

// applied checks a command against what others, and earlier lives, made of it.
func (g *metaJudge) applied(m *metaNode, e entry, a answer, r meta.Result) {
	text := mustJSON(a)
	switch {
	case e.index > uint64(len(g.log)):
		g.w.Fail("order", "%s applied %d after %d", m.id, e.index, len(g.log)-1)
	case e.index < uint64(len(g.log)):
		was := g.log[e.index]
		if !bytes.Equal(was.body, e.body) {
			g.w.Fail("one log", "%s has %q at %d, where %q was applied", m.id, e.body, e.index, was.body)
		} else if was.text != text {
			g.w.Fail("deterministic", "%s got %s from %q at %d, others %s", m.id, text, e.body, e.index, was.text)
		}
	default:
		g.log = append(g.log, judged{e.body, text, g.w.Trace.Steps()})
		v := m.state.View()
		g.views = append(g.views, v)
		g.rules(g.views[e.index-1], v, r)
		g.more(g.views[e.index-1], v, e, r)
	}
	g.durable[m.id] = max(g.durable[m.id], e.index)
}

// booted checks a state made again from the disk, or from a snapshot that came.
func (g *metaJudge) booted(m *metaNode) {
	g.boots++
	need := g.durable[m.id]
	if m.id == m.leader {
		need = uint64(len(g.log) - 1) // what it answered
	}
	if m.applied < need {
		g.w.Fail("lost", "%s has %d commands, and had %d on its disk", m.id, m.applied, need)
		return
	}
	b, err := m.state.Snapshot()
	if err != nil {
		g.w.Fail("snapshot", "%s: %v", m.id, err)
		return
	}
	g.snapshot(m, b)
}

// snapshot checks a snapshot against the state of whoever was first at its index.
func (g *metaJudge) snapshot(m *metaNode, b []byte) {
	g.snapshots++
	if m.applied >= uint64(len(g.views)) {
		g.w.Fail("order", "%s has state %d, the newest is %d", m.id, m.applied, len(g.views)-1)
		return
	}
	want, err := g.views[m.applied].Snapshot()
	if err != nil || !bytes.Equal(want, b) {
		g.w.Fail("same bytes", "%s has at %d\n%s\nothers have\n%s\n%v", m.id, m.applied, b, want, err)
	}
}

// rules checks what must hold from one state to the next.
func (g *metaJudge) rules(before, v *meta.View, r meta.Result) {
	bad := func(format string, args ...any) {
		g.w.Fail("state", "command %d: %s", v.Index(), fmt.Sprintf(format, args...))
	}
	if r.FirstProducerID != 0 && (r.FirstProducerID != before.NextProducerID() || v.NextProducerID() <= r.FirstProducerID) {
		bad("producer ids from %d: they were given out up to %d, and are up to %d", r.FirstProducerID, before.NextProducerID(), v.NextProducerID())
	}
	if v.NextProducerID() < before.NextProducerID() || v.Registration("b-1") < before.Registration("b-1") {
		bad("a number went back")
	}
	count := map[string]int{}
	for t := range v.Topics("") {
		count[t.Name.Namespace]++
		g.topicRules(before, v, t, bad)
	}
	for n := range v.Namespaces() {
		if n.Topics != count[n.Name] {
			bad("namespace %s counts %d topics and has %d", n.Name, n.Topics, count[n.Name])
		}
		delete(count, n.Name)
	}
	if len(count) > 0 {
		bad("topics in namespaces that do not exist: %v", count)
	}
	for _, name := range metaNames {
		h := g.highest[name]
		if v.DeletedThrough(name) < h.through {
			bad("%s was deleted through %d, and now through %d", name, h.through, v.DeletedThrough(name))
		}
		if t, err := v.Topic(name); err != nil && h.incarnation > v.DeletedThrough(name) {
			bad("%s@%d is gone without a tombstone", name, h.incarnation)
		} else if err == nil && t.Incarnation <= v.DeletedThrough(name) {
			bad("%s@%d lives and is deleted through %d", name, t.Incarnation, v.DeletedThrough(name))
		}
		h.through = v.DeletedThrough(name)
		g.highest[name] = h
	}
	purged := 0
	for d := range before.Deletions() {
		there := false
		for now := range v.Deletions() {
			there = there || *now == *d
		}
		if !there {
			purged++
		}
	}
	if purged > 1 || purged == 1 && (r.Refused != nil || r.Deletion == nil) {
		bad("%d deletions are forgotten whose data may be there", purged)
	}
}

// more is rules, for subscriptions and schemas.
func (g *metaJudge) more(before, v *meta.View, e entry, r meta.Result) {
	bad := func(format string, args ...any) {
		g.w.Fail("state", "command %d: %s", v.Index(), fmt.Sprintf(format, args...))
	}
	_, command, _ := bytes.Cut(e.body, []byte(" "))
	c, err := meta.Decode(command)
	if err != nil {
		bad("%v", err)
		return
	}
	g.subscriptionRules(before, v, r, bad)
	g.schemaRules(before, v, bad)
	g.decisions(before, v, c, r, bad)
}

func (g *metaJudge) topicRules(before, v *meta.View, t *meta.Topic, bad func(string, ...any)) {
	if other, ok := v.TopicByID(t.ID); !ok || other.Name != t.Name {
		bad("the id of %s leads to another topic", t.Name)
	}
	if base, _, part := strings.Cut(t.Name.Topic, "-part-"); part {
		if _, err := v.Topic(meta.Name{Namespace: t.Name.Namespace, Topic: base}); err == nil {
			bad("%s lives beside %s", t.Name, base)
		}
	}
	h := g.highest[t.Name]
	old, err := before.Topic(t.Name)
	if err != nil || old.ID != t.ID { // new
		if t.Incarnation <= h.incarnation {
			bad("%s@%d comes after incarnation %d", t.Name, t.Incarnation, h.incarnation)
		}
		for i, p := range t.Partitions {
			if p.Generation <= h.generation {
				bad("%s/%d starts in generation %d, its predecessors were at %d", t.Name, i, p.Generation, h.generation)
			}
		}
	} else {
		if t.Incarnation != old.Incarnation || t.Version < old.Version || len(t.Partitions) != len(old.Partitions) {
			bad("%s changed from %+v to %+v", t.Name, old, t)
		}
		for i, p := range t.Partitions {
			if q := old.Partitions[i]; p.Generation < q.Generation || p.Reserved < q.Reserved {
				bad("%s/%d went from %+v to %+v", t.Name, i, q, p)
			}
		}
	}
	h.incarnation = max(h.incarnation, t.Incarnation)
	for _, p := range t.Partitions {
		h.generation = max(h.generation, p.Generation)
	}
	g.highest[t.Name] = h
}

// verdict checks what the clients saw: every answer is that of the one log, between its call and its return, and later
// calls see later states. On a replica a client sees at least what it saw before.
func (g *metaJudge) verdict(ops []*Operation) error {
	index := map[*Operation]uint64{}
	for _, op := range ops {
		var a answer
		if op.Returned == 0 {
			continue
		}
		if err := json.Unmarshal(op.Output, &a); err != nil {
			return &Failure{"answer", err.Error()}
		}
		index[op] = a.Index
	}
	for _, op := range ops {
		if op.Returned == 0 {
			continue
		}
		at := index[op]
		bad := func(rule, format string, args ...any) error {
			return &Failure{rule, fmt.Sprintf("%s #%d %s, answered %s: %s", op.Client, op.ID, op.Input, op.Output, fmt.Sprintf(format, args...))}
		}
		if at >= uint64(len(g.log)) {
			return bad("answer", "there are %d commands", len(g.log)-1)
		}
		text, read := strings.CutPrefix(string(op.Input), "read ")
		if read {
			name, _, _ := strings.Cut(text, " ")
			if want := mustJSON(readAnswer(g.views[at], name)); want != string(op.Output) {
				return bad("answer", "the state was %s", want)
			}
		} else {
			j := g.log[at]
			key := fmt.Sprintf("%s/%d ", op.Client, op.ID)
			switch {
			case !strings.HasPrefix(string(j.body), key):
				return bad("answer", "there stands %q", j.body)
			case j.text != string(op.Output):
				return bad("answer", "it came to %s", j.text)
			case j.step < op.Called || j.step > op.Returned:
				return bad("real time", "called at %d, applied at %d, answered at %d", op.Called, j.step, op.Returned)
			}
		}
		replica := read && !strings.HasSuffix(text, " leader")
		for _, earlier := range ops {
			if earlier.Returned == 0 || earlier.Returned >= op.Called || replica && earlier.Client != op.Client {
				continue
			}
			rule := "linearizable"
			if replica {
				rule = "monotonic"
			}
			if index[earlier] > at || index[earlier] == at && !read {
				return bad(rule, "%s #%d had been answered %s", earlier.Client, earlier.ID, earlier.Output)
			}
		}
	}
	return nil
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
