package history

import (
	"testing"
	"time"
)

// periodic makes the topic one that syncs every 100 ms.
func (s *scene) periodic() {
	s.topic(Event{Fsync: FsyncPeriodic, Interval: int64(100 * time.Millisecond)})
}

// cut loses the records from an offset on, and moves the log's end to another offset behind them.
func (s *scene) cut(mayLose string, from int) []Value {
	s.fault(mayLose)
	lost := s.log[from:]
	s.log = s.log[:from:from]
	return lost
}

// TestLost shows the check what is lost and what only looks like it.
//
// size: one table, a few lines a plant
func TestLost(t *testing.T) {
	grow(t, CheckLost, []plant{
		{name: "nothing wrong", play: func(s *scene) {
			for range 3 {
				s.ack(0)
				s.ack(1)
				s.ack(2)
			}
			s.begin(0)
			v := s.begin(1)
			s.end(v, Unknown, 0)
			s.store(v)
			s.read()
			s.ack(0)
			s.read()
		}, o: Options{AllRead: true}},
		{name: "at the end", play: func(s *scene) {
			s.ack(0)
			s.ack(0)
			s.log = s.log[:1]
			s.read()
		}, want: "value 0/1 was acknowledged at offset 1 and is lost: for reading 0 of a the log ends at 1"},
		{name: "in the middle", play: func(s *scene) {
			s.ack(1)
			v := s.ack(2)
			s.ack(1)
			r := s.beginRead(0)
			r.record(0, s.log[0])
			r.record(2, s.log[2])
			_ = v
			r.end()
		}, want: "value 2/0 was acknowledged at offset 1 and is lost: reading 0 of a did not get it"},
		{name: "of the second of two sources", play: func(s *scene) {
			s.ack(1)
			s.read()
			s.log = nil
			s.read()
		}, want: "value 1/0 was acknowledged at offset 0 and is lost: for reading 1 of a the log ends at 0"},
		{name: "acknowledged while it was read", play: func(s *scene) {
			s.ack(0)
			v := s.begin(0)
			s.readAs(0, func(*reading) { s.end(v, OK, 1) })
		}},
		{name: "reading that did not end", play: func(s *scene) {
			s.ack(0)
			s.ack(0)
			s.log = s.log[:1]
			s.readAs(0, func(r *reading) { r.stop = true })
		}},
		{name: "reading that began behind it", play: func(s *scene) {
			s.ack(0)
			s.ack(0)
			s.readAs(1, func(*reading) {})
		}},
		{name: "read before, though never acknowledged", play: func(s *scene) {
			s.store(s.begin(2))
			s.read()
			s.log = nil
			s.read()
		}, want: "value 2/0 was read at offset 0 and is lost: for reading 1 of a the log ends at 0"},
		{name: "delivered before, though never acknowledged", play: func(s *scene) {
			v := s.begin(2)
			s.subscribe(0, "")
			s.deliver(0, v, "")
			s.read()
		}, want: "value 2/0 was read at offset 0 and is lost: for reading 0 of a the log ends at 0"},
		{name: "delivered later", play: func(s *scene) {
			v := s.begin(2)
			s.subscribe(0, "")
			s.readAs(0, func(*reading) { s.deliver(0, v, "") })
		}},
		{name: "read by a reading that had not ended", play: func(s *scene) {
			v := s.begin(2)
			s.readAs(0, func(r *reading) {
				s.read()
				r.record(0, v)
			})
		}},
		{name: "declared lost", play: func(s *scene) {
			s.periodic()
			s.fault(CostNothing)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "offsets 0 to 9 were declared lost to reading 0 of a, and nothing that was done may lose anything"},
		{name: "declared lost, on_commit", play: func(s *scene) {
			s.fault(CostUnsynced)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "were declared lost"},
		{name: "nothing known was declared lost, periodic", play: func(s *scene) {
			s.periodic()
			s.fault(CostUnsynced)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "no offset", play: func(s *scene) {
			s.end(s.ack(0), OK, -1)
			s.read()
		}, want: "acknowledged without an offset"},
		{name: "no offset where records are removed", play: func(s *scene) {
			s.topic(Event{Retention: true})
			s.end(s.begin(0), OK, -1)
			s.read()
		}},
		{name: "trimmed", play: func(s *scene) {
			s.topic(Event{Retention: true})
			s.ack(0)
			v := s.ack(0)
			r := s.beginRead(0)
			r.told("trimmed", 0, 0)
			r.record(1, v)
			r.end()
		}},
		{name: "trimmed where nothing is removed", play: func(s *scene) {
			s.ack(0)
			r := s.beginRead(0)
			r.told("trimmed", 0, 0)
			r.end()
		}, want: "value 0/0 was acknowledged at offset 0 and is lost: reading 0 of a was told that there is nothing"},
		{name: "told it is a marker", play: func(s *scene) {
			s.ack(0)
			r := s.beginRead(0)
			r.told("control", 0, 0)
			r.end()
		}, want: "is lost: reading 0 of a was told that there is nothing"},
		{name: "partition not read", play: func(s *scene) {
			s.end(s.beginIn(0, 1), OK, 0)
			s.read()
		}, want: "t@1 partition 1: value 0/0 was acknowledged at offset 0, and of all partitions this one was not read"},
		{name: "no reading after it", play: func(s *scene) {
			s.read()
			s.ack(0)
		}, want: "value 0/0 was acknowledged at offset 0, and no complete reading was begun after that", o: Options{AllRead: true}},
		{name: "no reading after it, and none is wanted", play: func(s *scene) {
			s.read()
			s.ack(0)
		}},
	})
}

// TestAllowedLoss shows the check what faults may cost and what they may not.
//
// size: one table, a few lines a plant
func TestAllowedLoss(t *testing.T) {
	grow(t, CheckLost, []plant{
		{name: "periodic, within the interval", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "periodic, before the interval", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.at += second
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "periodic, before the interval, but slack", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.at += second
			start := s.tick()
			s.apply(Event{Op: opFault, Start: start, End: s.tick(), MayLose: CostUnsynced, Slack: second})
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "periodic, but only a process died", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.cut(CostNothing, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "periodic, acknowledged after the fault", play: func(s *scene) {
			s.periodic()
			s.fault(CostUnsynced)
			s.ack(0)
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "periodic, and it had survived", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.fault(CostUnsynced)
			s.read()
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "on_commit", play: func(s *scene) {
			s.ack(0)
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "none, however long ago", play: func(s *scene) {
			s.topic(Event{Fsync: FsyncNone})
			s.ack(0)
			s.at += 100 * second
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "none, synced", play: func(s *scene) {
			s.topic(Event{Fsync: FsyncNone})
			s.ack(0)
			s.apply(Event{Op: opSync, Topic: "t", Incarnation: 1, End: s.tick()})
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "read and never acknowledged", play: func(s *scene) {
			s.periodic()
			s.store(s.begin(2))
			s.read()
			s.cut(CostUnsynced, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "a later one survived", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.ack(0)
			s.fault(CostUnsynced)
			r := s.beginRead(0)
			r.told("lost", 0, 0)
			r.record(1, s.log[1])
			r.end()
		}, want: "value 0/1 at offset 1 survived a fault (kill) that has cost the record at 0 before it"},
		{name: "a later one came after the fault", play: func(s *scene) {
			s.periodic()
			s.ack(0)
			s.fault(CostUnsynced)
			v := s.begin(0)
			s.end(v, OK, 10)
			r := s.beginRead(0)
			r.told("lost", 0, 9)
			r.record(10, v)
			r.end()
		}},
		{name: "acknowledged where it had been declared lost", play: func(s *scene) {
			s.periodic()
			v := s.begin(0)
			s.fault(CostUnsynced)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
			s.end(v, OK, 3)
		}, want: "value 0/0 was acknowledged at offset 3 and is lost"},
	})
	copied := func(s *scene, next int64) {
		s.apply(Event{Op: opCopied, Topic: "t", Incarnation: 1, Next: next, End: s.tick()})
	}
	grow(t, CheckLost, []plant{
		{name: "the log is gone, nothing was copied", play: func(s *scene) {
			s.ack(0)
			s.cut(CostUncopied, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "the log is gone, the first was copied", play: func(s *scene) {
			s.ack(0)
			s.ack(0)
			copied(s, 1)
			s.cut(CostUncopied, 1)
			s.readAs(0, func(r *reading) { r.told("lost", 1, 9) })
		}},
		{name: "the log is gone, and what was copied with it", play: func(s *scene) {
			s.ack(0)
			s.ack(0)
			copied(s, 1)
			s.cut(CostUncopied, 0)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "copied too late to count", play: func(s *scene) {
			s.ack(0)
			s.cut(CostUncopied, 0)
			copied(s, 1)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}},
		{name: "the log is gone, and what came after is lost", play: func(s *scene) {
			s.fault(CostUncopied)
			s.ack(0)
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
		{name: "it had survived", play: func(s *scene) {
			s.ack(0)
			s.fault(CostUncopied)
			s.read()
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
		}, want: "value 0/0 was acknowledged at offset 0 and is lost"},
	})
	grow(t, CheckHoles, []plant{{name: "the log is gone, and nobody was told", play: func(s *scene) {
		s.ack(0)
		s.cut(CostUncopied, 0)
		s.read()
	}, want: "value 0/0 at offset 0 is lost, as it may be, but reading 0 of a was not told"}})
	grow(t, CheckHoles, []plant{{name: "nobody was told", play: func(s *scene) {
		s.periodic()
		s.ack(0)
		s.cut(CostUnsynced, 0)
		s.read()
	}, want: "value 0/0 at offset 0 is lost, as it may be, but reading 0 of a was not told"}})
	grow(t, CheckOffsets, []plant{{name: "given to another", play: func(s *scene) {
		s.periodic()
		s.ack(0)
		s.cut(CostUnsynced, 0)
		s.ack(1)
		s.read()
	}, want: "value 0/0 was acknowledged at offset 0 and is lost: 1/0 stands there"}})
}

func TestLossesAreCounted(t *testing.T) {
	s := newScene(t)
	s.periodic()
	s.ack(0)
	s.ack(1)
	s.cut(CostUnsynced, 0)
	for range 3 {
		s.readAs(0, func(r *reading) { r.told("lost", 0, 9) })
	}
	if r := s.h.Check(Options{}); r.Counts.Lost != 2 || !r.OK() {
		t.Errorf("got %+v, want 2 lost and nothing wrong", r)
	}
}
