package servers

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// program is a server that can be away for a while, and comes back where it was. Its methods are for the test's goroutine.
type program struct {
	t       testing.TB
	addr    string
	command string
	args    []string
	env     []string
	ready   func(*server) bool // waits until it answers; false: it ended, or the patience did
	at      *server            // nil while it is away
}

// launch starts a program until the test's end.
func launch(p *program) *program {
	p.t.Helper()
	p.start()
	p.t.Cleanup(func() {
		if p.at != nil {
			p.at.stop(p.t)
		}
	})
	return p
}

// start starts it where it was. Its port may have gone to somebody else for a moment.
func (p *program) start() {
	p.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		at := &server{addr: p.addr, exited: make(chan struct{})}
		at.cmd = exec.Command(p.command, p.args...)
		at.cmd.Env = append(os.Environ(), p.env...)
		at.cmd.Stdout, at.cmd.Stderr = &at.out, &at.out
		at.cmd.SysProcAttr = proc.DieWithParent()
		started := make(chan error, 1)
		go at.run(started)
		if err := <-started; err != nil {
			p.t.Fatal(err)
		}
		if p.ready(at) {
			p.at = at
			return
		}
		at.kill()
		select {
		case <-tick.C:
		case <-deadline.C:
			p.t.Fatalf("%s does not come up at %s; it printed:\n%s", filepath.Base(p.command), p.addr, at.out.String())
		}
	}
}

// stop ends it as a crash would. What is sent to it is refused then.
func (p *program) stop() {
	p.t.Helper()
	p.at.stop(p.t)
	p.at = nil
	if conn, err := net.Dial("tcp", p.addr); err == nil {
		_ = conn.Close()
		p.t.Fatalf("something else answers at %s", p.addr)
	}
}

// S3Server is versitygw with one bucket.
type S3Server struct {
	URL  string
	Data string // where its objects are files
	*program
}

// StartS3 is S3 with a server that can be away.
func StartS3(t testing.TB, bucket string) *S3Server {
	t.Helper()
	data, addr := proc.Dir(t), FreePort(t)
	if err := os.Mkdir(filepath.Join(data, bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	return &S3Server{"http://" + addr, filepath.Join(data, bucket), launch(&program{
		t: t, addr: addr, command: find(t, "versitygw-*"), args: []string{"--port", addr, "--quiet", "posix", data},
		env:   []string{"ROOT_ACCESS_KEY=" + AccessKey, "ROOT_SECRET_KEY=" + SecretKey},
		ready: func(s *server) bool { return s.answers("/") },
	})}
}

// Kill ends the server; what it has is on its disk.
func (s *S3Server) Kill() { s.t.Helper(); s.stop() }

// Start brings it back.
func (s *S3Server) Start() { s.t.Helper(); s.start() }
