package device

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a file, and flushes it and its directory where sync is set.
func put(t *testing.T, name string, data []byte, sync bool) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	_, err = f.Write(data)
	must(t, err)
	if sync {
		must(t, f.Sync())
		d, err := os.Open(filepath.Dir(name))
		must(t, err)
		must(t, d.Sync())
		must(t, d.Close())
	}
	must(t, f.Close())
}

func TestPowerCutLosesWhatWasNotFlushed(t *testing.T) {
	f := Ext4(t, 16<<20)
	data := bytes.Repeat([]byte("kept"), 5000)
	for range 3 {
		put(t, f.Dir+"/kept", data, true)
		put(t, f.Dir+"/lost", data, false)
		open, err := os.Open(f.Dir + "/kept")
		must(t, err)
		f.Cut()
		if err := os.WriteFile(f.Dir+"/after", data, 0o600); !errors.Is(err, unix.EIO) {
			t.Errorf("a write after the cut: %v", err)
		}
		must(t, open.Close())
		f.Unmount()
		f.Mount()
		if got, err := os.ReadFile(f.Dir + "/kept"); !bytes.Equal(got, data) {
			t.Errorf("what was flushed is %d bytes, %v", len(got), err)
		}
		if got, _ := os.ReadFile(f.Dir + "/lost"); len(got) > 0 {
			t.Errorf("of what was not flushed there are %d bytes", len(got))
		}
		put(t, f.Dir+"/kept", nil, true)
	}
}

func TestFill(t *testing.T) {
	f := Ext4(t, 16<<20)
	free := f.Fill(1 << 20)
	if n := f.Free(); n < 900<<10 || n > 1100<<10 {
		t.Errorf("%d bytes are free", n)
	}
	if err := os.WriteFile(f.Dir+"/big", make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than there is room for: %v", err)
	}
	free()
	must(t, os.WriteFile(f.Dir+"/big", make([]byte, 2<<20), 0o600))
}

func TestBoot(t *testing.T) {
	read := func() string {
		b, err := os.ReadFile(bootID)
		must(t, err)
		return strings.TrimSpace(string(b))
	}
	before := read()
	t.Run("inside", func(t *testing.T) {
		b := NewBoot(t)
		first := read()
		b.Again()
		if second := read(); first == before || second == before || second == first || len(second) != len(before) {
			t.Errorf("%s, then %s, then %s", before, first, second)
		}
	})
	if after := read(); after != before {
		t.Errorf("%s, and was %s", after, before)
	}
}

// nothingLeft fails the test where a loop device has a file below dir, or something is mounted there. A device lets go of its
// file with its last user, and that may be another process for a moment: one that looks for a free device.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); ; {
		left := leftovers(t, dir)
		if left == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Errorf("below %s there is still:\n%s", dir, left)
			return
		}
	}
}

// leftovers names the loop devices that have a file below dir, and what is mounted there.
func leftovers(t *testing.T, dir string) (left string) {
	t.Helper()
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range files {
		if back, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(back), dir) {
			left += string(back) + " under " + name + "\n"
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	if strings.Contains(string(mounts), dir) {
		left += string(mounts)
	}
	return left
}

func TestNothingIsLeft(t *testing.T) {
	var dirs []string
	t.Run("devices", func(t *testing.T) {
		dirs = append(dirs, filepath.Dir(Ext4(t, 8<<20).Dir))
		cut := Ext4(t, 8<<20)
		cut.Cut()
		dirs = append(dirs, filepath.Dir(cut.Dir))
	})
	for _, dir := range dirs {
		nothingLeft(t, dir)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
