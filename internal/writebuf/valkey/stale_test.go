package valkey

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
	"github.com/leveemq/levee/test/servers"
	"github.com/valkey-io/valkey-go"
)

// redirect is where connections go, whatever address they are for: as with a name or an address that moves.
type redirect struct{ to atomic.Value }

func (r *redirect) dial(c *Config) {
	c.Dial = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", r.to.Load().(string))
	}
}

// TestReadFromDemoted: a connection to a server that has become a replica, and may lack what the primary has, answers no
// question.
func TestReadFromDemoted(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	var at redirect
	at.to.Store(srv.addr)
	b := srv.open(at.dial).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	holds(t, b, 1, 5)
	r.await("the replica to have it", func() bool { return r.do("XLEN", b.(*buffer).keys[0]) == "5" })
	at.to.Store(r.addr)
	r.do("REPLICAOF", "NO", "ONE")
	want(t, "append by another", r.open().Buffer(b.(*buffer).id).Append(t.Context(), batch(1, 1, 6, 9)), nil)
	srv.do("REPLICAOF", "127.0.0.1", "1") // of nobody: it does not catch up
	holds(t, b, 1, 9)
}

// TestForgotten: a server that has not seen what this buffer wrote is not asked what there is: it lost it, or is another
// one. An empty answer would be taken for the end.
func TestForgotten(t *testing.T) {
	srv, other := start(t), start(t)
	var at redirect
	for name, forget := range map[string]func(){
		"flushed":        func() { srv.do("FLUSHALL") },
		"another server": func() { at.to.Store(other.addr); srv.do("CLIENT", "KILL", "TYPE", "normal") },
	} {
		t.Run(name, func(t *testing.T) {
			at.to.Store(srv.addr)
			b := srv.open(at.dial).Buffer(writebuftest.ID())
			_, err := b.Fence(t.Context(), 3)
			want(t, "fence", err, nil)
			want(t, "append", b.Append(t.Context(), batch(3, 1, 1, 5)), nil)
			holds(t, b, 1, 5)
			forget()
			_, err = b.Read(t.Context(), 3, writebuf.Limit{})
			want(t, "read", err, writebuf.ErrForgotten)
			_, err = b.Bounds(t.Context())
			want(t, "bounds", err, writebuf.ErrForgotten)
			_, err = b.Fence(t.Context(), 3)
			if errors.Is(err, writebuf.ErrOutcomeUnknown) {
				_, err = b.Fence(t.Context(), 3)
			}
			want(t, "fence", err, nil)
			if got, err := b.Read(t.Context(), 1, writebuf.Limit{}); err != nil || len(got) != 0 {
				t.Errorf("read after it was fenced again: %d, %v", len(got), err)
			}
		})
	}
}

// TestClusterFailover: a node of a cluster dies, and its replica takes over.
func TestClusterFailover(t *testing.T) {
	a, b := nodes(t)
	_, bus, _ := net.SplitHostPort(servers.FreePort(t))
	r := start(t, "--cluster-enabled", "yes", "--cluster-port", bus)
	_, port, _ := net.SplitHostPort(r.addr)
	a.do("CLUSTER", "MEET", "127.0.0.1", port, bus)
	id := b.do("CLUSTER", "MYID")
	r.await("the replica to know its primary", func() bool { return strings.Contains(r.do("CLUSTER", "NODES"), id) })
	r.do("CLUSTER", "REPLICATE", id)
	r.await("the replica to follow", func() bool { return strings.Contains(r.do("INFO", "replication"), "master_link_status:up") })
	st := a.open(inCluster)
	key := writebuftest.ID()
	for st.Buffer(key).(*buffer).slot < 8192 {
		key.Partition++
	}
	buf := st.Buffer(key).(*buffer)
	want(t, "append", buf.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	holds(t, buf, 1, 5)
	_, old, _ := net.SplitHostPort(b.addr)
	r.await("the replica to have what its primary has, and to know it", func() bool {
		return strings.Contains(r.do("CLUSTER", "SLOTS"), old) && ownOffset(r) == ownOffset(b)
	})
	b.kill()
	r.do("CLUSTER", "FAILOVER", "TAKEOVER")
	a.await("the cluster to know", func() bool { return strings.Contains(a.do("CLUSTER", "SLOTS"), port) })
	met := untilOK(t, buf, batch(1, 1, 6, 9))
	t.Logf("%d failures until the new owner was found", len(met))
	holds(t, buf, 1, 9)
	if _, err := st.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
}

// ownOffset returns how far a server's replication is.
func ownOffset(s *server) string {
	for line := range strings.Lines(s.do("INFO", "replication")) {
		for _, name := range []string{"slave_repl_offset:", "master_repl_offset:"} {
			if v, ok := strings.CutPrefix(line, name); ok {
				return v
			}
		}
	}
	return ""
}

// deaf is a connection on which the news of a failover is not understood.
type deaf struct{ net.Conn }

func (c deaf) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if i := bytes.Index(p[:n], []byte("+switch-master\r\n$")); i >= 0 && bytes.Contains(p[:i], []byte("message")) {
		p[i+1] = 'S'
	}
	return n, err
}

// TestSentinelSilent: a failover that the sentinels decide on and of which no news comes, with the old primary alive, is
// found out.
func TestSentinelSilent(t *testing.T) {
	primary := start(t)
	replica := primary.replica()
	_, port, _ := net.SplitHostPort(primary.addr)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	conf := fmt.Sprintf("sentinel monitor m 127.0.0.1 %s 1\nsentinel down-after-milliseconds m 3000\nsentinel failover-timeout m 3000\n", port)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	guard := &server{t: t, dir: t.TempDir(), addr: servers.FreePort(t), conf: file}
	guard.run()
	t.Cleanup(guard.kill)
	guard.await("the sentinel to know the replica", func() bool { return strings.Contains(guard.do("SENTINEL", "MASTERS"), "num-slaves\n1") })
	buf := guard.open(func(c *Config) {
		c.Mode, c.MasterSet = Sentinel, "m"
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return deaf{conn}, err
		}
	}).Buffer(writebuftest.ID())
	want(t, "append", buf.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	replica.await("the replica to have it", func() bool { return replica.do("XLEN", buf.(*buffer).keys[0]) == "5" })
	guard.await("the failover to begin", func() bool {
		answer, err := guard.try("SENTINEL", "FAILOVER", "m")
		return err == nil && answer == "OK"
	})
	primary.await("the old primary to follow", func() bool {
		info, err := primary.try("INFO", "replication") // it closes connections as it turns
		return err == nil && strings.Contains(info, "role:slave")
	})
	met := 0
	await(t, "an append to the new primary", func() bool {
		err := buf.Append(t.Context(), batch(1, 1, 6, 9))
		if err != nil {
			met++
		}
		return err == nil
	})
	t.Logf("%d failures until the new primary was found", met)
	holds(t, buf, 1, 9)
}

// TestManyQuestions: reads that wait for their turn do not run out of time before they are sent.
func TestManyQuestions(t *testing.T) {
	srv := start(t)
	const lag = 100 * time.Millisecond
	b := srv.open(func(c *Config) {
		c.Timeout = 5 * lag // a question may take twice that, and the last one waits for longer
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return &late{Conn: conn, by: lag}, err
		}
	}).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	var all sync.WaitGroup
	var failed atomic.Int64
	for range 20 * questions {
		all.Go(func() {
			if _, err := b.Bounds(t.Context()); err != nil && failed.Add(1) == 1 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d questions failed", n, 20*questions)
	}
}

// late is a connection whose answers take a while.
type late struct {
	net.Conn
	by time.Duration
}

func (c *late) Read(p []byte) (int, error) {
	<-time.After(c.by)
	return c.Conn.Read(p)
}

// TestOlderAnswers: servers before 7.0 put errors of what a script calls into an error of the script.
func TestOlderAnswers(t *testing.T) {
	for text, means := range map[string]error{
		"Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.":                                             writebuf.ErrFull,
		"Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.": writebuf.ErrReadOnly,
		"Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Errors writing to the AOF file: No space left on device":                                     writebuf.ErrReadOnly,
		"Error running script (call to f_1): @user_script:9: @user_script: 9: -NOREPLICAS Not enough good replicas to write.":                                                       writebuf.ErrReadOnly,
		"Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't write against a read only replica.":                                               writebuf.ErrReadOnly,
		"Error running script (call to f_1): @user_script:9: WRONGTYPE Operation against a key holding the wrong kind of value":                                                     writebuf.ErrForeign,
		"Error running script (call to f_1): @user_script:9: @user_script: 9: Script attempted to access a non local key in a cluster node":                                         writebuf.ErrRefused,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. script: 1, on @user_script:9.":                                            writebuf.ErrReadOnly,
		"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)":                                                                              writebuf.ErrRefused,
	} {
		if got := sentinelOf(answered(t, text), writebuf.ErrOutcomeUnknown); got != means {
			t.Errorf("%s: %v, want %v", text, got, means)
		}
	}
}

// TestDemotedWhileWaiting: who waited on a primary that became a replica is not told that its append counts, and the
// connection, which the server closes, is not used again.
func TestDemotedWhileWaiting(t *testing.T) {
	srv := start(t)
	r := srv.replica()
	b := srv.open(replicas(1), func(c *Config) { c.Timeout = 10 * time.Second }).Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	r.cmd.Process.Signal(syscall.SIGSTOP)
	failed := make(chan error, 1)
	go func() { failed <- b.Append(t.Context(), batch(1, 1, 6, 9)) }()
	srv.await("the append to wait", func() bool { return strings.Contains(srv.do("CLIENT", "LIST"), "cmd=wait") })
	srv.do("REPLICAOF", "127.0.0.1", "1")
	if err := <-failed; !errors.Is(err, writebuf.ErrUnconfirmed) && !errors.Is(err, writebuf.ErrOutcomeUnknown) {
		t.Errorf("append: %v", err)
	}
	want(t, "append to a replica", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrReadOnly)
	r.cmd.Process.Signal(syscall.SIGCONT)
}

// answered returns an error that a server answers with, as the library reads it.
func answered(t *testing.T, text string) error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r := bufio.NewReader(conn)
		for {
			args, err := servers.Answer(r)
			if err != nil {
				return
			}
			answer := "-ERR " + text
			switch name, _, _ := strings.Cut(args, "\n"); name {
			case "HELLO":
				answer = "%2\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n$5\r\nproto\r\n:3"
			case "CLIENT":
				answer = "+OK"
			}
			if _, err := fmt.Fprintf(conn, "%s\r\n", answer); err != nil {
				return
			}
		}
	}()
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{ln.Addr().String()}, DisableRetry: true, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return client.Do(t.Context(), client.B().Ping().Build()).Error()
}
