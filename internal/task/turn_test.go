package task

import (
	"context"
	"testing"
)

func TestTurnIsOnes(t *testing.T) {
	const workers, rounds = 8, 500
	var turn Turn
	held, sum := 0, 0
	g := NewGroup(context.Background())
	for range workers {
		g.Go("worker", func(context.Context) error {
			for range rounds {
				if !turn.Take(nil) {
					t.Error("gave up without a reason")
				}
				if held++; held != 1 { // the race detector watches, too
					t.Errorf("%d hold the turn", held)
				}
				sum++
				held--
				turn.Give()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if sum != workers*rounds {
		t.Fatalf("%d turns of %d", sum, workers*rounds)
	}
}

func TestTurnCanBeGivenUp(t *testing.T) {
	var turn Turn
	if !turn.Try() || turn.Try() {
		t.Fatal("a turn is taken once")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if turn.Take(ctx.Done()) {
		t.Fatal("took a turn that another holds")
	}
	freed := turn.Freed()
	turn.Give()
	<-freed
	<-turn.Freed() // free already
	if !turn.Take(ctx.Done()) {
		t.Fatal("did not take a free turn")
	}
	turn.Give()
}
