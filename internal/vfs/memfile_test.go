package vfs

import (
	"errors"
	"strings"
	"testing"
)

var errDevice = errors.New("device broke")

// failNext makes the next operation of a kind fail.
func failNext(m *Mem, kind OpKind, err error) {
	done := false
	m.SetHook(func(op Op) error {
		if op.Kind == kind && !done {
			done = true
			return err
		}
		return nil
	})
}

func TestFailedSync(t *testing.T) {
	m := NewMem()
	putSynced(t, m, "f", "0123456789")
	f := open(t, m, "f", false)
	other := open(t, m, "f", false)
	write(t, f, 2, "AB")
	write(t, f, 10, "CD")
	failNext(m, OpSync, errDevice)
	wantErr(t, "sync", f.Sync(), errDevice)
	if got := string(readAll(t, f)); got != "01AB456789CD" {
		t.Errorf("after the failure reads show %q", got)
	}
	wantContent(t, m.Crash(KeepAll), "f", "01AB456789CD") // a process crash
	must(t, f.Sync())                                     // this is the trap
	wantContent(t, m.Crash(KeepNothing), "f", "0123456789")
	wantContent(t, m.Crash(Random(1)), "f", "0123456789") // lost for good
	wantContent(t, m.Crash(KeepAll).Crash(KeepNothing), "f", "0123456789")

	write(t, f, 12, "EF")
	wantErr(t, "first sync of another handle", other.Sync(), errDevice)
	must(t, other.Sync())
	wantContent(t, m.Crash(KeepNothing), "f", "0123456789\x00\x00EF") // the handle reported, and synced all the same

	a := f.(Advisor)
	write(t, f, 3, "x") // dirty, so it stays in the cache
	must(t, a.DropCache(0, 13))
	must(t, a.DropCache(1, 0))
	if got := string(readAll(t, f)); got != "01Ax456789CDEF" {
		t.Errorf("after dropping parts reads show %q", got)
	}
	must(t, a.DropCache(0, 0))
	if got := string(readAll(t, f)); got != "012x456789\x00\x00EF" {
		t.Errorf("after dropping all reads show %q", got)
	}
	must(t, f.Sync())
	wantContent(t, m.Crash(KeepNothing), "f", "012x456789\x00\x00EF")
	late := open(t, m, "f", false)
	must(t, late.Sync())
}

// TestFailedSyncAndTruncation: lengths travel another way than content.
func TestFailedSyncAndTruncation(t *testing.T) {
	m := NewMem()
	putSynced(t, m, "f", "0123456789")
	f := open(t, m, "f", false)
	write(t, f, 0, "A")
	must(t, f.Truncate(4))
	write(t, f, 4, "B")
	failNext(m, OpSync, errDevice)
	wantErr(t, "sync", f.Sync(), errDevice)
	wantContent(t, m.Crash(KeepNothing), "f", "0123")

	must(t, f.Truncate(2))
	must(t, f.Truncate(8))
	must(t, f.(Advisor).DropCache(0, 0))
	if got := string(readAll(t, f)); got != "01\x00\x00\x00\x00\x00\x00" {
		t.Errorf("after dropping the cache reads show %q", got)
	}
	must(t, f.Sync())
	wantContent(t, m.Crash(KeepNothing), "f", "01\x00\x00\x00\x00\x00\x00")
}

// TestFailedFirstSync: cutting off what could not be synced and writing it again is a way out.
func TestFailedFirstSync(t *testing.T) {
	m := NewMem()
	f := open(t, m, "f", true)
	must(t, m.SyncDir("/"))
	write(t, f, 0, "lost")
	failNext(m, OpSync, ErrNoSpace)
	wantErr(t, "sync", f.Sync(), ErrNoSpace)
	must(t, f.(Advisor).DropCache(0, 0))
	if got := string(readAll(t, f)); got != "\x00\x00\x00\x00" {
		t.Errorf("reads show %q", got)
	}
	wantContent(t, m.Crash(KeepNothing), "f", "")
	must(t, f.Truncate(0))
	write(t, f, 0, "kept")
	must(t, f.Sync())
	wantContent(t, m.Crash(KeepNothing), "f", "kept")
}

func TestFailedSyncDirChangesNothing(t *testing.T) {
	m := NewMem()
	put(t, m, "f", "")
	failNext(m, OpSyncDir, errDevice)
	wantErr(t, "sync dir", m.SyncDir("/"), errDevice)
	wantGone(t, m.Crash(KeepNothing), "f")
	must(t, m.SyncDir("/"))
	wantContent(t, m.Crash(KeepNothing), "f", "")
}

func TestSpace(t *testing.T) {
	m := NewMem()
	m.SetSpace(100)
	f := open(t, m, "f", true)
	write(t, f, 0, strings.Repeat("a", 60))
	n, err := f.WriteAt([]byte(strings.Repeat("b", 70)), 60)
	if n != 40 || !errors.Is(err, ErrNoSpace) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if size := sizeOf(t, f); size != 100 {
		t.Errorf("size %d after a short write", size)
	}
	write(t, f, 0, strings.Repeat("c", 100)) // no new space
	n, err = f.WriteAt([]byte("x"), 100)
	if n != 0 || !errors.Is(err, ErrNoSpace) {
		t.Errorf("wrote %d to a full device, %v", n, err)
	}
	wantErr(t, "atomic write", WriteFileAtomic(m, "g", []byte("x")), ErrNoSpace)
	wantGone(t, m, "g.tmp")

	must(t, f.Truncate(50))
	must(t, f.Reserve(0, 90))
	g := open(t, m, "g", true)
	wantErr(t, "reserve", g.Reserve(0, 11), ErrNoSpace)
	must(t, g.Reserve(0, 10))
	must(t, g.Truncate(1000)) // a hole takes no space, and this gives back none of the reserved
	write(t, g, 0, strings.Repeat("d", 10))
	n, err = g.WriteAt([]byte("x"), 500)
	if n != 0 || !errors.Is(err, ErrNoSpace) {
		t.Errorf("wrote %d into a hole, %v", n, err)
	}
	must(t, f.Truncate(50)) // gives back what was reserved
	must(t, g.Reserve(10, 40))
	must(t, m.Remove("f"))
	wantErr(t, "reserve while the removed file is open", g.Reserve(0, 100), ErrNoSpace)
	must(t, f.Close())
	must(t, g.Reserve(0, 100))

	c := m.Clone()
	h := open(t, c, "h", true)
	wantErr(t, "reserve in a copy", h.Reserve(0, 1), ErrNoSpace)
	c.SetSpace(-1)
	must(t, h.Reserve(0, 1<<40))
	c.SetSpace(0)
	_, err = h.WriteAt([]byte("x"), 1<<40)
	wantErr(t, "write when there is less than is used", err, ErrNoSpace)
}

func TestRenameOverGivesBackSpace(t *testing.T) {
	m := NewMem()
	m.SetSpace(10)
	put(t, m, "a", "12345")
	put(t, m, "b", "12345")
	must(t, m.Rename("a", "b"))
	put(t, m, "c", "67890")
	wantContent(t, m, "b", "12345")
}
