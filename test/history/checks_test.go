package history

import "testing"

func TestOffsets(t *testing.T) {
	grow(t, CheckOffsets, []plant{
		{name: "another value than before", play: func(s *scene) {
			v, w := s.begin(2), s.begin(2)
			s.store(v)
			s.read()
			s.log[0] = w
			s.read()
		}, want: "offset 0 has value 2/1 in reading 1 of a, and had 2/0 before"},
		{name: "another value than it was acknowledged with", play: func(s *scene) {
			v := s.begin(2)
			s.end(s.begin(1), OK, s.store(v))
			s.read()
		}, want: "value 1/0 was acknowledged at offset 0 and is lost: 2/0 stands there"},
		{name: "acknowledged twice", play: func(s *scene) {
			s.end(s.begin(1), OK, 7)
			s.end(s.begin(2), OK, 7)
		}, want: "values 1/0 and 2/0 were both acknowledged at offset 7"},
		{name: "the same value acknowledged twice", play: func(s *scene) {
			v := s.begin(0)
			s.end(v, OK, s.store(v))
			s.end(v, OK, 0)
			s.read()
		}},
		{name: "another value than was delivered", play: func(s *scene) {
			v := s.ack(2)
			w := s.begin(2)
			s.read()
			_ = v
			s.subscribe(0, "")
			s.deliver(0, w, "")
		}, want: "offset 0 has value 2/1 in subscription s of t@1 partition 0, and had 2/0 before"},
		{name: "a record after it was declared lost", play: func(s *scene) {
			s.periodic()
			v := s.begin(2)
			s.fault(CostUnsynced)
			s.readAs(0, func(r *reading) { r.told("lost", 0, 0) })
			s.store(v)
			s.read()
		}, want: "offset 0 has value 2/0 in reading 1 of a, and reading 0 of a was told: lost"},
		{name: "a marker where a record was", play: func(s *scene) {
			s.store(s.begin(2))
			s.read()
			s.log = nil
			s.readAs(0, func(r *reading) { r.told("control", 0, 0) })
		}, want: "offset 0 has value 2/0 in reading 0 of a, and reading 1 of a was told: control"},
		{name: "a record at the same offset of another incarnation", play: func(s *scene) {
			s.ack(2)
			s.apply(Event{Op: opClient, Producer: 3, Topic: "t", Incarnation: 2})
			v := Value{3, 0}
			s.apply(Event{Op: opPublish, Value: &v, Outcome: "ok", Start: s.at, End: s.tick()})
			s.read()
		}},
	})
}

func TestDuplicates(t *testing.T) {
	grow(t, CheckCopies, []plant{
		{name: "idempotent", play: func(s *scene) {
			v := s.begin(0)
			s.store(v)
			s.fault(CostNothing)
			s.end(v, OK, s.store(v))
			s.read()
		}, want: "value 0/0 of an idempotent producer stands 2 times"},
		{name: "without a fault", play: func(s *scene) {
			s.store(s.ack(2))
			s.read()
		}, want: "value 2/0 stands 2 times, and only 0 faults"},
		{name: "for one fault", play: func(s *scene) {
			v := s.begin(2)
			s.store(v)
			s.fault(CostNothing)
			s.end(v, OK, s.store(v))
			s.read()
		}},
		{name: "three times for one fault", play: func(s *scene) {
			v := s.begin(2)
			s.store(v)
			s.store(v)
			s.fault(CostNothing)
			s.end(v, OK, s.store(v))
			s.read()
		}, want: "value 2/0 stands 3 times, and only 1 faults"},
		{name: "three times for two faults", play: func(s *scene) {
			v := s.begin(2)
			s.store(v)
			s.fault(CostNothing)
			s.store(v)
			s.fault(CostNothing)
			s.end(v, OK, s.store(v))
			s.read()
		}},
		{name: "the fault came later", play: func(s *scene) {
			s.store(s.ack(2))
			s.fault(CostNothing)
			s.read()
		}, want: "value 2/0 stands 2 times, and only 0 faults"},
		{name: "the fault came before", play: func(s *scene) {
			s.fault(CostNothing)
			s.store(s.ack(2))
			s.read()
		}, want: "value 2/0 stands 2 times, and only 0 faults"},
		{name: "never answered", play: func(s *scene) {
			v := s.begin(2)
			s.store(v)
			s.fault(CostNothing)
			s.store(v)
			s.read()
		}},
		{name: "its producer was gone", play: func(s *scene) {
			v := s.begin(2)
			s.store(v)
			s.apply(Event{Op: opGone, Producer: 2, End: s.tick()})
			s.fault(CostNothing)
			s.store(v)
			s.read()
		}, want: "value 2/0 stands 2 times, and only 0 faults"},
		{name: "in two partitions", play: func(s *scene) {
			v := s.ack(2)
			s.read()
			s.apply(Event{Op: opReadBegin, Reading: 1, Topic: "t", Incarnation: 1, Partition: 1, Start: s.tick()})
			(&reading{s: s, id: 1}).record(0, v)
		}, want: "value 2/0 stands 2 times, and only 0 faults"},
	})
}

func TestCounts(t *testing.T) {
	s := newScene(t)
	s.ack(0)
	v := s.begin(2)
	s.store(v)
	s.fault(CostNothing)
	s.end(v, OK, s.store(v))
	w := s.begin(0)
	s.apply(Event{Op: opPublish, Value: &w, Start: s.at, End: s.tick(), Outcome: "ok", Offset: s.store(w), Duplicate: true})
	for range 2 {
		u := s.begin(1)
		s.end(u, Unknown, 0)
		s.store(u)
	}
	s.end(s.begin(1), Unknown, 0)
	s.end(s.begin(1), Fail, 0)
	s.begin(1)
	s.read()
	s.end(s.begin(0), OK, 6)
	s.subscribe(0, "")
	s.deliver(0, s.log[0], "")
	s.deliver(0, s.log[0], "")
	want := Counts{
		Publishes: 9, Answered: 8, Acked: 4, Failed: 1, Unknown: 3, Pending: 1, Resent: 1, Records: 6, Duplicates: 1, UnknownKept: 2,
		Unread: 1, Readings: 1, Deliveries: 2, Redelivered: 1, Faults: 1,
	}
	if r := s.h.Check(Options{}); r.Counts != want || !r.OK() {
		t.Errorf("got %+v, want %+v and nothing wrong", r, want)
	}
}

// TestOrder shows the check what is out of order and what only looks like it.
//
// size: one table, a few lines a plant
func TestOrder(t *testing.T) {
	grow(t, CheckOrder, []plant{
		{name: "idempotent", play: func(s *scene) {
			a, b := s.begin(0), s.begin(0)
			s.store(b)
			s.store(a)
			s.read()
		}, want: "offset 1 has value 0/0 of an idempotent producer, behind its 1"},
		{name: "ordered", play: func(s *scene) {
			a, b := s.begin(1), s.begin(1)
			s.end(b, OK, s.store(b))
			s.end(a, OK, s.store(a))
			s.read()
		}, want: "offset 1 has value 1/0 of an ordered producer, behind its 1"},
		{name: "idempotent, where something else was lost", play: func(s *scene) {
			s.periodic()
			a, b := s.begin(0), s.begin(0)
			s.store(b)
			s.store(a)
			s.fault(CostUnsynced)
			s.readAs(0, func(r *reading) { r.told("lost", 2, 9) })
		}, want: "offset 1 has value 0/0 of an idempotent producer, behind its 1"},
		{name: "idempotent, sent again because it was lost", play: func(s *scene) {
			s.periodic()
			a := s.begin(0)
			s.store(a)
			s.read()
			s.fault(CostUnsynced)
			s.end(a, OK, 10)
			r := s.beginRead(0)
			r.told("lost", 0, 9)
			r.record(10, a)
			r.end()
		}},
		{name: "ordered, answers", play: func(s *scene) {
			a, b := s.begin(1), s.begin(1)
			s.end(b, OK, 0)
			s.end(a, OK, 1)
		}, want: "value 1/1 of an ordered producer was acknowledged at offset 0, and 1/0 before it at 1"},
		{name: "ordered, sent again", play: func(s *scene) {
			a, b := s.begin(1), s.begin(1)
			s.store(a)
			s.store(b)
			s.fault(CostNothing)
			s.end(a, OK, s.store(a))
			s.end(b, OK, s.store(b))
			s.read()
		}},
		{name: "ordered, overtaken by what was given up", play: func(s *scene) {
			a := s.begin(1)
			s.end(a, Unknown, 0)
			s.ack(1)
			s.store(a)
			s.read()
		}},
		{name: "neither", play: func(s *scene) {
			a, b := s.begin(2), s.begin(2)
			s.end(b, OK, s.store(b))
			s.end(a, OK, s.store(a))
			s.read()
		}},
		{name: "idempotent, another partition", play: func(s *scene) {
			a, b := s.beginIn(0, 1), s.begin(0)
			s.end(b, OK, 5)
			s.end(a, OK, 0)
		}},
		{name: "deliveries", play: func(s *scene) {
			a, b := s.ack(0), s.ack(0)
			s.subscribe(0, "")
			s.deliver(1, b, "")
			s.deliver(0, a, "")
		}, want: "offset 0 (key \"\") was delivered for the first time after 1"},
		{name: "deliveries again", play: func(s *scene) {
			a, b := s.ack(0), s.ack(0)
			s.subscribe(0, "")
			s.deliver(0, a, "")
			s.deliver(1, b, "")
			s.deliver(0, a, "")
			s.deliver(1, b, "")
		}},
		{name: "deliveries of one key", play: func(s *scene) {
			a, b, c := s.ack(0), s.ack(0), s.ack(0)
			s.subscribe(0, "key")
			s.deliver(1, b, "x")
			s.deliver(2, c, "y")
			s.deliver(0, a, "y")
		}, want: "offset 0 (key \"y\") was delivered for the first time after 2"},
		{name: "deliveries of several keys", play: func(s *scene) {
			a, b, c := s.ack(0), s.ack(0), s.ack(0)
			s.subscribe(0, "key")
			s.deliver(2, c, "")
			s.deliver(1, b, "x")
			s.deliver(0, a, "y")
		}},
		{name: "deliveries without order", play: func(s *scene) {
			a, b := s.ack(0), s.ack(0)
			s.subscribe(0, "none")
			s.deliver(1, b, "")
			s.deliver(0, a, "")
		}},
	})
}

// subscribe adds subscription s.
func (s *scene) subscribe(from int64, order string) {
	if order == "" {
		order = "partition"
	}
	s.apply(Event{Op: opSubscribe, Subscription: "s", Topic: "t", Incarnation: 1, From: from, Order: order})
}

// deliver delivers a record to subscription s.
func (s *scene) deliver(offset int64, v Value, key string) {
	s.apply(Event{
		Op: opDeliver, Subscription: "s", Client: "c", Topic: "t", Incarnation: 1, Offset: offset, Value: &v, Key: key, Start: s.tick(),
	})
}

// TestHoles shows the check readers that were not told of something.
//
// size: one table, a few lines a plant
func TestHoles(t *testing.T) {
	grow(t, CheckHoles, []plant{
		{name: "in the middle", play: func(s *scene) {
			s.ack(0)
			v := s.begin(0)
			s.readAs(0, func(r *reading) { r.record(3, v) })
		}, want: "reading 0 of a went from offset 0 to 3 without a word of those between"},
		{name: "told", play: func(s *scene) {
			s.ack(0)
			v := s.begin(0)
			s.readAs(0, func(r *reading) {
				r.told("control", 1, 2)
				r.record(3, v)
			})
		}},
		{name: "told too little", play: func(s *scene) {
			s.ack(0)
			v := s.begin(0)
			s.readAs(0, func(r *reading) {
				r.told("control", 1, 1)
				r.record(3, v)
			})
		}, want: "reading 0 of a went from offset 1 to 3"},
		{name: "at the beginning", play: func(s *scene) {
			v := s.begin(0)
			r := s.beginRead(0)
			r.record(1, v)
			r.end()
		}, want: "reading 0 of a was to begin at offset 0 and began at 1 without a word"},
		{name: "it may begin anywhere", play: func(s *scene) {
			v := s.begin(0)
			r := s.beginRead(-1)
			r.record(1, v)
			r.end()
		}},
		{name: "at the end", play: func(s *scene) {
			s.ack(0)
			s.readAs(0, func(r *reading) { r.next = 2 })
		}, want: "reading 0 of a was at offset 1 when it was told that the end is 2"},
		{name: "back", play: func(s *scene) {
			s.ack(0)
			s.readAs(0, func(r *reading) { r.record(0, s.log[0]) })
		}, want: "reading 0 of a got offset 0 when it was at 1"},
		{name: "trimmed where nothing is removed", play: func(s *scene) {
			r := s.beginRead(0)
			r.told("trimmed", 0, 5)
			r.end()
		}, want: "was told that offsets 0 to 5 are trimmed, and nothing of the topic is"},
		{name: "compacted where nothing is compacted", play: func(s *scene) {
			r := s.beginRead(0)
			r.told("compacted", 0, 5)
			r.end()
		}, want: "are compacted, and nothing of the topic is"},
		{name: "compacted", play: func(s *scene) {
			s.topic(Event{Compacted: true})
			s.ack(0)
			v := s.ack(0)
			r := s.beginRead(0)
			r.told("compacted", 0, 0)
			r.record(1, v)
			r.end()
		}},
		{name: "subscription", play: func(s *scene) {
			s.ack(0)
			v := s.ack(0)
			s.subscribe(0, "")
			s.deliver(1, v, "")
		}, want: "subscription s of t@1 partition 0 delivered offset 1 without a word of 0 to 0"},
		{name: "subscription that was told", play: func(s *scene) {
			s.topic(Event{Retention: true})
			s.ack(0)
			v := s.ack(0)
			s.subscribe(0, "")
			s.apply(Event{Op: opTold, Subscription: "s", Topic: "t", Incarnation: 1, Kind: "trimmed", From: 0, To: 0, Start: s.tick()})
			s.deliver(1, v, "")
		}},
		{name: "subscription from where it asked", play: func(s *scene) {
			s.ack(0)
			v := s.ack(0)
			s.subscribe(1, "")
			s.deliver(1, v, "")
		}},
		{name: "consumers side by side, a moment ago", play: func(s *scene) {
			s.ack(0)
			v := s.ack(0)
			s.subscribe(0, "none")
			s.deliver(1, v, "")
		}},
		{name: "consumers side by side, long ago", play: func(s *scene) {
			s.ack(0)
			v := s.ack(0)
			s.subscribe(0, "none")
			s.deliver(1, v, "")
			s.at += 6 * second
			s.fault(CostNothing)
		}, want: "subscription s of t@1 partition 0 delivered offset 1 without a word of 0 to 0"},
		{name: "consumers side by side, acknowledged", play: func(s *scene) {
			s.ack(0)
			v := s.ack(0)
			s.subscribe(0, "none")
			s.deliver(1, v, "")
			s.apply(Event{Op: opAck, Subscription: "s", Topic: "t", Incarnation: 1, Offset: 0, Start: s.at, End: s.tick(), Outcome: "ok"})
			s.at += 6 * second
			s.fault(CostNothing)
		}},
	})
}

func TestInvented(t *testing.T) {
	grow(t, CheckInvented, []plant{
		{name: "never published", play: func(s *scene) {
			s.store(Value{1, 7})
			s.read()
		}, want: "offset 0 has value 1/7, which nobody published"},
		{name: "not a value", play: func(s *scene) {
			s.store(Value{-1, -1})
			s.read()
		}, want: "offset 0 has value -1/-1, which nobody published"},
		{name: "another partition", play: func(s *scene) {
			s.store(s.beginIn(1, 1))
			s.read()
		}, want: "offset 0 has value 1/0, which was published to t@1 partition 1"},
		{name: "another incarnation", play: func(s *scene) {
			s.apply(Event{Op: opClient, Producer: 3, Topic: "t", Incarnation: 2})
			v := Value{3, 0}
			s.apply(Event{Op: opPublish, Value: &v, Start: s.tick()})
			s.store(v)
			s.read()
		}, want: "offset 0 has value 3/0, which was published to t@2 partition 0"},
		{name: "failed", play: func(s *scene) {
			v := s.begin(1)
			s.end(v, Fail, 0)
			s.store(v)
			s.read()
		}, want: "offset 0 has value 1/0, whose publish had failed: no space"},
		{name: "failed, delivered", play: func(s *scene) {
			v := s.begin(1)
			s.end(v, Fail, 0)
			s.subscribe(0, "")
			s.deliver(0, v, "")
		}, want: "offset 0 has value 1/0, whose publish had failed: no space"},
		{name: "pending and unknown", play: func(s *scene) {
			s.store(s.begin(1))
			v := s.begin(1)
			s.end(v, Unknown, 0)
			s.store(v)
			s.read()
		}},
		{name: "the broker chose the partition", play: func(s *scene) {
			s.store(s.beginIn(1, -1))
			s.read()
		}},
	})
}

// TestLiveness shows the check heals after which too little happened, and such after which enough did.
//
// size: one table, a few lines a plant
func TestLiveness(t *testing.T) {
	heal := func(s *scene, subscriptions ...string) {
		s.apply(Event{Op: opHeal, Start: s.tick(), Subscriptions: subscriptions})
	}
	wait := func(s *scene, seconds int64) {
		s.at += seconds * second
		s.apply(Event{Op: opEnd, End: s.at})
	}
	grow(t, CheckLiveness, []plant{
		{name: "nothing succeeds", play: func(s *scene) {
			heal(s)
			s.begin(0)
			wait(s, 11)
		}, want: "t@1: nothing was acknowledged for 10s after the heal at 1.001 s, though 0/0 was under way from 1.002 s on"},
		{name: "all fails", play: func(s *scene) {
			heal(s)
			for range 12 {
				s.end(s.begin(1), Fail, 0)
				wait(s, 1)
			}
		}, want: "nothing was acknowledged for 10s"},
		{name: "still under way", play: func(s *scene) {
			s.begin(0)
			heal(s)
			wait(s, 11)
		}, want: "though 0/0 was under way from 1.002 s on"},
		{name: "too late", play: func(s *scene) {
			heal(s)
			v := s.begin(0)
			wait(s, 11)
			s.end(v, OK, 0)
		}, want: "nothing was acknowledged for 10s"},
		{name: "under way, but its producer is gone", play: func(s *scene) {
			s.begin(0)
			s.apply(Event{Op: opGone, Producer: 0, End: s.tick()})
			heal(s)
			wait(s, 11)
		}},
		{name: "in time", play: func(s *scene) {
			heal(s)
			v := s.begin(0)
			wait(s, 9)
			s.end(v, OK, 0)
			wait(s, 11)
		}},
		{name: "another limit", play: func(s *scene) {
			heal(s)
			v := s.begin(0)
			wait(s, 9)
			s.end(v, OK, 0)
		}, want: "nothing was acknowledged for 8s", o: Options{PublishWithin: 8e9}},
		{name: "began late", play: func(s *scene) {
			heal(s)
			wait(s, 60)
			s.ack(0)
		}},
		{name: "nobody published", play: func(s *scene) {
			heal(s)
			wait(s, 60)
		}},
		{name: "the next fault came", play: func(s *scene) {
			heal(s)
			s.begin(0)
			wait(s, 5)
			s.fault(CostNothing)
			wait(s, 60)
		}},
		{name: "no delivery", play: func(s *scene) {
			s.ack(0)
			s.subscribe(0, "")
			heal(s, "s")
			wait(s, 6)
		}, want: "subscription s had records waiting and room for them at 1.003 s, and got nothing for 5s"},
		{name: "delivery", play: func(s *scene) {
			v := s.ack(0)
			s.subscribe(0, "")
			heal(s, "s")
			wait(s, 4)
			s.deliver(0, v, "")
			wait(s, 6)
		}},
		{name: "delivery to another", play: func(s *scene) {
			v := s.ack(0)
			s.subscribe(0, "")
			heal(s, "other")
			s.deliver(0, v, "")
			wait(s, 6)
		}, want: "subscription other had records waiting"},
	})
	for name, play := range map[string]func(*scene){
		"fault soon":         func(s *scene) { heal(s); s.begin(0); s.fault(CostNothing); wait(s, 60) },
		"end soon":           func(s *scene) { heal(s); s.begin(0); wait(s, 1) },
		"end soon, delivery": func(s *scene) { heal(s, "s"); wait(s, 1) },
		"not healed": func(s *scene) {
			s.apply(Event{Op: opFault, Start: s.tick(), End: s.at + 30*second})
			heal(s, "s")
			s.begin(0)
			wait(s, 60)
		},
	} {
		s := newScene(t)
		play(s)
		if r := s.h.Check(Options{}); r.Counts.HealsShort != 1 || !r.OK() {
			t.Errorf("%s: got %+v, want one heal that was too short, and nothing wrong", name, r)
		}
	}
}
