package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"
)

// systems are all implementations of FS, each with a fresh directory in it.
var systems = map[string]func(t *testing.T) (FS, string){
	"os":       func(t *testing.T) (FS, string) { return OS{}, t.TempDir() },
	"mem":      func(t *testing.T) (FS, string) { return madeMem(t), "/data" },
	"relative": func(t *testing.T) (FS, string) { return madeMem(t), "data" },
	"injected": func(t *testing.T) (FS, string) { return Inject(OS{}, func(Op) error { return nil }), t.TempDir() },
	"clone":    func(t *testing.T) (FS, string) { return madeMem(t).Clone(), "/data" },
	"crashed":  func(t *testing.T) (FS, string) { return madeMem(t).Crash(Random(1)), "/data" },
}

func madeMem(t *testing.T) *Mem {
	t.Helper()
	m := NewMem()
	must(t, m.MkdirAll("data"))
	must(t, m.SyncDir("/"))
	return m
}

// eachFS runs fn against every implementation.
func eachFS(t *testing.T, fn func(t *testing.T, fsys FS, dir string)) {
	for name, start := range systems {
		t.Run(name, func(t *testing.T) {
			fsys, dir := start(t)
			fn(t, fsys, dir)
		})
	}
}

func TestFilePositions(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, dir+"/f", true)
		for _, w := range []struct {
			off  int64
			data string
		}{{5, "hello"}, {0, "01234"}, {10000, "far"}, {4094, "edge"}, {3, ""}} {
			n, err := f.WriteAt([]byte(w.data), w.off)
			if n != len(w.data) || err != nil {
				t.Fatalf("write %q: %d, %v", w.data, n, err)
			}
		}
		if size := sizeOf(t, f); size != 10003 {
			t.Fatalf("size %d", size)
		}
		for _, r := range []struct {
			off  int64
			n    int
			want string
			err  error
		}{
			{0, 10, "01234hello", nil}, {9999, 4, "\x00far", nil}, {10000, 10, "far", io.EOF}, {10003, 1, "", io.EOF},
			{20000, 1, "", io.EOF}, {4093, 6, "\x00edge\x00", nil}, {10003, 0, "", nil},
		} {
			p := make([]byte, r.n)
			n, err := f.ReadAt(p, r.off)
			if string(p[:n]) != r.want || !errors.Is(err, r.err) {
				t.Errorf("read %d at %d: %q, %v, want %q, %v", r.n, r.off, p[:n], err, r.want, r.err)
			}
		}
		if _, err := f.ReadAt(make([]byte, 1), -1); err == nil {
			t.Error("read before the start succeeded")
		}
		if _, err := f.WriteAt(make([]byte, 1), -1); err == nil {
			t.Error("write before the start succeeded")
		}
		must(t, f.Sync())
		must(t, f.Close())
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
	})
}

func TestTruncate(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, dir+"/f", true)
		want := bytes.Repeat([]byte("x"), 9000)
		write(t, f, 0, string(want))
		for _, size := range []int64{8999, 8192, 5000, 12000, 4096, 4097, 0, 3, 20000, 1} {
			must(t, f.Truncate(size))
			if int(size) < len(want) {
				want = want[:size]
			}
			want = append(want, make([]byte, int(size)-len(want))...)
			if got := readAll(t, f); !bytes.Equal(got, want) {
				t.Fatalf("after truncating to %d: %d bytes, or others", size, len(got))
			}
		}
		if err := f.Truncate(-1); err == nil {
			t.Error("negative size accepted")
		}
		must(t, f.Reserve(0, 1<<20))
		must(t, f.Reserve(1<<20, 0))
		if size := sizeOf(t, f); size != 1 {
			t.Errorf("reserving changed the size to %d", size)
		}
		must(t, f.Truncate(1))
	})
}

func TestNames(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		_, err := fsys.Open(dir+"/none", false)
		wantErr(t, "open missing", err, ErrNotExist)
		_, err = fsys.Open(dir+"/none/f", true)
		wantErr(t, "create in missing", err, ErrNotExist)
		_, err = fsys.List(dir + "/none")
		wantErr(t, "list missing", err, ErrNotExist)
		_, err = fsys.Stat(dir + "/none")
		wantErr(t, "stat missing", err, ErrNotExist)
		wantErr(t, "remove missing", fsys.Remove(dir+"/none"), ErrNotExist)
		wantErr(t, "rename missing", fsys.Rename(dir+"/none", dir+"/other"), ErrNotExist)
		wantErr(t, "sync missing", fsys.SyncDir(dir+"/none"), ErrNotExist)

		must(t, fsys.MkdirAll(dir+"/a/b/c"))
		must(t, fsys.MkdirAll(dir+"/a/b"))
		must(t, fsys.SyncDir(dir+"/a"))
		for _, name := range []string{"z", "B", "a10", "a9"} {
			put(t, fsys, dir+"/a/"+name, name)
		}
		list, err := fsys.List(dir + "/a")
		must(t, err)
		var names []string
		for _, info := range list {
			names = append(names, info.Name)
			if info.Dir != (info.Name == "b") || !info.Dir && info.Size != int64(len(info.Name)) || info.ModTime.IsZero() {
				t.Errorf("listed %+v", info)
			}
			stat, err := fsys.Stat(dir + "/a/" + info.Name)
			if err != nil || stat != info {
				t.Errorf("stat %+v, %v; listed %+v", stat, err, info)
			}
		}
		if want := []string{"B", "a10", "a9", "b", "z"}; !slices.Equal(names, want) {
			t.Errorf("listed %v, want %v", names, want)
		}

		_, err = fsys.Open(dir+"/a", true)
		wantAnyErr(t, "open a directory", err)
		_, err = fsys.Open(dir+"/a/z/f", true)
		wantAnyErr(t, "create below a file", err)
		wantAnyErr(t, "make a directory over a file", fsys.MkdirAll(dir+"/a/z"))
		wantAnyErr(t, "make a directory below a file", fsys.MkdirAll(dir+"/a/z/d"))
		wantAnyErr(t, "sync a file as a directory", fsys.SyncDir(dir+"/a/z"))
		_, err = fsys.List(dir + "/a/z")
		wantAnyErr(t, "list a file", err)
		wantErr(t, "remove a full directory", fsys.Remove(dir+"/a"), ErrExist)
		wantErr(t, "rename a file over a directory", fsys.Rename(dir+"/a/z", dir+"/a/b"), ErrExist)
		wantErr(t, "rename a directory over a directory", fsys.Rename(dir+"/a/b/c", dir+"/a/b"), ErrExist)
		wantAnyErr(t, "rename a directory over a file", fsys.Rename(dir+"/a/b", dir+"/a/z"))
		wantAnyErr(t, "rename a directory into itself", fsys.Rename(dir+"/a/b", dir+"/a/b/c/d"))

		must(t, fsys.Rename(dir+"/a/z", dir+"/a/z"))
		must(t, fsys.Rename(dir+"/a/z", dir+"/a/B"))
		wantContent(t, fsys, dir+"/a/B", "z")
		wantGone(t, fsys, dir+"/a/z")
		must(t, fsys.Rename(dir+"/a", dir+"/moved"))
		wantContent(t, fsys, dir+"/moved/B", "z")
		must(t, fsys.Remove(dir+"/moved/B"))
		wantGone(t, fsys, dir+"/moved/B")
		must(t, fsys.Remove(dir+"/moved/b/c"))
		must(t, fsys.Remove(dir+"/moved/b"))
	})
}

func TestLink(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		must(t, fsys.MkdirAll(dir+"/d"))
		put(t, fsys, dir+"/f", "one")
		put(t, fsys, dir+"/other", "other")
		wantErr(t, "link missing", fsys.Link(dir+"/none", dir+"/g"), ErrNotExist)
		wantErr(t, "link into missing", fsys.Link(dir+"/f", dir+"/none/g"), ErrNotExist)
		wantErr(t, "link over a file", fsys.Link(dir+"/f", dir+"/other"), ErrExist)
		wantErr(t, "link over itself", fsys.Link(dir+"/f", dir+"/f"), ErrExist)
		wantErr(t, "link over a directory", fsys.Link(dir+"/f", dir+"/d"), ErrExist)
		wantAnyErr(t, "link a directory", fsys.Link(dir+"/d", dir+"/e"))
		must(t, fsys.Link(dir+"/f", dir+"/d/g"))
		write(t, open(t, fsys, dir+"/d/g", false), 3, " two")
		wantContent(t, fsys, dir+"/f", "one two")
		must(t, fsys.Rename(dir+"/f", dir+"/d/g")) // two names of one file: nothing happens
		wantContent(t, fsys, dir+"/f", "one two")
		must(t, fsys.Remove(dir+"/f"))
		wantGone(t, fsys, dir+"/f")
		wantContent(t, fsys, dir+"/d/g", "one two")
	})
}

// TestLinkKeepsSpace: what has another name is not free yet.
func TestLinkKeepsSpace(t *testing.T) {
	m := NewMem()
	put(t, m, "f", digits)
	must(t, m.Link("f", "g"))
	m.SetSpace(int64(len(digits)))
	must(t, m.Remove("f"))
	_, err := open(t, m, "h", true).WriteAt([]byte("x"), 0)
	wantErr(t, "write while the other name is there", err, ErrNoSpace)
	must(t, m.Rename("g", "i"))
	must(t, m.Remove("i"))
	write(t, open(t, m, "h", false), 0, digits)
	must(t, m.SyncDir("/"))
	if c := m.Crash(KeepNothing); c.mu.used != 0 {
		t.Errorf("%d bytes used after a crash that left an empty file", c.mu.used)
	}
}

func TestHandleOutlivesItsName(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, dir+"/f", true)
		second := open(t, fsys, dir+"/f", true)
		write(t, f, 0, "first")
		if got := readAll(t, second); string(got) != "first" {
			t.Errorf("other handle reads %q", got)
		}
		must(t, fsys.Rename(dir+"/f", dir+"/g"))
		write(t, f, 5, " second")
		wantContent(t, fsys, dir+"/g", "first second")
		must(t, fsys.Remove(dir+"/g"))
		put(t, fsys, dir+"/g", "new")
		if got := readAll(t, f); string(got) != "first second" {
			t.Errorf("removed file reads %q", got)
		}
		write(t, second, 0, "FIRST")
		must(t, second.Sync())
		wantContent(t, fsys, dir+"/g", "new")
	})
}

func TestAdvice(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, dir+"/f", true)
		write(t, f, 0, "synced")
		must(t, f.Sync())
		write(t, f, 6, " not synced")
		a, ok := f.(Advisor)
		if !ok {
			t.Fatal("not an Advisor")
		}
		for _, r := range [][2]int64{{0, 0}, {3, 5}, {4096, 0}} {
			must(t, a.WillNeed(r[0], r[1]))
			must(t, a.DropCache(r[0], r[1]))
		}
		wantContent(t, fsys, dir+"/f", "synced not synced")
	})
}

func TestHelpers(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		must(t, MkdirSync(fsys, dir+"/x/y/z"))
		must(t, MkdirSync(fsys, dir+"/x/y/z/"))
		name := dir + "/x/y/z/file"
		must(t, WriteFileAtomic(fsys, name, []byte("one")))
		put(t, fsys, name+".tmp", "a long leftover of a crash")
		must(t, WriteFileAtomic(fsys, name, []byte("two")))
		got, err := ReadFile(fsys, name, 3)
		if string(got) != "two" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		_, err = ReadFile(fsys, name, 2)
		wantErr(t, "read above the limit", err, ErrTooLarge)
		_, err = ReadFile(fsys, name+".tmp", 2)
		wantErr(t, "read a missing file", err, ErrNotExist)
		wantAnyErr(t, "directory below a file", MkdirSync(fsys, name+"/d"))
		wantAnyErr(t, "directory over a file", MkdirSync(fsys, name))
		for name, want := range map[string]bool{name: true, dir + "/x": true, dir + "/none": false} {
			if got, err := Exists(fsys, name); got != want || err != nil {
				t.Errorf("exists %s: %v, %v", name, got, err)
			}
		}
		put(t, fsys, dir+"/x/f", "")
		must(t, RemoveAll(fsys, dir+"/x"))
		must(t, RemoveAll(fsys, dir+"/x"))
		must(t, RemoveAll(fsys, dir+"/x/y/z"))
		list, err := fsys.List(dir)
		if len(list) != 0 || err != nil {
			t.Errorf("left %v, %v", list, err)
		}
	})
}

// TestRandomAgainstReference compares many operations on one file with the same on a plain slice, copying in between.
func TestRandomAgainstReference(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := NewMem()
		f := open(t, m, "f", true)
		var want []byte
		var copies []*Mem
		var wants [][]byte
		for range 200 {
			switch rnd.IntN(6) {
			case 0:
				size := rnd.IntN(30000)
				must(t, f.Truncate(int64(size)))
				if size < len(want) {
					want = want[:size]
				}
				want = append(want, make([]byte, size-len(want))...)
			case 1:
				must(t, f.Sync())
			case 2:
				copies, wants = append(copies, m.Clone()), append(wants, bytes.Clone(want))
				if rnd.IntN(2) == 0 { // go on with the copy
					m = copies[len(copies)-1].Crash(KeepAll)
					f = open(t, m, "f", false)
				}
			default:
				p := make([]byte, rnd.IntN(9000))
				if rnd.IntN(3) > 0 {
					for i := range p {
						p[i] = byte(rnd.Int())
					}
				}
				off := rnd.IntN(20000)
				write(t, f, int64(off), string(p))
				if n := off + len(p); len(p) > 0 && n > len(want) {
					want = append(want, make([]byte, n-len(want))...)
				}
				copy(want[min(off, len(want)):], p)
			}
			if got := readAll(t, f); !bytes.Equal(got, want) {
				t.Fatalf("seed %d: differs", seed)
			}
		}
		for i, c := range copies {
			if got := readAll(t, open(t, c, "f", false)); !bytes.Equal(got, wants[i]) {
				t.Fatalf("seed %d: copy %d changed", seed, i)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, dir+"/shared", true)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				own := path.Join(dir, string(rune('a'+i)))
				for j := range 50 {
					_, err := f.WriteAt(bytes.Repeat([]byte{byte('0' + i)}, 100), int64(i*100))
					mayFail(t, err)
					_, err = f.ReadAt(make([]byte, 400), 0)
					if !errors.Is(err, io.EOF) {
						mayFail(t, err)
					}
					if j%10 == 0 {
						mayFail(t, f.Sync())
						mayFail(t, WriteFileAtomic(fsys, own, []byte(own)))
						if m, ok := fsys.(*Mem); ok {
							g, err := m.Crash(Random(uint64(j))).Open(own, true)
							mayFail(t, err)
							_, err = g.WriteAt([]byte("other"), 0)
							mayFail(t, err)
						}
					}
					_, err = fsys.List(dir)
					mayFail(t, err)
				}
			})
		}
		wg.Wait()
		for i := range 4 {
			p := make([]byte, 100)
			_, err := f.ReadAt(p, int64(i*100))
			if want := bytes.Repeat([]byte{byte('0' + i)}, 100); err != nil || !bytes.Equal(p, want) {
				t.Errorf("block %d: %q, %v", i, p, err)
			}
		}
	})
}
