package valkey

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

var (
	want  = writebuftest.Want
	batch = writebuftest.Batch
	holds = writebuftest.Holds
)

func wantLost(t *testing.T, err error, next uint64, reset bool) {
	t.Helper()
	var lost *writebuf.LostError
	if !errors.As(err, &lost) || lost.Next != next || lost.Reset != reset {
		t.Errorf("%v, want lost, next %d, reset %v", err, next, reset)
	}
}

func wantMissing(t *testing.T, b writebuf.Buffer, from, first, last uint64) {
	t.Helper()
	got, err := b.Read(t.Context(), from, writebuf.Limit{})
	if err == nil && len(got) > 0 {
		_, err = b.Read(t.Context(), from+uint64(len(got)), writebuf.Limit{})
	}
	var missing *writebuf.MissingError
	if !errors.As(err, &missing) || missing.Missing[0] != (writebuf.Range{First: first, Last: last}) {
		t.Errorf("%v, want [%d, %d] missing", err, first, last)
	}
	if s, err := b.Bounds(t.Context()); err != nil || s.Whole() {
		t.Errorf("bounds: %+v, %v: whole", s, err)
	}
}

// untilOK makes the same append until it is confirmed, as the log does, and returns what it met on the way.
func untilOK(t *testing.T, b writebuf.Buffer, entries writebuf.Batch) (met []error) {
	t.Helper()
	await(t, "an append to be confirmed", func() bool {
		err := b.Append(t.Context(), entries)
		if err != nil {
			met = append(met, err)
			if !errors.Is(err, writebuf.ErrOutcomeUnknown) && !errors.Is(err, writebuf.ErrUnavailable) && !errors.Is(err, writebuf.ErrUnconfirmed) {
				t.Fatal(err)
			}
		}
		return err == nil
	})
	return met
}

// TestServerKilled: a server that is killed while it is appended to, and comes back with what it has on disk, holds what
// was confirmed; and the appends in doubt can be made again.
func TestServerKilled(t *testing.T) {
	srv := start(t, "--appendonly", "yes", "--appendfsync", "always")
	b := srv.open().Buffer(writebuftest.ID())
	last, met := uint64(0), 0
	for range 4 {
		killed := make(chan struct{})
		tick := time.AfterFunc(20*time.Millisecond, func() { defer close(killed); srv.cmd.Process.Signal(syscall.SIGKILL) })
		defer tick.Stop()
		for {
			next := batch(1, 1, last+1, last+10)
			err := b.Append(t.Context(), next)
			if err != nil {
				if !errors.Is(err, writebuf.ErrOutcomeUnknown) && !errors.Is(err, writebuf.ErrUnavailable) {
					t.Errorf("append to a killed server: %v", err)
				}
				<-killed
				srv.kill()
				srv.run()
				met += len(untilOK(t, b, next)) + 1
				last += 10
				break
			}
			last += 10
		}
	}
	t.Logf("%d entries, %d failures", last, met)
	holds(t, b, 1, last)
}

// cutter is a connection that breaks at a chosen place of what is sent: everything before it arrives.
type cutter struct {
	net.Conn
	at   []byte
	cuts *atomic.Int32 // how many times to break yet
	mute bool          // break the way back instead, once at was sent
	sent atomic.Bool
}

func (c *cutter) Write(p []byte) (int, error) {
	i := bytes.Index(p, c.at)
	if i < 0 || c.cuts.Load() <= 0 {
		return c.Conn.Write(p)
	}
	c.cuts.Add(-1)
	if c.mute {
		c.sent.Store(true)
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:i])
	if err == nil {
		c.Conn.(*net.TCPConn).CloseWrite()
		err = errors.New("cut")
	}
	return n, err
}

func (c *cutter) Read(p []byte) (int, error) {
	if c.sent.Load() {
		c.Conn.Read(p) // the answer is there, and is lost
		c.Conn.Close()
		return 0, errors.New("cut")
	}
	return c.Conn.Read(p)
}

func cutting(at string, mute bool) (*atomic.Int32, func(*Config)) {
	cuts := &atomic.Int32{}
	return cuts, func(c *Config) {
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return &cutter{Conn: conn, at: []byte(at), cuts: cuts, mute: mute}, err
		}
	}
}

// TestCutBeforeWait: the append arrives, the WAIT behind it does not. It is never confirmed by a WAIT on the connection
// that comes next.
func TestCutBeforeWait(t *testing.T) {
	srv := start(t)
	srv.replica()
	cuts, dial := cutting("*3\r\n$4\r\nWAIT\r\n", false)
	b := srv.open(replicas(1), dial).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	cuts.Store(1)
	want(t, "append that is cut", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrOutcomeUnknown)
	srv.await("the append to have arrived", func() bool { s, err := b.Bounds(t.Context()); return err == nil && s.End == 9 })
	want(t, "the same again", b.Append(t.Context(), batch(1, 1, 6, 9)), nil)
	holds(t, b, 1, 9)
}

// TestCutAnswer: the answer is lost.
func TestCutAnswer(t *testing.T) {
	srv := start(t)
	cuts, dial := cutting("EVALSHA", true)
	b := srv.open(dial).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	for i := range uint64(5) {
		cuts.Store(1)
		want(t, "append without an answer", b.Append(t.Context(), batch(1, 1, 6+i, 6+i)), writebuf.ErrOutcomeUnknown)
		want(t, "the same again", b.Append(t.Context(), batch(1, 1, 6+i, 6+i)), nil)
	}
	holds(t, b, 1, 10)
}

// TestClientKilled: the server ends the connection while the append waits for a replica.
func TestClientKilled(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	b := srv.open(replicas(1), func(c *Config) { c.Timeout = 10 * time.Second }).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	r.cmd.Process.Signal(syscall.SIGSTOP)
	failed := make(chan error, 1)
	go func() { failed <- b.Append(t.Context(), batch(1, 1, 6, 9)) }()
	srv.await("the append to wait", func() bool { return strings.Contains(srv.do("CLIENT", "LIST"), "cmd=wait") })
	srv.do("CLIENT", "KILL", "TYPE", "normal")
	want(t, "append", <-failed, writebuf.ErrOutcomeUnknown)
	r.cmd.Process.Signal(syscall.SIGCONT)
	untilOK(t, b, batch(1, 1, 6, 9))
	holds(t, b, 1, 9)
}

// TestReplicaGone: too few replicas is no confirmation, neither of the append nor of the same one on a new connection.
func TestReplicaGone(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	brief := func(c *Config) { c.Timeout = time.Second }
	b := srv.open(replicas(1), brief).Buffer(writebuftest.ID())
	untilOK(t, b, batch(1, 1, 1, 5))
	r.cmd.Process.Signal(syscall.SIGSTOP)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrUnconfirmed)
	other := srv.open(replicas(1), brief).Buffer(b.(*buffer).id)
	want(t, "the same on a new connection", other.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrUnconfirmed)
	_, err := other.Fence(t.Context(), 2)
	want(t, "fence", err, writebuf.ErrUnconfirmed)
	want(t, "append by the old owner", b.Append(t.Context(), batch(1, 1, 10, 10)), writebuf.ErrFenced)
	r.cmd.Process.Signal(syscall.SIGCONT)
	untilOK(t, other, batch(2, 1, 6, 10))
	r.kill()
	want(t, "append", other.Append(t.Context(), batch(2, 1, 11, 12)), writebuf.ErrUnconfirmed)
	two := srv.open(replicas(2), brief).Buffer(b.(*buffer).id)
	srv.replica()
	want(t, "one of two replicas", two.Append(t.Context(), batch(2, 1, 11, 12)), writebuf.ErrUnconfirmed)
	untilOK(t, other, batch(2, 1, 11, 12))
	holds(t, b, 1, 12)
}

// TestWaitRefused: a WAIT that is answered with an error confirms nothing.
func TestWaitRefused(t *testing.T) {
	srv := start(t)
	srv.replica()
	srv.do("ACL", "SETUSER", "nowait", "on", ">pw", "~levee:*", "+@all", "-wait")
	b := srv.open(replicas(1), func(c *Config) { c.Username, c.Password = "nowait", "pw" }).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), writebuf.ErrUnconfirmed)
	want(t, "trim, which waits for nobody", b.Trim(t.Context(), 1, 2), nil)
}

// TestAgainWrites: an append that adds nothing writes all the same, so that newer servers, which count replicas from the
// connection's last write, wait for what the first one added.
func TestAgainWrites(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	id := writebuftest.ID()
	want(t, "append", srv.open(replicas(1)).Buffer(id).Append(t.Context(), batch(1, 1, 1, 5)), nil)
	for range 3 {
		r.do("CONFIG", "RESETSTAT")
		want(t, "append again", srv.open(replicas(1)).Buffer(id).Append(t.Context(), batch(1, 1, 2, 5)), nil)
		if stats := r.do("INFO", "commandstats"); !strings.Contains(stats, "cmdstat_set:calls=1,") {
			t.Errorf("the replica got no write:\n%s", stats)
		}
	}
}

// TestServerSlow: an answer that does not come in time is of unknown outcome, and does not hold anybody longer.
func TestServerSlow(t *testing.T) {
	srv := start(t)
	st := srv.open(func(c *Config) { c.Timeout = 100 * time.Millisecond })
	b := st.Buffer(writebuftest.ID())
	untilOK(t, b, batch(1, 1, 1, 5)) // the time is short for a slow machine, too
	srv.cmd.Process.Signal(syscall.SIGSTOP)
	begin := time.Now()
	want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrOutcomeUnknown)
	_, err := b.Read(t.Context(), 1, writebuf.Limit{})
	want(t, "read", err, writebuf.ErrUnavailable)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	srv.cmd.Process.Signal(syscall.SIGCONT)
	untilOK(t, b, batch(1, 1, 6, 9))
	holds(t, srv.open().Buffer(b.(*buffer).id), 1, 9)
}

// TestClosedWhileSubmitting: every batch is answered, those that never left the queue too.
func TestClosedWhileSubmitting(t *testing.T) {
	srv := start(t)
	for range 5 {
		st := srv.open(func(c *Config) { c.Timeout = 50 * time.Millisecond })
		b := st.Buffer(writebuftest.ID())
		srv.cmd.Process.Signal(syscall.SIGSTOP)
		var open atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := range uint64(200) {
					open.Add(1)
					b.Submit(t.Context(), batch(1, 1, i+1, i+1), func(error) { open.Add(-1) })
				}
			})
		}
		want(t, "close", st.Close(), nil)
		all.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d batches were not answered", n)
		}
		srv.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// TestQueuedBehindTheEnd: a call that gets into the queue of a lane that has just ended is answered.
func TestQueuedBehindTheEnd(t *testing.T) {
	l := newLane(nil, nil)
	close(l.ended)
	for range 100 { // select takes either way
		c := newCall(trimScript, false)
		answered := false
		c.then = func() { answered = true }
		l.put(t.Context(), c)
		if !answered || !errors.Is(c.err, writebuf.ErrClosed) {
			t.Fatalf("answered %v, %v", answered, c.err)
		}
	}
}

// TestDemoted: a primary that becomes a replica is left, and whoever has its address then is used.
func TestDemoted(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	var target atomic.Value
	target.Store(srv.addr)
	b := srv.open(func(c *Config) {
		c.Dial = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", target.Load().(string))
		}
	}).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	r.await("the replica to have it", func() bool { return r.do("XLEN", b.(*buffer).keys[0]) == "5" })
	target.Store(r.addr)
	r.do("REPLICAOF", "NO", "ONE")
	_, port, _ := net.SplitHostPort(r.addr)
	srv.do("REPLICAOF", "127.0.0.1", port)
	want(t, "append on the old connection", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrReadOnly)
	want(t, "append on the next one", b.Append(t.Context(), batch(1, 1, 6, 9)), nil)
	if n := r.do("XLEN", b.(*buffer).keys[0]); n != "9" {
		t.Errorf("the new primary has %s entries, want 9", n)
	}
}

// breaker is a connection that breaks after a number of bytes, either way.
type breaker struct {
	net.Conn
	left atomic.Int64
}

func (c *breaker) pass(p []byte, to func([]byte) (int, error)) (int, error) {
	if c.left.Load() <= 0 {
		c.Conn.Close()
	}
	n, err := to(p[:min(len(p), int(max(c.left.Load(), 1)))])
	c.left.Add(-int64(n))
	if err == nil && n < len(p) {
		err = errors.New("broken")
		c.Conn.Close()
	}
	return n, err
}

func (c *breaker) Write(p []byte) (int, error) { return c.pass(p, c.Conn.Write) }

func (c *breaker) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left.Add(-int64(n)) <= 0 {
		c.Conn.Close()
		return 0, errors.New("broken")
	}
	return n, err
}

const breakEntries = 1800

// TestBreaks: connections that break anywhere, under many partitions. What is confirmed is there, once and in order.
func TestBreaks(t *testing.T) { inBothManners(t, breaks) }

func breaks(t *testing.T, srv *server) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd, broken := rand.New(rand.NewPCG(seed, 1)), 0
	var mu sync.Mutex
	st := srv.open(func(c *Config) {
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			mu.Lock()
			defer mu.Unlock()
			broken++
			b := &breaker{Conn: conn}
			b.left.Store(7_000 + rnd.Int64N(20_000)) // the scripts' text is some of it
			return b, err
		}
	})
	var all sync.WaitGroup
	ids := make([]writebuf.ID, 6)
	for i := range ids {
		ids[i] = writebuftest.ID()
		all.Go(func() {
			b, confirmed := st.Buffer(ids[i]), uint64(0)
			for tries := 0; confirmed < breakEntries && tries < 20_000; tries++ {
				err := b.Append(t.Context(), batch(1, 1, confirmed+1, confirmed+6))
				if err == nil {
					confirmed += 6
				} else if !errors.Is(err, writebuf.ErrOutcomeUnknown) && !errors.Is(err, writebuf.ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d connections", broken)
	for _, id := range ids {
		holds(t, srv.open().Buffer(id), 1, breakEntries)
	}
}

// TestServerAway: a store opens without its server, and works once that is there.
func TestServerAway(t *testing.T) {
	srv := start(t)
	srv.kill()
	b := srv.open().Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), writebuf.ErrUnavailable)
	_, err := b.Bounds(t.Context())
	want(t, "bounds", err, writebuf.ErrUnavailable)
	srv.run()
	untilOK(t, b, batch(1, 1, 1, 5))
	holds(t, b, 1, 5)
}

// TestWiped: entries that the server loses while it runs.
func TestWiped(t *testing.T) {
	srv := start(t)
	st := srv.open()
	fresh := func() (writebuf.Buffer, string, string) {
		id := writebuftest.ID()
		b := st.Buffer(id)
		want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 20)), nil)
		s, g := keysOf(st, id)
		return b, s, g
	}
	t.Run("DEL", func(t *testing.T) {
		b, s, _ := fresh()
		srv.do("DEL", s)
		wantMissing(t, b, 5, 5, 20)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
		want(t, "reset", b.Reset(t.Context(), 1), nil)
		want(t, "append from the floor", b.Append(t.Context(), batch(1, 1, 1, 22)), nil)
		holds(t, b, 1, 22)
	})
	t.Run("XDEL", func(t *testing.T) {
		b, s, _ := fresh()
		srv.do("XDEL", s, "7-0", "8-0", "12-0")
		wantMissing(t, b, 1, 7, 8)
		wantMissing(t, b, 9, 12, 12)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
	})
	t.Run("XDEL of the last", func(t *testing.T) {
		b, s, _ := fresh()
		srv.do("XDEL", s, "20-0")
		wantMissing(t, b, 1, 20, 20)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 20, 22)), 1, true)
	})
	t.Run("XTRIM", func(t *testing.T) {
		b, s, _ := fresh()
		srv.do("XTRIM", s, "MINID", "4")
		wantMissing(t, b, 1, 1, 3)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
	})
	t.Run("the record alone", func(t *testing.T) {
		b, _, g := fresh()
		srv.do("DEL", g)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
		before, err := b.Fence(t.Context(), 2)
		if err != nil || before.Known || before.Whole() || before.End != 20 {
			t.Errorf("fence: %+v, %v; want an unknown owner of 20 entries", before, err)
		}
	})
	t.Run("FLUSHALL", func(t *testing.T) {
		b, _, _ := fresh()
		srv.do("FLUSHALL")
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
		before, err := b.Fence(t.Context(), 2)
		if err != nil || before != (writebuf.State{}) {
			t.Errorf("fence: %+v, %v; want that nothing is known", before, err)
		}
		want(t, "append from the floor", b.Append(t.Context(), batch(2, 1, 1, 22)), nil)
		holds(t, b, 1, 22)
	})
	t.Run("SCRIPT FLUSH", func(t *testing.T) {
		b, _, _ := fresh()
		srv.do("SCRIPT", "FLUSH")
		holds(t, b, 1, 20)
		want(t, "append", b.Append(t.Context(), batch(1, 1, 21, 30)), nil)
		holds(t, b, 1, 30)
	})
}

// TestFull: a server that evicts nothing says that it is full, takes nothing by halves, and lets fence and trim.
func TestFull(t *testing.T) {
	srv := start(t, "--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
	b := srv.open().Buffer(writebuftest.ID())
	last := uint64(0)
	var err error
	for err == nil && last < 1000 {
		next := writebuf.Batch{Generation: 1, Floor: 1, Entries: writebuftest.Frames(last+1, last+4, 50_000, "f")}
		if err = b.Append(t.Context(), next); err == nil {
			last += 4
		}
	}
	want(t, "append", err, writebuf.ErrFull)
	if fault.KindOf(err) != fault.NoSpace || last < 8 {
		t.Errorf("full after %d: %v", last, fault.KindOf(err))
	}
	s, err := b.Bounds(t.Context())
	if err != nil || !s.Whole() || s.Last != last {
		t.Errorf("bounds: %+v, %v; want last %d", s, err, last)
	}
	want(t, "the same append again", b.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: writebuftest.Frames(last-3, last, 50_000, "f")}), nil)
	_, err = b.Fence(t.Context(), 2)
	want(t, "fence", err, nil)
	want(t, "trim", b.Trim(t.Context(), 2, last-4), nil)
	want(t, "append after the trim", b.Append(t.Context(), writebuf.Batch{Generation: 2, Floor: last - 4, Entries: writebuftest.Frames(last+1, last+4, 50_000, "f")}), nil)
}

// TestEvicted: a server that throws keys away is found out, whichever of the two it took.
func TestEvicted(t *testing.T) {
	srv := start(t, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru")
	st := srv.open()
	id := writebuftest.ID()
	b := st.Buffer(id)
	want(t, "append", b.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: writebuftest.Frames(1, 20, 50_000, "f")}), nil)
	stream, record := keysOf(st, id)
	for i := 0; srv.do("EXISTS", stream) == "1"; i++ {
		if i > 5000 {
			t.Fatal("the stream is not evicted")
		}
		srv.do("SET", fmt.Sprint("filler-", i), strings.Repeat("x", 50_000))
	}
	if srv.do("EXISTS", record) == "1" {
		wantMissing(t, b, 1, 1, 20)
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
	} else {
		wantLost(t, b.Append(t.Context(), batch(1, 1, 21, 22)), 1, true)
		if before, err := b.Fence(t.Context(), 2); err != nil || before.Known {
			t.Errorf("fence: %+v, %v", before, err)
		}
	}
}

// TestStaleReplica: a replica that missed the last entries becomes the primary. What it misses is not reported as there,
// also where it missed as many trims, so that its stream is as long as it ought to be.
func TestStaleReplica(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	id := writebuftest.ID()
	old := srv.open(replicas(1)).Buffer(id)
	want(t, "append", old.Append(t.Context(), batch(1, 1, 1, 10)), nil)
	r.do("REPLICAOF", "NO", "ONE")
	old = srv.open().Buffer(id)
	want(t, "append", old.Append(t.Context(), batch(1, 1, 11, 20)), nil)
	want(t, "trim", old.Trim(t.Context(), 1, 11), nil)

	b := r.open().Buffer(id)
	holds(t, b, 1, 10)
	wantLost(t, b.Append(t.Context(), batch(1, 11, 21, 22)), 11, false)
	want(t, "append what is missing", b.Append(t.Context(), batch(1, 11, 11, 22)), nil)
	holds(t, b, 1, 22)
}

// TestTakeover: an owner that goes on while another one fences it confirms nothing that the new owner does not find.
func TestTakeover(t *testing.T) {
	srv := start(t)
	for range 20 {
		id := writebuftest.ID()
		old, b := srv.open().Buffer(id), srv.open().Buffer(id)
		var confirmed atomic.Uint64
		var stopped sync.WaitGroup
		stopped.Go(func() {
			for {
				first := confirmed.Load() + 1
				if err := old.Append(t.Context(), batch(1, 1, first, first+2)); err != nil {
					want(t, "append by the old owner", err, writebuf.ErrFenced)
					return
				}
				if confirmed.Add(3) > 30_000 {
					t.Error("the old owner goes on")
					return
				}
			}
		})
		await(t, "the old owner to append", func() bool { return confirmed.Load() > 9 })
		before, err := b.Fence(t.Context(), 2)
		want(t, "fence", err, nil)
		stopped.Wait()
		if before.Last != confirmed.Load() || !before.Whole() {
			t.Errorf("%d were confirmed, the new owner found %+v", confirmed.Load(), before)
		}
		holds(t, b, 1, before.Last)
	}
}

// TestRefused: each answer that says no is told from the others, and from an unknown outcome.
func TestRefused(t *testing.T) {
	srv := start(t)
	st := srv.open()
	append1 := func(st *Store) error { return st.Buffer(writebuftest.ID()).Append(t.Context(), batch(1, 1, 1, 2)) }

	t.Run("wrong type", func(t *testing.T) {
		for i, value := range []string{"text", "1 2"} {
			id := writebuftest.ID()
			stream, record := keysOf(st, id)
			srv.do("SET", []string{stream, record}[i], value)
			want(t, "append", st.Buffer(id).Append(t.Context(), batch(1, 1, 1, 2)), writebuf.ErrForeign)
			_, err := st.Buffer(id).Read(t.Context(), 1, writebuf.Limit{})
			want(t, "read", err, writebuf.ErrForeign)
		}
		id := writebuftest.ID()
		stream, _ := keysOf(st, id)
		srv.do("XADD", stream, "3-1", "f", "x")
		_, err := st.Buffer(id).Read(t.Context(), 1, writebuf.Limit{})
		want(t, "read a foreign entry", err, writebuf.ErrForeign)
	})
	t.Run("read only", func(t *testing.T) {
		want(t, "append to a replica", append1(srv.replica().open()), writebuf.ErrReadOnly)
	})
	t.Run("too few replicas of its own", func(t *testing.T) {
		srv.do("CONFIG", "SET", "min-replicas-to-write", "3")
		want(t, "append", append1(st), writebuf.ErrReadOnly)
		srv.do("CONFIG", "SET", "min-replicas-to-write", "0")
	})
	t.Run("no permission", func(t *testing.T) {
		srv.do("ACL", "SETUSER", "some", "on", ">pw", "~levee:*", "+@all", "-xadd")
		srv.do("ACL", "SETUSER", "none", "on", ">pw", "~levee:*", "+@all", "-evalsha", "-eval")
		srv.do("ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all")
		srv.do("ACL", "SETUSER", "good", "on", ">pw", "~levee:*", "-@all", "+evalsha", "+eval", "+get", "+set", "+xlen", "+xadd", "+xrange", "+xrevrange", "+xtrim", "+unlink", "+wait", "+hello", "+client", "+select", "+ping")
		as := func(name, password string) func(*Config) {
			return func(c *Config) { c.Username, c.Password = name, password }
		}
		for _, name := range []string{"some", "none", "elsewhere"} {
			want(t, "append as "+name, append1(srv.open(as(name, "pw"))), writebuf.ErrDenied)
		}
		want(t, "append with a wrong password", append1(srv.open(as("good", "no"))), writebuf.ErrDenied)
		b := srv.open(as("good", "pw")).Buffer(writebuftest.ID())
		want(t, "append with just the rights that are needed", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
		want(t, "trim", b.Trim(t.Context(), 1, 3), nil)
		holds(t, b, 3, 5)
		_, err := b.Fence(t.Context(), 3)
		want(t, "fence", err, nil)
		want(t, "delete", b.Delete(t.Context(), 3), nil)
	})
	t.Run("no password", func(t *testing.T) {
		closed := start(t, "--requirepass", "secret")
		want(t, "append", append1(closed.open()), writebuf.ErrDenied)
		want(t, "append", append1(closed.open(func(c *Config) { c.Password = "secret"; c.Database = 3 })), nil)
	})
}
