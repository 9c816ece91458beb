package device

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Recorder is a disk that writes down every write and flush, so that the file system can be shown as a power loss would
// have left it.
type Recorder struct {
	*Disk
	ram  string // a directory in memory: flushing there is free
	play *os.File
	done int // writes of the log that are in play
}

// Barrier is a flush that succeeded: everything that was written before it was issued is safe once it is done.
type Barrier struct {
	Issued time.Time
	writes int // how many had arrived before
}

// blockLog is what has reached a disk. Whoever uses it holds the disk's lock.
type blockLog struct {
	base     string   // the disk as it was before the first write
	data     *os.File // what was written, one after the other
	end      int64    // of data
	writes   []blockWrite
	barriers []Barrier
}

type blockWrite struct{ off, at, size int64 } // at: where it is in data

func newBlockLog(t testing.TB, dir string, disk *os.File) *blockLog {
	t.Helper()
	l := &blockLog{base: filepath.Join(dir, "base")}
	err := copySparse(l.base, disk)
	if err == nil {
		l.data, err = os.Create(filepath.Join(dir, "writes"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.data.Close() })
	return l
}

func (l *blockLog) write(off int64, data []byte) error {
	if _, err := l.data.WriteAt(data, l.end); err != nil {
		return err
	}
	l.writes = append(l.writes, blockWrite{off, l.end, int64(len(data))})
	l.end += int64(len(data))
	return nil
}

// Record makes a file system of that many bytes, 8 MiB at least, on a disk that writes down what reaches it from the
// first mount on.
func Record(t testing.TB, size int64, options ...string) *Recorder {
	t.Helper()
	r := &Recorder{Disk: newDisk(t, size, true, options)}
	r.ram = filepath.Join(place(t), "ram")
	err := os.Mkdir(r.ram, 0o700)
	if err == nil {
		err = unix.Mount("levee-images", r.ram, "tmpfs", 0, "mode=700")
	}
	if err != nil {
		t.Fatalf("a directory in memory: %v", err)
	}
	t.Cleanup(func() {
		if r.play != nil {
			_ = r.play.Close()
		}
		if err := unix.Unmount(r.ram, 0); err != nil {
			t.Errorf("unmount %s: %v", r.ram, err)
		}
	})
	return r
}

// Barriers returns the flushes that have succeeded by now.
func (r *Recorder) Barriers() []Barrier {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Barrier(nil), r.log.barriers...)
}

// Replay returns the file system, mounted, as a power loss at barrier i leaves it. Without cache the disk has everything
// that arrived before the flush was issued, and nothing else. With cache the power went while that flush was under way:
// what arrived before barrier i-1 is there, and of what arrived between the two every block of 4 KiB is there or is not,
// as cache draws. Ascending points are the fastest. Release it before the next.
func (r *Recorder) Replay(i int, cache *rand.Rand) *FS {
	r.t.Helper()
	p := r.point(i, cache)
	dir, err := os.MkdirTemp(r.ram, "point-")
	if err != nil {
		r.t.Fatal(err)
	}
	f := newFS(r.t, dir, filepath.Join(dir, "image"), []string{r.options})
	if err := r.build(f.Image, p); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil && r.t.Failed() {
			r.keep(p)
		}
	})
	if err := f.mount(); err != nil {
		r.t.Fatalf("barrier %d of %d: what a power loss leaves cannot be mounted: %v", i, len(r.Barriers()), err)
	}
	return f
}

// point is a moment at which the power goes.
type point struct {
	barrier   int
	safe, end int    // how many writes are there for certain, and how many may be
	seed      uint64 // of what is drawn for those in between
}

func (r *Recorder) point(i int, cache *rand.Rand) point {
	barriers := r.Barriers()
	p := point{barrier: i, safe: barriers[i].writes, end: barriers[i].writes}
	if cache == nil {
		return p
	}
	p.seed, p.safe = cache.Uint64(), 0
	if i > 0 {
		p.safe = barriers[i-1].writes
	}
	return p
}

// Release takes a file system down that Replay returned. Nobody may have files open in it.
func (r *Recorder) Release(f *FS) {
	r.t.Helper()
	f.Unmount()
	if r.t.Failed() {
		return
	}
	if err := os.RemoveAll(filepath.Dir(f.Image)); err != nil {
		r.t.Fatal(err)
	}
}

// advance makes play the disk with its first n writes.
func (r *Recorder) advance(n int) error {
	if r.play == nil || n < r.done {
		base, err := os.Open(r.log.base)
		if err != nil {
			return err
		}
		defer base.Close()
		name := filepath.Join(r.ram, "play")
		if r.play != nil {
			_ = r.play.Close()
			_ = os.Remove(name) // copySparse fails if it is still there
		}
		if err := copySparse(name, base); err != nil {
			return err
		}
		if r.play, err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
			return err
		}
		r.done = 0
	}
	for ; r.done < n; r.done++ {
		if err := r.apply(r.play, r.done, nil); err != nil {
			return err
		}
	}
	return nil
}

// build makes an image of what the disk has at a point.
func (r *Recorder) build(image string, p point) error {
	if err := r.advance(p.safe); err != nil {
		return err
	}
	if err := copySparse(image, r.play); err != nil {
		return err
	}
	if p.safe == p.end {
		return nil
	}
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	cache := rand.New(rand.NewPCG(p.seed, 0))
	// The share that survives is drawn, too: all but a few, or only a few, are rare where every block has even chances.
	share := cache.Float64()
	for n := p.safe; n < p.end; n++ {
		if err := r.apply(f, n, func() bool { return cache.Float64() < share }); err != nil {
			return err
		}
	}
	return nil
}

// apply does write n of the log, or those of its blocks that there reports; nil: all.
func (r *Recorder) apply(to *os.File, n int, there func() bool) error {
	r.mu.Lock()
	w := r.log.writes[n]
	r.mu.Unlock()
	data := make([]byte, w.size)
	if _, err := r.log.data.ReadAt(data, w.at); err != nil {
		return fmt.Errorf("write %d of the log: %w", n, err)
	}
	if there == nil {
		_, err := to.WriteAt(data, w.off)
		return err
	}
	const block = 4096
	for at := int64(0); at < w.size; at += block {
		if !there() {
			continue
		}
		if _, err := to.WriteAt(data[at:min(at+block, w.size)], w.off+at); err != nil {
			return err
		}
	}
	return nil
}

// keep makes the image once more where the test's end does not remove it: as it was before anybody mounted it.
func (r *Recorder) keep(p point) {
	to := filepath.Join(filepath.Dir(r.Image), "..", fmt.Sprintf("barrier-%d", p.barrier))
	if err := r.build(to, p); err != nil {
		r.t.Errorf("keep the image: %v", err)
		return
	}
	r.t.Logf("the device at barrier %d is kept in %s", p.barrier, filepath.Clean(to))
}
