package vfs

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
)

var errCrash = errors.New("crashed")

// crashEverywhere runs do once for every operation it makes, stopping it there, and shows check what each of many
// power losses leaves. It takes the copy both before the operation and, at the end, after all of them.
func crashEverywhere(t *testing.T, start *Mem, do func(m *Mem) error, check func(t *testing.T, found *Mem, finished bool)) {
	t.Helper()
	for at := 1; ; at++ {
		m := start.Clone()
		m.SetHook(func(op Op) error {
			if op.Kind.Changes() && op.N >= at {
				return errCrash
			}
			return nil
		})
		err := do(m)
		if err != nil && !errors.Is(err, errCrash) {
			t.Fatalf("at operation %d: %v", at, err)
		}
		check(t, m.Crash(KeepNothing), err == nil)
		check(t, m.Crash(KeepAll), err == nil)
		for seed := range uint64(30) {
			check(t, m.Crash(Random(seed)), err == nil)
		}
		if err == nil {
			return
		}
	}
}

func TestWriteFileAtomicCrash(t *testing.T) {
	old, long := strings.Repeat("old", 2000), strings.Repeat("new", 3000)
	for _, before := range []string{"", old} {
		start := NewMem()
		must(t, MkdirSync(start, "d"))
		if before != "" {
			putSynced(t, start, "d/f", before)
			put(t, start, "d/f.tmp", "left by an earlier crash") // and not synced
		}
		crashEverywhere(t, start, func(m *Mem) error { return WriteFileAtomic(m, "d/f", []byte(long)) },
			func(t *testing.T, found *Mem, finished bool) {
				got, err := ReadFile(found, "d/f", 1<<20)
				switch {
				case err == nil && string(got) == long:
				case !finished && before != "" && err == nil && string(got) == before:
				case !finished && before == "" && errors.Is(err, ErrNotExist):
				default:
					t.Errorf("finished: %v, found %d bytes, %v", finished, len(got), err)
				}
			})
	}
}

func TestMkdirSyncCrash(t *testing.T) {
	dirs := []string{"a", "a/b", "a/b/c"}
	crashEverywhere(t, NewMem(), func(m *Mem) error { return MkdirSync(m, "a/b/c") },
		func(t *testing.T, found *Mem, finished bool) {
			for _, dir := range dirs {
				if ok, err := Exists(found, dir); err != nil || finished && !ok {
					t.Errorf("finished: %v, %s exists: %v, %v", finished, dir, ok, err)
				}
			}
			// Whatever a crash left, the next run makes it whole, even though the name may be there and not durable.
			must(t, MkdirSync(found, "a/b/c"))
			if ok, err := Exists(found.Crash(KeepNothing), "a/b/c"); !ok || err != nil {
				t.Errorf("after another run: %v, %v", ok, err)
			}
		})
}

func TestMkdirSyncOrder(t *testing.T) {
	m := NewMem()
	var log []string
	m.SetHook(func(op Op) error {
		if op.Kind.Changes() {
			log = append(log, op.Kind.String()+" "+op.Path)
		}
		return nil
	})
	must(t, MkdirSync(m, "/a/b"))
	want := "sync dir /, mkdir /a, sync dir /, mkdir /a/b, sync dir /a"
	if got := strings.Join(log, ", "); got != want {
		t.Errorf("did %s, want %s", got, want)
	}
}

// TestMkdirSyncBelowForeignParent: the operator's directory may be one that the broker cannot read.
func TestMkdirSyncBelowForeignParent(t *testing.T) {
	m := NewMem()
	must(t, MkdirSync(m, "foreign/data"))
	m.SetHook(func(op Op) error {
		if op.Kind == OpSyncDir && path.Base(op.Path) == "foreign" {
			return fs.ErrPermission
		}
		return nil
	})
	must(t, MkdirSync(m, "foreign/data/topics"))
	must(t, MkdirSync(m, "foreign/data"))
	wantErr(t, "new directory in it", MkdirSync(m, "foreign/other"), fs.ErrPermission)
}

func TestRemoveAllCrash(t *testing.T) {
	start := NewMem()
	names := []string{"d/t/1", "d/t/2", "d/t/sub/1", "d/t/sub/2", "d/t/z"}
	for _, name := range names {
		must(t, MkdirSync(start, path.Dir(name)))
		putSynced(t, start, name, name)
	}
	putSynced(t, start, "d/other", "stays")
	crashEverywhere(t, start, func(m *Mem) error { return RemoveAll(m, "d/t") },
		func(t *testing.T, found *Mem, finished bool) {
			wantContent(t, found, "d/other", "stays")
			if ok, err := Exists(found, "d/t"); err != nil || finished && ok {
				t.Errorf("finished: %v, exists: %v, %v", finished, ok, err)
			}
			// One name at a time: what is left is a tail of the order of removal, at most the first of it undecided.
			gone := 0
			for _, name := range names {
				if ok, err := Exists(found, name); err != nil {
					t.Fatal(err)
				} else if !ok {
					gone++
				} else {
					break
				}
			}
			for _, name := range names[gone:] {
				wantContent(t, found, name, name)
			}
			must(t, RemoveAll(found, "d/t"))
			wantGone(t, found.Crash(KeepNothing), "d/t")
		})
}

func TestReadFileThatShrinks(t *testing.T) {
	m := NewMem()
	put(t, m, "f", "content")
	f := open(t, m, "f", false)
	m.SetHook(func(op Op) error {
		if op.Kind == OpRead {
			return f.Truncate(2)
		}
		return nil
	})
	if got, err := ReadFile(m, "f", 100); err == nil {
		t.Errorf("read %q", got)
	}
}
