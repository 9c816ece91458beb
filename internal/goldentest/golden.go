// Package goldentest owns the comparison of what is written today with a file that a version wrote once, and that opens for
// ever. It never replaces such a file. Invariant: what it returns is what the file holds.
package goldentest

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

// Once fails the test unless the file holds data to the byte, and returns what it holds. With write, a file that is missing
// is made of data first.
func Once(t testing.TB, file string, data []byte, write bool) []byte {
	t.Helper()
	if _, err := os.Stat(file); write && errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, golden) {
		t.Errorf("%s: written today as\n%q, it was\n%q", file, data, golden)
	}
	return golden
}
