package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	must(t, os.WriteFile(name, []byte("a long line that an earlier holder left\n"), 0o600))
	held, err := Lock(name)
	must(t, err)
	pid := strconv.Itoa(os.Getpid())
	got, err := os.ReadFile(name)
	if string(got) != pid+"\n" || err != nil {
		t.Errorf("the file holds %q, %v", got, err)
	}
	_, err = Lock(name)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Path != name || locked.Holder != pid {
		t.Fatalf("second lock: %v", err)
	}
	if want := name + " is locked by process " + pid; err.Error() != want {
		t.Errorf("message %q, want %q", err, want)
	}
	must(t, held.Close())
	held, err = Lock(name)
	must(t, err)
	must(t, held.Close())

	_, err = Lock(filepath.Join(t.TempDir(), "none", "LOCK"))
	wantErr(t, "lock in a missing directory", err, ErrNotExist)
	if err := (&LockedError{Path: "x"}).Error(); err != "x is locked by another process" {
		t.Error(err)
	}
}
