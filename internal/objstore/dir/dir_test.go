package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/internal/vfs"
	"go.uber.org/goleak"
)

// workEnv makes a copy of the test binary one of several processes that share a store.
const workEnv = "LEVEE_DIR_TEST_WORKER"

func TestMain(m *testing.M) {
	if root := os.Getenv(workEnv); root != "" {
		if err := work(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openOS(t *testing.T) (*Store, string) {
	t.Helper()
	root := t.TempDir() + "/objects"
	s, err := Open(Config{Root: root})
	must(t, err)
	return s, root
}

func TestConformance(t *testing.T) {
	s, _ := openOS(t)
	objstoretest.Run(t, s, objstoretest.Traits{})
}

func TestConformanceInMemory(t *testing.T) {
	objstoretest.Run(t, openMem(t, vfs.NewMem()), objstoretest.Traits{Big: 3 << 20, Many: 1200})
}

const (
	increments = 40
	races      = 60
)

// work counts up by compare-and-set, and takes part in races for names, of which it notes in its own object how many it won.
func work(root string) error {
	ctx := context.Background()
	s, err := Open(Config{Root: root, Exists: true})
	if err != nil {
		return err
	}
	won := 0
	for i := range races {
		_, err := s.PutIfAbsent(ctx, "race/"+strconv.Itoa(i), objstore.Bytes([]byte(strconv.Itoa(os.Getpid()))))
		switch {
		case err == nil:
			won++
		case !errors.Is(err, objstore.ErrExists):
			return err
		}
		if err := s.Delete(ctx, "emptied/"+strconv.Itoa(os.Getpid())+"/x"); err != nil {
			return err
		}
		if _, err := s.PutIfAbsent(ctx, "emptied/"+strconv.Itoa(os.Getpid())+"/x", objstore.Bytes(nil)); err != nil {
			return err // its directory comes and goes
		}
	}
	for done := 0; done < increments; {
		data, info, err := objstore.Read(ctx, s, "counter", 100)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(data))
		if err != nil {
			return err
		}
		_, err = s.PutIfMatch(ctx, "counter", info.Version, objstore.Bytes([]byte(strconv.Itoa(n+1))))
		switch {
		case err == nil:
			done++
		case !errors.Is(err, objstore.ErrConflict):
			return err
		}
	}
	_, err = s.PutIfAbsent(ctx, "won/"+strconv.Itoa(os.Getpid()), objstore.Bytes([]byte(strconv.Itoa(won))))
	return err
}

// TestProcesses: several processes share a directory, as brokers share a file system.
func TestProcesses(t *testing.T) {
	const processes = 4
	s, root := openOS(t)
	ctx := t.Context()
	_, err := s.PutIfAbsent(ctx, "counter", objstore.Bytes([]byte("0")))
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	cmds, outs := make([]*exec.Cmd, processes), make([]bytes.Buffer, processes)
	for i := range cmds {
		cmds[i] = exec.CommandContext(ctx, self)
		cmds[i].Env = append(os.Environ(), workEnv+"="+root)
		cmds[i].Stderr = &outs[i]
		must(t, cmds[i].Start())
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, outs[i].String())
		}
	}
	data, _, err := objstore.Read(ctx, s, "counter", 100)
	if want := strconv.Itoa(processes * increments); err != nil || string(data) != want {
		t.Errorf("counted to %s, %v, want %s", data, err, want)
	}
	won := 0
	for info, err := range s.List(ctx, "won/", "") {
		must(t, err)
		data, _, err := objstore.Read(ctx, s, info.Key, 100)
		must(t, err)
		n, err := strconv.Atoi(string(data))
		must(t, err)
		won += n
	}
	if won != races {
		t.Errorf("%d of %d races were won", won, races)
	}
	left, err := os.ReadDir(filepath.Join(root, tmpDir))
	if err != nil || len(left) != 0 {
		t.Errorf("left among the temporary files: %v, %v", left, err)
	}
}

func TestOpen(t *testing.T) {
	if _, err := Open(Config{}); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("no root: %v", err)
	}
	if _, err := Open(Config{Root: t.TempDir() + "/none", Exists: true}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a root that is not there: %v", err)
	}
	file := t.TempDir() + "/file"
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(Config{Root: file, Exists: true}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a root that is a file: %v", err)
	}
	if _, err := Open(Config{Root: file}); err == nil {
		t.Error("a root that is a file was opened")
	}
}

// TestSweep: what a crashed writer left goes, what a slow one writes stays.
func TestSweep(t *testing.T) {
	_, root := openOS(t)
	old, fresh := filepath.Join(root, tmpDir, "OLD"), filepath.Join(root, tmpDir, "FRESH")
	for _, name := range []string{old, fresh} {
		must(t, os.WriteFile(name, []byte("half"), 0o600))
	}
	past := time.Now().Add(-2 * stale)
	must(t, os.Chtimes(old, past, past))
	_, err := Open(Config{Root: root})
	must(t, err)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old one: %v", err)
	}
	_, err = os.Stat(fresh)
	must(t, err)
}

// TestDamage: whatever bit of an object's file is turned, and wherever it is cut off, no other bytes are given out.
func TestDamage(t *testing.T) {
	s, root := openOS(t)
	content := []byte("what was stored")
	_, err := s.PutIfAbsent(t.Context(), "x", objstore.Bytes(content))
	must(t, err)
	good, err := os.ReadFile(root + "/x")
	must(t, err)
	want := func(what string, damaged []byte) {
		t.Helper()
		must(t, os.WriteFile(root+"/x", damaged, 0o600))
		data, _, err := objstore.Read(t.Context(), s, "x", 1<<20)
		if !errors.Is(err, objstore.ErrCorrupt) && !errors.Is(err, errForeignFormat) {
			// An id that rotted is another version of the same bytes, but the trailer's checksum covers it as well.
			t.Errorf("%s: %q, %v", what, data, err)
		}
	}
	for i := range len(good) * 8 {
		damaged := bytes.Clone(good)
		damaged[i/8] ^= 1 << (i % 8)
		want(fmt.Sprintf("bit %d", i), damaged)
	}
	for n := range good {
		want(fmt.Sprintf("%d bytes left", n), good[:n])
	}
	want("one byte more", append(bytes.Clone(good), 0))
	must(t, os.WriteFile(root+"/x", good, 0o600))
	data, _, err := objstore.Read(t.Context(), s, "x", 1<<20)
	if err != nil || string(data) != string(content) {
		t.Errorf("as it was: %q, %v", data, err)
	}
}

// TestKeysDoNotNest: a key below an object, or above some, is refused, whichever comes first.
func TestKeysDoNotNest(t *testing.T) {
	s, _ := openOS(t)
	for _, key := range []string{"a", "b/c"} {
		_, err := s.PutIfAbsent(t.Context(), key, objstore.Bytes(nil))
		must(t, err)
	}
	for _, key := range []string{"a/x", "a/x/y", "b"} {
		if _, err := s.PutIfAbsent(t.Context(), key, objstore.Bytes(nil)); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("put %s: %v", key, err)
		}
	}
}

// TestLockIsWaitedFor: a replacement waits for the lock that another process holds, as long as its context allows.
func TestLockIsWaitedFor(t *testing.T) {
	s, root := openOS(t)
	info, err := s.PutIfAbsent(t.Context(), "x", objstore.Bytes([]byte("one")))
	must(t, err)
	release, err := s.acquire(t.Context(), "x")
	must(t, err)
	other, err := Open(Config{Root: root})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := other.PutIfMatch(ctx, "x", info.Version, objstore.Bytes([]byte("two"))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("replaced while it was locked: %v", err)
	}
	if err := s.Delete(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deleted while it was locked: %v", err)
	}
	release()
	_, err = other.PutIfMatch(t.Context(), "x", info.Version, objstore.Bytes([]byte("two")))
	must(t, err)
}

// leaving is a source during whose reading the root goes away.
type leaving struct {
	*bytes.Reader
	leave func()
}

func (l leaving) ReadAt(p []byte, off int64) (int, error) {
	l.leave()
	return l.Reader.ReadAt(p, off)
}

// TestRootGoesAway: a root that goes away while something is put is not made again. What is put there would be gone once the
// file system is mounted again, and whoever opens it meanwhile would find an empty store.
func TestRootGoesAway(t *testing.T) {
	s, root := openOS(t)
	b := []byte("some bytes")
	src := objstore.NewSource(leaving{bytes.NewReader(b), func() { _ = os.Rename(root, root+".away") }}, int64(len(b)), objstore.Bytes(b).CRC32C())
	if _, err := s.PutIfAbsent(t.Context(), "a/b", src); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("put: %v", err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root that had gone away is there again: %v", err)
	}
}
