package objstoretest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
)

func (u *suite) ranges(t *testing.T, ctx context.Context, dir string) {
	key, content := dir+"/x", u.noise(10_000, "ranges")
	_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(content))
	must(t, err)
	for _, r := range [][2]int64{
		{0, -1}, {0, 10_000}, {0, 1}, {0, 9_999}, {1, 1}, {5_000, 2_000}, {9_999, 1}, {9_999, -1}, {123, -1},
		{9_000, 5_000}, {0, 1 << 40}, {10_000, 1}, {10_000, -1}, {10_000, 0}, {0, 0}, {77, 0},
	} {
		u.wantRange(t, ctx, key, content, r[0], r[1])
	}
	for _, r := range [][2]int64{{10_001, 1}, {10_001, -1}, {10_001, 0}, {1 << 40, 10}} {
		_, err := u.s.Get(ctx, key, r[0], r[1])
		wantErr(t, fmt.Sprintf("get %v", r), err, objstore.ErrRange)
	}
	_, err = u.s.Get(ctx, key, -1, 5)
	wantErr(t, "get at -1", err, objstore.ErrInvalid)
	data, _, err := objstore.ReadRange(ctx, u.s, key, 100, 50)
	if err != nil || string(data) != string(content[100:150]) {
		t.Errorf("read a range: %v, %v", data, err)
	}
	_, _, err = objstore.ReadRange(ctx, u.s, key, 9_990, 11)
	wantErr(t, "read a range that is not all there", err, objstore.ErrRange)
	_, _, err = objstore.Read(ctx, u.s, key, 9_999)
	wantErr(t, "read above the limit", err, objstore.ErrInvalid)
}

func (u *suite) wantRange(t *testing.T, ctx context.Context, key string, content []byte, off, n int64) {
	t.Helper()
	want := content[off:]
	if n >= 0 && n < int64(len(want)) {
		want = want[:n]
	}
	body, err := u.s.Get(ctx, key, off, n)
	if err != nil {
		t.Errorf("get [%d,+%d): %v", off, n, err)
		return
	}
	got, err := io.ReadAll(body)
	if cerr := body.Close(); err != nil || cerr != nil || string(got) != string(want) {
		t.Errorf("get [%d,+%d): %d bytes, %v, %v; want %d", off, n, len(got), err, cerr, len(want))
	}
	if body.Off != off || body.Len != int64(len(want)) {
		t.Errorf("get [%d,+%d): body says %d bytes from %d", off, n, body.Len, body.Off)
	}
	u.wantInfo(t, body.Info, key, content)
}

func (u *suite) parallelRanges(t *testing.T, ctx context.Context, key string, content []byte) {
	t.Helper()
	each(ctx, 8, func(i int) {
		rnd := rand.New(rand.NewPCG(u.seed, uint64(i)))
		for range 6 {
			off := rnd.Int64N(int64(len(content)))
			u.wantRange(t, ctx, key, content, off, rnd.Int64N(1<<20))
		}
	})
}

func (u *suite) empty(t *testing.T, ctx context.Context, dir string) {
	key := dir + "/x"
	info, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(nil))
	must(t, err)
	u.wantInfo(t, info, key, nil)
	u.wantBytes(t, ctx, key, nil)
	for _, n := range []int64{-1, 0, 1, 100} {
		u.wantRange(t, ctx, key, nil, 0, n)
	}
	_, err = u.s.Get(ctx, key, 1, 1)
	wantErr(t, "get beyond the end", err, objstore.ErrRange)
	wantErr(t, "put again", u.over(ctx, key, nil), objstore.ErrExists)
}

func (u *suite) canceledGet(t *testing.T, ctx context.Context, dir string) {
	key, content := dir+"/x", u.noise(u.traits.Big, "slow reader")
	_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes(content))
	must(t, err)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := u.s.Get(inner, key, 0, -1)
	must(t, err)
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Error(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, body); !errors.Is(err, context.Canceled) {
		t.Errorf("read on after canceling: %v", err)
	}
	must(t, body.Close())
	early, err := u.s.Get(ctx, key, 5, 100_000)
	must(t, err)
	must(t, early.Close()) // without having read
}

// oddNames are what may go wrong in URLs, in XML, in file names and in an order that is not that of bytes.
func oddNames() []string {
	return []string{
		"plain.lvseg", "with space", "two  spaces", "100%", "%41", "%2F", "%zz", "a+b", "a&b=c", "what?", "#hash", "semi;colon", "a,b", "x@y", "q'uote", `q"uote`,
		"<tag>", "(round)", "[square]", "{curly}", "~tilde", "star*", "pi|pe", "dollar$", "back`tick", "hat^", "co:lon", "!bang", "UPPER", "upper", "z", "Z", "_", "-", "0", "00", "a/b/c", "a/b/d",
		"a-b/c", "ab/c", "a0/c", "é", "e\u0301", "日本語", "\U0001F600 face", "！full width", "ß", "ə", "\u00a0",
	}
}

func (u *suite) names(t *testing.T, ctx context.Context, dir string) {
	var want []string
	for _, name := range oddNames() {
		key := dir + "/" + name
		want = append(want, key)
		_, err := u.s.PutIfAbsent(ctx, key, objstore.Bytes([]byte(name)))
		if err != nil {
			t.Errorf("put %q: %v", key, err)
			continue
		}
		u.wantBytes(t, ctx, key, []byte(name))
	}
	slices.Sort(want)
	got := u.keys(t, ctx, dir+"/", "")
	if u.traits.Flat {
		slices.Sort(got)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("listed\n%q\nwant\n%q", got, want)
	}
	for _, key := range want {
		below := strings.Count(strings.Join(want, "\n"), key) // keys of which it is the beginning, itself among them
		if got := u.keys(t, ctx, key, ""); len(got) != below || got[0] != key {
			t.Errorf("listed for the prefix %q: %q", key, got)
		}
		if u.traits.Flat {
			continue
		}
		i := slices.Index(want, key)
		if got := u.keys(t, ctx, dir+"/", key); !slices.Equal(got, want[i+1:]) {
			t.Errorf("listed after %q: %q", key, got)
		}
	}
	for _, key := range want {
		must(t, u.s.Delete(ctx, key))
	}
	if got := u.keys(t, ctx, dir+"/", ""); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

func (u *suite) invalid(t *testing.T, ctx context.Context, dir string) {
	src := objstore.Bytes([]byte("x"))
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", ".levee/x", "a/.b", "a.", "a./b", "a\x00b", "a\nb", "a\x7f", "a\\b", "\xff",
		strings.Repeat("x", objstore.MaxComponent+1), strings.Repeat("x/", objstore.MaxKey/2) + "x",
	} {
		_, err := u.s.PutIfAbsent(ctx, key, src)
		wantErr(t, fmt.Sprintf("put %q", key), err, objstore.ErrInvalid)
		_, err = u.s.PutIfMatch(ctx, key, "1", src)
		wantErr(t, fmt.Sprintf("replace %q", key), err, objstore.ErrInvalid)
		_, err = u.s.Get(ctx, key, 0, -1)
		wantErr(t, fmt.Sprintf("get %q", key), err, objstore.ErrInvalid)
		_, err = u.s.Head(ctx, key)
		wantErr(t, fmt.Sprintf("head %q", key), err, objstore.ErrInvalid)
		wantErr(t, fmt.Sprintf("delete %q", key), u.s.Delete(ctx, key), objstore.ErrInvalid)
	}
	for _, prefix := range []string{"a\x00", "\xff", strings.Repeat("x", objstore.MaxKey+1)} {
		for _, err := range u.s.List(ctx, prefix, "") {
			wantErr(t, fmt.Sprintf("list %q", prefix), err, objstore.ErrInvalid)
		}
	}
	_, err := u.s.PutIfAbsent(ctx, dir+"/x", objstore.Source{})
	wantErr(t, "put without a source", err, objstore.ErrInvalid)
	long := dir + "/" + strings.Repeat("x", objstore.MaxComponent) // what is allowed is possible
	_, err = u.s.PutIfAbsent(ctx, long, src)
	must(t, err)
	u.wantBytes(t, ctx, long, []byte("x"))
}

func (u *suite) listPages(t *testing.T, ctx context.Context, dir string) {
	var want []string
	sizes := map[string]int{}
	for i := range u.traits.Many {
		key := fmt.Sprintf("%s/p%d/%020d-%d.lvseg", dir, i%3, i*i, i)
		want, sizes[key] = append(want, key), i%7
	}
	each(ctx, 8, func(w int) {
		for i := w; i < len(want); i += 8 {
			if _, err := u.s.PutIfAbsent(ctx, want[i], objstore.Bytes(make([]byte, sizes[want[i]]))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	slices.Sort(want)
	var got []string
	for info, err := range u.s.List(ctx, dir+"/", "") {
		must(t, err)
		got = append(got, info.Key)
		if info.Size != int64(sizes[info.Key]) {
			t.Errorf("%s: listed with %d bytes, it has %d", info.Key, info.Size, sizes[info.Key])
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("listed %d keys that are not the %d that were put", len(got), len(want))
	}
	places := []int{0, 1, len(want) / 2, len(want) - 2, len(want) - 1}
	if u.traits.Slow {
		places = []int{len(want) / 4}
	}
	for _, at := range places {
		if got := u.keys(t, ctx, dir+"/", want[at]); !slices.Equal(got, want[at+1:]) {
			t.Errorf("listed %d keys after number %d of %d", len(got), at, len(want))
		}
		between := want[at][:len(want[at])-1] // smaller than it, greater than the one before
		if got := u.keys(t, ctx, dir+"/", between); !slices.Equal(got, want[at:]) {
			t.Errorf("listed %d keys from number %d of %d on", len(got), at, len(want))
		}
	}
	two := slices.DeleteFunc(slices.Clone(want), func(key string) bool { return !strings.HasPrefix(key, dir+"/p1/") })
	if got := u.keys(t, ctx, dir+"/p1/", ""); !slices.Equal(got, two) {
		t.Errorf("listed %d keys of %d", len(got), len(two))
	}
	if got := u.keys(t, ctx, dir+"/p1/", dir+"/p0/zzz"); !slices.Equal(got, two) {
		t.Errorf("listed %d keys of %d after one before the prefix", len(got), len(two))
	}
	seen := 0
	for _, err := range u.s.List(ctx, dir+"/", "") { // and leave
		must(t, err)
		if seen++; seen == 5 {
			break
		}
	}
}

func (u *suite) listNothing(t *testing.T, ctx context.Context, dir string) {
	_, err := u.s.PutIfAbsent(ctx, dir+"/mm", objstore.Bytes(nil))
	must(t, err)
	for _, r := range [][2]string{
		{dir + "/none/", ""}, {dir + "/mm/", ""}, {dir + "/mmm", ""}, {dir + "/", dir + "/mm"}, {dir + "/m", dir + "/z"}, {dir + "//", ""}, {"/", ""}, {"..", ""}, {"../", ""}, {".levee", ""},
	} {
		if got := u.keys(t, ctx, r[0], r[1]); len(got) > 0 {
			t.Errorf("listed for %q after %q: %q", r[0], r[1], got)
		}
	}
	if got := u.keys(t, ctx, dir+"/m", dir+"/a"); len(got) != 1 {
		t.Errorf("listed %q", got)
	}
	if got := u.keys(t, ctx, dir, ""); len(got) != 1 {
		t.Errorf("listed %q for a prefix without its slash", got)
	}
}
