package cli

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/leveemq/levee/internal/fault"
)

// readAll returns every line of in and what ended them.
func readAll(in io.Reader, limit int) ([]string, error) {
	r := newLineReader(in, limit)
	var all []string
	for {
		lines, err := r.next()
		for _, l := range lines {
			all = append(all, string(l))
		}
		if err != nil {
			return all, err
		}
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 3*lineBuffer)
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"\n", []string{""}},
		{"\n\n", []string{"", ""}},
		{"a\n\nb", []string{"a", "", "b"}},
		{"a\r\nb\r\n", []string{"a\r", "b\r"}},
		{"a\x00b\n\xff\n", []string{"a\x00b", "\xff"}},
		{"s\n" + long + "\n" + long, []string{"s", long, long}},
		{strings.Repeat("y\n", lineBuffer), strings.Split(strings.Repeat("y\n", lineBuffer-1)+"y", "\n")},
	} {
		for name, in := range map[string]io.Reader{
			"whole": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in)),
			"data with EOF": iotest.DataErrReader(strings.NewReader(c.in)), "halves": iotest.HalfReader(strings.NewReader(c.in)),
		} {
			got, err := readAll(in, len(long))
			if err != io.EOF || strings.Join(got, "\n") != strings.Join(c.want, "\n") || len(got) != len(c.want) {
				t.Errorf("%.20q, %s: got %d lines of %d, %v", c.in, name, len(got), len(c.want), err)
			}
		}
	}
}

func TestLineOverTheLimitIsNamed(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string // lines before
		line string
	}{
		{"a\nb\nccccc\nd\n", "a b", "3"},
		{"ccccc", "", "1"},
		{"a\nccccc", "a", "2"},
		{"a\n" + strings.Repeat("c", 5*lineBuffer) + "\n", "a", "2"},
	} {
		got, err := readAll(strings.NewReader(c.in), 4)
		if fault.KindOf(err) != fault.TooLarge || fault.DetailsOf(err)["line"] != c.line || strings.Join(got, " ") != c.want {
			t.Errorf("%.20q: got %q, %v", c.in, got, err)
		}
	}
	if got, err := readAll(strings.NewReader("aaaa\nbbbb"), 4); err != io.EOF || len(got) != 2 {
		t.Errorf("lines at the limit: got %q, %v", got, err)
	}
}

func TestLineLongerThanTheLimitIsNotHeld(t *testing.T) {
	endless := io.LimitReader(zeros{}, 1<<40)
	_, err := readAll(endless, 1<<20)
	if fault.KindOf(err) != fault.TooLarge {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestLineCutByAFailedReadIsNotSent(t *testing.T) {
	broken := errors.New("broken")
	got, err := readAll(io.MultiReader(strings.NewReader("a\nhal"), iotest.ErrReader(broken)), 100)
	if err != broken || strings.Join(got, " ") != "a" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestLinesBelongToTheCaller(t *testing.T) {
	r := newLineReader(iotest.HalfReader(strings.NewReader(strings.Repeat("0123456789\n", 20_000))), 100)
	var kept [][]byte
	for {
		lines, err := r.next()
		kept = append(kept, lines...)
		if err != nil {
			break
		}
	}
	for i, l := range kept {
		if string(l) != "0123456789" {
			t.Fatalf("line %d became %q", i, l)
		}
	}
	if len(kept) != 20_000 {
		t.Errorf("%d lines", len(kept))
	}
}

func TestKeyed(t *testing.T) {
	for _, c := range []struct{ line, sep, key, value string }{
		{"a:b:c", ":", "a", "b:c"}, {"a::b", "::", "a", "b"}, {":b", ":", "", "b"}, {"b", ":", "<nil>", "b"}, {"a:b", "", "<nil>", "a:b"},
	} {
		k, v := keyed([]byte(c.line), []byte(c.sep))
		key := string(k)
		if k == nil {
			key = "<nil>"
		}
		if key != c.key || !bytes.Equal(v, []byte(c.value)) {
			t.Errorf("%q by %q: got %q, %q", c.line, c.sep, key, v)
		}
	}
}

func TestHeaderFlag(t *testing.T) {
	var h header
	if err := h.UnmarshalText([]byte("k=v=w")); err != nil || h != (header{"k", "v=w"}) {
		t.Errorf("got %v, %v", h, err)
	}
	for _, bad := range []string{"", "k", "=v"} {
		if h.UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
