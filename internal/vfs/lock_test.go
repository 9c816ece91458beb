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

// TestHold: a directory that is looked at is nobody's to lock meanwhile, others may look as well, and nothing in it changes.
func TestHold(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	none, err := Hold(name)
	must(t, err)
	must(t, none.Close())
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("it made the file", err)
	}
	must(t, os.WriteFile(name, []byte("77\n"), 0o400))
	a, err := Hold(name)
	must(t, err)
	b, err := Hold(name)
	must(t, err)
	must(t, a.Close())
	must(t, os.Chmod(name, 0o600))
	var locked *LockedError
	if _, err = Lock(name); !errors.As(err, &locked) {
		t.Fatalf("lock of what is held: %v", err)
	}
	must(t, b.Close())
	if text, err := os.ReadFile(name); string(text) != "77\n" || err != nil {
		t.Errorf("the file holds %q, %v", text, err)
	}
	l, err := Lock(name)
	must(t, err)
	if _, err = Hold(name); !errors.As(err, &locked) || locked.Holder != strconv.Itoa(os.Getpid()) {
		t.Fatalf("hold of what is locked: %v", err)
	}
	must(t, l.Close())
}

// TestLockOnAFullDisk takes a lock whose file takes nothing: the lock is held all the same, and whoever is refused is told
// of no other process.
func TestLockOnAFullDisk(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	must(t, os.WriteFile(name, nil, 0o600))
	f, err := os.Open(name) // not for writing
	must(t, err)
	defer f.Close()
	if err := lock(f, name); err != nil {
		t.Fatalf("a lock whose holder cannot be written down: %v", err)
	}
	_, err = Lock(name)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder != "" || err.Error() != name+" is locked by another process" {
		t.Errorf("second lock: %v", err)
	}
}

// TestLockHolder reads what may be in a lock file, which nobody vouches for.
func TestLockHolder(t *testing.T) {
	for content, want := range map[string]string{"": "", "4711": "4711", "4711\n": "4711", "4711\nand the rest\n": "4711", "levee\n": "", "\x00\x00": ""} {
		name := filepath.Join(t.TempDir(), "LOCK")
		must(t, os.WriteFile(name, []byte(content), 0o600))
		f, err := os.Open(name)
		must(t, err)
		if got := holder(f); got != want {
			t.Errorf("the holder in %q is %q, want %q", content, got, want)
		}
		must(t, f.Close())
	}
}
