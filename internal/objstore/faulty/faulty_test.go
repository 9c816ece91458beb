package faulty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestWithoutFaults: a wrapper that plays nothing is a store like the one below it.
func TestWithoutFaults(t *testing.T) {
	objstoretest.Run(t, New(objstore.NewMem(), Config{}), objstoretest.Traits{Big: 1 << 20, Many: 300})
}

var (
	content = bytes.Repeat([]byte("what is stored once and read often. "), 2000)
	source  = objstore.Bytes(content)
)

const key = "t/0/00000000000000000000.lvseg"

// world is a store below, a faulty one above it with one fault, and neighbours of the key.
func world(t *testing.T, op objstore.Op, nth int, kind Kind) (*objstore.Mem, *Store) {
	t.Helper()
	under := objstore.NewMem()
	for _, other := range []string{"t/0/a", "t/0/b", "t/0/c"} {
		_, err := under.PutIfAbsent(t.Context(), other, objstore.Bytes([]byte(other)))
		must(t, err)
	}
	return under, New(under, Config{Script: []Event{{op, nth, kind}}})
}

// TestNoFaultLooksLikeSuccess walks through every kind at every operation that it may happen to. What is reported as done
// is done, what is read is what was stored, and who does what this package's comments say gets there in the end.
func TestNoFaultLooksLikeSuccess(t *testing.T) {
	cells, seen := 0, map[Kind]bool{}
	for op := objstore.OpGet; op <= objstore.OpDelete; op++ {
		for _, kind := range Kinds(op) {
			cells++
			seen[kind] = true
			t.Run(fmt.Sprintf("%s/%s", op, kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					under, s := world(t, op, 1, kind)
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					tests[op](t, ctx, under, s, kind)
					if s.Played()[kind] != 1 {
						t.Errorf("played %v", s.Played())
					}
				})
			})
		}
	}
	t.Logf("%d kinds, %d of them at an operation", len(seen), cells)
	if len(seen) != int(kinds)-1 || len(seen) < 15 {
		t.Errorf("%d kinds were played of %d", len(seen), kinds-1)
	}
}

var tests = map[objstore.Op]func(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind){
	objstore.OpPutIfAbsent: testPut,
	objstore.OpPutIfMatch:  testReplace,
	objstore.OpGet:         testGet,
	objstore.OpHead:        testHead,
	objstore.OpList:        testList,
	objstore.OpDelete:      testDelete,
}

// there reports whether the store below has the content under the key.
func there(t *testing.T, under *objstore.Mem, want []byte) bool {
	t.Helper()
	data, _, err := objstore.Read(t.Context(), under, key, 1<<30)
	if errors.Is(err, objstore.ErrNotFound) {
		return false
	}
	must(t, err)
	return bytes.Equal(data, want)
}

func testPut(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind) {
	_, err := s.PutIfAbsent(ctx, key, source)
	if err == nil && !there(t, under, content) {
		t.Error("reported as stored, and is not there")
	}
	if err != nil && !errors.Is(err, objstore.ErrOutcomeUnknown) && !errors.Is(err, objstore.ErrExists) && there(t, under, content) {
		t.Errorf("reported as not stored (%v), and is there", err)
	}
	// An exporter repeats until it is stored, reads it back, and only then lets go of its copy.
	stored := err
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, stored = objstore.PutOnce(ctx, s, key, source)
		cancel()
		if stored == nil {
			break
		}
	}
	must(t, stored)
	_, err = objstore.Verify(t.Context(), s, key, source.Size(), source.CRC32C())
	if kind == Rotten {
		if !errors.Is(err, objstore.ErrCorrupt) {
			t.Errorf("reading back what rotted: %v", err)
		}
		return
	}
	must(t, err)
	must(t, s.Settle())
	if !there(t, under, content) {
		t.Error("not there in the end")
	}
}

func testReplace(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind) {
	first, err := under.PutIfAbsent(ctx, key, objstore.Bytes([]byte("first")))
	must(t, err)
	_, err = s.PutIfMatch(ctx, key, first.Version, source)
	if err == nil && !there(t, under, content) {
		t.Error("reported as stored, and is not there")
	}
	if err != nil && !errors.Is(err, objstore.ErrOutcomeUnknown) && !errors.Is(err, objstore.ErrConflict) && there(t, under, content) {
		t.Errorf("reported as not stored (%v), and is there", err)
	}
	must(t, s.Settle())
	// Whoever is in doubt reads what is there and decides again.
	data, info, err := objstore.Read(t.Context(), s, key, 1<<30)
	if kind == Rotten {
		if !errors.Is(err, objstore.ErrCorrupt) {
			t.Errorf("reading back what rotted: %v", err)
		}
		return
	}
	must(t, err)
	if !bytes.Equal(data, content) {
		_, err = s.PutIfMatch(t.Context(), key, info.Version, source)
		must(t, err)
	}
	if !there(t, under, content) {
		t.Error("not there in the end")
	}
}

func testGet(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind) {
	_, err := under.PutIfAbsent(ctx, key, source)
	must(t, err)
	data, _, err := objstore.Read(ctx, s, key, 1<<30)
	if err == nil && !bytes.Equal(data, content) {
		t.Error("other bytes were read as if they were right")
	}
	if (err == nil) != (kind == Slow) {
		t.Errorf("read: %v", err)
	}
	_, err = objstore.Verify(t.Context(), s, key, source.Size(), source.CRC32C())
	must(t, err)

	// Of a part, the length is certain.
	under, s = world(t, objstore.OpGet, 1, kind)
	_, err = under.PutIfAbsent(t.Context(), key, source)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	data, _, err = objstore.ReadRange(ctx, s, key, source.Size()-100, 100)
	if err == nil && len(data) != 100 {
		t.Errorf("%d bytes", len(data))
	}
	if want := kind == Slow || kind == Flipped || kind == Shifted; (err == nil) != want {
		t.Errorf("read a part: %v", err)
	}
}

func testHead(t *testing.T, ctx context.Context, _ *objstore.Mem, faulted *Store, kind Kind) {
	_, err := faulted.PutIfAbsent(ctx, key, source)
	must(t, err)
	info, err := faulted.Head(ctx, key)
	if err == nil && (info.Size != source.Size() || info.CRC32C != source.CRC32C()) {
		t.Errorf("head says %+v", info)
	}
	if (err == nil) != (kind == Slow) {
		t.Errorf("head: %v", err)
	}
	must(t, faulted.Delete(t.Context(), key))
	// A put whose answer is lost asks head; where that is wrong it does not call the put done.
	under, s := twoFaults(t, kind)
	_, err = objstore.PutOnce(t.Context(), s, key, source)
	if err == nil && !there(t, under, content) {
		t.Error("reported as stored, and is not there")
	}
}

// twoFaults is a world in which a request is lost and then head goes wrong.
func twoFaults(t *testing.T, kind Kind) (*objstore.Mem, *Store) {
	t.Helper()
	if kind == Hang {
		kind = Unavailable
	}
	under := objstore.NewMem()
	return under, New(under, Config{Script: []Event{{objstore.OpPutIfAbsent, 1, LostRequest}, {objstore.OpHead, 1, kind}}})
}

func testList(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind) {
	_, err := s.PutIfAbsent(ctx, key, source)
	must(t, err)
	must(t, s.Delete(ctx, "t/0/b"))
	list := func(ctx context.Context) (keys string, err error) {
		for info, err := range s.List(ctx, "t/", "") {
			if err != nil {
				return keys, err
			}
			keys += info.Key + " "
		}
		return keys, nil
	}
	want := key + " t/0/a t/0/c "
	got, err := list(ctx)
	switch {
	case kind == Lagging:
		if got != "t/0/a t/0/b t/0/c " || err != nil { // nothing can tell: so nothing is decided by a list alone
			t.Errorf("listed %q, %v", got, err)
		}
		_, err := s.Head(ctx, key)
		must(t, err)
	case kind == Slow && (got != want || err != nil), kind != Slow && err == nil:
		t.Errorf("listed %q, %v", got, err)
	}
	if got, err := list(t.Context()); got != want || err != nil {
		t.Errorf("listed %q, %v the second time", got, err)
	}
}

func testDelete(t *testing.T, ctx context.Context, under *objstore.Mem, s *Store, kind Kind) {
	_, err := under.PutIfAbsent(ctx, key, source)
	must(t, err)
	err = s.Delete(ctx, key)
	gone := !there(t, under, content)
	if err == nil && !gone {
		t.Error("reported as deleted, and is there")
	}
	if err != nil && !errors.Is(err, objstore.ErrOutcomeUnknown) && gone {
		t.Errorf("reported as not deleted (%v), and is gone", err)
	}
	must(t, s.Delete(t.Context(), key))
	if there(t, under, content) {
		t.Error("there in the end")
	}
}

// TestByChance: a crowd of faults by chance, the same for the same seed; an exporter's way of doing it gets every object
// stored and verified, and what is read is never wrong.
func TestByChance(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	synctest.Test(t, func(t *testing.T) {
		first, second := export(t, seed), export(t, seed)
		if fmt.Sprint(first) != fmt.Sprint(second) {
			t.Errorf("the same seed played %v and then %v", first, second)
		}
		if len(first) < 15 {
			t.Errorf("only %d kinds were played: %v", len(first), first)
		}
	})
}

func export(t *testing.T, seed uint64) map[Kind]int {
	t.Helper()
	under := objstore.NewMem()
	rate := map[Kind]float64{}
	for k := None + 1; k < kinds; k++ {
		if k != Denied && k != Rotten {
			rate[k] = 0.03
		}
	}
	s := New(under, Config{Seed: seed, Rate: rate})
	rnd := rand.New(rand.NewPCG(seed, 7))
	for i := range 200 {
		name := fmt.Sprintf("o/%d", i)
		data := make([]byte, rnd.IntN(5000))
		for j := range data {
			data[j] = byte(rnd.Uint32())
		}
		src := objstore.Bytes(data)
		err := errors.New("never tried")
		for tries := 0; err != nil; tries++ {
			if tries == 60 {
				t.Fatalf("%s: not stored after %d tries: %v", name, tries, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err = objstore.PutOnce(ctx, s, name, src); err == nil {
				_, err = objstore.Verify(ctx, s, name, src.Size(), src.CRC32C())
			}
			cancel()
		}
		got, _, err := objstore.Read(t.Context(), under, name, 1<<20)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: stored and verified, but below is %d bytes, %v", name, len(got), err)
		}
	}
	must(t, s.Settle())
	return s.Played()
}

// TestBandwidth: a body takes as long as its bytes.
func TestBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := objstore.NewMem()
		_, err := under.PutIfAbsent(t.Context(), key, objstore.Bytes(make([]byte, 10_000)))
		must(t, err)
		s := New(under, Config{Bandwidth: 1000})
		start := time.Now()
		body, err := s.Get(t.Context(), key, 0, -1)
		must(t, err)
		_, err = io.Copy(io.Discard, body)
		must(t, err)
		must(t, body.Close())
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("10,000 bytes at 1,000 a second took %v", took)
		}
	})
}

// TestRottenStaysRotten: what rotted is never read as if it were right, whatever else happens to the same request; and each
// part of it shows the same bytes as the whole.
func TestRottenStaysRotten(t *testing.T) {
	for _, kind := range append(Kinds(objstore.OpGet), None) {
		synctest.Test(t, func(t *testing.T) {
			s := New(objstore.NewMem(), Config{Script: []Event{{objstore.OpPutIfAbsent, 1, Rotten}, {objstore.OpGet, 1, kind}}})
			_, err := s.PutIfAbsent(t.Context(), key, source)
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, _, err := objstore.Read(ctx, s, key, 1<<30); err == nil {
				t.Errorf("%s: what is rotten was read as if it were right", kind)
			}
			body, err := s.Get(t.Context(), key, 0, -1)
			must(t, err)
			whole := make([]byte, body.Len)
			_, err = io.ReadFull(body, whole)
			must(t, err)
			must(t, body.Close())
			if bytes.Equal(whole, content) {
				t.Errorf("%s: it is not rotten", kind)
			}
			for at := int64(0); at < source.Size(); at += 1000 {
				part, _, err := objstore.ReadRange(t.Context(), s, key, at, min(1000, source.Size()-at))
				must(t, err)
				if !bytes.Equal(part, whole[at:at+int64(len(part))]) {
					t.Errorf("%s: the part at %d is another one than in the whole", kind, at)
				}
			}
		})
	}
}
