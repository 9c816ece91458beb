package history

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestCorrectHistories makes histories of a model that keeps every promise: nothing is found in any.
func TestCorrectHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		m.run()
		r := loaded(t, m.events).Check(Options{AllRead: true})
		if !r.OK() {
			t.Fatalf("nothing is wrong, and it found %q %q", r.Violations, r.Undecided)
		}
	})
}

// mutation breaks a promise in a correct history.
type mutation struct {
	name   string
	checks []int // that must find it
	// candidate reports whether it may be applied to an event, apply does so.
	candidate func(s *sight, i int) bool
	apply     func(s *sight, i int)
}

// sight is a history that a mutation looks at and changes.
type sight struct {
	events []Event
	ended  map[int]bool
	acked  map[Value]*Event
	bound  map[[2]int64]Value // by partition and offset of acknowledgements
	place  map[int]int32      // partition by reading
	last   map[int32]int      // last reading of a partition
}

func look(events []Event) *sight {
	s := &sight{events: events, ended: map[int]bool{}, acked: map[Value]*Event{}, bound: map[[2]int64]Value{}, place: map[int]int32{}, last: map[int32]int{}}
	for i := range events {
		switch e := &events[i]; e.Op {
		case opPublish:
			if e.Outcome == "ok" {
				s.acked[*e.Value] = e
				s.bound[[2]int64{int64(e.Partition), e.Offset}] = *e.Value
			}
		case opReadBegin:
			s.place[e.Reading], s.last[e.Partition] = e.Partition, e.Reading
		}
	}
	return s
}

func (s *sight) drop(i int) { s.events = slices.Delete(s.events, i, i+1) }

// read reports whether event i is a read record that was acknowledged there.
func (s *sight) read(i int) bool {
	e := &s.events[i]
	if e.Op != opRead {
		return false
	}
	v, ok := s.bound[[2]int64{int64(s.place[e.Reading]), e.Offset}]
	return ok && v == *e.Value
}

// final reports whether event i belongs to the last reading of its partition.
func (s *sight) final(i int) bool {
	e := &s.events[i]
	return s.last[s.place[e.Reading]] == e.Reading
}

func (s *sight) op(i int, op string) bool { return i >= 0 && i < len(s.events) && s.events[i].Op == op }

// quiet reports whether no fault fell between a publish and its answer.
func (s *sight) quiet(p *Event) bool {
	for _, f := range s.events {
		if f.Op == opFault && f.End >= p.Start && f.Start <= p.End {
			return false
		}
	}
	return true
}

// again puts a record behind the last one of a partition in its last reading.
func (s *sight) again(e *Event, v Value) {
	for i := len(s.events) - 1; ; i-- {
		if end := &s.events[i]; end.Op == opReadEnd && end.Reading == s.last[e.Partition] {
			more := Event{Op: opRead, Reading: end.Reading, Offset: end.Next, Value: &v}
			end.Next++
			s.events = slices.Insert(s.events, i, more)
			return
		}
	}
}

var mutations = []mutation{
	{"a record is not delivered to a reading", []int{CheckHoles}, (*sight).read, (*sight).drop},
	{"an acknowledged record is missing at the end of a reading", []int{CheckLost},
		func(s *sight, i int) bool { return s.read(i) && s.final(i) && s.op(i+1, opReadEnd) },
		func(s *sight, i int) { s.events[i+1].Next--; s.drop(i) }},
	{"two records are swapped in a reading", []int{CheckOffsets},
		func(s *sight, i int) bool {
			return s.read(i) && s.op(i+1, opRead) && *s.events[i].Value != *s.events[i+1].Value
		},
		func(s *sight, i int) {
			s.events[i].Value, s.events[i+1].Value = s.events[i+1].Value, s.events[i].Value
		}},
	{"an offset is read with another value", []int{CheckOffsets}, (*sight).read,
		func(s *sight, i int) { s.events[i].Value = &Value{s.events[i].Value.Producer, 1 << 20} }},
	{"an offset is acknowledged again for another", []int{CheckOffsets},
		func(s *sight, i int) bool {
			e := &s.events[i]
			_, taken := s.bound[[2]int64{int64(e.Partition), e.Offset - 1}]
			return e.Op == opPublish && e.Outcome == "ok" && taken
		},
		func(s *sight, i int) { s.events[i].Offset-- }},
	{"an acknowledgement names an offset behind the end", []int{CheckLost, CheckHoles},
		func(s *sight, i int) bool { return s.op(i, opPublish) && s.events[i].Outcome == "ok" },
		func(s *sight, i int) { s.events[i].Offset += 1000 }},
	{"what was read had failed", []int{CheckInvented},
		func(s *sight, i int) bool { return s.read(i) },
		func(s *sight, i int) { *s.acked[*s.events[i].Value] = failed(*s.acked[*s.events[i].Value]) }},
	{"what was read was not published", []int{CheckInvented}, (*sight).read,
		func(s *sight, i int) {
			v := *s.events[i].Value
			s.events = slices.DeleteFunc(s.events, func(e Event) bool { return e.Op == opPublish && *e.Value == v })
		}},
	{"what was read was published to another partition", []int{CheckInvented}, (*sight).read,
		func(s *sight, i int) { p := s.acked[*s.events[i].Value]; p.Partition = 1 - p.Partition }},
	{"an idempotent producer's record stands twice", []int{CheckCopies},
		func(s *sight, i int) bool { return s.read(i) && s.final(i) && s.events[i].Value.Producer == 0 },
		func(s *sight, i int) { s.again(s.acked[*s.events[i].Value], *s.events[i].Value) }},
	{"a record stands twice and there was no fault", []int{CheckCopies},
		func(s *sight, i int) bool {
			return s.read(i) && s.final(i) && s.events[i].Value.Producer == 2 && s.quiet(s.acked[*s.events[i].Value])
		},
		func(s *sight, i int) { s.again(s.acked[*s.events[i].Value], *s.events[i].Value) }},
	{"an ordered producer's answers are swapped", []int{CheckOrder},
		func(s *sight, i int) bool { return s.swappable(i) != nil },
		func(s *sight, i int) {
			o := s.swappable(i)
			s.events[i].Offset, o.Offset = o.Offset, s.events[i].Offset
		}},
	{"a reading begins late", []int{CheckHoles},
		func(s *sight, i int) bool { return s.op(i, opRead) && s.op(i-1, opReadBegin) },
		(*sight).drop},
	{"a reading is not told of what is lost", []int{CheckHoles},
		func(s *sight, i int) bool { return s.op(i, opTold) && s.events[i].Subscription == "" },
		(*sight).drop},
	{"a record is not delivered to a subscription", []int{CheckHoles},
		func(s *sight, i int) bool {
			return s.op(i, opDeliver) && s.only(i) && slices.ContainsFunc(s.events[i+1:], func(e Event) bool { return e.Op == opDeliver && e.Offset > s.events[i].Offset })
		}, (*sight).drop},
	{"first deliveries are swapped", []int{CheckOrder},
		func(s *sight, i int) bool {
			return s.op(i, opDeliver) && s.op(i+1, opDeliver) && s.only(i) && s.only(i+1) && s.events[i+1].Offset == s.events[i].Offset+1
		},
		func(s *sight, i int) {
			a, b := &s.events[i], &s.events[i+1]
			a.Offset, b.Offset, a.Value, b.Value = b.Offset, a.Offset, b.Value, a.Value
		}},
	{"nothing was to be lost", []int{CheckLost},
		func(s *sight, i int) bool { return s.op(i, opTold) && s.events[i].Subscription == "" },
		func(s *sight, _ int) {
			for i := range s.events {
				s.events[i].MayLose = ""
			}
		}},
	{"nothing succeeds after the heal", []int{CheckLiveness},
		func(s *sight, i int) bool { return s.op(i, opHeal) },
		func(s *sight, i int) {
			for j := i; j < len(s.events); j++ {
				if s.events[j].Op == opPublish {
					s.events[j].Outcome = "unknown"
				}
			}
		}},
	{"nothing is delivered after the heal", []int{CheckLiveness},
		func(s *sight, i int) bool { return s.op(i, opHeal) },
		func(s *sight, i int) {
			rest := slices.DeleteFunc(slices.Clone(s.events[i:]), func(e Event) bool { return e.Op == opDeliver })
			s.events = append(s.events[:i:i], rest...)
		}},
	{"a description is of an incarnation that never was", []int{CheckMetadata},
		func(s *sight, i int) bool {
			return s.op(i, opDescribe) && !s.events[i].Local && s.events[i].Exists && s.certain(i, opCreate)
		},
		func(s *sight, i int) { s.events[i].Incarnation = 1000; s.describeNext(i) }},
	{"a description is of settings that never were", []int{CheckMetadata},
		func(s *sight, i int) bool { return s.op(i, opDescribe) && !s.events[i].Local && s.events[i].Exists },
		func(s *sight, i int) { s.events[i].Settings = "z" }},
	{"a topic is made where it is", []int{CheckMetadata},
		func(s *sight, i int) bool {
			return s.op(i, opCreate) && s.events[i].Outcome == "ok" && s.certain(i, opDelete)
		},
		func(s *sight, i int) { s.nextCall(i, opCreate) }},
	{"a topic is made again with its old incarnation", []int{CheckMetadata},
		func(s *sight, i int) bool {
			return s.op(i, opCreate) && s.events[i].Outcome == "ok" && s.events[i].Incarnation > 1 && s.certainBefore(i)
		},
		func(s *sight, i int) { s.events[i].Incarnation = 1 }},
}

func failed(e Event) Event {
	e.Outcome, e.Error = "fail", "too large"
	return e
}

// swappable returns the next acknowledged publish of the same ordered producer to the same partition.
func (s *sight) swappable(i int) *Event {
	e := &s.events[i]
	if e.Op != opPublish || e.Outcome != "ok" || e.Value.Producer > 1 {
		return nil
	}
	for j := i + 1; j < len(s.events); j++ {
		if o := &s.events[j]; o.Op == opPublish && o.Outcome == "ok" && o.Value.Producer == e.Value.Producer && o.Partition == e.Partition {
			return o
		}
	}
	return nil
}

// only reports whether a delivery's offset was delivered only once, and nobody was told of it.
func (s *sight) only(i int) bool {
	n := 0
	for _, e := range s.events {
		if e.Op == opDeliver && e.Offset == s.events[i].Offset ||
			e.Op == opTold && e.Subscription != "" && e.From <= s.events[i].Offset && s.events[i].Offset <= e.To {
			n++
		}
	}
	return n == 1
}

// nextCall adds another operation like the one before, right behind it.
func (s *sight) nextCall(i int, op string) {
	e := s.events[i]
	for _, o := range s.events {
		e.Call = max(e.Call, o.Call+1)
	}
	e.Op, e.Start, e.End = op, e.End+1, e.End+2
	e.Incarnation++
	s.events = slices.Insert(s.events, len(s.events)-1, e)
}

// describeNext adds a description of what was before the mutation.
func (s *sight) describeNext(i int) {
	s.nextCall(i, opDescribe)
	s.events[len(s.events)-2].Incarnation = 1
}

// certain reports whether no operation of this kind before an event has an unknown outcome: it could come at any time.
func (s *sight) certain(i int, op string) bool {
	return !slices.ContainsFunc(s.events[:i], func(e Event) bool { return e.Op == op && e.Outcome == "unknown" })
}

// certainBefore reports whether incarnation 1 was told to somebody before.
func (s *sight) certainBefore(i int) bool {
	return slices.ContainsFunc(s.events[:i], func(e Event) bool {
		return slices.Contains(metadataOps, e.Op) && e.Op != opList && e.Outcome == "ok" && e.Incarnation == 1 && !e.Local
	})
}

// TestMutatedHistories breaks one promise in each of many correct histories: it is always found.
func TestMutatedHistories(t *testing.T) {
	for _, mu := range mutations {
		t.Run(mu.name, func(t *testing.T) {
			applied := 0
			check := func(t *rapid.T) {
				m := newModel(t)
				m.run()
				s := look(clone(m.events))
				var where []int
				for i := range s.events {
					if mu.candidate(s, i) {
						where = append(where, i)
					}
				}
				if len(where) == 0 {
					return
				}
				applied++
				mu.apply(s, where[rapid.IntRange(0, len(where)-1).Draw(t, "where")])
				r := loaded(t, s.events).Check(Options{AllRead: true})
				if !slices.ContainsFunc(r.Violations, func(v Violation) bool { return slices.Contains(mu.checks, v.Check) }) {
					t.Fatalf("check %v found nothing: %q", mu.checks, r.Violations)
				}
			}
			for range 50 { // some promises are rarely at stake
				if rapid.Check(t, check); applied > 0 || t.Failed() {
					return
				}
			}
			t.Error("no history had a place for it")
		})
	}
}
