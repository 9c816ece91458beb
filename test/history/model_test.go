package history

import (
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"
)

const modelPartitions = 2

// slot is one offset of a model's log.
type slot struct {
	value    Value
	lost     bool  // a crash has taken it, or it was never given away
	answered int64 // when its publish was acknowledged; 0: not
}

// model is a tiny broker that keeps every promise, and what its clients see of it as events. Producer 0 is idempotent, 1
// is ordered, 2 is neither, 3 is mortal and neither. The topic syncs every 100 ms.
type model struct {
	t       *rapid.T
	at      int64
	events  []Event
	logs    [modelPartitions][]slot
	seqs    []int32
	kinds   []ProducerInfo
	reading int
	cursor  int // of the one subscription, in partition 0
	faults  int

	exists      bool // topic m
	incarnation uint64
	settings    string
	calls       int
}

const interval = int64(100 * time.Millisecond)

func newModel(t *rapid.T) *model {
	m := &model{t: t, at: second}
	m.emit(Event{Op: opTopic, Topic: "t", Incarnation: 1, Fsync: FsyncPeriodic, Interval: interval})
	for _, k := range []ProducerInfo{{Idempotent: true}, {Ordered: true}, {}, {Mortal: true}} {
		m.producer(k)
	}
	m.emit(Event{Op: opSubscribe, Subscription: "s", Topic: "t", Incarnation: 1, Order: "partition"})
	return m
}

func (m *model) emit(e Event) { m.events = append(m.events, e) }

func (m *model) tick() int64 {
	m.at += int64(rapid.IntRange(1, 20).Draw(m.t, "ms")) * int64(time.Millisecond)
	return m.at
}

func (m *model) n(most int, what string) int { return rapid.IntRange(0, most-1).Draw(m.t, what) }

func (m *model) producer(k ProducerInfo) {
	m.emit(Event{Op: opClient, Producer: int32(len(m.kinds)), Topic: "t", Incarnation: 1, Idempotent: k.Idempotent, Ordered: k.Ordered, Mortal: k.Mortal})
	m.kinds, m.seqs = append(m.kinds, k), append(m.seqs, 0)
}

// store appends a value and returns its offset.
func (m *model) store(p int, v Value) int64 {
	m.logs[p] = append(m.logs[p], slot{value: v})
	return int64(len(m.logs[p]) - 1)
}

// publish has a producer publish one record, with one of the ends that this may have.
func (m *model) publish(producer int) {
	p := m.n(modelPartitions, "partition")
	v := Value{int32(producer), m.seqs[producer]}
	m.seqs[producer]++
	e := Event{Op: opPublish, Value: &v, Topic: "t", Incarnation: 1, Partition: int32(p), Start: m.tick()}
	switch end := m.n(12, "end"); {
	case end == 0: // refused
		e.Outcome, e.Error = "fail", "too large"
	case end == 1: // given up, and perhaps there
		if m.n(2, "there") == 0 {
			m.store(p, v)
		}
		e.Outcome = "unknown"
	case end == 2: // sent again after a fault
		offset := m.store(p, v)
		m.fault(false)
		if m.kinds[producer].Idempotent && !m.logs[p][offset].lost {
			e.Duplicate = true
		} else {
			offset = m.store(p, v)
		}
		e.Outcome, e.Offset = "ok", offset
	case end == 3 && m.kinds[producer].Mortal: // dies
		if m.n(2, "there") == 0 {
			m.store(p, v)
		}
		m.emit(e)
		m.emit(Event{Op: opGone, Producer: v.Producer, End: m.tick()})
		m.kinds[producer].Mortal = false // gone
		m.producer(ProducerInfo{Mortal: true})
		return
	default:
		e.Outcome, e.Offset = "ok", m.store(p, v)
	}
	e.End = m.tick()
	if e.Outcome == "ok" {
		m.logs[p][e.Offset].answered = e.End
	}
	m.emit(e)
}

// fault kills the broker, or cuts the power: that costs a part of what has not been synced for certain.
func (m *model) fault(power bool) {
	m.faults++
	e := Event{Op: opFault, Kind: "kill", Start: m.tick()}
	if power {
		e.Kind, e.MayLose = "power", CostUnsynced
		for p := range m.logs {
			log := m.logs[p]
			from := len(log)
			for from > 0 && !log[from-1].lost && (log[from-1].answered == 0 || log[from-1].answered >= e.Start-interval) {
				from--
			}
			from += m.n(len(log)-from+1, "kept")
			for i := from; i < len(log); i++ {
				log[i].lost = true
			}
			for range m.n(4, "reserved") {
				log = append(log, slot{lost: true})
			}
			m.logs[p] = log
		}
	}
	e.End = m.tick()
	m.emit(e)
}

// read reads a partition from an offset to its end.
func (m *model) read(p, from int) {
	id := m.reading
	m.reading++
	m.emit(Event{Op: opReadBegin, Reading: id, Source: "a", Topic: "t", Incarnation: 1, Partition: int32(p), From: int64(from), Start: m.tick()})
	for i := from; i < len(m.logs[p]); {
		if end := m.lostFrom(p, i); end > i {
			m.emit(Event{Op: opTold, Reading: id, Kind: "lost", From: int64(i), To: int64(end - 1)})
			i = end
			continue
		}
		v := m.logs[p][i].value
		m.emit(Event{Op: opRead, Reading: id, Offset: int64(i), Value: &v})
		i++
	}
	m.emit(Event{Op: opReadEnd, Reading: id, Next: int64(len(m.logs[p])), End: m.tick()})
}

// lostFrom returns the end of the lost range that begins at an offset.
func (m *model) lostFrom(p, i int) int {
	for i < len(m.logs[p]) && m.logs[p][i].lost {
		i++
	}
	return i
}

// deliver gives the subscription's consumer what comes next; sometimes it has to begin some records earlier again.
func (m *model) deliver() {
	if m.n(4, "again") == 0 {
		m.cursor -= m.n(m.cursor+1, "back")
	}
	for range 1 + m.n(5, "deliveries") {
		if m.cursor == len(m.logs[0]) {
			return
		}
		e := Event{Op: opTold, Subscription: "s", Client: "c", Topic: "t", Incarnation: 1, Start: m.tick()}
		if end := m.lostFrom(0, m.cursor); end > m.cursor {
			e.Kind, e.From, e.To = "lost", int64(m.cursor), int64(end-1)
			m.cursor = end
		} else {
			v := m.logs[0][m.cursor].value
			e.Op, e.Offset, e.Value, e.Attempt = opDeliver, int64(m.cursor), &v, 1
			m.cursor++
		}
		m.emit(e)
	}
}

// metadata makes one operation on topic m.
func (m *model) metadata() {
	e := Event{Op: metadataOps[m.n(len(metadataOps), "op")], Call: m.calls, Client: "a", Topic: "m", Start: m.tick(), Outcome: "ok"}
	m.calls++
	unknown := m.n(5, "unknown") == 0
	happens := !unknown || m.n(2, "happens") == 0
	switch e.Op {
	case opCreate:
		e.Settings = string(rune('a' + m.n(3, "settings")))
		if m.exists {
			e.Outcome, e.Error = "fail", AlreadyExists
		} else if happens {
			m.exists, m.settings = true, e.Settings
			m.incarnation++
			e.Incarnation = m.incarnation
		}
	case opDelete, opSettings:
		if e.Op == opSettings {
			e.Settings = string(rune('a' + m.n(3, "settings")))
		}
		switch {
		case !m.exists:
			e.Outcome, e.Error = "fail", NotFound
		case happens && e.Op == opDelete:
			m.exists = false
		case happens:
			m.settings = e.Settings
		}
	case opDescribe:
		unknown = false
		e.Local = m.n(2, "local") == 0
		if e.Exists = m.exists; m.exists {
			e.Incarnation, e.Settings = m.incarnation, m.settings
		}
	case opList:
		unknown = false
		if e.Topic = ""; m.exists {
			e.Topics = []string{"m"}
		}
	}
	if unknown {
		e.Outcome, e.Error, e.Incarnation = "unknown", "", 0
	}
	e.End = m.tick()
	m.emit(e)
}

// run makes a history of some steps, which ends in peace.
func (m *model) run() {
	for range rapid.IntRange(1, 60).Draw(m.t, "steps") {
		switch what := m.n(20, "step"); {
		case what < 10:
			producer := m.n(len(m.kinds), "producer")
			if producer >= 3 {
				producer = len(m.kinds) - 1 // those before it are gone
			}
			m.publish(producer)
		case what < 12:
			m.fault(what == 10)
		case what < 14:
			p := m.n(modelPartitions, "partition")
			m.read(p, m.n(2, "late")*m.n(len(m.logs[p])+1, "from"))
		case what < 16:
			m.deliver()
		default:
			m.metadata()
		}
	}
	m.emit(Event{Op: opHeal, Start: m.tick(), Subscriptions: []string{"s"}})
	for p := range m.logs {
		v := Value{0, m.seqs[0]}
		m.seqs[0]++
		e := Event{Op: opPublish, Value: &v, Topic: "t", Incarnation: 1, Partition: int32(p), Start: m.tick(), Outcome: "ok", Offset: m.store(p, v)}
		e.End = m.tick()
		m.emit(e)
	}
	m.deliverAll()
	for p := range m.logs {
		m.read(p, 0)
		m.read(p, 0)
	}
	m.emit(Event{Op: opEnd, End: m.at + 60*second})
}

func (m *model) deliverAll() {
	for m.cursor < len(m.logs[0]) {
		m.deliver()
	}
}

// loaded writes events as a file and reads it.
func loaded(t *rapid.T, events []Event) *History {
	t.Helper()
	var text []byte
	for i := range events {
		text = events[i].Append(text)
	}
	h, err := Read(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return h
}

// clone copies events so that a mutation does not touch the original.
func clone(events []Event) []Event {
	out := slices.Clone(events)
	for i, e := range out {
		if e.Value != nil {
			v := *e.Value
			out[i].Value = &v
		}
	}
	return out
}
