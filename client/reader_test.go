package client

import (
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// TestNothingIsPassedInSilence opens a stream again, and the broker begins it further on than it was asked to: the
// records between are told as lost.
func TestNothingIsPassedInSilence(t *testing.T) {
	c := &Consumer{wake: make(chan struct{}, 1)}
	r := c.newReader(0)
	r.begin(&leveev1.Subscribed{Start: 5, Reliable: true})
	if len(r.events) > 0 || r.next != 5 {
		t.Fatalf("the first opening: %+v, next %d", r.events, r.next)
	}
	r.begin(&leveev1.Subscribed{Start: 5, Reliable: true})
	if len(r.events) > 0 {
		t.Fatalf("opened where it was: %+v", r.events)
	}
	r.begin(&leveev1.Subscribed{Start: 9, Reliable: true})
	if len(r.events) != 1 || r.events[0].kind != lostEvent || r.events[0].from != 5 || r.events[0].to != 8 || r.next != 9 {
		t.Fatalf("opened further on: %+v, next %d", r.events, r.next)
	}
}
