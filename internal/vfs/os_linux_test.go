package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestSystemErrors(t *testing.T) {
	full := open(t, OS{}, "/dev/full", false)
	_, err := full.WriteAt([]byte("x"), 0)
	wantErr(t, "write to a full device", err, ErrNoSpace)
	wantErr(t, "the same", err, syscall.ENOSPC)
	if errors.Is(err, ErrIO) || errors.Is(err, ErrNotExist) || !strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("%v", err)
	}
	mem := open(t, OS{}, "/proc/self/mem", false)
	_, err = mem.ReadAt(make([]byte, 1), 0) // never mapped
	wantErr(t, "read that the device fails", err, ErrIO)

	for errno, want := range map[syscall.Errno]error{
		syscall.ENOSPC: ErrNoSpace, syscall.EDQUOT: ErrNoSpace, syscall.EFBIG: ErrNoSpace, syscall.EIO: ErrIO,
		syscall.ENOENT: ErrNotExist, syscall.EEXIST: ErrExist, syscall.ENOTEMPTY: ErrExist,
	} {
		err := osError(&os.PathError{Op: "test", Path: "p", Err: errno})
		for _, sentinel := range []error{ErrNoSpace, ErrIO, ErrNotExist, ErrExist} {
			if errors.Is(err, sentinel) != (sentinel == want) {
				t.Errorf("%v is %v: %v", err, sentinel, sentinel != want)
			}
		}
	}
	if osError(nil) != nil {
		t.Error("nil became an error")
	}
}

func TestPrivateToTheUser(t *testing.T) {
	dir := t.TempDir()
	must(t, MkdirSync(OS{}, dir+"/d"))
	putSynced(t, OS{}, dir+"/d/f", "x")
	for name, want := range map[string]os.FileMode{"/d": 0o700 | os.ModeDir, "/d/f": 0o600} {
		info, err := os.Stat(dir + name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// blocks returns the disk space of a file.
func blocks(t *testing.T, name string) int64 {
	t.Helper()
	var st syscall.Stat_t
	must(t, syscall.Stat(name, &st))
	return st.Blocks * 512
}

func TestReserveTakesAndTruncateGivesBack(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f := open(t, OS{}, name, true)
	write(t, f, 0, "x")
	must(t, f.Sync())
	before := blocks(t, name)
	must(t, f.Reserve(0, 1<<20))
	if blocks(t, name) < 1<<20 {
		t.Skip("this file system does not reserve")
	}
	must(t, f.Truncate(1))
	if got := blocks(t, name); got != before {
		t.Errorf("%d bytes on disk, %d before reserving", got, before)
	}
}

func TestSymbolicLinks(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/target", 0o700))
	putSynced(t, OS{}, dir+"/target/f", "stays")
	must(t, os.MkdirAll(dir+"/tree/sub", 0o700))
	must(t, os.Symlink(dir+"/target", dir+"/tree/sub/link"))
	must(t, os.Symlink(dir+"/none", dir+"/tree/sub/dangling"))
	must(t, os.Symlink(dir+"/tree", dir+"/alias"))

	info, err := OS{}.Stat(dir + "/alias")
	if err != nil || !info.Dir {
		t.Errorf("stat of a link: %+v, %v", info, err)
	}
	must(t, MkdirSync(OS{}, dir+"/alias/sub"))
	must(t, RemoveAll(OS{}, dir+"/tree"))
	wantContent(t, OS{}, dir+"/target/f", "stays")
	wantGone(t, OS{}, dir+"/tree")
}

func TestSyncFilesystems(t *testing.T) {
	must(t, SyncFilesystems(t.TempDir()))
	wantErr(t, "missing root", SyncFilesystems(filepath.Join(t.TempDir(), "none")), ErrNotExist)
	seen := map[uint64]bool{}
	must(t, syncFilesystem("/", seen))
	must(t, syncFilesystem("/", seen))
	must(t, syncFilesystem("/proc", seen))
	if len(seen) != 2 {
		t.Errorf("%d file systems", len(seen))
	}
}

func TestMountsBelow(t *testing.T) {
	table := []byte(`22 28 0:21 / /proc rw,nosuid - proc proc rw
30 28 0:24 / /data rw - tmpfs tmpfs rw
31 30 0:25 / /data/topics\040of\134one rw shared:1 - tmpfs tmpfs rw
32 28 0:26 / /data2 rw - tmpfs tmpfs rw
33 31 0:27 /x /data/deep/er rw - tmpfs tmpfs rw

broken
`)
	for root, want := range map[string][]string{
		"/data": {`/data/topics of\one`, "/data/deep/er"},
		"/":     {"/proc", "/data", `/data/topics of\one`, "/data2", "/data/deep/er"},
		"/dat":  nil,
	} {
		if got := mountsBelow(root, table); !slices.Equal(got, want) {
			t.Errorf("below %s: %q, want %q", root, got, want)
		}
	}
}

func TestMachine(t *testing.T) {
	id, err := BootID()
	if !regexp.MustCompile(`^[0-9a-f-]{36}$`).MatchString(id) || err != nil {
		t.Errorf("boot id %q, %v", id, err)
	}
	free, err := Free(t.TempDir())
	if free <= 0 || err != nil {
		t.Errorf("free %d, %v", free, err)
	}
	_, err = Free("/none/at/all")
	wantErr(t, "free of a missing path", err, ErrNotExist)
}

// TestSyncReachesTheSystem asks for flushes of what cannot be flushed: the error shows that the kernel was asked, and how
// it differs from that of a directory which cannot be opened.
func TestSyncReachesTheSystem(t *testing.T) {
	f := open(t, OS{}, "/dev/null", false)
	wantErr(t, "flush of a device that has none", f.Sync(), syscall.EINVAL)
	for dir, op := range map[string]string{"/proc/self": "sync", "/none/at/all": "open"} {
		err := OS{}.SyncDir(dir)
		var p *fs.PathError
		if !errors.As(err, &p) || p.Op != op || op == "sync" && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("sync of the directory %s: %v, want an error of %s", dir, err, op)
		}
	}
}
