package raft_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/vfs"
)

// leave runs a group for so many commands, with snapshots every so many, and returns what it leaves behind. Nothing is
// trimmed from whole, which is the log as it would be had it never been.
func leave(t *testing.T, commands int, every uint64) (log, whole *raft.MemoryLog, fs *vfs.Mem) {
	log, whole, fs = raft.NewMemoryLog(), raft.NewMemoryLog(), vfs.NewMem()
	log.OnAppend(func(e []raft.Entry) error { return whole.Append(context.Background(), e) })
	synctest.Test(t, func(t *testing.T) {
		m := mustStart(t, log, fs, every)
		m.propose(t, 1, commands)
		m.close(t)
	})
	log.OnAppend(nil)
	return log, whole, fs
}

func snapshotPath(seq int) string {
	return path.Join(snapshotDir, fmt.Sprintf("%020d-1.snap", seq))
}

func change(t *testing.T, fs vfs.FS, name string, fn func([]byte) []byte) {
	t.Helper()
	b, err := vfs.ReadFile(fs, name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fs, name, fn(b)); err != nil {
		t.Fatal(err)
	}
}

func rot(b []byte) []byte { b[len(b)-2] ^= 4; return b }

// TestStartFromAnyMix tries every mix of two snapshots, each whole, damaged or missing, with a log that begins
// anywhere, and with one that ends too early. It starts with everything or not at all.
func TestStartFromAnyMix(t *testing.T) {
	_, whole, left := leave(t, 11, 4) // snapshots of 4 and 8
	states := []string{"whole", "damaged", "missing"}
	for _, older := range states {
		for _, newer := range states {
			for begins := uint64(1); begins <= 12; begins++ {
				fs, log := left.Clone(), whole.Clone()
				covers := map[uint64]bool{0: true}
				for seq, state := range map[int]string{4: older, 8: newer} {
					switch state {
					case "whole":
						covers[uint64(seq)] = true
					case "damaged":
						change(t, fs, snapshotPath(seq), rot)
					case "missing":
						if err := fs.Remove(snapshotPath(seq)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := log.TrimBefore(t.Context(), begins); err != nil {
					t.Fatal(err)
				}
				newest := uint64(0)
				for seq := range covers {
					newest = max(newest, seq)
				}
				name := fmt.Sprintf("older %s, newer %s, log from %d", older, newer, begins)
				m, err := start(log, fs, 100)
				if begins <= newest+1 {
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					m.wantList(t, 11)
					m.close(t)
					continue
				}
				if fault.KindOf(err) != fault.Corrupt {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if (older == "damaged" || newer == "damaged") && !strings.Contains(err.Error(), "-1.snap") {
					t.Errorf("%s: %v names no file", name, err)
				}
			}
		}
	}
}

func TestALogThatEndsBeforeItsSnapshotIsRefused(t *testing.T) {
	_, _, fs := leave(t, 8, 4)
	for _, entries := range []int{0, 5} {
		log, _, _ := leave(t, entries, 100)
		_, err := start(log, fs.Clone(), 4)
		if fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), snapshotPath(8)) {
			t.Errorf("log of %d entries: %v", entries, err)
		}
	}
}

func TestSnapshotAndLogOfDifferentBrokersAreRefused(t *testing.T) {
	_, _, fs := leave(t, 8, 4)
	log := raft.NewMemoryLog()
	_, source, _ := leave(t, 9, 100)
	entries, err := source.Read(1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		entries[i].Term = 3
	}
	if err := log.Append(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	if _, err := start(log, fs, 4); fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "term") {
		t.Error(err)
	}
}

// TestADamagedSnapshotIsReplaced: the start falls back, says so, and the next snapshots put things right again.
func TestADamagedSnapshotIsReplaced(t *testing.T) {
	log, _, fs := leave(t, 11, 4)
	change(t, fs, snapshotPath(8), rot)
	synctest.Test(t, func(t *testing.T) {
		m := mustStart(t, log, fs, 4)
		synctest.Wait() // what was applied again is enough for a snapshot at once
		m.wantList(t, 11)
		m.propose(t, 12, 20)
		m.close(t)
		again := mustStart(t, log, fs, 4)
		defer again.close(t)
		again.wantList(t, 20)
		if got := again.snapshots(t); !slices.Equal(got, []string{path.Base(snapshotPath(15)), path.Base(snapshotPath(19))}) {
			t.Errorf("snapshots are %v", got)
		}
		if first, _ := log.Bounds(); first != 16 {
			t.Errorf("the log begins at %d", first)
		}
	})
}

// TestTheLogIsNotTrimmedBehindADamagedSnapshot: of two snapshots one is damaged; a new one does not count it.
func TestTheLogIsNotTrimmedBehindADamagedSnapshot(t *testing.T) {
	log, _, fs := leave(t, 11, 4) // snapshots of 4 and 8, log from 5
	change(t, fs, snapshotPath(8), rot)
	synctest.Test(t, func(t *testing.T) {
		m := mustStart(t, log, fs, 4)
		synctest.Wait() // snapshot of 11 is written
		m.close(t)
	})
	if first, _ := log.Bounds(); first != 5 {
		t.Fatalf("the log begins at %d", first)
	}
	change(t, fs, snapshotPath(11), rot)
	m := mustStart(t, log, fs, 100)
	m.wantList(t, 11)
	m.close(t)
}

func TestFilesThatAreNoSnapshots(t *testing.T) {
	log, _, fs := leave(t, 11, 4)
	b, err := vfs.ReadFile(fs, snapshotPath(4), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"notes.txt":                       []byte("x"),
		"00000000000000000099-1":          b,
		"99-1.snap":                       b,
		"00000000000000000099-01.snap":    b,
		"00000000000000000000-1.snap":     b,
		"00000000000000000099-1.snap ":    b,
		"00000000000000000099-1.snap":     b, // damaged: another one's content
		"00000000000000000098-1.snap":     nil,
		"00000000000000000097-1.snap.tmp": b[:20],
		"mine.tmp":                        []byte("x"),
	} {
		if err := vfs.WriteFileAtomic(fs, path.Join(snapshotDir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	m := mustStart(t, log, fs, 100)
	defer m.close(t)
	m.wantList(t, 11)
	got := m.snapshots(t)
	if slices.Contains(got, "00000000000000000097-1.snap.tmp") {
		t.Error("an unfinished snapshot stays")
	}
	for _, name := range []string{"notes.txt", "mine.tmp", "99-1.snap"} {
		if !slices.Contains(got, name) {
			t.Errorf("%s is gone, and it is not ours", name)
		}
	}
}

// TestRotOfAnyBit flips every bit of the newest snapshot, and cuts it at every byte. The start falls back, or refuses
// and names the file; it never starts with anything else than what was there.
func TestRotOfAnyBit(t *testing.T) {
	log, _, fs := leave(t, 11, 4)
	good, err := vfs.ReadFile(fs, snapshotPath(8), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, b []byte) {
		t.Helper()
		found := fs.Clone()
		if err := vfs.WriteFileAtomic(found, snapshotPath(8), b); err != nil {
			t.Fatal(err)
		}
		m, err := start(log.Clone(), found, 100)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		m.wantList(t, 11)
		m.close(t)
	}
	for bit := range len(good) * 8 {
		b := slices.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		try(fmt.Sprintf("bit %d", bit), b)
	}
	for size := range len(good) {
		try(fmt.Sprintf("cut to %d", size), good[:size])
	}
	try("longer", append(slices.Clone(good), 0))
}

// TestCrashAnywhere crashes at every operation of the file system while commands come in and snapshots are written,
// and checks that what was acknowledged is there, in order, and nothing else, whatever the crash kept.
func TestCrashAnywhere(t *testing.T) {
	type found struct {
		op    vfs.Op
		acked int
		log   *raft.MemoryLog
		fs    *vfs.Mem
	}
	const commands = 40
	var points []found
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		acked := 0
		log, fs := raft.NewMemoryLog(), vfs.NewMem()
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() {
				mu.Lock()
				defer mu.Unlock()
				points = append(points, found{op, acked, log.Clone(), fs.Clone()})
			}
			return nil
		})
		m := mustStart(t, log, fs, 4)
		for i := 1; i <= commands; i++ {
			if _, err := m.Propose(t.Context(), command(i)); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			acked = i
			mu.Unlock()
			if i%2 == 0 {
				synctest.Wait()
			}
		}
		m.close(t)
		points = append(points, found{vfs.Op{}, acked, log.Clone(), fs.Clone()})
	})
	if len(points) < 50 {
		t.Fatalf("only %d operations", len(points))
	}
	states := 0
	for _, p := range points {
		choosers := map[string]func() vfs.Chooser{
			"all":     func() vfs.Chooser { return vfs.KeepAll },
			"nothing": func() vfs.Chooser { return vfs.KeepNothing },
		}
		for seed := range uint64(12) {
			choosers[fmt.Sprint("seed ", seed)] = func() vfs.Chooser { return vfs.Random(seed) }
		}
		for name, choose := range choosers {
			states++
			checkCrash(t, fmt.Sprintf("crash at %v, keeping %s", p.op, name), p.acked, p.log.Clone(), p.fs.Crash(choose()))
		}
	}
	t.Logf("%d operations, %d states", len(points), states)
}

func checkCrash(t *testing.T, what string, acked int, log *raft.MemoryLog, fs *vfs.Mem) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		m, err := start(log, fs, 4)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n := len(m.list.all())
		if n < acked || n > acked+1 { // one may have been on its way
			t.Errorf("%s: %d commands are there and %d were acknowledged", what, n, acked)
		}
		m.wantList(t, n)
		m.propose(t, n+1, n+9) // goes on, over two snapshots
		m.close(t)
		// Whatever the first start kept or removed must have been durable before it relied on it.
		again, err := start(log, fs.Crash(vfs.KeepNothing), 4)
		if err != nil {
			t.Fatalf("%s, then a second one: %v", what, err)
		}
		again.wantList(t, n+9)
		again.close(t)
	})
}
