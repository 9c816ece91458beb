package vfs

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// hooked are the two ways to have a hook.
var hooked = map[string]func(t *testing.T) (fsys FS, dir string, set func(func(Op) error)){
	"mem": func(t *testing.T) (FS, string, func(func(Op) error)) {
		m := madeMem(t)
		return m, "data", m.SetHook
	},
	"inject": func(t *testing.T) (FS, string, func(func(Op) error)) {
		in := Inject(OS{}, nil).(*injected)
		return in, t.TempDir(), in.hooks.set
	},
}

func eachHooked(t *testing.T, fn func(t *testing.T, fsys FS, dir string, set func(func(Op) error))) {
	for name, start := range hooked {
		t.Run(name, func(t *testing.T) {
			fsys, dir, set := start(t)
			fn(t, fsys, dir, set)
		})
	}
}

func TestHookSeesEveryOperation(t *testing.T) {
	eachHooked(t, func(t *testing.T, fsys FS, dir string, set func(func(Op) error)) {
		var log []string
		set(func(op Op) error {
			log = append(log, strings.ReplaceAll(op.String(), dir, "~"))
			return nil
		})
		must(t, fsys.MkdirAll(dir+"/d"))
		f := open(t, fsys, dir+"/d/f", true)
		write(t, f, 3, "abc")
		must(t, f.Truncate(5))
		must(t, f.Reserve(5, 10))
		must(t, f.Sync())
		_, err := f.ReadAt(make([]byte, 2), 1)
		must(t, err)
		must(t, f.(Advisor).WillNeed(0, 0))
		must(t, f.(Advisor).DropCache(1, 2))
		sizeOf(t, f)
		must(t, f.Close())
		f = open(t, fsys, dir+"/d/f", false)
		must(t, fsys.Rename(dir+"/d/f", dir+"/d/g"))
		must(t, fsys.SyncDir(dir+"/d"))
		must(t, f.Sync())
		_, err = fsys.List(dir)
		must(t, err)
		_, err = fsys.Stat(dir)
		must(t, err)
		must(t, fsys.Link(dir+"/d/g", dir+"/d/h"))
		must(t, fsys.Remove(dir+"/d/g"))
		want := []string{
			"#1 mkdir ~/d", "#2 create ~/d/f", "#3 write ~/d/f [3,+3)", "#4 truncate ~/d/f to 5",
			"#5 reserve ~/d/f [5,+10)", "#6 sync ~/d/f", "#1 read ~/d/f [1,+2)", "#2 drop cache ~/d/f [1,+2)",
			"#3 open ~/d/f", "#7 rename ~/d/f to ~/d/g", "#8 sync dir ~/d", "#9 sync ~/d/f",
			"#4 list ~", "#5 stat ~", "#10 link ~/d/g to ~/d/h", "#11 remove ~/d/g",
		}
		if got := strings.Join(log, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		if m, ok := fsys.(*Mem); ok && m.Ops() != 11 {
			t.Errorf("%d operations", m.Ops())
		}
		set(nil)
		must(t, fsys.MkdirAll(dir+"/d"))
		if len(log) != len(want) {
			t.Error("the hook is still there")
		}
	})
}

func TestHookStopsOperations(t *testing.T) {
	boom := errors.New("boom")
	eachHooked(t, func(t *testing.T, fsys FS, dir string, set func(func(Op) error)) {
		put(t, fsys, dir+"/f", "content")
		must(t, fsys.MkdirAll(dir+"/empty"))
		f := open(t, fsys, dir+"/f", false)
		var only OpKind
		set(func(op Op) error {
			if op.Kind == only {
				return boom
			}
			return nil
		})
		for kind, do := range map[OpKind]func() error{
			OpOpen:      func() error { _, err := fsys.Open(dir+"/f", false); return err },
			OpCreate:    func() error { _, err := fsys.Open(dir+"/new", true); return err },
			OpRead:      func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
			OpWrite:     func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
			OpTruncate:  func() error { return f.Truncate(0) },
			OpReserve:   func() error { return f.Reserve(0, 1) },
			OpSync:      f.Sync,
			OpDropCache: func() error { return f.(Advisor).DropCache(0, 0) },
			OpList:      func() error { _, err := fsys.List(dir); return err },
			OpStat:      func() error { _, err := fsys.Stat(dir); return err },
			OpRename:    func() error { return fsys.Rename(dir+"/f", dir+"/new") },
			OpLink:      func() error { return fsys.Link(dir+"/f", dir+"/new") },
			OpRemove:    func() error { return fsys.Remove(dir + "/f") },
			OpMkdir:     func() error { return fsys.MkdirAll(dir + "/new") },
			OpSyncDir:   func() error { return fsys.SyncDir(dir) },
		} {
			only = kind
			err := do()
			if !errors.Is(err, boom) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %v", kind, err)
			}
		}
		set(nil)
		wantContent(t, fsys, dir+"/f", "content")
		wantGone(t, fsys, dir+"/new")
	})
}

func TestShortWrite(t *testing.T) {
	eachHooked(t, func(t *testing.T, fsys FS, dir string, set func(func(Op) error)) {
		f := open(t, fsys, dir+"/f", true)
		for _, tt := range []struct {
			n, want int
			err     error
		}{{2, 2, ErrNoSpace}, {0, 0, ErrIO}, {-1, 0, ErrIO}, {99, 6, io.ErrShortWrite}} {
			must(t, f.Truncate(0))
			set(func(op Op) error {
				if op.Kind == OpWrite {
					return ShortWrite{N: tt.n, Err: tt.err}
				}
				return nil
			})
			n, err := f.WriteAt([]byte("abcdef"), 0)
			if n != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%d: wrote %d, %v", tt.n, n, err)
			}
			set(nil)
			wantContent(t, fsys, dir+"/f", "abcdef"[:tt.want])
		}
	})
}

// TestHookMayCopy: a hook is where a test takes the copy that a crash at this operation leaves.
func TestHookMayCopy(t *testing.T) {
	m := NewMem()
	var copies []*Mem
	m.SetHook(func(op Op) error {
		if op.Kind.Changes() {
			copies = append(copies, m.Crash(KeepNothing))
		}
		return nil
	})
	must(t, WriteFileAtomic(m, "f", []byte("x")))
	if len(copies) != m.Ops() || len(copies) != 6 {
		t.Errorf("%d copies, %d operations", len(copies), m.Ops())
	}
}
