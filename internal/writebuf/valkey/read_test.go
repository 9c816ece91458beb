package valkey

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

// large is what a buffer holds here: entries that are worth a plain page, and in the middle some that are much larger.
func large() []writebuf.Entry {
	return slices.Concat(writebuftest.Frames(1, 60, 20<<10, "f"), writebuftest.Frames(61, 70, 300<<10, "f"), writebuftest.Frames(71, 120, 20<<10, "f"))
}

func largeBuffer(t *testing.T, srv *server, change ...func(*Config)) (st *Store, id writebuf.ID) {
	st, id = srv.open(change...), writebuftest.ID()
	want(t, "append", st.Buffer(id).Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: large()}), nil)
	return st, id
}

// readPages reads to the end, or to the first error, and checks that no page is larger than it may be.
func readPages(t *testing.T, b writebuf.Buffer, from uint64) ([]writebuf.Entry, error) {
	t.Helper()
	const most = 256 << 10
	var got []writebuf.Entry
	for {
		page, err := b.Read(t.Context(), from, writebuf.Limit{Bytes: most})
		if err != nil || len(page) == 0 {
			return got, err
		}
		size := 0
		for _, e := range page {
			size += len(e.Frame)
		}
		if size > most && len(page) > 1 {
			t.Errorf("a page of %d entries has %d bytes", len(page), size)
		}
		got = append(got, page...)
		from = page[len(page)-1].Seq + 1
	}
}

func wantEntries(t *testing.T, got, want []writebuf.Entry) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b writebuf.Entry) bool { return a.Seq == b.Seq && bytes.Equal(a.Frame, b.Frame) }) {
		t.Errorf("%d entries that are not the %d that were appended", len(got), len(want))
	}
}

// transactions is how many the server has run.
func transactions(srv *server) (n int) {
	_, stats, _ := strings.Cut(srv.do("INFO", "commandstats"), "cmdstat_exec:")
	fmt.Sscanf(stats, "calls=%d,", &n)
	return n
}

// TestPlainPages: large entries are read in transactions, whatever their sizes do, and come back as they were.
func TestPlainPages(t *testing.T) {
	srv := start(t)
	st, id := largeBuffer(t, srv)
	b, before := st.Buffer(id), transactions(srv)
	got, err := readPages(t, b, 1)
	want(t, "read", err, nil)
	wantEntries(t, got, large())
	if transactions(srv) == before || b.(*buffer).barred.Load() {
		t.Error("no page was read in a transaction")
	}
}

// TestPlainPageRefused: where a transaction is not to be had, the script gives the same entries.
func TestPlainPageRefused(t *testing.T) {
	srv := start(t)
	t.Run("no permission", func(t *testing.T) {
		for _, denied := range []string{"multi", "exec"} {
			srv.do("ACL", "SETUSER", "no"+denied, "on", ">pw", "~levee:*", "+@all", "-"+denied)
			st, id := largeBuffer(t, srv, func(c *Config) { c.Username, c.Password = "no"+denied, "pw" })
			b := st.Buffer(id)
			got, err := readPages(t, b, 1)
			want(t, "read without "+denied, err, nil)
			wantEntries(t, got, large())
			if !b.(*buffer).barred.Load() {
				t.Errorf("without %s, transactions are tried again and again", denied)
			}
		}
	})
	t.Run("no script", func(t *testing.T) {
		st, id := largeBuffer(t, srv)
		srv.do("SCRIPT", "FLUSH")
		got, err := readPages(t, st.Buffer(id), 1)
		want(t, "read", err, nil)
		wantEntries(t, got, large())
	})
}

// TestPlainPageErrors: what is wrong with the entries, or with the server, shows in a plain page as it does in any other.
func TestPlainPageErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(srv *server, stream, record string)
		from uint64
		want error
		good int // entries that are read before
	}{
		{"a hole", func(srv *server, stream, _ string) { srv.do("XDEL", stream, "40-0") }, 11, writebuf.ErrMissing, 29},
		{"a hole at the end", func(srv *server, stream, _ string) { srv.do("XDEL", stream, "119-0", "120-0") }, 11, writebuf.ErrMissing, 108},
		{"the stream is gone", func(srv *server, stream, _ string) { srv.do("DEL", stream) }, 11, writebuf.ErrMissing, 0},
		{"trimmed", func(srv *server, stream, record string) {
			srv.do("XTRIM", stream, "MINID", "30")
			srv.do("SET", record, "1 30 120")
		}, 11, writebuf.ErrTrimmed, 0},
		{"forgotten", func(srv *server, _, record string) { srv.do("DEL", record) }, 11, writebuf.ErrForgotten, 0},
		{"another record", func(srv *server, _, record string) { srv.do("SET", record, "what is this") }, 11, writebuf.ErrForeign, 0},
		{"another entry", func(srv *server, stream, _ string) { srv.do("XADD", stream, "121-1", "f", "x") }, 100, writebuf.ErrForeign, 21},
		{"another field", func(srv *server, stream, _ string) { srv.do("XADD", stream, "121-0", "g", "x") }, 100, writebuf.ErrForeign, 21},
		{"not a stream", func(srv *server, stream, _ string) {
			srv.do("DEL", stream)
			srv.do("SET", stream, "x")
		}, 11, writebuf.ErrForeign, 0},
		{"a replica", func(srv *server, _, _ string) { srv.do("REPLICAOF", "127.0.0.1", "1") }, 11, writebuf.ErrReadOnly, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := start(t)
			st, id := largeBuffer(t, srv)
			b := st.Buffer(id)
			want(t, "record the generation", b.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: large()[119:]}), nil)
			before := transactions(srv)
			_, err := b.Read(t.Context(), 1, writebuf.Limit{Entries: 10}) // the next page is a plain one
			want(t, "the page before", err, nil)
			c.harm(srv, b.(*buffer).keys[0], b.(*buffer).keys[1])
			got, err := readPages(t, b, c.from)
			if !errors.Is(err, c.want) || len(got) > c.good {
				t.Errorf("%d entries, %v; want at most %d, then %v", len(got), err, c.good, c.want)
			}
			if transactions(srv) == before {
				t.Error("no page was read in a transaction")
			}
		})
	}
}
