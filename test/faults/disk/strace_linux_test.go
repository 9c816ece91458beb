package disk

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// tracer is a strace that makes system calls of a broker on one file fail or wait.
type tracer struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  string
	done chan struct{}
}

// straceOr skips a test where there is no strace, or it may not trace.
func straceOr(t *testing.T) {
	t.Helper()
	if err := exec.Command("strace", "-qq", "-e", "trace=none", "true").Run(); err != nil {
		t.Skipf("needs strace that may trace (package strace): %v", err)
	}
}

// inject makes calls of the running broker on one file do what how says: "fdatasync:error=EIO". It returns
// once every thread is under its control. The test's end ends it.
func inject(s *site, file string, calls, how string) *tracer {
	s.t.Helper()
	tr := &tracer{t: s.t, out: filepath.Join(proc.Dir(s.t), "calls"), done: make(chan struct{})}
	tr.cmd = exec.Command("strace", "-f", "-qq", "-e", "signal=none", "-p", fmt.Sprint(s.b.PID()), "-P", file,
		"-e", "trace="+calls, "-e", "inject="+how, "-o", tr.out)
	tr.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the broker goes on without it then
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // it dies with the thread that started it
		err := tr.cmd.Start()
		started <- err
		if err == nil {
			_ = tr.cmd.Wait()
		}
		close(tr.done)
	}()
	if err := <-started; err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(tr.end)
	s.await("traced", func() bool { return traced(s.b.PID()) })
	return tr
}

// traced reports whether every thread of a process has a tracer.
func traced(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)) // the pattern is good
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(text), "TracerPid:\t0\n") {
			return false
		}
	}
	return len(threads) > 0
}

// end lets the broker go. It may be called more than once.
func (tr *tracer) end() {
	tr.t.Helper()
	_ = tr.cmd.Process.Signal(syscall.SIGINT) // it may have ended with the broker
	patience := time.NewTimer(2 * time.Second)
	defer patience.Stop()
	select {
	case <-tr.done:
		return
	case <-patience.C:
	}
	_ = tr.cmd.Process.Kill() // it waits with a thread of a broker that has ended
	<-tr.done
}

// over reports whether a process has ended, but perhaps for the one thread that a tracer holds on to: its first
// thread is a zombie then, or is the one held and alone.
func over(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	_, state, _ := strings.Cut(string(text), ") ") // behind the name
	return strings.HasPrefix(state, "Z") || err == nil && len(threads) == 1
}

// calls returns the calls that were traced so far.
func (tr *tracer) calls() (list []string) {
	tr.t.Helper()
	f, err := os.Open(tr.out)
	if err != nil {
		tr.t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.Contains(sc.Text(), "(") {
			list = append(list, sc.Text())
		}
	}
	return list
}
