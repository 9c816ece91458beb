package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/vfs"
)

// memLock is what vfs.Lock is, for a file system in memory: nobody holds it after a crash.
func memLock() func(string) (io.Closer, error) {
	var mu sync.Mutex
	held := map[string]bool{}
	return func(path string) (io.Closer, error) {
		mu.Lock()
		defer mu.Unlock()
		if held[path] {
			return nil, &vfs.LockedError{Path: path}
		}
		held[path] = true
		return closer(func() { mu.Lock(); defer mu.Unlock(); delete(held, path) }), nil
	}
}

type closer func()

// Close implements io.Closer.
func (c closer) Close() error { c(); return nil }

func openMem(t *testing.T, m *vfs.Mem) *Store {
	t.Helper()
	s, err := Open(Config{Root: "objects", FS: m, Lock: memLock()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// absent stands for no object where contents are named.
const absent = "(none)"

// world is what may be found: for each key the contents that are possible. One is certain, two are a call under way.
type world map[string][]string

func (w world) with(key string, contents ...string) world {
	c := world{}
	for k, v := range w {
		c[k] = v
	}
	c[key] = contents
	return c
}

// step is one call of the script. Its content is what a success leaves under the key.
type step struct {
	key, content string
	do           func(s *Store) error
	fails        error // what it has to fail with, whatever the disk does
}

func put(key, content string) step {
	return step{key, content, func(s *Store) error {
		_, err := s.PutIfAbsent(context.Background(), key, objstore.Bytes([]byte(content)))
		return err
	}, nil}
}

func replace(key, content string) step {
	return step{key, content, func(s *Store) error {
		f, t, err := s.open(key)
		if err != nil {
			return err
		}
		f.Close()
		_, err = s.PutIfMatch(context.Background(), key, t.version(), objstore.Bytes([]byte(content)))
		return err
	}, nil}
}

func remove(key string) step {
	return step{key, absent, func(s *Store) error { return s.Delete(context.Background(), key) }, nil}
}

func (st step) failing(err error) step { st.fails = err; return st }

// script goes through every kind of call: new and deep directories, replacing, taken names, directories that empty and
// come back.
func script() []step {
	large := strings.Repeat("0123456789abcdef", 70<<10) // two writes
	if testing.Short() {
		large = large[:4000]
	}
	return []step{
		put("a", "one"),
		put("b/c", "two"),
		replace("a", "three"),
		put("a", "no").failing(objstore.ErrExists),
		put("d/e/f", large),
		replace("b/c", ""),
		remove("b/c"),
		put("b/c", "four"),
		remove("d/e/f"),
		put("d/e/f", "five"),
		put("d/e/g", "six"),
		remove("d/e/f"),
		replace("a", "seven"),
		{"a", "x", func(s *Store) error {
			_, err := s.PutIfMatch(context.Background(), "a", "f00d", objstore.Bytes([]byte("x")))
			return err
		}, objstore.ErrConflict},
		remove("a"),
		remove("a"),
		put("a", "eight"),
	}
}

// check wants a store to hold what is possible, whole, and to list just that.
func (w world) check(t *testing.T, at string, s *Store) map[string]string {
	t.Helper()
	found := map[string]string{}
	for key, possible := range w {
		data, _, err := objstore.Read(context.Background(), s, key, 64<<20)
		got := string(data)
		if errors.Is(err, objstore.ErrNotFound) {
			got, err = absent, nil
		}
		if err != nil {
			t.Fatalf("%s: read %s: %v", at, key, err)
		}
		ok := false
		for _, p := range possible {
			ok = ok || p == got
		}
		if !ok {
			t.Fatalf("%s: %s holds %.40q (%d bytes), possible are %d contents beginning with %.40q", at, key, got, len(got), len(possible), possible[0])
		}
		if got != absent {
			found[key] = got
		}
	}
	listed := 0
	for info, err := range s.List(context.Background(), "", "") {
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		listed++
		if content, ok := found[info.Key]; !ok || info.Size != int64(len(content)) {
			t.Fatalf("%s: listed %+v, found %.40q", at, info, content)
		}
	}
	if listed != len(found) {
		t.Fatalf("%s: %d listed, %d found", at, listed, len(found))
	}
	return found
}

func seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	return seed
}

// TestCrashAnywhere loses power, or only the process, before every change of the file system that the script makes: what
// was acknowledged is there, what was under way is there whole or not at all. Then whoever comes next repeats the call, or
// is told that it was done, and the power fails again: what they were told holds.
func TestCrashAnywhere(t *testing.T) {
	base, seeds := seed(t), 8
	if testing.Short() {
		seeds = 1
	}
	m := vfs.NewMem()
	s := openMem(t, m)
	sure, states := world{}, 0
	for i, st := range script() {
		before := absent
		if known := sure[st.key]; known != nil {
			before = known[0]
		}
		possible := sure.with(st.key, before, st.content)
		if st.fails != nil {
			possible = sure.with(st.key, before)
		}
		m.SetHook(func(op vfs.Op) error {
			if !op.Kind.Changes() {
				return nil
			}
			choices := map[string]vfs.Chooser{"nothing": vfs.KeepNothing, "all": vfs.KeepAll}
			for j := range seeds {
				n := base + uint64(i*1_000_000+op.N*1000+j)
				choices[fmt.Sprint("seed ", n)] = vfs.Random(n)
			}
			for name, choice := range choices {
				at := fmt.Sprintf("step %d, before %s, keeping %s", i, op, name)
				found := m.Crash(choice)
				possible.check(t, at, openMem(t, found.Clone()))
				states++
				secondLife(t, at, found, possible, st)
			}
			return nil
		})
		err := st.do(s)
		m.SetHook(nil)
		if !errors.Is(err, st.fails) || st.fails == nil && err != nil {
			t.Fatalf("step %d: %v, want %v", i, err, st.fails)
		}
		if st.fails == nil {
			sure = sure.with(st.key, st.content)
		}
		for _, choice := range []vfs.Chooser{vfs.KeepNothing, vfs.KeepAll, vfs.Random(base)} {
			sure.check(t, fmt.Sprintf("after step %d", i), openMem(t, m.Crash(choice)))
			states++
		}
	}
	t.Logf("%d crashes", states)
}

// secondLife asks for what a crash left, does the call once more, each on a copy of its own, and loses power again after
// the answer: what the answer said holds.
func secondLife(t *testing.T, at string, found *vfs.Mem, possible world, st step) {
	t.Helper()
	if st.fails != nil {
		return
	}
	m := found.Clone()
	s := openMem(t, m)
	seen := content(t, s, st.key)
	if _, err := s.Head(context.Background(), st.key); err == nil {
		possible.with(st.key, seen).check(t, at+", asked for and power lost", openMem(t, m.Crash(vfs.KeepNothing)))
	}

	m = found.Clone()
	s = openMem(t, m)
	err := st.do(s)
	after := possible
	switch {
	case err == nil:
		after = possible.with(st.key, st.content)
	case errors.Is(err, objstore.ErrExists):
		after = possible.with(st.key, seen)
	case errors.Is(err, objstore.ErrNotFound): // nothing to replace
	default:
		t.Fatalf("%s, once more: %v", at, err)
	}
	after.check(t, at+", once more and power lost", openMem(t, m.Crash(vfs.KeepNothing)))
}

// content reads an object without making anything of it durable.
func content(t *testing.T, s *Store, key string) string {
	t.Helper()
	data, _, err := objstore.Read(context.Background(), s, key, 64<<20)
	if errors.Is(err, objstore.ErrNotFound) {
		return absent
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestFailureAnywhere fails every change of the file system in turn: an error that does not say otherwise means that
// nothing has happened, also after a power loss.
func TestFailureAnywhere(t *testing.T) {
	failures, causes := 0, []error{vfs.ErrIO, vfs.ErrNoSpace, syscall.ESTALE}
	if testing.Short() {
		causes = causes[:1]
	}
	for _, cause := range causes {
		for n := 1; ; n++ {
			m := vfs.NewMem()
			s := openMem(t, m)
			fired := runFailing(t, m, s, n, cause)
			if !fired {
				break
			}
			failures++
		}
	}
	t.Logf("%d failures", failures)
	if failures < len(causes)*100 {
		t.Errorf("only %d failures: has the script become shorter?", failures)
	}
}

// runFailing runs the script with the n-th change failing, and reports whether there was one.
func runFailing(t *testing.T, m *vfs.Mem, s *Store, n int, cause error) bool {
	t.Helper()
	fired := false
	m.SetHook(func(op vfs.Op) error {
		if op.Kind.Changes() && op.N == n {
			fired = true
			return cause
		}
		return nil
	})
	sure := world{}
	for i, st := range script() {
		before := absent
		if known := sure[st.key]; known != nil {
			before = known[0]
		}
		failedHere := !fired
		err := st.do(s)
		failedHere = failedHere && fired
		at := fmt.Sprintf("step %d with change %d failing: %v (%v)", i, n, cause, err)
		switch {
		case err == nil && st.fails == nil:
			sure = sure.with(st.key, st.content)
		case !failedHere && !errors.Is(err, st.fails):
			t.Fatalf("%s: unexpected", at)
		case errors.Is(err, objstore.ErrOutcomeUnknown):
			sure.with(st.key, before, st.content).check(t, at, openMem(t, m.Crash(vfs.KeepNothing)))
			return true // what comes next depends on it
		default:
			sure.with(st.key, before).check(t, at, s)
			sure.with(st.key, before).check(t, at, openMem(t, m.Crash(vfs.KeepNothing)))
			if failedHere {
				return true
			}
		}
	}
	sure.check(t, "at the end", openMem(t, m.Crash(vfs.KeepNothing)))
	return fired
}
