package device

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Disk is an ext4 file system whose device is served from this process, so that it can do what disks do at their worst.
// Besides the methods of FS, all methods are safe for concurrent use and have their effect at once. What the file system
// was told to write reaches the disk when the kernel writes it back, at the latest with a flush.
type Disk struct {
	*FS

	size int64
	file *os.File      // what is on the device
	log  *blockLog     // nil: nothing is written down
	gone chan struct{} // closed when the test ends: nothing waits any longer

	flush sync.Mutex // held while a flush is under way: a disk does one at a time

	mu sync.Mutex
	// Guarded by mu.
	failWrite   func(off int64, data []byte) bool
	failFlushes int
	delay       time.Duration
	hang        chan struct{} // nil: flushes do not hang
	counts      DiskCounts
}

// DiskCounts says what has reached a disk, and how much of that it failed.
type DiskCounts struct {
	Writes, FailedWrites   int
	Flushes, FailedFlushes int
	Waiting                int // flushes that hang, or are delayed, right now
}

// NewDisk makes a file system of that many bytes, 8 MiB at least, on a disk of its own. The test's end takes it down;
// processes that have files open in it must be gone by then.
func NewDisk(t testing.TB, size int64, options ...string) *Disk {
	t.Helper()
	return newDisk(t, size, false, options)
}

func newDisk(t testing.TB, size int64, record bool, options []string) *Disk {
	t.Helper()
	need(t, "/dev/fuse")
	dir := place(t)
	d := &Disk{size: size, gone: make(chan struct{})}
	served := filepath.Join(dir, "disk")
	if err := os.Mkdir(served, 0o700); err != nil {
		t.Fatal(err)
	}
	content := filepath.Join(dir, "image")
	(&FS{t: t, Image: content}).format(size)
	var err error
	if d.file, err = os.OpenFile(content, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.file.Close() })
	if record {
		d.log = newBlockLog(t, dir, d.file)
	}
	long := time.Hour // nobody but the kernel uses it
	server, err := fs.Mount(served, &root{disk: d}, &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "levee-disk", Name: "levee", MaxWrite: 512 << 10, DisableXAttrs: true},
	})
	if err != nil {
		t.Fatalf("serve a disk: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Errorf("take the disk down: %v", err)
		}
	})
	d.FS = newFS(t, dir, filepath.Join(served, "disk"), options)
	t.Cleanup(d.heal) // before it is unmounted
	d.Mount()
	return d
}

// heal ends every fault, for good.
func (d *Disk) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.gone)
	d.failWrite, d.failFlushes, d.delay = nil, 0, 0
}

// FailWrites fails every write for which match returns true with EIO, and leaves what was there before; nil fails none
// any more. off is the place on the disk; data is valid until match returns, and holds one or more whole sectors, so that
// match finds the writes of a file by what that file is known to hold.
func (d *Disk) FailWrites(match func(off int64, data []byte) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failWrite = match
}

// FailFlush fails the next n flushes with EIO; the writes before them have arrived all the same. 0 fails none any more.
func (d *Disk) FailFlush(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failFlushes = n
}

// DelayFlush makes every flush that begins from now on take at least that long.
func (d *Disk) DelayFlush(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = by
}

// HangFlush makes flushes that begin from now on hang until release, which may be called more than once.
func (d *Disk) HangFlush() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hang := make(chan struct{})
	d.hang = hang
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(hang)
		if d.hang == hang {
			d.hang = nil
		}
	})
}

// Counts returns what has reached the disk by now.
func (d *Disk) Counts() DiskCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// write is a write of the kernel.
func (d *Disk) write(data []byte, off int64) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock() // all the way: the log has the order in which they arrive
	d.counts.Writes++
	if d.failWrite != nil && d.failWrite(off, data) {
		d.counts.FailedWrites++
		return syscall.EIO
	}
	if d.log != nil {
		if err := d.log.write(off, data); err != nil {
			return errno(err)
		}
	}
	_, err := d.file.WriteAt(data, off)
	return errno(err)
}

// sync is a flush of the kernel.
func (d *Disk) sync() syscall.Errno {
	d.flush.Lock()
	defer d.flush.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Flushes++
	at := Barrier{Issued: time.Now()}
	if d.log != nil {
		at.writes = len(d.log.writes)
	}
	d.counts.Waiting++
	d.wait(d.delay, d.hang)
	d.counts.Waiting--
	if d.failFlushes > 0 {
		d.failFlushes--
		d.counts.FailedFlushes++
		return syscall.EIO
	}
	if d.log != nil {
		d.log.barriers = append(d.log.barriers, at)
	}
	return 0
}

// wait waits with mu released.
func (d *Disk) wait(delay time.Duration, hang chan struct{}) {
	if delay <= 0 && hang == nil {
		return
	}
	d.mu.Unlock()
	defer d.mu.Lock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.gone:
		}
	}
	if hang != nil {
		select {
		case <-hang:
		case <-d.gone:
		}
	}
}

// errno makes of an error what the kernel is told.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &no):
		return no
	default:
		return syscall.EIO
	}
}

// root is the directory in which the disk is a file.
type root struct {
	fs.Inode
	disk *Disk
}

var _ fs.NodeOnAdder = (*root)(nil)

// OnAdd puts the file there.
func (r *root) OnAdd(ctx context.Context) {
	r.AddChild("disk", r.NewPersistentInode(ctx, &blocks{disk: r.disk}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

// blocks is the disk as a file.
type blocks struct {
	fs.Inode
	disk *Disk
}

var (
	_ fs.NodeGetattrer = (*blocks)(nil)
	_ fs.NodeOpener    = (*blocks)(nil)
	_ fs.NodeReader    = (*blocks)(nil)
	_ fs.NodeWriter    = (*blocks)(nil)
	_ fs.NodeFsyncer   = (*blocks)(nil)
)

func (b *blocks) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o600, uint64(b.disk.size)
	return 0
}

// Open has every read and write come here: a cache in between would be one that tests know nothing of.
func (b *blocks) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (b *blocks) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n := min(int64(len(dest)), max(0, b.disk.size-off))
	_, err := b.disk.file.ReadAt(dest[:n], off)
	return fuse.ReadResultData(dest[:n]), errno(err)
}

func (b *blocks) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if no := b.disk.write(data, off); no != 0 {
		return 0, no
	}
	return uint32(len(data)), 0
}

func (b *blocks) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return b.disk.sync() }
