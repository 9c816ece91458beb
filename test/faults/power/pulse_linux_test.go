package power

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pulse flushes a small file again and again beside the broker, to know how long that takes on this device, under this
// load, at present: a promise of "one flush" is worth what a flush takes.
type pulse struct {
	worst atomic.Int64
	stop  chan struct{}
	done  chan struct{}
}

// startPulse begins. Its file must be on the file system that the broker uses.
func startPulse(t *testing.T, dir string) *pulse {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "pulse"))
	if err != nil {
		t.Fatal(err)
	}
	p := &pulse{stop: make(chan struct{}), done: make(chan struct{})}
	go p.run(f)
	return p
}

func (p *pulse) run(f *os.File) {
	defer close(p.done)
	defer f.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := byte(0); ; n++ {
		var due time.Time
		select {
		case due = <-tick.C:
		case <-p.stop:
			return
		}
		_, err := f.WriteAt([]byte{n}, 0)
		if err == nil {
			err = unix.Fdatasync(int(f.Fd()))
		}
		p.worst.Store(max(p.worst.Load(), int64(time.Since(due)))) // also where the power went meanwhile
		if err != nil {
			return
		}
	}
}

// end stops it, and returns how much longer than its interval a periodic flush may have taken: some flushes, as the
// slowest of these was, and a little for timers that are late.
func (p *pulse) end() time.Duration {
	close(p.stop)
	<-p.done
	return 150*time.Millisecond + 3*time.Duration(p.worst.Load())
}
