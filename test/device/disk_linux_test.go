package device

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDiskKeepsWhatItIsGiven(t *testing.T) {
	d := NewDisk(t, 32<<20)
	data := make([]byte, 3<<20)
	rng := rand.New(rand.NewPCG(1, 0))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	put(t, d.Dir+"/f", data, true)
	d.Unmount() // and forget what is cached
	d.Mount()
	if got, err := os.ReadFile(d.Dir + "/f"); !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := d.Counts(); n.Writes == 0 || n.Flushes == 0 || n.FailedWrites+n.FailedFlushes > 0 {
		t.Errorf("%+v", n)
	}
}

// TestFailedWrites is also what makes the log's rule of never flushing twice necessary: the second flush succeeds, and
// the device has nothing.
func TestFailedWrites(t *testing.T) {
	d := NewDisk(t, 16<<20)
	mark := []byte("this write fails")
	put(t, d.Dir+"/f", bytes.Repeat([]byte("x"), 4096), true)
	f, err := os.OpenFile(d.Dir+"/f", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	d.FailWrites(func(_ int64, data []byte) bool { return bytes.Contains(data, mark) })
	_, err = f.WriteAt(mark, 0)
	must(t, err)
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("the first flush: %v", err)
	}
	must(t, f.Sync())
	d.FailWrites(nil)
	put(t, d.Dir+"/g", mark, true)
	if n := d.Counts(); n.FailedWrites == 0 {
		t.Errorf("%+v", n)
	}
}

func TestFailedFlush(t *testing.T) {
	d := NewDisk(t, 16<<20)
	put(t, d.Dir+"/f", make([]byte, 8192), true)
	f, err := os.OpenFile(d.Dir+"/f", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	d.FailFlush(1)
	_, err = f.WriteAt([]byte("new"), 0)
	must(t, err)
	if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EIO) { // of written blocks: the journal has no part in it
		t.Errorf("the flush that fails: %v", err)
	}
	if n := d.Counts(); n.FailedFlushes != 1 {
		t.Errorf("%+v", n)
	}
	must(t, unix.Fdatasync(int(f.Fd())))
}

// flush writes to a file and flushes it, and says when that was done.
func flush(t *testing.T, f *os.File) <-chan error {
	t.Helper()
	_, err := f.WriteAt([]byte("new"), 0)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- unix.Fdatasync(int(f.Fd())) }()
	return done
}

func TestSlowAndHungFlushes(t *testing.T) {
	d := NewDisk(t, 16<<20)
	put(t, d.Dir+"/f", make([]byte, 8192), true)
	f, err := os.OpenFile(d.Dir+"/f", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	const slow = 50 * time.Millisecond
	d.DelayFlush(slow)
	began := time.Now()
	must(t, <-flush(t, f))
	if took := time.Since(began); took < slow {
		t.Errorf("a slow flush took %v", took)
	}
	d.DelayFlush(0)
	release := d.HangFlush()
	done := flush(t, f)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for d.Counts().Waiting == 0 {
		<-tick.C
	}
	select {
	case err := <-done:
		t.Errorf("a flush that hangs has ended: %v", err)
	default:
	}
	release()
	release()
	must(t, <-done)
	must(t, <-flush(t, f))
}

// TestEndReleasesWhatHangs leaves a flush hanging that the unmount needs.
func TestEndReleasesWhatHangs(t *testing.T) {
	var dir string
	t.Run("hanging", func(t *testing.T) {
		d := NewDisk(t, 16<<20)
		dir = filepath.Dir(d.Dir)
		put(t, d.Dir+"/f", make([]byte, 8192), false)
		d.HangFlush()
	})
	nothingLeft(t, dir)
}

// TestReplay writes numbered files, each flushed, and looks at every barrier what is there.
func TestReplay(t *testing.T) {
	r := Record(t, 16<<20)
	const files = 12
	var flushed [files]time.Time
	content := func(n int) []byte { return bytes.Repeat([]byte{byte(n + 1)}, 1000*(n+1)) }
	for n := range files {
		put(t, fmt.Sprintf("%s/%d", r.Dir, n), content(n), true)
		flushed[n] = time.Now()
	}
	barriers := r.Barriers()
	if len(barriers) < files {
		t.Fatalf("%d barriers for %d files", len(barriers), files)
	}
	partial := 0
	for _, cache := range []*rand.Rand{nil, rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(2, 0))} {
		for i, b := range barriers {
			f := r.Replay(i, cache)
			for n := range files {
				got, err := os.ReadFile(fmt.Sprintf("%s/%d", f.Dir, n))
				switch whole := bytes.Equal(got, content(n)); {
				case flushed[n].Before(b.Issued) && !whole:
					t.Fatalf("barrier %d: file %d was flushed before, and is %d bytes, %v", i, n, len(got), err)
				case n > 0 && whole && b.Issued.Before(flushed[n-1]):
					t.Fatalf("barrier %d: file %d was written after it, and is there", i, n)
				case !whole:
					partial++
				}
			}
			r.Release(f)
		}
	}
	if partial == 0 {
		t.Error("every file was there at every point")
	}
	t.Logf("%d barriers", len(barriers))
}
