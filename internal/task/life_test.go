package task

import (
	"context"
	"errors"
	"testing"
)

var errOver = errors.New("over")

// check compares a Life with the context that package context would have made.
func check(t *testing.T, ctx context.Context, ended bool, cause error) {
	t.Helper()
	if (ctx.Err() != nil) != ended || !errors.Is(context.Cause(ctx), cause) {
		t.Fatalf("err %v, cause %v; want ended %v, cause %v", ctx.Err(), context.Cause(ctx), ended, cause)
	}
	select {
	case <-ctx.Done():
		if !ended {
			t.Fatal("done, and nobody ended it")
		}
	default:
		if ended {
			t.Fatal("ended, and not done")
		}
	}
}

func TestLifeEnds(t *testing.T) {
	for _, waits := range []bool{false, true} {
		var l Life
		if waits {
			check(t, &l, false, nil)
		}
		child, cancel := context.WithCancelCause(&l)
		defer cancel(nil)
		l.End(errOver)
		l.End(errors.New("again"))
		check(t, &l, true, errOver)
		<-child.Done()
		check(t, child, true, errOver)
	}
}

func TestLifeEndsWithItsParent(t *testing.T) {
	for _, waits := range []bool{false, true} {
		type key struct{}
		parent, end := context.WithCancelCause(context.WithValue(context.Background(), key{}, "there"))
		l := Life{Parent: parent}
		if l.Value(key{}) != "there" {
			t.Fatal("the parent's value is lost")
		}
		if waits {
			check(t, &l, false, nil)
		}
		end(errOver)
		check(t, &l, true, errOver)
		l.End(errors.New("too late"))
		check(t, &l, true, errOver)
		if l.Value(key{}) != "there" {
			t.Fatal("the parent's value is lost")
		}
	}
}

// TestLifeLeavesItsParentAlone checks that what ends one does not end its siblings.
func TestLifeLeavesItsParentAlone(t *testing.T) {
	var parent Life
	a, b := Life{Parent: &parent}, Life{Parent: &parent}
	a.End(errOver)
	check(t, &a, true, errOver)
	check(t, &b, false, nil)
	check(t, &parent, false, nil)
}

// TestLifeIsCheap holds what it is for: nothing is allocated before somebody waits.
func TestLifeIsCheap(t *testing.T) {
	parent, end := context.WithCancel(context.Background())
	defer end()
	lives := make([]Life, 1)
	if n := testing.AllocsPerRun(100, func() {
		lives[0].Parent = parent
		if lives[0].Err() != nil || context.Cause(&lives[0]) != nil {
			t.Error("ended")
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
