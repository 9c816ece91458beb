package device

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	isolated = "LEVEE_DEVICE_NAMESPACE" // in the environment of a process that has a mount namespace of its own
	bootID   = "/proc/sys/kernel/random/boot_id"
)

var errNoMain = errors.New("TestMain must go through device.Main")

// noNamespace says why this process has no mount namespace of its own; nil: it has one.
var noNamespace = errNoMain

// Main is the frame of a TestMain: it runs the test binary once more, in a mount namespace of its own, and returns the
// exit code of that. In there it calls run. Where that cannot be done it calls run at once, and tests that need devices
// are skipped.
func Main(run func() int) int {
	if os.Getenv(isolated) != "" {
		noNamespace = nil
		return run()
	}
	runtime.LockOSThread() // the child dies with the thread that started it
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		noNamespace = fmt.Errorf("needs root, to have a mount namespace of its own: %w", err)
		return run()
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	default: // a signal
		fmt.Fprintln(os.Stderr, "the tests:", err)
		return 2
	}
}

// need skips a test where it cannot have devices.
func need(t testing.TB, files ...string) {
	t.Helper()
	switch {
	case errors.Is(noNamespace, errNoMain):
		t.Fatal(noNamespace)
	case noNamespace != nil:
		t.Skip(noNamespace)
	}
	for _, name := range append(files, "/dev/loop-control") {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("needs %s: %v", name, err)
		}
		_ = f.Close()
	}
	if _, err := mkfs(); err != nil {
		t.Skipf("needs mkfs.ext4 (package e2fsprogs): %v", err)
	}
}

// mkfs returns where mkfs.ext4 is. An ordinary search path does not lead to where it usually is.
func mkfs() (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, "mkfs.ext4"); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return exec.LookPath("mkfs.ext4")
}

// place returns a new directory for a device's files. The test's end removes it, unless the test has failed.
func place(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "levee-device-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the devices are kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Boot is the machine's boot id in the eyes of this process and those that it starts: whoever asks whether the machine
// was restarted will find that it was. Tests that have one must not run in parallel.
type Boot struct {
	t    testing.TB
	file string
}

// NewBoot gives the machine another boot id until the test's end.
func NewBoot(t testing.TB) *Boot {
	t.Helper()
	need(t)
	b := &Boot{t: t, file: filepath.Join(place(t), "boot_id")}
	b.Again()
	if err := unix.Mount(b.file, bootID, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("give the machine another boot id: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bootID, 0); err != nil {
			t.Errorf("give the machine its boot id back: %v", err)
		}
	})
	return b
}

// Again gives the machine yet another boot id.
func (b *Boot) Again() {
	b.t.Helper()
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	text := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if err := os.WriteFile(b.file, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}
