package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
)

func (u *suite) putIfAbsent(t *testing.T, ctx context.Context, dir string) {
	key, content := dir+"/deep/er/x", u.noise(100_003, "absent")
	info, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(content))
	must(t, err)
	u.wantInfo(t, info, key, content)
	u.wantBytes(t, ctx, key, content)
	head, err := u.s.Head(ctx, key)
	must(t, err)
	u.wantInfo(t, head, key, content)
	if head.Version != info.Version || head.Modified.IsZero() {
		t.Errorf("put said %+v, head says %+v", info, head)
	}
	for _, other := range [][]byte{content, []byte("short"), nil, u.noise(200_000, "other")} {
		wantErr(t, fmt.Sprintf("put %d bytes over it", len(other)), u.over(ctx, key, other), objstore.ErrExists)
	}
	u.wantBytes(t, ctx, key, content)
	if again, err := u.s.Head(ctx, key); err != nil || again.Version != head.Version || !again.Modified.Equal(head.Modified) {
		t.Errorf("head says %+v, %v; it said %+v", again, err, head)
	}
}

// absentRace: of many writers of one key one wins, and its bytes are there.
func (u *suite) absentRace(t *testing.T, ctx context.Context, dir string) {
	u.race(t, ctx, dir+"/x", 16, 3000)
}

func (u *suite) race(t *testing.T, ctx context.Context, key string, writers, size int) {
	t.Helper()
	var winner, refused atomic.Int64
	contents := make([][]byte, writers)
	for i := range writers {
		contents[i] = u.noise(size+i, key+strconv.Itoa(i))
	}
	each(ctx, writers, func(i int) {
		err := settled(ctx, func() error {
			_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(contents[i]))
			if errors.Is(err, objstore.ErrOutcomeUnknown) { // the answer got lost: who won is seen by the content
				_, err = objstore.PutOnce(ctx, u.s, key, objstore.Bytes(contents[i]))
			}
			return err
		})
		switch {
		case err == nil:
			if other := winner.Swap(int64(i) + 1); other != 0 {
				t.Errorf("writers %d and %d both put %s", other-1, i, key)
			}
		case errors.Is(err, objstore.ErrExists):
			refused.Add(1)
		default:
			t.Errorf("writer %d: %v", i, err)
		}
	})
	if winner.Load() == 0 || refused.Load() != int64(writers-1) {
		t.Fatalf("winner %d, %d refused of %d", winner.Load()-1, refused.Load(), writers)
	}
	u.wantBytes(t, ctx, key, contents[winner.Load()-1])
}

func (u *suite) putIfMatch(t *testing.T, ctx context.Context, dir string) {
	key := dir + "/x"
	wantErr(t, "put over nothing", u.overVersion(ctx, key, "1", []byte("absent")), objstore.ErrConflict)
	u.wantAbsent(t, ctx, key)

	one, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes([]byte("one")))
	must(t, err)
	two, err := u.s.PutIfMatch(ctx, key, one.Version, objstore.Bytes([]byte("number two")))
	must(t, err)
	u.wantInfo(t, two, key, []byte("number two"))
	if two.Version == one.Version {
		t.Errorf("both contents are version %s", one.Version)
	}
	for _, stale := range []objstore.Version{one.Version, "0", "4711", "", "*", "\"*\"", "no version", "0x8DEADBEEF"} {
		wantErr(t, fmt.Sprintf("put over version %q", stale), u.overVersion(ctx, key, stale, []byte("stale")), objstore.ErrConflict)
	}
	u.wantBytes(t, ctx, key, []byte("number two"))
	head, err := u.s.Head(ctx, key)
	if err != nil || head.Version != two.Version {
		t.Errorf("head says %+v, %v; put said %+v", head, err, two)
	}
	empty, err := u.s.PutIfMatch(ctx, key, two.Version, objstore.Bytes(nil))
	must(t, err)
	u.wantBytes(t, ctx, key, []byte{})
	must(t, u.s.Delete(ctx, key))
	wantErr(t, "put over what was deleted", u.overVersion(ctx, key, empty.Version, []byte("late")), objstore.ErrConflict)
	u.wantAbsent(t, ctx, key)
}

// counter: increments by compare-and-set are neither lost nor done twice.
func (u *suite) counter(t *testing.T, ctx context.Context, dir string) {
	const workers, rounds = 6, 4
	var lost atomic.Int64
	key := dir + "/x"
	_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes([]byte("0")))
	must(t, err)
	increment := func() error {
		data, info, err := objstore.Read(ctx, u.s, key, 100)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(data))
		if err != nil {
			return err
		}
		_, err = u.s.PutIfMatch(ctx, key, info.Version, objstore.Bytes([]byte(strconv.Itoa(n+1))))
		return err
	}
	each(ctx, workers, func(int) {
		for done := 0; done < rounds; {
			switch err := increment(); {
			case err == nil:
				done++
			case errors.Is(err, objstore.ErrConflict), objstore.Retryable(err):
			case errors.Is(err, objstore.ErrOutcomeUnknown): // the answer got lost: it may have counted
				lost.Add(1)
			default:
				t.Error(err)
				return
			}
		}
	})
	data, _, err := objstore.Read(ctx, u.s, key, 100)
	must(t, err)
	n, err := strconv.Atoi(string(data))
	if sure, most := workers*rounds, workers*rounds+int(lost.Load()); err != nil || n < sure || n > most {
		t.Errorf("counted to %s, %v, want %d to %d", data, err, sure, most)
	}
}

func (u *suite) large(t *testing.T, ctx context.Context, dir string) {
	key, content := dir+"/x", u.noise(u.traits.Big+12_345, "large")
	info, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(content))
	must(t, err)
	u.wantInfo(t, info, key, content)
	u.wantBytes(t, ctx, key, content)
	src := objstore.Bytes(content)
	_, err = objstore.Verify(ctx, u.s, key, src.Size(), src.CRC32C())
	must(t, err)
	u.parallelRanges(t, ctx, key, content)
	wantErr(t, "put another large one over it", u.over(ctx, key, u.noise(u.traits.Big+12_345, "larger")), objstore.ErrExists)
	u.wantBytes(t, ctx, key, content)

	next := u.noise(u.traits.Big+1, "next")
	wantErr(t, "put a large one over another version", u.overVersion(ctx, key, "4711", next), objstore.ErrConflict)
	u.wantBytes(t, ctx, key, content)
	_, err = u.s.PutIfMatch(ctx, key, info.Version, objstore.Bytes(next))
	must(t, err)
	u.wantBytes(t, ctx, key, next)
}

func (u *suite) largeRace(t *testing.T, ctx context.Context, dir string) {
	u.race(t, ctx, dir+"/x", 3, u.traits.Big/2)
}

// sizes of sources that fail: in one request, and in several.
func (u *suite) sizes() []int { return []int{70_000, u.traits.Big + 7} }

// broken is a source that does something when a byte of it is asked for.
type broken struct {
	data []byte
	at   int64
	do   func() error
}

// ReadAt implements io.ReaderAt.
func (b broken) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.at {
		if err := b.do(); err != nil {
			return 0, err
		}
	}
	return bytes.NewReader(b.data).ReadAt(p, off)
}

func (u *suite) failingReader(t *testing.T, ctx context.Context, dir string) {
	boom := errors.New("the disk is gone")
	for _, size := range u.sizes() {
		key, content := fmt.Sprintf("%s/%d", dir, size), u.noise(size, "failing")
		whole := objstore.Bytes(content)
		src := objstore.NewSource(broken{content, int64(size / 2), func() error { return boom }}, int64(size), whole.CRC32C())
		_, err := u.s.PutIfAbsent(ctx, key, src)
		wantErr(t, "put", err, objstore.ErrSource)
		if !errors.Is(err, boom) {
			t.Errorf("the cause is lost: %v", err)
		}
		u.wantAbsent(t, ctx, key)
		short := objstore.NewSource(bytes.NewReader(content[:size-1]), int64(size), whole.CRC32C())
		_, err = u.s.PutIfAbsent(ctx, key, short)
		wantErr(t, "put of a source that ends early", err, objstore.ErrSource)
		u.wantAbsent(t, ctx, key)

		info, err := u.s.PutIfAbsent(ctx, key, whole)
		must(t, err)
		_, err = u.s.PutIfMatch(ctx, key, info.Version, src)
		wantErr(t, "replace", err, objstore.ErrSource)
		u.wantBytes(t, ctx, key, content)
	}
}

// wrongChecksum: bytes that are not what they were when their checksum was made are not stored.
func (u *suite) wrongChecksum(t *testing.T, ctx context.Context, dir string) {
	for _, size := range append(u.sizes(), 0, 1) {
		key, content := fmt.Sprintf("%s/%d", dir, size), u.noise(size, "rot")
		sum := objstore.Bytes(content).CRC32C()
		src := objstore.NewSource(bytes.NewReader(content), int64(size), sum^1)
		_, err := u.s.PutIfAbsent(ctx, key, src)
		wantErr(t, fmt.Sprintf("put %d bytes", size), err, objstore.ErrSource)
		u.wantAbsent(t, ctx, key)
	}
}

func (u *suite) canceledPut(t *testing.T, ctx context.Context, dir string) {
	for _, size := range u.sizes() {
		key, content := fmt.Sprintf("%s/%d", dir, size), u.noise(size, "cancel")
		inner, cancel := context.WithCancel(ctx)
		src := objstore.NewSource(broken{content, int64(size / 2), func() error { cancel(); return nil }},
			int64(size), objstore.Bytes(content).CRC32C())
		_, err := u.s.PutIfAbsent(inner, key, src)
		cancel()
		if !errors.Is(err, context.Canceled) || errors.Is(err, objstore.ErrOutcomeUnknown) { // half of it was never sent
			t.Errorf("canceled put of %d bytes: %v", size, err)
		}
		u.wantAbsent(t, ctx, key)
		_, err = u.s.PutIfAbsent(ctx, key, objstore.Bytes(content))
		must(t, err)
		u.wantBytes(t, ctx, key, content)
	}
}

func (u *suite) canceledBefore(t *testing.T, ctx context.Context, dir string) {
	key := dir + "/x"
	info, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes([]byte("here")))
	must(t, err)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	other := objstore.Bytes([]byte("other"))
	calls := map[string]func() error{
		"put":     func() error { _, err := u.s.PutIfAbsent(gone, dir+"/y", other); return err },
		"replace": func() error { _, err := u.s.PutIfMatch(gone, key, info.Version, other); return err },
		"get":     func() error { _, err := u.s.Get(gone, key, 0, -1); return err },
		"head":    func() error { _, err := u.s.Head(gone, key); return err },
		"delete":  func() error { return u.s.Delete(gone, key) },
		"list": func() error {
			for _, err := range u.s.List(gone, dir, "") {
				return err
			}
			return nil
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, context.Canceled) || errors.Is(err, objstore.ErrOutcomeUnknown) {
			t.Errorf("%s with a context that had ended: %v", name, err)
		}
	}
	u.wantBytes(t, ctx, key, []byte("here"))
	u.wantAbsent(t, ctx, dir+"/y")
}
