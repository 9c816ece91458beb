// Package objstoretest owns the promises of an object store as tests: what every adapter has to pass, the store in memory
// among them. It never looks at how a store keeps its objects. Invariant: it asks nothing that the port does not promise,
// so that what passes may stand for any other store.
package objstoretest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/task"
)

// Traits say how much a store is asked for, and what its server cannot do although the adapter could.
type Traits struct {
	Big  int  // bytes of the large object; more than one part of an adapter. 0: 24 MiB
	Many int  // objects to list; more than two pages. 0: 2,500
	Flat bool // the server orders names that are not ASCII in its own way
	Slow bool // the server takes long to list: ask it less often
}

// patience bounds a test against one store.
const patience = 4 * time.Minute

// suite is one run. Every test has keys of its own, so that a store need not be empty.
type suite struct {
	s      objstore.Store
	traits Traits
	seed   uint64
}

// Run runs all tests on a store.
func Run(t *testing.T, s objstore.Store, traits Traits) {
	t.Helper()
	if traits.Big == 0 {
		traits.Big = 24 << 20
	}
	if traits.Many == 0 {
		traits.Many = 2500
	}
	if testing.Short() {
		traits.Many, traits.Big = min(traits.Many, 1100), min(traits.Big, 12<<20)
		if traits.Slow {
			traits.Many = min(traits.Many, 200)
		}
	}
	u := &suite{s: s, traits: traits, seed: seed(t)}
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, ctx context.Context, dir string)
	}{
		{"probe", u.probe},
		{"put if absent", u.putIfAbsent},
		{"put if absent, sixteen at once", u.absentRace},
		{"put if match", u.putIfMatch},
		{"counter by put if match", u.counter},
		{"ranges", u.ranges},
		{"empty object", u.empty},
		{"missing", u.missing},
		{"delete", u.remove},
		{"names", u.names},
		{"invalid", u.invalid},
		{"list pages", u.listPages},
		{"list nothing", u.listNothing},
		{"large object", u.large},
		{"large object is absent but once", u.largeRace},
		{"reader that fails", u.failingReader},
		{"wrong checksum", u.wrongChecksum},
		{"canceled put", u.canceledPut},
		{"canceled before", u.canceledBefore},
		{"canceled get", u.canceledGet},
		{"put once", u.putOnce},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tt.run(t, ctx, "suite/"+strings.NewReplacer(" ", "-", ",", "").Replace(tt.name))
		})
	}
}

func seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("LEVEE_SEED: %v", err)
		}
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	return seed
}

// noise returns n bytes that are the same for the same seed and name.
func (u *suite) noise(n int, name string) []byte {
	hash := u.seed
	for _, c := range []byte(name) {
		hash = hash*1099511628211 ^ uint64(c)
	}
	src := rand.New(rand.NewPCG(u.seed, hash))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := src.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	for i := n &^ 7; i < n; i++ {
		b[i] = byte(src.Uint64())
	}
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr wants an error that is a sentinel and has its kind.
func wantErr(t *testing.T, what string, err error, want *fault.Error) {
	t.Helper()
	if !errors.Is(err, want) || fault.KindOf(err) != want.Kind {
		t.Errorf("%s: got %v (%s), want %v (%s)", what, err, fault.KindOf(err), want, want.Kind)
	}
}

// wantBytes reads an object and wants that content.
func (u *suite) wantBytes(t *testing.T, ctx context.Context, key string, want []byte) {
	t.Helper()
	got, info, err := objstore.Read(ctx, u.s, key, int64(len(want))+1)
	if err != nil {
		t.Errorf("read %s: %v", key, err)
		return
	}
	if string(got) != string(want) {
		t.Errorf("%s: %d bytes that are not the %d that were stored", key, len(got), len(want))
	}
	u.wantInfo(t, info, key, want)
}

func (u *suite) wantInfo(t *testing.T, info objstore.Info, key string, content []byte) {
	t.Helper()
	src := objstore.Bytes(content)
	if info.Key != key || info.Size != src.Size() || info.Version == "" || !info.HasCRC || info.CRC32C != src.CRC32C() {
		t.Errorf("%s: the store says %+v, want %d bytes with CRC-32C %08x", key, info, src.Size(), src.CRC32C())
	}
}

// wantAbsent wants that nobody sees an object of that key, or any below it.
func (u *suite) wantAbsent(t *testing.T, ctx context.Context, key string) {
	t.Helper()
	_, err := u.s.Head(ctx, key)
	wantErr(t, "head "+key, err, objstore.ErrNotFound)
	if _, err := u.s.Get(ctx, key, 0, -1); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("get %s: %v", key, err)
	}
	if got := u.keys(t, ctx, key, ""); len(got) > 0 {
		t.Errorf("listed: %q", got)
	}
}

func (u *suite) keys(t *testing.T, ctx context.Context, prefix, after string) []string {
	t.Helper()
	var keys []string
	for info, err := range u.s.List(ctx, prefix, after) {
		if err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// each runs fn n times at once and waits for all of them.
func each(ctx context.Context, n int, fn func(i int)) {
	g := task.NewGroup(ctx)
	for i := range n {
		g.Go("worker", func(context.Context) error { fn(i); return nil })
	}
	_ = g.Wait() // no worker fails: each reports to the test
}

// settled repeats what was refused only for now, as stores do when several requests are for one key.
func settled(ctx context.Context, fn func() error) error { return objstore.Retry(ctx, 20, fn) }

// refused repeats a write that will be refused where the answer got lost: servers may close a connection on which somebody
// still sends what they do not want.
func refused(fn func() error) (err error) {
	for range 20 {
		if err = fn(); !objstore.Retryable(err) && !errors.Is(err, objstore.ErrOutcomeUnknown) {
			break
		}
	}
	return err
}

func (u *suite) over(ctx context.Context, key string, content []byte) error {
	return refused(func() error { _, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(content)); return err })
}

func (u *suite) overVersion(ctx context.Context, key string, version objstore.Version, content []byte) error {
	return refused(func() error { _, err := u.s.PutIfMatch(ctx, key, version, objstore.Bytes(content)); return err })
}

func (u *suite) probe(t *testing.T, ctx context.Context, dir string) {
	must(t, objstore.Probe(ctx, u.s, dir))
	if got := u.keys(t, ctx, dir, ""); len(got) > 0 {
		t.Errorf("left behind: %q", got)
	}
}

func (u *suite) missing(t *testing.T, ctx context.Context, dir string) {
	key := dir + "/x"
	_, err := u.s.PutIfAbsent(ctx, dir+"/y/z", objstore.Bytes([]byte("elsewhere")))
	must(t, err)
	u.wantAbsent(t, ctx, key)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {5, -1}, {1 << 40, 3}} {
		_, err := u.s.Get(ctx, key, r[0], r[1])
		wantErr(t, fmt.Sprintf("get %v", r), err, objstore.ErrNotFound)
	}
	_, err = u.s.Head(ctx, dir+"/y") // what others are below is no object
	wantErr(t, "head of a directory", err, objstore.ErrNotFound)
	_, err = u.s.Get(ctx, dir+"/y", 0, -1)
	wantErr(t, "get of a directory", err, objstore.ErrNotFound)
	must(t, u.s.Delete(ctx, dir+"/y"))
	u.wantBytes(t, ctx, dir+"/y/z", []byte("elsewhere"))
	_, _, err = objstore.Read(ctx, u.s, key, 10)
	wantErr(t, "read", err, objstore.ErrNotFound)
}

func (u *suite) remove(t *testing.T, ctx context.Context, dir string) {
	a, b := dir+"/sub/a", dir+"/sub/b"
	for _, key := range []string{a, b} {
		_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes([]byte(key)))
		must(t, err)
	}
	must(t, u.s.Delete(ctx, a))
	u.wantAbsent(t, ctx, a)
	must(t, u.s.Delete(ctx, a))
	must(t, u.s.Delete(ctx, dir+"/never/was"))
	u.wantBytes(t, ctx, b, []byte(b))
	_, err := u.s.PutIfAbsent(ctx, a, objstore.Bytes([]byte("again")))
	must(t, err)
	u.wantBytes(t, ctx, a, []byte("again"))
	must(t, u.s.Delete(ctx, a))
	must(t, u.s.Delete(ctx, b))
	if got := u.keys(t, ctx, dir, ""); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

func (u *suite) putOnce(t *testing.T, ctx context.Context, dir string) {
	key, content := dir+"/x", u.noise(5000, "once")
	first, err := objstore.PutOnce(ctx, u.s, key, objstore.Bytes(content))
	must(t, err)
	second, err := objstore.PutOnce(ctx, u.s, key, objstore.Bytes(content))
	must(t, err)
	if first.Version != second.Version {
		t.Errorf("put twice: versions %s and %s", first.Version, second.Version)
	}
	_, err = objstore.PutOnce(ctx, u.s, key, objstore.Bytes(u.noise(5000, "other")))
	wantErr(t, "put other bytes", err, objstore.ErrExists)
	_, err = objstore.PutOnce(ctx, u.s, key, objstore.Bytes(content[:4999]))
	wantErr(t, "put fewer bytes", err, objstore.ErrExists)
	u.wantBytes(t, ctx, key, content)
	src := objstore.Bytes(content)
	_, err = objstore.Verify(ctx, u.s, key, src.Size(), src.CRC32C())
	must(t, err)
	_, err = objstore.Verify(ctx, u.s, key, src.Size(), src.CRC32C()+1)
	wantErr(t, "verify for another checksum", err, objstore.ErrCorrupt)
	_, err = objstore.Verify(ctx, u.s, key, src.Size()+1, src.CRC32C())
	wantErr(t, "verify for another size", err, objstore.ErrCorrupt)
}
