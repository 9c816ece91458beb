package valkey

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/test/servers"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a real server of the test's own.
type server struct {
	t    testing.TB
	dir  string
	addr string
	args []string
	conf string // of a sentinel; else ""
	cmd  *exec.Cmd

	scripted bool // see open
}

// start runs a server that keeps nothing, unless args say otherwise, until the test ends.
func start(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), addr: servers.FreePort(t), args: args}
	s.run()
	t.Cleanup(s.kill)
	return s
}

func (s *server) run() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	args := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
		"--repl-ping-replica-period", "1", "--logfile", filepath.Join(s.dir, "log"),
	}, s.args...)
	if s.conf != "" {
		args = []string{s.conf, "--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--sentinel"}
	}
	s.cmd = exec.Command(servers.RedisProgram(s.t), args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.await("the server to answer", func() bool {
		answer, err := s.try("PING")
		return answer == "PONG" || err != nil && strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

// kill ends the server at once, as a crash does.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.cmd = nil
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func (s *server) await(what string, ok func() bool) { s.t.Helper(); await(s.t, what, ok) }

// do sends one command past everything that is tested and returns its answer.
func (s *server) do(args ...string) string {
	s.t.Helper()
	answer, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

func (s *server) try(args ...string) (string, error) { return servers.AskRedis(s.addr, args...) }

// open returns a store on the server, which appends in transactions unless s is scripted: that is asked where it must be.
func (s *server) open(change ...func(*Config)) *Store {
	s.t.Helper()
	return s.openFor(s.t, change...)
}

func (s *server) openFor(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	st := openAt(t, s.addr, change...)
	if !s.scripted {
		st.large = 1
	}
	return st
}

// inBothManners runs a test with a server whose stores append in transactions, and with one that only has scripts.
func inBothManners(t *testing.T, test func(t *testing.T, srv *server), args ...string) {
	for _, scripted := range []bool{false, true} {
		name := "transactions"
		if scripted {
			name = "scripts"
		}
		t.Run(name, func(t *testing.T) {
			srv := start(t, args...)
			srv.scripted = scripted
			test(t, srv)
		})
	}
}

func openAt(t testing.TB, addr string, change ...func(*Config)) *Store {
	t.Helper()
	// What is to succeed has a time that a slow machine does not use up; what is to run out of it has one of its own.
	cfg := Config{Addresses: []string{addr}, Timeout: 3 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	st, err := Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func replicas(n int) func(*Config) { return func(c *Config) { c.Replicas = n } }

// keysOf returns the stream's key and the record's.
func keysOf(s *Store, id writebuf.ID) (stream, record string) {
	b := s.Buffer(id).(*buffer)
	return b.keys[0], b.keys[1]
}

// replica starts a server that follows s, and waits until it does.
func (s *server) replica() *server {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	r := start(s.t, "--replicaof", "127.0.0.1 "+port)
	r.await("the replica to follow", func() bool { return strings.Contains(r.do("INFO", "replication"), "master_link_status:up") })
	st := s.open(replicas(1))
	defer st.Close()
	b := st.Buffer(writebuf.ID{Partition: 1 << 31})
	s.await("the replica to confirm", func() bool { _, err := b.Fence(s.t.Context(), 1); return err == nil })
	return r
}
