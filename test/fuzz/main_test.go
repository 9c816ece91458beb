package main

import (
	"slices"
	"testing"
)

func TestParseList(t *testing.T) {
	got := parseList("FuzzA\nFuzzB\nok  \tm/a\t0.01s\n?   \tm/b\t[no test files]\nok  \tm/c\t0.01s\nFuzzC\nok  \tm/d\t0.01s\n")
	want := []target{{"m/a", "FuzzA"}, {"m/a", "FuzzB"}, {"m/d", "FuzzC"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
