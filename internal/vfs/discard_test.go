package vfs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestLargeFilesAreFreedBitByBit removes a directory with a large file: it shrinks before it goes, with pauses; a stop in
// between leaves the rest to the next attempt.
func TestLargeFilesAreFreedBitByBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := NewMem()
		if err := MkdirSync(fs, "/aside/0"); err != nil {
			t.Fatal(err)
		}
		for name, size := range map[string]int64{"/aside/0/large": 2*freedAtOnce + 1, "/aside/0/small": freedAtOnce} {
			f, err := fs.Open(name, true)
			if err == nil {
				err = errors.Join(f.Truncate(size), f.Sync(), f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var cuts []int64
		ctx, cancel := context.WithCancel(t.Context())
		fs.SetHook(func(op Op) error {
			if op.Kind == OpTruncate {
				if cuts = append(cuts, op.Off); len(cuts) == 1 {
					cancel()
				}
			}
			return nil
		})
		if err := Discard(ctx, fs, "/aside"); !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped after the first cut: %v", err)
		}
		start := time.Now()
		if err := Discard(t.Context(), fs, "/aside"); err != nil {
			t.Fatal(err)
		}
		if there, err := Exists(fs, "/aside"); there || err != nil {
			t.Fatalf("it is there: %v, %v", there, err)
		}
		if want := []int64{2 * freedAtOnce, freedAtOnce}; !slices.Equal(cuts, want) || time.Since(start) < freePause {
			t.Errorf("cut to %v within %v, want %v with a pause", cuts, time.Since(start), want)
		}
	})
}
