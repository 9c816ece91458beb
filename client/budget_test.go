package client

import "testing"

func TestBudget(t *testing.T) {
	const limit = 100
	var b budget
	if b.take(60, limit) != nil {
		t.Fatal("the first waits")
	}
	large, small := b.take(80, limit), b.take(30, limit)
	if large == nil || small == nil {
		t.Fatal("somebody went past those who wait")
	}
	woken := func(w *waiter) bool {
		select {
		case <-w.woken:
			return true
		default:
			return false
		}
	}
	if woken(large) || woken(small) {
		t.Error("woken without room")
	}
	if b.settle(large, limit) || !woken(small) || !b.settle(small, limit) || b.used != 90 {
		t.Errorf("after the first waiter gave up: %d used", b.used)
	}
	last := b.take(11, limit)
	b.give(60, limit)
	if !woken(last) || b.used != 41 {
		t.Errorf("after room was made: %d used", b.used)
	}
	b.give(41, limit)
	if b.take(1000, limit) != nil {
		t.Error("more than the limit waits though nothing is in flight")
	}
	late := b.take(1, limit)
	b.wakeAll()
	if !woken(late) || b.settle(late, limit) {
		t.Error("wakeAll let somebody in")
	}
}
