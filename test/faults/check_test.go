package faults

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// scene is a history of three producers in one partition: 0 is idempotent, 1 is ordered, 2 is neither.
type scene struct {
	*History
	log []Entry
}

func newScene() *scene {
	s := &scene{History: NewHistory()}
	s.AddProducer(true, false)
	s.AddProducer(false, true)
	s.AddProducer(false, false)
	return s
}

func first(Value) int32 { return 0 }

// store puts a value into the log.
func (s *scene) store(v Value) int64 {
	s.log = append(s.log, Entry{int64(len(s.log)), v})
	return int64(len(s.log) - 1)
}

// ack publishes a value that is stored and acknowledged.
func (s *scene) ack(producer int32) Value {
	v := s.Begin(producer, first)
	s.End(v, OK, s.store(v), false, nil)
	return v
}

func (s *scene) read() Reading {
	return Reading{Start: s.Now(), Partitions: [][]Entry{append([]Entry(nil), s.log...)}}
}

// TestCheckBites shows the checker a history with each thing it looks for.
//
// size: one table, a few lines a fault
func TestCheckBites(t *testing.T) {
	for name, c := range map[string]struct {
		play func(s *scene) Reading
		want string // "": nothing is wrong
	}{
		"nothing wrong": {func(s *scene) Reading {
			for range 3 {
				s.ack(0)
				s.ack(1)
				s.ack(2)
			}
			s.Begin(0, first)
			v := s.Begin(1, first)
			s.End(v, Unknown, 0, false, errors.New("cut off"))
			s.store(v)
			return s.read()
		}, ""},
		"lost at the end": {func(s *scene) Reading {
			s.ack(0)
			s.ack(0)
			s.log = s.log[:1]
			return s.read()
		}, "value 0/1 was acknowledged at offset 1 and is lost: the log ends at 1"},
		"lost in the middle": {func(s *scene) Reading {
			s.ack(1)
			s.ack(2)
			s.ack(1)
			s.log[1].Value = Value{1, 0}
			return s.read()
		}, "value 2/0 was acknowledged at offset 1 and is lost: 1/0 stands there"},
		"acknowledged while it was read": {func(s *scene) Reading {
			s.ack(0)
			r := s.read()
			s.ack(0)
			return r
		}, ""},
		"hole": {func(s *scene) Reading {
			s.ack(0)
			s.ack(0)
			s.log[1].Offset = 2
			return s.read()
		}, "record number 1 has offset 2"},
		"does not begin at 0": {func(s *scene) Reading {
			v := s.Begin(0, first)
			s.End(v, Unknown, 0, false, nil)
			s.log = []Entry{{1, v}}
			return s.read()
		}, "record number 0 has offset 1"},
		"declared lost": {func(s *scene) Reading {
			r := s.read()
			r.Lost = []string{"partition 0: offsets 3 to 9"}
			return r
		}, "offsets 3 to 9 were declared lost"},
		"twice and idempotent": {func(s *scene) Reading {
			s.store(s.ack(0))
			return s.read()
		}, "value 0/0 of an idempotent producer stands 2 times"},
		"twice without a fault": {func(s *scene) Reading {
			s.store(s.ack(2))
			return s.read()
		}, "value 2/0 stands 2 times, and only 0 faults"},
		"twice for one fault": {func(s *scene) Reading {
			v := s.Begin(2, first)
			s.store(v)
			s.AddFault("kill", s.Now())
			s.End(v, OK, s.store(v), false, nil)
			return s.read()
		}, ""},
		"three times for one fault": {func(s *scene) Reading {
			v := s.Begin(2, first)
			s.store(v)
			s.store(v)
			s.AddFault("kill", s.Now())
			s.End(v, OK, s.store(v), false, nil)
			return s.read()
		}, "value 2/0 stands 3 times, and only 1 faults"},
		"twice, but the fault came later": {func(s *scene) Reading {
			s.store(s.ack(2))
			s.AddFault("kill", s.Now())
			return s.read()
		}, "value 2/0 stands 2 times, and only 0 faults"},
		"stored though it failed": {func(s *scene) Reading {
			v := s.Begin(1, first)
			s.End(v, Failed, 0, false, errors.New("no space"))
			s.store(v)
			return s.read()
		}, "value 1/0, whose publish had failed: no space"},
		"never published": {func(s *scene) Reading {
			s.store(Value{1, 7})
			return s.read()
		}, "value 1/7, which nobody published"},
		"another partition": {func(s *scene) Reading {
			v := s.Begin(1, func(Value) int32 { return 1 })
			s.store(v)
			return s.read()
		}, "value 1/0, which was published to partition 1"},
		"idempotent out of order": {func(s *scene) Reading {
			a, b := s.Begin(0, first), s.Begin(0, first)
			s.store(b)
			s.store(a)
			return s.read()
		}, "value 0/0 of an idempotent producer, behind its 1"},
		"ordered out of order": {func(s *scene) Reading {
			a, b := s.Begin(1, first), s.Begin(1, first)
			s.End(b, OK, s.store(b), false, nil)
			s.End(a, OK, s.store(a), false, nil)
			return s.read()
		}, "value 1/1 was acknowledged at offset 0, the one before it at 1"},
		"neither, out of order": {func(s *scene) Reading {
			a, b := s.Begin(2, first), s.Begin(2, first)
			s.End(b, OK, s.store(b), false, nil)
			s.End(a, OK, s.store(a), false, nil)
			return s.read()
		}, ""},
		"acknowledged without offset": {func(s *scene) Reading {
			s.End(s.ack(0), OK, -1, true, nil)
			return s.read()
		}, "acknowledged without an offset"},
		"partition not read": {func(s *scene) Reading {
			v := s.Begin(0, func(Value) int32 { return 1 })
			s.End(v, OK, 0, false, nil)
			return s.read()
		}, "partition 1, which was not read"},
		"another value than before": {func(s *scene) Reading {
			v := s.Begin(2, first)
			w := s.Begin(2, first)
			s.store(v)
			s.Check(s.read())
			s.log[0].Value = w
			return s.read()
		}, "offset 0 has value 2/1, and had 2/0 before"},
		"shorter than before": {func(s *scene) Reading {
			s.store(s.Begin(2, first))
			s.Check(s.read())
			s.log = nil
			return s.read()
		}, "ends at offset 0, and was read up to 1 before"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			got, _ := s.Check(c.play(s))
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("got %q, and nothing is wrong", got)
			case c.want != "" && !strings.Contains(strings.Join(got, "\n"), c.want):
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCheckCounts(t *testing.T) {
	s := newScene()
	s.ack(0)
	v := s.Begin(2, first)
	s.store(v)
	s.AddFault("kill", s.Now())
	s.End(v, OK, s.store(v), false, nil)
	w := s.Begin(0, first)
	s.End(w, OK, s.store(w), true, nil)
	u := s.Begin(1, first)
	s.End(u, Unknown, 0, false, nil)
	s.store(u)
	s.End(s.Begin(1, first), Failed, 0, false, nil)
	s.Begin(1, first)
	broken, got := s.Check(s.read())
	want := Counts{Records: 5, Acked: 3, Answered: 5, Failed: 1, Unknown: 1, Resent: 1, Duplicates: 1, UnknownKept: 1}
	if got != want || len(broken) > 0 {
		t.Errorf("got %+v, %q; want %+v", got, broken, want)
	}
	var out bytes.Buffer
	if err := s.Write(&out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 3+1+6 || !strings.Contains(out.String(), `"Outcome":"unknown"`) {
		t.Errorf("written as %d lines:\n%s", lines, &out)
	}
}
