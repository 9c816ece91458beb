package history

import (
	"encoding/json"
	"slices"
	"strconv"
)

// The operations.
const (
	opTopic     = "topic"      // what a topic is like: topic, incarnation, fsync, interval, retention, compacted, start
	opClient    = "client"     // what a producer is like: client, producer, topic, incarnation, idempotent, ordered, mortal
	opGone      = "gone"       // a producer's process died: producer, end
	opPublish   = "publish"    // value, partition, key, start, end, outcome, offset, duplicate, error
	opReadBegin = "read-begin" // reading, source, topic, incarnation, partition, from, start
	opRead      = "read"       // reading, offset, value; or reading, same, from, to
	opTold      = "told"       // kind, from, to; reading, or what a delivery has
	opReadEnd   = "read-end"   // reading, next, end
	opSubscribe = "subscribe"  // subscription, topic, incarnation, partition, from, order
	opDeliver   = "deliver"    // subscription, client, topic, incarnation, partition, offset, value, key, attempt, start
	opAck       = "ack"        // subscription, client, topic, incarnation, partition, offset, start, end, outcome
	opFault     = "fault"      // kind, start, end, may_lose, slack
	opHeal      = "heal"       // start, subscriptions
	opSync      = "sync"       // topic, incarnation, partition, end
	opCopied    = "copied"     // topic, incarnation, partition, next, end
	opCreate    = "create"     // call, client, topic, settings, start, end, outcome, incarnation, revision, error
	opDelete    = "delete"     // like create
	opDescribe  = "describe"   // like create, and exists, local
	opList      = "list"       // like describe, and topics
	opSettings  = "settings"   // like create
	opEnd       = "end"        // the history was watched until end
)

// Ops are the operations that a line may have.
var Ops = []string{
	opTopic, opClient, opGone, opPublish, opReadBegin, opRead, opTold, opReadEnd, opSubscribe, opDeliver, opAck, opFault,
	opHeal, opSync, opCopied, opCreate, opDelete, opDescribe, opList, opSettings, opEnd,
}

var metadataOps = []string{opCreate, opDelete, opDescribe, opList, opSettings}

// Event is one line of a saved history. Which fields a line has follows from its operation.
//
// size: the fields of the format stand in one place, as they stand in one line of a file
type Event struct {
	Op           string `json:"op"`
	Client       string `json:"client"`
	Producer     int32  `json:"producer"`
	Topic        string `json:"topic"`
	Incarnation  uint64 `json:"incarnation"`
	Partition    int32  `json:"partition"`
	Start        int64  `json:"start"`
	End          int64  `json:"end"`
	Outcome      string `json:"outcome"` // absent: pending
	Offset       int64  `json:"offset"`
	Value        *Value `json:"value"`
	Key          string `json:"key"`
	Duplicate    bool   `json:"duplicate"`
	Error        string `json:"error"`
	Idempotent   bool   `json:"idempotent"`
	Ordered      bool   `json:"ordered"`
	Mortal       bool   `json:"mortal"`
	Fsync        string `json:"fsync"`
	Interval     int64  `json:"interval"`
	Retention    bool   `json:"retention"`
	Compacted    bool   `json:"compacted"`
	Reading      int    `json:"reading"`
	Source       string `json:"source"`
	From         int64  `json:"from"`
	To           int64  `json:"to"`
	Next         int64  `json:"next"`
	Same         bool   `json:"same"`
	Kind         string `json:"kind"`
	Subscription string `json:"subscription"`
	Attempt      int32  `json:"attempt"`
	Order        string `json:"order"`
	MayLose      string `json:"may_lose"`
	Slack        int64  `json:"slack"`

	Subscriptions []string `json:"subscriptions"`

	Call     int      `json:"call"`
	Settings string   `json:"settings"`
	Exists   bool     `json:"exists"`
	Local    bool     `json:"local"`
	Revision uint64   `json:"revision"`
	Topics   []string `json:"topics"`
}

// line builds the JSON of one event. encoding/json would take five times as long, which counts for millions.
type line []byte

func (l *line) key(name string) {
	*l = append(*l, ',', '"')
	*l = append(*l, name...)
	*l = append(*l, '"', ':')
}

func (l *line) int(name string, n int64) {
	l.key(name)
	*l = strconv.AppendInt(*l, n, 10)
}

func (l *line) uint(name string, n uint64) {
	if n != 0 {
		l.key(name)
		*l = strconv.AppendUint(*l, n, 10)
	}
}

func (l *line) flag(name string, set bool) {
	if set {
		l.key(name)
		*l = append(*l, "true"...)
	}
}

func (l *line) text(name, s string) {
	if s != "" {
		l.key(name)
		l.quote(s)
	}
}

func (l *line) quote(s string) {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] < 0x7f && s[i] != '"' && s[i] != '\\'
	}
	if !plain {
		text, _ := json.Marshal(s) // a string cannot fail
		*l = append(*l, text...)
		return
	}
	*l = append(*l, '"')
	*l = append(*l, s...)
	*l = append(*l, '"')
}

func (l *line) texts(name string, list []string) {
	if len(list) == 0 {
		return
	}
	l.key(name)
	for i, s := range list {
		if i == 0 {
			*l = append(*l, '[')
		} else {
			*l = append(*l, ',')
		}
		l.quote(s)
	}
	*l = append(*l, ']')
}

func (l *line) value(v *Value) {
	if v == nil {
		return
	}
	l.key("value")
	*l = append(*l, '"')
	*l = strconv.AppendInt(*l, int64(v.Producer), 10)
	*l = append(*l, '/')
	*l = strconv.AppendInt(*l, int64(v.Seq), 10)
	*l = append(*l, '"')
}

// Append appends an event's line to a buffer.
func (e *Event) Append(to []byte) []byte {
	l := line(append(to, `{"op":"`...))
	l = append(l, e.Op...)
	l = append(l, '"')
	l.text("client", e.Client)
	switch e.Op {
	case opClient, opGone:
		l.int("producer", int64(e.Producer))
	case opReadBegin, opRead, opReadEnd:
		l.int("reading", int64(e.Reading))
	case opTold:
		if e.Subscription == "" {
			l.int("reading", int64(e.Reading))
		}
	}
	l.text("subscription", e.Subscription)
	l.value(e.Value)
	if e.Topic != "" {
		l.key("topic")
		l.quote(e.Topic)
		l.uint("incarnation", e.Incarnation)
	}
	e.place(&l)
	e.details(&l)
	if e.Start != 0 {
		l.int("start", e.Start)
	}
	if e.End != 0 {
		l.int("end", e.End)
	}
	l.text("outcome", e.Outcome)
	l.text("error", e.Error)
	return append(l, '}', '\n')
}

// place writes where the event is.
func (e *Event) place(l *line) {
	switch e.Op {
	case opPublish, opReadBegin, opSubscribe, opDeliver, opAck, opSync, opCopied:
		l.int("partition", int64(e.Partition))
	case opTold:
		if e.Subscription != "" {
			l.int("partition", int64(e.Partition))
		}
	}
	switch e.Op {
	case opDeliver, opAck:
		l.int("offset", e.Offset)
	case opPublish:
		if e.Outcome == outcomes[OK] {
			l.int("offset", e.Offset)
		}
	case opRead:
		if e.Value != nil {
			l.int("offset", e.Offset)
			break
		}
		l.flag("same", e.Same)
		l.int("from", e.From)
		l.int("to", e.To)
	case opReadBegin, opSubscribe:
		l.int("from", e.From)
	case opTold:
		l.int("from", e.From)
		l.int("to", e.To)
	case opReadEnd, opCopied:
		l.int("next", e.Next)
	}
}

// details writes what only some events have.
func (e *Event) details(l *line) {
	if e.Op == opPublish || e.Op == opRead {
		l.text("key", e.Key)
		l.flag("duplicate", e.Duplicate)
		return // most lines: nothing more to look for
	}
	l.text("key", e.Key)
	l.text("source", e.Source)
	l.text("kind", e.Kind)
	l.uint("attempt", uint64(max(e.Attempt, 0)))
	l.text("order", e.Order)
	l.flag("idempotent", e.Idempotent)
	l.flag("ordered", e.Ordered)
	l.flag("mortal", e.Mortal)
	l.text("fsync", e.Fsync)
	l.uint("interval", uint64(max(e.Interval, 0)))
	l.flag("retention", e.Retention)
	l.flag("compacted", e.Compacted)
	l.text("may_lose", e.MayLose)
	l.uint("slack", uint64(max(e.Slack, 0)))
	l.texts("subscriptions", e.Subscriptions)
	if slices.Contains(metadataOps, e.Op) {
		l.int("call", int64(e.Call))
	}
	l.text("settings", e.Settings)
	l.flag("exists", e.Exists)
	l.flag("local", e.Local)
	l.uint("revision", e.Revision)
	l.texts("topics", e.Topics)
}

func topicEvent(t topicAt) Event {
	i := t.info
	return Event{
		Op: opTopic, Topic: i.Topic, Incarnation: i.Incarnation, Start: t.at, Fsync: i.Fsync, Interval: int64(i.Interval),
		Retention: i.Retention, Compacted: i.Compacted,
	}
}

func (p *Producer) event() Event {
	i := p.info
	return Event{
		Op: opClient, Client: i.Client, Producer: p.id, Topic: i.Topic, Incarnation: i.Incarnation, Idempotent: i.Idempotent,
		Ordered: i.Ordered, Mortal: i.Mortal,
	}
}

func (p *Producer) goneEvent() Event { return Event{Op: opGone, Producer: p.id, End: p.gone} }

func (h *History) publishEvent(v Value, p *publish) Event {
	e := Event{
		Op: opPublish, Value: &v, Start: p.start, End: p.end, Outcome: outcomes[p.outcome], Offset: p.offset,
		Duplicate: p.duplicate, Key: h.names.list[p.key], Error: h.names.list[p.err], Partition: -1,
	}
	i := h.producers[v.Producer].info
	e.Topic, e.Incarnation = i.Topic, i.Incarnation
	if p.log >= 0 {
		e.Partition = h.logs[p.log].id.partition
	}
	return e
}

// at sets where an event is.
func (l *log) at(e Event) Event {
	e.Topic, e.Incarnation, e.Partition = l.id.topic, l.id.incarnation, l.id.partition
	return e
}

func (l *log) syncEvent(at int64) Event { return l.at(Event{Op: opSync, End: at}) }

func (l *log) copiedEvent(c copied) Event {
	return l.at(Event{Op: opCopied, End: c.at, Next: c.next})
}

func (r *Reading) beginEvent() Event {
	return r.log.at(Event{Op: opReadBegin, Reading: r.id, Source: r.source, From: r.from, Start: r.start})
}

func (r *Reading) sameEvent(s *segment) Event {
	return Event{Op: opRead, Reading: r.id, Same: true, From: s.from, To: s.to}
}

func (r *Reading) toldEvent(s *segment) Event {
	return Event{Op: opTold, Reading: r.id, Kind: s.told().String(), From: s.from, To: s.to}
}

func (r *Reading) endEvent() Event {
	return Event{Op: opReadEnd, Reading: r.id, Next: r.next, End: r.end}
}

func (s *Subscriber) event() Event {
	return s.log.at(Event{Op: opSubscribe, Subscription: s.info.Subscription, From: s.info.From, Order: orders[s.info.Order]})
}

func (s *Subscriber) deliveryEvent(d *delivery) Event {
	e := s.log.at(Event{Op: opTold, Subscription: s.info.Subscription, Client: s.h.names.list[d.client], Start: d.at})
	if d.why != 0 {
		e.Kind, e.From, e.To = d.why.String(), d.from, d.to
		return e
	}
	e.Op, e.Offset, e.Value, e.Key, e.Attempt = opDeliver, d.from, &d.value, s.h.names.list[d.key], d.attempt
	return e
}

func (s *Subscriber) ackEvent(a *subAck) Event {
	return s.log.at(Event{
		Op: opAck, Subscription: s.info.Subscription, Client: s.h.names.list[a.client], Offset: a.offset, Start: a.start,
		End: a.end, Outcome: outcomes[a.outcome],
	})
}

func (f fault) event() Event {
	return Event{Op: opFault, Kind: f.kind, Start: f.start, End: f.end, MayLose: f.cost.MayLose, Slack: int64(f.cost.Slack)}
}

func (e heal) event() Event { return Event{Op: opHeal, Start: e.at, Subscriptions: e.subscriptions} }

func (m *MetadataCall) event() Event {
	i, r := m.info, m.result
	e := Event{
		Op: i.Op, Call: m.id, Client: i.Client, Topic: i.Topic, Settings: i.Settings, Local: i.Local, Start: m.start, End: m.end,
		Outcome: outcomes[m.outcome], Incarnation: r.Incarnation, Exists: r.Exists, Revision: r.Revision, Topics: r.Topics,
		Error: r.Error,
	}
	if i.Op == opDescribe {
		e.Settings = r.Settings
	}
	return e
}
