package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// did adds a metadata operation that takes a millisecond.
func (s *scene) did(e Event) {
	if e.Start == 0 {
		e.Start = s.tick()
	}
	e.Call, e.End = s.call, s.tick()
	if e.Topic == "" && e.Op != opList {
		e.Topic = "t"
	}
	s.call++
	s.apply(e)
}

func (s *scene) created(incarnation uint64) {
	s.did(Event{Op: opCreate, Client: "a", Outcome: "ok", Incarnation: incarnation, Settings: "x"})
}

func (s *scene) deleted() { s.did(Event{Op: opDelete, Client: "a", Outcome: "ok"}) }

func (s *scene) described(e Event) {
	e.Op, e.Outcome = opDescribe, "ok"
	s.did(e)
}

// TestMetadata shows the check orders of operations that could be and that could not.
//
// size: one table, a few lines a plant
func TestMetadata(t *testing.T) {
	const none = "topic t: its "
	grow(t, CheckMetadata, []plant{
		{name: "nothing wrong", play: func(s *scene) {
			s.created(1)
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
			s.did(Event{Op: opSettings, Outcome: "ok", Settings: "y"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "y"})
			s.did(Event{Op: opCreate, Outcome: "fail", Error: AlreadyExists})
			s.deleted()
			s.described(Event{})
			s.did(Event{Op: opDescribe, Outcome: "fail", Error: NotFound})
			s.did(Event{Op: opDelete, Outcome: "fail", Error: NotFound})
			s.created(2)
			s.did(Event{Op: opDelete, Outcome: "fail", Error: "unavailable"})
			s.did(Event{Op: opList, Outcome: "ok", Topics: []string{"t"}})
		}},
		{name: "made twice", play: func(s *scene) {
			s.created(1)
			s.created(2)
		}, want: none},
		{name: "the same incarnation again", play: func(s *scene) {
			s.created(1)
			s.deleted()
			s.created(1)
		}, want: none},
		{name: "a lower incarnation, made by who knows whom", play: func(s *scene) {
			s.created(5)
			s.deleted()
			s.did(Event{Op: opCreate})
			s.described(Event{Exists: true, Incarnation: 4})
		}, want: none},
		{name: "a higher incarnation, made by who knows whom", play: func(s *scene) {
			s.created(5)
			s.deleted()
			s.did(Event{Op: opCreate, Outcome: "unknown"})
			s.described(Event{Exists: true, Incarnation: 6})
			s.described(Event{Exists: true, Incarnation: 6})
		}},
		{name: "two incarnations of one making", play: func(s *scene) {
			s.did(Event{Op: opCreate})
			s.described(Event{Exists: true, Incarnation: 6})
			s.described(Event{Exists: true, Incarnation: 7})
		}, want: none},
		{name: "gone by itself", play: func(s *scene) {
			s.created(1)
			s.described(Event{})
		}, want: none},
		{name: "gone by who knows whom", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opDelete})
			s.described(Event{})
		}},
		{name: "not deleted by who knows whom, then deleted", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opDelete})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
			s.described(Event{})
		}},
		{name: "deleted and back", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opDelete})
			s.described(Event{})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
		}, want: none},
		{name: "settings forgotten", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opSettings, Outcome: "ok", Settings: "y"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
		}, want: none},
		{name: "settings on, off, on", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opSettings, Outcome: "unknown", Settings: "y"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "y"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
		}, want: none},
		{name: "settings, later than answered", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opSettings, Outcome: "unknown", Settings: "y"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
			s.described(Event{Exists: true, Incarnation: 1, Settings: "y"})
		}},
		{name: "many settings that nobody saw", play: func(s *scene) {
			s.created(1)
			for range 2000 {
				s.did(Event{Op: opSettings, Outcome: "unknown", Settings: "y"})
			}
			s.described(Event{Exists: true, Incarnation: 1, Settings: "x"})
		}, o: Options{MetadataTime: time.Minute}}, // far more than it takes: a machine may stand still for seconds
		{name: "not listed", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opList, Outcome: "ok"})
		}, want: none},
		{name: "not listed, for it is elsewhere", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opList, Outcome: "ok", Topic: "u/"})
		}},
		{name: "listed though never made", play: func(s *scene) {
			s.did(Event{Op: opList, Outcome: "ok", Topics: []string{"t"}})
		}, want: none},
		{name: "failed because it was not there", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opSettings, Outcome: "fail", Error: NotFound})
		}, want: none},
		{name: "described as absent though it was there", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opDescribe, Outcome: "fail", Error: NotFound})
		}, want: none},
		{name: "side by side", play: func(s *scene) {
			at := s.tick()
			s.did(Event{Op: opDescribe, Outcome: "ok", Start: at})
			s.did(Event{Op: opCreate, Outcome: "ok", Incarnation: 1, Start: at})
			s.did(Event{Op: opDescribe, Outcome: "ok", Exists: true, Incarnation: 1, Start: at})
		}},
	})
}

func TestLocalReads(t *testing.T) {
	grow(t, CheckMetadata, []plant{
		{name: "behind, but not for its client", play: func(s *scene) {
			s.created(1)
			s.described(Event{Client: "b", Local: true})
			s.described(Event{Client: "b", Local: true, Exists: true, Incarnation: 1, Settings: "x"})
		}},
		{name: "behind its own write", play: func(s *scene) {
			s.created(1)
			s.described(Event{Client: "a", Local: true})
		}, want: "client a read that t exists: false at 1.003 s, after its own create {x}"},
		{name: "behind its own write, or somebody has deleted it", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opDelete, Client: "b"})
			s.described(Event{Client: "a", Local: true})
		}},
		{name: "behind its own settings", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opSettings, Client: "a", Outcome: "ok", Settings: "y"})
			s.described(Event{Client: "a", Local: true, Exists: true, Incarnation: 1, Settings: "x"})
		}, want: "client a read that t exists: true {x} at 1.005 s, after its own settings {y}"},
		{name: "back to an older incarnation", play: func(s *scene) {
			s.created(1)
			s.deleted()
			s.created(2)
			s.described(Event{Client: "b", Local: true, Exists: true, Incarnation: 2, Settings: "x"})
			s.described(Event{Client: "b", Local: true, Exists: true, Incarnation: 1, Settings: "x"})
		}, want: "client b read t@1 at 1.009 s, and incarnations before 2 are over for it"},
		{name: "what it has deleted itself", play: func(s *scene) {
			s.created(1)
			s.deleted()
			s.did(Event{Op: opCreate, Client: "b", Outcome: "unknown"})
			s.described(Event{Client: "a", Local: true, Exists: true, Incarnation: 1, Settings: "x"})
		}, want: "client a read t@1 at 1.007 s, and incarnations before 2 are over for it"},
		{name: "back to an older revision", play: func(s *scene) {
			s.described(Event{Client: "b", Local: true, Revision: 7})
			s.described(Event{Client: "b", Local: true, Revision: 6})
		}, want: "client b read revision 6 at 1.003 s, and knew of 7"},
		{name: "an older revision at the same time", play: func(s *scene) {
			at := s.tick()
			s.described(Event{Client: "b", Local: true, Revision: 7, Start: at})
			s.described(Event{Client: "b", Local: true, Revision: 6, Start: at})
		}},
		{name: "listed behind its own write", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opList, Client: "a", Local: true, Outcome: "ok"})
		}, want: "client a: a list at 1.003 s shows t: false, after its own create"},
		{name: "listed", play: func(s *scene) {
			s.created(1)
			s.did(Event{Op: opList, Client: "a", Local: true, Outcome: "ok", Topics: []string{"t"}})
		}},
	})
}

// TestUndecided gives the check so much to think about that it cannot come to an end: that is not the same as nothing
// found.
func TestUndecided(t *testing.T) {
	s := newScene(t)
	for i := range 40 { // none of them ends: each may have come at any moment
		s.did(Event{Op: opCreate})
		s.did(Event{Op: opDelete})
		s.did(Event{Op: opSettings, Settings: string(rune('A' + i))})
	}
	for i := range 40 {
		s.described(Event{Exists: true, Settings: string(rune('A' + i*17%40))})
	}
	s.described(Event{Exists: true, Settings: "no such"})
	for range 2 { // a topic behind it
		s.did(Event{Op: opCreate, Topic: "u", Outcome: "ok", Incarnation: 1})
	}
	// Half of it is for the first topic, and whatever that leaves, a second or more, must do for the other one.
	r := s.h.Check(Options{MetadataTime: 3 * time.Second})
	if len(r.Undecided) != 1 || !strings.Contains(r.Undecided[0], "topic t: its 161 metadata operations were not judged within 3s") || r.OK() {
		t.Errorf("got %+v, want one topic that was not judged", r)
	}
	if len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Text, "topic u") {
		t.Errorf("got %q, want the other topic judged all the same", r.Violations)
	}
}

func TestVisualization(t *testing.T) {
	s := newScene(t)
	s.created(1)
	s.created(2)
	path := filepath.Join(t.TempDir(), "topic.html")
	r := s.h.Check(Options{Visualization: path})
	if len(r.Violations) != 1 || !strings.HasSuffix(r.Violations[0].Text, ", see "+path) {
		t.Errorf("got %v, want one violation that names the drawing", r.Violations)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "<html") {
		t.Errorf("the drawing: %.100s, %v", text, err)
	}
}
