// Package servers owns the servers of others that tests run against: versitygw for S3, fake-gcs-server for Google Cloud
// Storage, Azurite for Azure Blob, Valkey or Redis, and a relay before one. It starts each on a free loopback port with its data in a temporary
// directory, and skips the test where it is not installed (`make servers`, `make ci-tools`). It never talks to anything beyond this machine. Invariant: no
// server that it started outlives the test that asked for it.
package servers

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// patience bounds the wait for a server that starts; the machine may be busy.
const patience = time.Minute

// Credentials of the servers: S3's are ours to choose, Azurite's are its well-known ones.
const (
	AccessKey    = "levee"
	SecretKey    = "levee-secret"
	AzureAccount = "devstoreaccount1"
	AzureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// S3 starts versitygw with an empty bucket and returns its URL.
func S3(t testing.TB, bucket string) string {
	t.Helper()
	data := proc.Dir(t)
	if err := os.Mkdir(filepath.Join(data, bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	addr := start(t, find(t, "versitygw-*"), "/", func(addr, _ string) []string { return []string{"--port", addr, "--quiet", "posix", data} },
		"ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	return "http://" + addr
}

// GCS starts fake-gcs-server with an empty bucket and returns its URL.
func GCS(t testing.TB, bucket string) string {
	t.Helper()
	data := proc.Dir(t)
	if err := os.Mkdir(filepath.Join(data, bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	addr := start(t, find(t, "fake-gcs-server-*"), "/storage/v1/b", func(addr, port string) []string {
		return []string{
			"-backend", "filesystem", "-filesystem-root", data, "-scheme", "http", "-host", "127.0.0.1", "-port", port,
			"-public-host", addr, "-external-url", "http://" + addr, "-log-level", "error",
		}
	})
	return "http://" + addr
}

// Azure starts Azurite and returns the URL of its one account. It has no container yet.
func Azure(t testing.TB) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no Node.js")
	}
	data := proc.Dir(t)
	script := find(t, filepath.Join("azurite-*", "node_modules", "azurite", "dist", "src", "blob", "main.js"))
	addr := start(t, node, "/", func(_, port string) []string {
		return []string{
			script, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", data,
			"--silent", "--skipApiVersionCheck", "--disableTelemetry",
		}
	})
	return "http://" + addr + "/" + AzureAccount
}

// find returns what `make servers` installed under a name that ends in its version.
func find(t testing.TB, pattern string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test's directory")
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "bin", "servers", pattern))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("%s is not installed: run make servers", strings.Split(pattern, "*")[0])
	}
	return found[len(found)-1]
}

// start runs a server until the test's end and returns where it listens, once it answers a request for path at all. A
// port that was free may be taken when the server comes to it; then it is started once more on another.
func start(t testing.TB, command, path string, args func(addr, port string) []string, env ...string) string {
	t.Helper()
	var said string
	for range 3 {
		addr := FreePort(t)
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		s := &server{addr: addr, exited: make(chan struct{})}
		s.cmd = exec.Command(command, args(addr, port)...)
		s.cmd.Env = append(os.Environ(), env...)
		s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
		s.cmd.SysProcAttr = proc.DieWithParent()
		started := make(chan error, 1)
		go s.run(started)
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		if s.answers(path) {
			t.Cleanup(func() { s.stop(t) })
			return addr
		}
		s.kill()
		said = s.out.String()
	}
	t.Fatalf("%s does not answer; it printed:\n%s", filepath.Base(command), said)
	return ""
}

// FreePort returns a loopback address that was free a moment ago. It is below the ports that systems give to whoever asks for
// any: none of those that other tests get meanwhile is this one, however long it takes until it is used, or used again.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 20_000+rand.N(12_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

type server struct {
	addr   string
	cmd    *exec.Cmd
	out    bytes.Buffer // complete once exited is closed
	exited chan struct{}
}

// run starts the process and waits for its end, on one thread: the process dies with it.
func (s *server) run(started chan<- error) {
	runtime.LockOSThread()
	err := s.cmd.Start()
	started <- err
	if err == nil {
		_ = s.cmd.Wait() // it is killed in the end
	}
	close(s.exited)
}

// answers polls until the server answers, and reports whether it does before it ends or the patience does.
func (s *server) answers(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+path, nil)
		if err != nil {
			return false
		}
		if res, err := proc.HTTP.Do(req); err == nil {
			res.Body.Close()
			return true
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may be gone
	<-s.exited
}

func (s *server) stop(t testing.TB) {
	early := false
	select {
	case <-s.exited:
		early = true
	default:
	}
	s.kill()
	if early {
		t.Errorf("%s ended by itself (%v)", filepath.Base(s.cmd.Path), s.cmd.ProcessState)
	}
	if text := s.out.String(); t.Failed() && text != "" {
		t.Logf("the end of what %s printed:\n%s", filepath.Base(s.cmd.Path), text[max(0, len(text)-4<<10):])
	}
}
