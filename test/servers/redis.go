package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// Redis is a Valkey or Redis server that keeps nothing on disk, unless its arguments say otherwise: one that was away comes
// back empty. Its methods are for the test's goroutine.
type Redis struct {
	Addr string
	*program

	chosen []string // arguments
}

// StartRedis starts a server until the test's end: the one that LEVEE_REDIS_SERVER names, or what PATH has. It skips the
// test where there is none.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	addr := FreePort(t)
	r := startRedis(t, addr, append([]string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)...)
	r.chosen = args
	return r
}

func startRedis(t testing.TB, addr string, args ...string) *Redis {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &Redis{Addr: addr}
	r.program = launch(&program{
		t: t, addr: addr, command: RedisProgram(t), args: append(args, "--port", port, "--bind", "127.0.0.1", "--dir", proc.Dir(t)),
		ready: func(s *server) bool {
			return s.await(func() bool { answer, err := r.Try("PING"); return err == nil && answer == "PONG" })
		},
	})
	return r
}

// RedisProgram returns the program of a Valkey or Redis server: the one that LEVEE_REDIS_SERVER names, or what PATH has. It
// skips the test where there is none.
func RedisProgram(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("LEVEE_REDIS_SERVER"); p != "" {
		return p
	}
	for _, name := range []string{"valkey-server", "redis-server"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	t.Skip("neither valkey-server nor redis-server is in PATH, and LEVEE_REDIS_SERVER names none")
	return ""
}

// await polls until something holds, and reports whether it does before the server ends or the patience does.
func (s *server) await(holds func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-s.exited:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Kill ends the server as a crash does.
func (r *Redis) Kill() { r.t.Helper(); r.stop() }

// Start brings it back, with what it has on disk.
func (r *Redis) Start() { r.t.Helper(); r.start() }

// Pause stops the process, which goes on with Continue: until then it answers nothing.
func (r *Redis) Pause()    { r.t.Helper(); r.signal(syscall.SIGSTOP) }
func (r *Redis) Continue() { r.t.Helper(); r.signal(syscall.SIGCONT) }

func (r *Redis) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.at.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// Replica starts a server that follows this one, and waits until it does.
func (r *Redis) Replica() *Redis {
	r.t.Helper()
	_, port, _ := net.SplitHostPort(r.Addr)
	replica := StartRedis(r.t, append(slices.Clone(r.chosen), "--replicaof", "127.0.0.1 "+port)...)
	replica.Await("the replica to follow", func() bool {
		return strings.Contains(replica.Do("INFO", "replication"), "master_link_status:up")
	})
	return replica
}

// Sentinel starts a sentinel that watches this server under a name, and puts a replica in its place soon after it is gone.
func (r *Redis) Sentinel(name string) *Redis {
	r.t.Helper()
	_, port, _ := net.SplitHostPort(r.Addr)
	conf := filepath.Join(proc.Dir(r.t), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s 1\nsentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 1000\n", name, port, name, name)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	s := startRedis(r.t, FreePort(r.t), conf, "--sentinel")
	s.knowsReplica(name)
	return s
}

// Watch makes a sentinel watch another server under a name that it knows, with that one's replicas: by itself it would hear
// of a new replica after ten seconds.
func (r *Redis) Watch(other *Redis, name string) {
	r.t.Helper()
	host, port, _ := net.SplitHostPort(other.Addr)
	r.Do("SENTINEL", "REMOVE", name)
	r.Do("SENTINEL", "MONITOR", name, host, port, "1")
	r.Do("SENTINEL", "SET", name, "down-after-milliseconds", "500", "failover-timeout", "1000")
	r.knowsReplica(name)
}

func (r *Redis) knowsReplica(name string) {
	r.t.Helper()
	r.Await("the sentinel to know the replica", func() bool {
		return strings.Contains(r.Do("SENTINEL", "MASTER", name), "num-slaves\n1\n")
	})
}

// Await waits until something holds.
func (r *Redis) Await(what string, holds func() bool) {
	r.t.Helper()
	if !r.at.await(holds) {
		r.t.Fatalf("waited %v for %s", patience, what)
	}
}

// Do sends a command and returns its answer; of a list, its elements in lines.
func (r *Redis) Do(args ...string) string {
	r.t.Helper()
	answer, err := r.Try(args...)
	if err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// Try is Do for a command that may fail.
func (r *Redis) Try(args ...string) (string, error) { return AskRedis(r.Addr, args...) }

// AskRedis sends a command to a server at an address, on a connection of its own, and returns its answer; of a list, its
// elements in lines.
func AskRedis(addr string, args ...string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second) // whoever is there answers at once: only a stalled machine takes long
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	command := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		command = fmt.Appendf(command, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := c.Write(command); err != nil {
		return "", err
	}
	return Answer(bufio.NewReader(c))
}

// Answer reads one answer in the protocol of Redis, or a command, which is a list; of a list, its elements in lines.
func Answer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", io.ErrUnexpectedEOF
	}
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '-':
		return "", errors.New(line[1:])
	case '$':
		if n < 0 {
			return "", nil
		}
		b := make([]byte, n+2)
		_, err := io.ReadFull(r, b)
		return string(b[:n]), err
	case '*':
		var lines strings.Builder
		for range n {
			one, err := Answer(r)
			if err != nil {
				return "", err
			}
			lines.WriteString(one + "\n")
		}
		return lines.String(), nil
	}
	return line[1:], nil
}
