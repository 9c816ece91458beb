package valkey

import (
	"testing"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

// TestTransactions: large appends go as transactions and small ones as scripts, as a store decides by itself, and a replica
// has to confirm both.
func TestTransactions(t *testing.T) {
	srv := start(t)
	srv.replica()
	id := writebuftest.ID()
	b := openAt(t, srv.addr, replicas(1)).Buffer(id)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 1)), nil) // the first of a generation is a script
	for _, c := range []struct {
		name           string
		batch          writebuf.Batch
		in, first, end uint64
	}{
		{name: "small", batch: batch(1, 1, 2, 9)},
		{name: "large", batch: writebuf.Batch{Generation: 1, Floor: 1, Entries: writebuftest.Frames(10, 29, 4<<10, "f")}, in: 1},
		{name: "one", batch: writebuf.Batch{Generation: 1, Floor: 2, Entries: writebuftest.Frames(30, 30, 1<<20, "f")}, in: 1},
		{name: "again", batch: writebuf.Batch{Generation: 1, Floor: 2, Entries: writebuftest.Frames(30, 30, 1<<20, "f")}, in: 1},
	} {
		before := transactions(srv)
		want(t, c.name, b.Append(t.Context(), c.batch), nil)
		if got := transactions(srv) - before; got != int(c.in) {
			t.Errorf("%s: %d transactions, want %d", c.name, got, c.in)
		}
	}
	wantEntriesOf(t, b, 1, 30)
}

// wantEntriesOf checks that a buffer has entries first to last, and what the server keeps beside them.
func wantEntriesOf(t *testing.T, b writebuf.Buffer, first, last uint64) {
	t.Helper()
	got, err := readPages(t, b, first)
	want(t, "read", err, nil)
	if len(got) != int(last-first+1) {
		t.Errorf("%d entries, want %d to %d", len(got), first, last)
	}
	if s, err := b.Bounds(t.Context()); err != nil || !s.Whole() || s.First != first || s.Last != last {
		t.Errorf("bounds: %+v, %v; want %d to %d", s, err, first, last)
	}
}

// TestTransactionsRefused: where transactions, or what one needs, are not to be had, appends are scripts, and it is not tried
// with each of them.
func TestTransactionsRefused(t *testing.T) {
	srv := start(t)
	for _, denied := range []string{"multi", "exec", "rename"} {
		t.Run(denied, func(t *testing.T) {
			srv.do("ACL", "SETUSER", "no"+denied, "on", ">pw", "~levee:*", "+@all", "-"+denied)
			b := srv.openFor(t, func(c *Config) { c.Username, c.Password, c.Connections = "no"+denied, "pw", 1 }).Buffer(writebuftest.ID())
			want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
			want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 9)), nil)
			before := transactions(srv)
			for seq := uint64(10); seq < 20; seq++ {
				want(t, "append", b.Append(t.Context(), batch(1, 1, seq, seq)), nil)
			}
			if n := transactions(srv) - before; n != 0 {
				t.Errorf("%d transactions were tried", n)
			}
			holds(t, b, 1, 19)
		})
	}
	t.Run("for a while", func(t *testing.T) {
		b := srv.openFor(t, func(c *Config) { c.Connections = 1 }).Buffer(writebuftest.ID())
		want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 1)), nil)
		srv.do("SCRIPT", "FLUSH")
		seq := uint64(2)
		before := transactions(srv)
		for ; seq < 10; seq++ {
			want(t, "append", b.Append(t.Context(), batch(1, 1, seq, seq)), nil)
		}
		if n := transactions(srv) - before; n > 2 { // what was tried, and what loading tries
			t.Errorf("%d transactions were tried", n)
		}
		before = transactions(srv)
		for ; seq < 2*transactionRest; seq++ {
			want(t, "append", b.Append(t.Context(), batch(1, 1, seq, seq)), nil)
		}
		if transactions(srv) == before {
			t.Error("transactions were given up for good")
		}
		holds(t, b, 1, seq-1)
	})
}

// TestLeftAside: what stands aside where a transaction was none, and was cut, gets its name back by whatever comes next.
func TestLeftAside(t *testing.T) {
	srv := start(t)
	for _, c := range []struct {
		name  string
		do    func(b writebuf.Buffer) error
		first uint64 // that is there afterwards; 0: nothing
	}{
		{"append", func(b writebuf.Buffer) error { return b.Append(t.Context(), batch(1, 1, 6, 9)) }, 1},
		{"fence", func(b writebuf.Buffer) error { _, err := b.Fence(t.Context(), 1); return err }, 1},
		{"read", func(b writebuf.Buffer) error { _, err := b.Read(t.Context(), 1, writebuf.Limit{}); return err }, 1},
		{"bounds", func(b writebuf.Buffer) error { _, err := b.Bounds(t.Context()); return err }, 1},
		{"trim", func(b writebuf.Buffer) error { return b.Trim(t.Context(), 1, 3) }, 3},
		{"reset", func(b writebuf.Buffer) error { return b.Reset(t.Context(), 1) }, 0},
		{"delete", func(b writebuf.Buffer) error { return b.Delete(t.Context(), 1) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, id := srv.openFor(t), writebuftest.ID()
			b := st.Buffer(id)
			want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
			stream, _ := keysOf(st, id)
			aside := stream[:len(stream)-1] + "t"
			srv.do("RENAME", stream, aside)
			want(t, c.name, c.do(b), nil)
			if srv.do("EXISTS", aside) != "0" {
				t.Error("it still stands aside")
			}
			if c.first == 0 {
				if srv.do("EXISTS", stream) != "0" {
					t.Error("the stream is there")
				}
				return
			}
			if s, err := b.Bounds(t.Context()); err != nil || !s.Whole() || s.First != c.first {
				t.Errorf("bounds: %+v, %v", s, err)
			}
		})
	}
	t.Run("with more than the record says", func(t *testing.T) {
		st, id := srv.openFor(t), writebuftest.ID()
		b := st.Buffer(id)
		want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
		stream, _ := keysOf(st, id)
		srv.do("XADD", stream, "6-0", "f", "x")
		srv.do("RENAME", stream, stream[:len(stream)-1]+"t")
		wantLost(t, b.Append(t.Context(), batch(1, 1, 6, 9)), 1, true)
	})
}

// TestEntryRefusedWithin: a stream that refuses an entry in the middle of a transaction leaves the record as it was.
func TestEntryRefusedWithin(t *testing.T) {
	srv := start(t)
	st, id := srv.open(), writebuftest.ID()
	b := st.Buffer(id)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	stream, record := keysOf(st, id)
	srv.do("XSETID", stream, "7-0")
	wantLost(t, b.Append(t.Context(), batch(1, 1, 6, 9)), 1, true)
	if got := srv.do("GET", record); got != "1 1 5" {
		t.Errorf("the record says %q", got)
	}
	want(t, "reset", b.Reset(t.Context(), 1), nil)
	want(t, "append from the floor", b.Append(t.Context(), batch(1, 1, 1, 9)), nil)
	holds(t, b, 1, 9)
}
