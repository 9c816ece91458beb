package device

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FS is an ext4 file system on a loop device of its own. Its methods are for one goroutine at a time, and fail the test
// where something does not work.
type FS struct {
	Dir   string // where it is mounted
	Image string // the file with what is on the device

	t       testing.TB
	options string
	mounted bool
}

// Ext4 makes a file system of that many bytes, 8 MiB at least, and mounts it with the options given ("commit=1", …). The
// test's end unmounts it; processes that have files open in it must be gone by then.
func Ext4(t testing.TB, size int64, options ...string) *FS {
	t.Helper()
	need(t)
	dir := place(t)
	f := newFS(t, dir, filepath.Join(dir, "image"), options)
	f.format(size)
	f.Mount()
	return f
}

// newFS prepares to mount image, which need not exist yet, at data below dir.
func newFS(t testing.TB, dir, image string, options []string) *FS {
	t.Helper()
	f := &FS{Dir: filepath.Join(dir, "data"), Image: image, t: t, options: strings.Join(options, ",")}
	if err := os.Mkdir(f.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.letGo)
	return f
}

// format makes an empty file system on the image.
func (f *FS) format(size int64) {
	f.t.Helper()
	file, err := os.OpenFile(f.Image, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(file.Truncate(size), file.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	tool, err := mkfs()
	if err != nil {
		f.t.Fatal(err)
	}
	// Nothing may be left for the kernel to initialise later: that would be writes that no test asked for.
	out, err := exec.Command(tool, "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", f.Image).CombinedOutput()
	if err != nil {
		f.t.Fatalf("%s: %v\n%s", tool, err, out)
	}
}

// Mount mounts it again after Unmount or Cut: the kernel replays the journal.
func (f *FS) Mount() {
	f.t.Helper()
	if err := f.mount(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *FS) mount() error {
	dev, err := attach(f.Image)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.Mount(dev.Name(), f.Dir, "ext4", unix.MS_NOATIME, f.options); err != nil {
		return fmt.Errorf("mount %s: %w", f.Image, err)
	}
	f.mounted = true
	return nil
}

// Unmount unmounts it in good order. Nobody may have files open in it.
func (f *FS) Unmount() {
	f.t.Helper()
	if err := unix.Unmount(f.Dir, 0); err != nil {
		f.t.Fatalf("unmount %s: %v; open files: %q", f.Dir, err, users(f.Dir))
	}
	f.mounted = false
}

// Cut cuts the power: from now on every access fails, and what has not reached the device by now, though it may have
// been written or renamed long ago, is lost. Once everybody has closed their files, Unmount and Mount show what is left.
//
// A flush that is under way may report success all the same, and be lost: measured with Linux 6.18, 36 of 1,200 did, all
// of them after Cut had begun. So what is answered while it runs counts for nothing; stop processes first, or ignore them.
func (f *FS) Cut() {
	f.t.Helper()
	const (
		shutdown   = 0x8004587d // FS_IOC_SHUTDOWN
		noLogFlush = 2          // what is in memory of the journal stays there, too
	)
	dir, err := os.Open(f.Dir)
	if err != nil {
		f.t.Fatal(err)
	}
	defer dir.Close()
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		f.t.Fatalf("cut the power of %s: %v", f.Dir, errno)
	}
}

// Free returns how many bytes can still be written.
func (f *FS) Free() int64 {
	f.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(f.Dir, &st); err != nil {
		f.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// Fill fills the file system from outside until about leave bytes are free, and returns what gives the space back.
func (f *FS) Fill(leave int64) (free func()) {
	f.t.Helper()
	name := filepath.Join(f.Dir, "ballast")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	size, step := int64(0), int64(64<<20)
	for step >= 4096 { // others may be writing, too: take what there is
		n := min(step, f.Free()-leave)
		if n < 4096 {
			break
		}
		err := unix.Fallocate(int(file.Fd()), 0, size, n)
		switch {
		case err == nil:
			size += n
		case errors.Is(err, unix.ENOSPC):
			step = n / 2
		case !errors.Is(err, unix.EINTR):
			f.t.Fatal(err)
		}
	}
	return func() {
		f.t.Helper()
		if err := os.Remove(name); err != nil {
			f.t.Error(err)
		}
	}
}

// letGo unmounts it at the test's end, whatever has happened.
func (f *FS) letGo() {
	if !f.mounted {
		return
	}
	f.mounted = false
	err := unix.Unmount(f.Dir, 0)
	if err == nil {
		return
	}
	f.t.Errorf("unmount %s: %v; open files: %q", f.Dir, err, users(f.Dir))
	if err := unix.Unmount(f.Dir, unix.MNT_DETACH); err != nil {
		f.t.Errorf("unmount %s for when its last file is closed: %v", f.Dir, err)
	}
}

// users returns which processes have what open below dir.
func users(dir string) (list []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is good
	for _, link := range links {
		if file, err := os.Readlink(link); err == nil && strings.HasPrefix(file, dir) {
			list = append(list, link+" "+file)
		}
	}
	return list
}

// copySparse copies what there is of a file, without its holes, into a new file of the same size.
func copySparse(to string, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, start), io.NewSectionReader(from, start, end-start)); err != nil {
			return err
		}
		at = end
	}
}
