package history

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// scene writes a saved history by hand, so that it has the times it wants: one topic, one partition, and three producers:
// 0 is idempotent, 1 is ordered, 2 is neither.
type scene struct {
	t    *testing.T
	h    *History
	at   int64 // the time of the next event
	next int   // reading
	call int
	log  []Value
}

const second = int64(time.Second)

func newScene(t *testing.T) *scene {
	h := New()
	h.saved = true
	s := &scene{t: t, h: h, at: second}
	for p := range int32(3) {
		s.apply(Event{Op: opClient, Producer: p, Topic: "t", Incarnation: 1, Idempotent: p == 0, Ordered: p == 1})
	}
	return s
}

func (s *scene) apply(e Event) {
	s.t.Helper()
	if err := s.h.Apply(e); err != nil {
		s.t.Fatal(err)
	}
}

// tick lets a millisecond pass.
func (s *scene) tick() int64 {
	s.at += int64(time.Millisecond)
	return s.at
}

// topic says what the topic is like.
func (s *scene) topic(e Event) {
	e.Op, e.Topic, e.Incarnation = opTopic, "t", 1
	s.apply(e)
}

// begin begins a publish to partition 0.
func (s *scene) begin(producer int32) Value { return s.beginIn(producer, 0) }

func (s *scene) beginIn(producer, partition int32) Value {
	v := Value{producer, s.h.producers[producer].count}
	s.apply(Event{Op: opPublish, Value: &v, Partition: partition, Start: s.tick()})
	return v
}

// end ends a publish.
func (s *scene) end(v Value, o Outcome, offset int64) {
	pub := s.h.publish(v)
	e := s.h.publishEvent(v, pub)
	e.End, e.Outcome, e.Offset = s.tick(), outcomes[o], offset
	if o != OK {
		e.Error = errors.New("no space").Error()
	}
	s.apply(e)
}

// store puts a value into the log.
func (s *scene) store(v Value) int64 {
	s.log = append(s.log, v)
	return int64(len(s.log) - 1)
}

// ack publishes a value that is stored and acknowledged.
func (s *scene) ack(producer int32) Value {
	v := s.begin(producer)
	s.end(v, OK, s.store(v))
	return v
}

// fault breaks something for a moment.
func (s *scene) fault(mayLose string) {
	start := s.tick()
	s.apply(Event{Op: opFault, Kind: "kill", Start: start, End: s.tick(), MayLose: mayLose})
}

// read reads the log from its beginning to its end.
func (s *scene) read() { s.readAs(0, func(*reading) {}) }

// reading is a reading under way in a scene.
type reading struct {
	s    *scene
	id   int
	next int64
	stop bool // it never comes to an end
}

// begin begins a reading of partition 0.
func (s *scene) beginRead(from int64) *reading {
	s.apply(Event{Op: opReadBegin, Reading: s.next, Source: "a", Topic: "t", Incarnation: 1, From: from, Start: s.tick()})
	s.next++
	return &reading{s: s, id: s.next - 1, next: from}
}

func (r *reading) record(offset int64, v Value) {
	r.s.apply(Event{Op: opRead, Reading: r.id, Offset: offset, Value: &v})
	r.next = offset + 1
}

func (r *reading) told(kind string, from, to int64) {
	r.s.apply(Event{Op: opTold, Reading: r.id, Kind: kind, From: from, To: to})
	r.next = to + 1
}

func (r *reading) end() {
	r.s.apply(Event{Op: opReadEnd, Reading: r.id, Next: r.next, End: r.s.tick()})
}

// readAs reads the log as it stands from an offset on, and lets change add to it before it ends.
func (s *scene) readAs(from int64, change func(*reading)) {
	r := s.beginRead(from)
	for i := max(from, 0); i < int64(len(s.log)); i++ {
		r.record(i, s.log[i])
	}
	change(r)
	if !r.stop {
		r.end()
	}
}

// judge checks a scene: want is the text of a violation of the check, or empty when nothing is wrong.
func (s *scene) judge(check int, want string, o Options) {
	s.t.Helper()
	r := s.h.Check(o)
	if want == "" {
		if !r.OK() {
			s.t.Errorf("nothing is wrong, and it found %q %q", r.Violations, r.Undecided)
		}
		return
	}
	for _, v := range r.Violations {
		if v.Check == check && strings.Contains(v.Text, want) {
			return
		}
	}
	s.t.Errorf("check %d did not find %q, but %q", check, want, r.Violations)
}

// plant is something wrong, or nearly so, and what a check says of it.
type plant struct {
	name string
	play func(s *scene)
	want string // empty: nothing is wrong
	o    Options
}

// grow plays each plant on a scene of its own.
func grow(t *testing.T, check int, plants []plant) {
	t.Helper()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			s := newScene(t)
			p.play(s)
			s.judge(check, p.want, p.o)
		})
	}
}
