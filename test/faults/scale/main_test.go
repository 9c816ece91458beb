// Package scale owns the tests of how a broker bears much and for long: many topics, many bytes, many restarts, a mixed
// load that goes on and on. It looks from outside, at what the operating system says of the process and of its
// directory. Invariant: what is compared is a broker with itself, before and after, never with another machine's figures;
// the only times that count are the promised ones for a start.
package scale

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// usage is what a broker takes of the machine.
type usage struct {
	memory, disk            int64 // bytes
	descriptors, goroutines int
}

func measure(t *testing.T, b *proc.Broker) usage {
	t.Helper()
	var u usage
	u.memory, _ = b.Memory()
	u.descriptors = b.Descriptors()
	u.goroutines, _ = b.Goroutines()
	u.disk = size(t, b.Dir)
	return u
}

// size returns the bytes of all files below dir.
func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return ignoreGone(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ignoreGone passes over what is removed while one looks.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// alive asks the broker at url for liveness until stop is closed, and counts how often the answer was no.
func alive(url string, stop <-chan struct{}) (asked, refused int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return asked, refused
		case <-tick.C:
		}
		res, err := proc.HTTP.Get(url + "/healthz")
		asked++
		if err != nil {
			refused++
			continue
		}
		if _ = res.Body.Close(); res.StatusCode != 200 {
			refused++
		}
	}
}
