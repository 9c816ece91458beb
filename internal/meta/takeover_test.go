package meta

import "testing"

// TestTakeOverGivesOutNoProducerIDAgain: the copy that a take-over goes on with may lack the ids that the lost broker gave out
// last. Records of those may be in objects: who got one of them again would have its own taken for records sent twice.
func TestTakeOverGivesOutNoProducerIDAgain(t *testing.T) {
	s := NewState()
	reserve := ReserveProducerIDs{Count: 1_000_000}
	apply(t, s, reserve)
	old := mustSnapshot(t, s)
	var last int64
	for range 100 {
		last = apply(t, s, reserve).FirstProducerID + reserve.Count - 1
	}
	next := NewState()
	if err := next.Restore(old); err != nil {
		t.Fatal(err)
	}
	if r := apply(t, next, TakeOver{AtMs: 1, From: "a", By: "b"}); r.Refused != nil {
		t.Fatal(r.Refused)
	}
	if first := apply(t, next, reserve).FirstProducerID; first <= last {
		t.Errorf("producer id %d is given out, and may have been before: the lost broker gave out %d", first, last)
	}
}
