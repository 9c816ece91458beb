package simulation

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/leveemq/levee/internal/meta"
)

var metaNames = []meta.Name{{Namespace: "default", Topic: "a"}, {Namespace: "default", Topic: "a-part-0"}, {Namespace: "n", Topic: "a"}, {Namespace: "n", Topic: "b"}}

// metaClient draws commands out of a small world, mostly such as the state it last saw can accept.
type metaClient struct {
	c      *Choices
	stream string
	nodes  []NodeID
	number int
	ids    int
	known  map[meta.Name]*meta.Topic
	seen   uint64
	broker uint64
	metaSeen
}

func (m *metaClient) draw(now Now, step, last int) (NodeID, []byte) {
	if step == last {
		return m.nodes[0], []byte("read default/a 0 leader")
	}
	name := metaNames[m.c.Draw(m.stream, len(metaNames))]
	var command meta.Command
	switch kind := m.c.Pick(m.stream, 2, 3, 2, 5, 2, 1, 3, 2, 3, 3, 2, 1, 8, 6); kind {
	case 0:
		return "", nil
	case 1:
		return m.nodes[0], fmt.Appendf(nil, "read %s 0 leader", name)
	case 2:
		return m.nodes[m.c.Draw(m.stream, len(m.nodes))], fmt.Appendf(nil, "read %s %d", name, m.seen)
	default:
		command = m.command(kind, name, now.WallMs)
	}
	b, err := meta.Encode(command)
	if err != nil {
		panic(err)
	}
	return m.nodes[0], b
}

func (m *metaClient) command(kind int, name meta.Name, ms int64) meta.Command {
	t := m.known[name]
	if t == nil {
		t = &meta.Topic{Name: name, ID: meta.TopicID{1}, Version: 1, Partitions: []meta.Partition{{Generation: 1}}}
	}
	p := m.c.Draw(m.stream, len(t.Partitions))
	at := t.Partitions[p]
	amount := int64(1 + m.c.Draw(m.stream, 9))
	switch kind {
	case 3:
		if m.c.Draw(m.stream, 6) != 1 {
			m.ids++ // now and then it uses an id twice
		}
		return meta.CreateTopic{Name: name, ID: meta.TopicID{byte(m.number), byte(m.ids), 1}, TimeMs: ms, Partitions: int32(1 + amount%3), Dispatch: meta.Reliable, Reserved: amount % 4}
	case 4:
		return meta.CreateNamespace{Name: "n", TimeMs: ms}
	case 5:
		return meta.DeleteNamespace{Name: "n"}
	case 6:
		bytes := amount << 20
		return meta.SetTopic{Name: name, ID: t.ID, Version: t.Version, Settings: meta.Settings{RetentionBytes: &bytes}}
	case 7:
		return meta.DeleteTopic{Name: name, ID: t.ID, TimeMs: ms}
	case 8:
		return meta.ReserveOffsets{Name: name, ID: t.ID, Partition: int32(p), Generation: at.Generation, Through: at.Reserved + amount - 3}
	case 9:
		return meta.NewGeneration{Name: name, ID: t.ID, Partition: int32(p), From: at.Generation, To: at.Generation + uint32(amount%3+1), Reserved: at.Reserved + amount%2}
	case 10:
		return meta.TopicPurged{Name: name, Incarnation: max(1, t.Incarnation)}
	case 12:
		return m.subscriptionCommand(m.anyTopic(t), ms, amount)
	case 13:
		return m.schemaCommand(m.anyTopic(t), ms, amount)
	}
	if amount%2 == 0 {
		return meta.RaiseRegistration{Broker: "b-1", From: m.broker}
	}
	return meta.ReserveProducerIDs{Count: amount}
}

// anyTopic returns the topic where the client knows it, otherwise one that it does know.
func (m *metaClient) anyTopic(t *meta.Topic) *meta.Topic {
	for _, name := range metaNames {
		if m.known[t.Name] == nil && m.known[name] != nil {
			return m.known[name]
		}
	}
	return t
}

// learn remembers what an answer says.
func (m *metaClient) learn(body []byte) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		panic(err)
	}
	m.seen = max(m.seen, a.Index)
	if a.Topic != nil {
		m.known[a.Topic.Name] = a.Topic
	}
	m.metaSeen.learn(a)
	var id int64
	var registration uint64
	if _, err := fmt.Sscanf(a.Text, "producer id %d, registration %d", &id, &registration); err == nil {
		m.broker = max(m.broker, registration)
	}
}

// metaWorld is a leader, two replicas, and three clients. after, where not nil, sees the judge and the history.
func metaWorld(b metaBug, o Options, steps, retries int, after func(*metaJudge, *World) error) Scenario {
	return func(c *Choices, t *Trace) error {
		w := NewWorld(c, t, o)
		judge := newMetaJudge(w)
		nodes := []NodeID{"meta-1", "meta-2", "meta-3"}
		for i, id := range nodes {
			w.AddNode(id, NodeOptions{Boot: func() Core {
				return &metaNode{id: id, leader: nodes[0], bug: b, every: []uint64{9, 6, 14}[i], judge: judge}
			}})
		}
		var clients []*asker
		for i := range 3 {
			id := NodeID(fmt.Sprintf("client-%d", i+1))
			m := &metaClient{c: c, stream: string(id), nodes: nodes, number: i + 1, known: map[meta.Name]*meta.Topic{},
				metaSeen: metaSeen{map[subscriptionKey]subscribed{}, map[string]*meta.Subject{}, false}}
			a := &asker{steps: steps, retries: retries, answer: m.learn,
				draw: func(now Now, step int) (NodeID, []byte) { return m.draw(now, step, steps) }}
			clients = append(clients, a)
			w.AddNode(id, NodeOptions{Steady: true, Boot: func() Core { return a }})
		}
		err := w.Run(time.Minute, func() bool {
			for _, a := range clients {
				if !a.finished() {
					return false
				}
			}
			return judge.caughtUp()
		})
		if err != nil {
			return err
		}
		if err := judge.verdict(w.History()); err != nil {
			return err
		}
		if after != nil {
			return after(judge, w)
		}
		return nil
	}
}

// caughtUp reports whether all replicas have everything: with the faults over they must get there.
func (g *metaJudge) caughtUp() bool {
	for _, n := range g.w.order[:3] {
		if m, _ := n.core.(*metaNode); m == nil || m.applied+1 != uint64(len(g.log)) {
			return false
		}
	}
	return true
}

// TestMetadata runs the metadata's state machine on nodes that crash, behind a network that loses, doubles and reorders.
func TestMetadata(t *testing.T) {
	start := time.Now()
	var commands, boots, snapshots, lost int
	var given metaGiven
	s := metaWorld(metaRight, rough, 18, 2, func(g *metaJudge, w *World) error {
		commands += len(g.log) - 1
		boots += g.boots
		snapshots += g.snapshots
		lost += w.Stats.UnsyncedHurt
		given.saved += g.given.saved
		given.seeks += g.given.seeks
		given.left += g.given.left
		given.refused += g.given.refused
		given.registered += g.given.registered
		given.deleted += g.given.deleted
		return nil
	})
	n := Explore(t, s, Amount(20, 1000))
	t.Logf("%d runs in %v: %d commands, %d states made again, %d snapshots compared, %d unsynced changes lost or damaged", n, time.Since(start), commands, boots, snapshots, lost)
	t.Logf("cursors: %d saved, %d moved, %d left out; schemas: %d registered, %d subjects deleted; %d changes refused", given.saved, given.seeks, given.left, given.registered, given.deleted, given.refused)
	if n > 10 && (given.saved < n || given.seeks < n/5 || given.left < n/10 || given.registered < n || given.deleted < n/5 || given.refused < n) {
		t.Error("too little was done with subscriptions and schemas to show anything")
	}
	if n > 10 && (commands < 10*n || boots < 3*n || snapshots < 3*n || lost < n/4) {
		t.Error("that is too little to show anything")
	}
}

// TestMetadataLinearizable has a second judge for it, who knows nothing but what the clients saw: a checker of histories,
// with the state machine itself as the sequential model. The network doubles nothing here and clients ask once, since a
// command that is carried out twice is no single operation.
func TestMetadataLinearizable(t *testing.T) {
	o := rough
	o.Net.Double = 0
	checked, start := 0, time.Now()
	s := func(c *Choices, tr *Trace) error {
		return metaWorld(metaRight, o, 8, 0, func(_ *metaJudge, w *World) error {
			var ops []*Operation
			unknown := 0
			for _, op := range w.History() {
				if op.Returned == 0 && string(op.Input[:4]) != "read" {
					unknown++
				}
				if string(op.Input[:4]) != "read" || op.Returned != 0 && string(op.Input[len(op.Input)-6:]) == "leader" {
					ops = append(ops, op)
				}
			}
			if unknown > 3 { // the checker's work grows with their factorial
				return nil
			}
			checked += len(ops)
			return linearizable(ops, metaModel)
		})(c, tr)
	}
	n := Explore(t, s, Amount(10, 300))
	t.Logf("%d operations out of %d histories in %v", checked, n, time.Since(start))
	if n > 10 && checked < 3*n {
		t.Error("that is too little to show anything")
	}
}

// metaModel is the state machine behind a history: its state is a snapshot.
var metaModel = porcupine.Model{
	Init: func() any {
		b, _ := meta.NewState().Snapshot()
		return string(b)
	},
	Step: func(state, input, output any) (bool, any) {
		s := meta.NewState()
		if err := s.Restore([]byte(state.(string))); err != nil {
			panic(err)
		}
		in, out := input.([]byte), output.([]byte)
		if string(in[:5]) == "read " {
			var name string
			fmt.Sscan(string(in[5:]), &name)
			return string(out) == mustJSON(readAnswer(s.View(), name)), state
		}
		r, err := s.ApplyEncoded(s.View().Index()+1, in)
		if err != nil {
			panic(err)
		}
		after, _ := s.Snapshot()
		return out == nil || string(out) == mustJSON(answerOf(r)), string(after)
	},
}

// TestBrokenMetadataIsFound: the rules above bite.
func TestBrokenMetadataIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		bug   metaBug
		rules []string
	}{
		"answers before its flush":                    {metaEarlyReply, []string{"lost", "one log"}},
		"the name of a new log is not durable":        {metaUnnamedLog, []string{"lost", "one log"}},
		"removes the log before its snapshot is safe": {metaEarlyTrim, []string{"lost", "one log"}},
		"a replica answers from an old state":         {metaStaleRead, []string{"monotonic"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := metaWorld(c.bug, rough, 18, 2, nil)
			f := Find(s, 1, 1000, Amount(15, 500))
			for range 3 { // now and then one happens in a way that hardly shrinks
				if f == nil || f.Shrunk.Schedule.Decisions() <= 60 || testing.Short() {
					break
				}
				f = Find(s, f.Seed+1, 1000, 500)
			}
			if f == nil {
				t.Fatal("not found")
			}
			t.Logf("%v", f)
			ok := false
			for _, rule := range c.rules {
				ok = ok || f.Shrunk.Failure != nil && f.Shrunk.Failure.Rule == rule
			}
			if !ok {
				t.Errorf("found %v", f.Shrunk.Failure)
			}
			if n := f.Shrunk.Schedule.Decisions(); n > 60 && !testing.Short() {
				t.Errorf("shrunk to %d decisions", n)
			}
			again, err := ParseSchedule(f.Shrunk.Schedule.String())
			if err != nil {
				t.Fatal(err)
			}
			if o := Run(s, Replay(again), false); o.Hash != f.Shrunk.Hash {
				t.Error("the printed schedule runs differently")
			}
		})
	}
}

// TestMetadataRepeats: the same seed is the same run.
func TestMetadataRepeats(t *testing.T) {
	s := metaWorld(metaRight, rough, 18, 2, nil)
	for seed := range uint64(Amount(5, 60)) {
		a, b := Run(s, Seeded(seed), false), Run(s, Seeded(seed), false)
		if c := Run(s, Replay(a.Schedule), false); a.Hash != b.Hash || a.Hash != c.Hash {
			t.Fatalf("seed %d: %x, %x, and %x by its schedule", seed, a.Hash, b.Hash, c.Hash)
		}
	}
}
