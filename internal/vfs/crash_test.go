package vfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

// fates gives the n-th decision the n-th fate, and Lost after the last.
func fates(list ...Fate) Chooser {
	n := 0
	return ChooserFunc(func(Unsynced) Fate {
		n++
		if n > len(list) {
			return Fate{}
		}
		return list[n-1]
	})
}

func picks(ordinals ...int) func(int) bool {
	return func(i int) bool { return slices.Contains(ordinals, i) }
}

// digits is the synced content that contentLosses start from.
const digits = "0123456789"

var contentLosses = []struct {
	name  string
	do    func(t *testing.T, f File)
	fates []Fate
	want  string
}{
	{"append lost", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{}, digits},
	{"append kept", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{{How: Kept}}, digits + "new"},
	{"append size only", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{{How: SizeOnly}}, digits + "\x00\x00\x00"},
	{"append torn", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{{How: Torn, N: 2}}, digits + "ne"},
	{"append torn at nothing", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{{How: Torn}}, digits},
	{"append by bytes", func(t *testing.T, f File) { write(t, f, 10, "new") }, []Fate{{How: Bytes, Pick: picks(0, 2)}}, digits + "n\x00w"},
	{"overwrite lost", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{}, digits},
	{"overwrite kept", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{{How: Kept}}, "01new56789"},
	{"overwrite size only", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{{How: SizeOnly}}, digits},
	{"overwrite torn", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{{How: Torn, N: 1}}, "01n3456789"},
	{"overwrite by bytes", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{{How: Bytes, Pick: picks(1)}}, "012e456789"},
	{"overwrite garbage", func(t *testing.T, f File) { write(t, f, 2, "new") }, []Fate{{How: Garbage}}, digits},
	{
		"sectors of the file", func(t *testing.T, f File) { write(t, f, 10, strings.Repeat("x", 1100)) }, []Fate{{How: Sectors, Pick: picks(0, 2)}},
		digits + strings.Repeat("x", 502) + strings.Repeat("\x00", 512) + strings.Repeat("x", 86),
	},
	{
		"later write kept, earlier lost", func(t *testing.T, f File) { write(t, f, 10, "ab"); write(t, f, 12, "cd") },
		[]Fate{{}, {How: Kept}}, digits + "\x00\x00cd",
	},
	{
		"earlier write of the same bytes kept", func(t *testing.T, f File) { write(t, f, 0, "AAA"); write(t, f, 1, "BBB") },
		[]Fate{{How: Kept}, {}}, "AAA3456789",
	},
	{"truncation lost", func(t *testing.T, f File) { must(t, f.Truncate(4)) }, []Fate{}, digits},
	{"truncation kept", func(t *testing.T, f File) { must(t, f.Truncate(4)) }, []Fate{{How: Torn}}, "0123"},
	{
		"truncation lost, write behind it kept", func(t *testing.T, f File) { must(t, f.Truncate(4)); write(t, f, 4, "new") },
		[]Fate{{}, {How: Kept}}, "0123new789",
	},
	{
		"synced in between", func(t *testing.T, f File) { write(t, f, 10, "new"); must(t, f.Sync()); write(t, f, 13, "er") },
		[]Fate{}, digits + "new",
	},
	{"reserve", func(t *testing.T, f File) { must(t, f.Reserve(0, 4096)) }, []Fate{{How: Kept}}, digits},
}

func TestPowerLossOfContent(t *testing.T) {
	for _, tt := range contentLosses {
		t.Run(tt.name, func(t *testing.T) {
			m := NewMem()
			putSynced(t, m, "f", digits)
			f := open(t, m, "f", false)
			tt.do(t, f)
			before := readAll(t, f)
			c := m.Crash(fates(tt.fates...))
			wantContent(t, c, "f", tt.want)
			wantContent(t, c.Crash(KeepNothing), "f", tt.want) // what was found is durable
			put(t, c, "f", "other")
			if got := readAll(t, f); !bytes.Equal(got, before) {
				t.Errorf("the crashed system sees the new one: %q", got)
			}
		})
	}
}

func TestProcessCrash(t *testing.T) {
	m := NewMem()
	putSynced(t, m, "f", digits)
	write(t, open(t, m, "f", false), 10, "new")
	c := m.Crash(KeepAll)
	wantContent(t, c, "f", digits+"new")
	wantContent(t, c.Crash(KeepNothing), "f", digits) // it was not synced, and it is not now
}

func TestGarbageIsNotZeros(t *testing.T) {
	m := NewMem()
	putSynced(t, m, "f", "old")
	f := open(t, m, "f", false)
	write(t, f, 1, strings.Repeat("n", 100))
	got, err := ReadFile(m.Crash(fates(Fate{How: Garbage, N: 7})), "f", 1000)
	must(t, err)
	if len(got) != 101 || string(got[:3]) != "old" || allZero(got[3:]) || bytes.Contains(got, []byte("nnn")) {
		t.Errorf("got %q", got)
	}
}

// tree lists all files as name=content, and empty directories, in order.
func tree(t *testing.T, fsys FS, dir string) string {
	t.Helper()
	list, err := fsys.List(dir)
	must(t, err)
	var all []string
	for _, info := range list {
		name := strings.TrimPrefix(path.Join(dir, info.Name), "/")
		if !info.Dir {
			data, err := ReadFile(fsys, name, 1<<20)
			must(t, err)
			all = append(all, name+"="+string(data))
			continue
		}
		if below := tree(t, fsys, name); below != "" {
			all = append(all, below)
		} else {
			all = append(all, name+"/")
		}
	}
	return strings.Join(all, " ")
}

// nameLosses start from the durable files a=A, b=B, d/c=C and the durable empty directory e. Each says what may be found,
// with the bits of the ordinal of a case deciding about the changes that are pending, first one first.
var nameLosses = []struct {
	name string
	do   func(t *testing.T, m *Mem)
	want []string
}{
	{"nothing", func(*testing.T, *Mem) {}, []string{"a=A b=B d/c=C e/"}},
	{
		"create without content",
		func(t *testing.T, m *Mem) { put(t, m, "n", "N") },
		[]string{"a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n="},
	},
	{
		"create with content, name not synced",
		func(t *testing.T, m *Mem) { put(t, m, "n", "N"); must(t, open(t, m, "n", false).Sync()) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n=N"},
	},
	{
		"name synced, content not",
		func(t *testing.T, m *Mem) { put(t, m, "n", "N"); must(t, m.SyncDir("/")) },
		[]string{"a=A b=B d/c=C e/ n="},
	},
	{
		"syncing another directory is not enough",
		func(t *testing.T, m *Mem) { must(t, m.Remove("d/c")); must(t, m.SyncDir("/")) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B d/ e/"},
	},
	{
		"remove", func(t *testing.T, m *Mem) { must(t, m.Remove("a")) },
		[]string{"a=A b=B d/c=C e/", "b=B d/c=C e/"},
	},
	{
		"remove synced", func(t *testing.T, m *Mem) { must(t, m.Remove("a")); must(t, m.SyncDir(".")) },
		[]string{"b=B d/c=C e/"},
	},
	{
		"rename over", func(t *testing.T, m *Mem) { must(t, m.Rename("a", "b")) },
		[]string{"a=A b=B d/c=C e/", "b=A d/c=C e/"},
	},
	{
		"two renames", func(t *testing.T, m *Mem) { must(t, m.Rename("a", "n")); must(t, m.Rename("b", "a")) },
		[]string{"a=A b=B d/c=C e/", "b=B d/c=C e/ n=A", "a=B d/c=C e/", "a=B d/c=C e/ n=A"},
	},
	{
		"rename between directories", func(t *testing.T, m *Mem) { must(t, m.Rename("a", "e/a")) },
		[]string{"a=A b=B d/c=C e/", "b=B d/c=C e/a=A"},
	},
	{
		"only the new parent synced", func(t *testing.T, m *Mem) { must(t, m.Rename("a", "e/a")); must(t, m.SyncDir("e")) },
		[]string{"a=A b=B d/c=C e/a=A", "b=B d/c=C e/a=A"},
	},
	{
		"only the old parent synced", func(t *testing.T, m *Mem) { must(t, m.Rename("a", "e/a")); must(t, m.SyncDir("/")) },
		[]string{"b=B d/c=C e/", "b=B d/c=C e/a=A"},
	},
	{
		"link", func(t *testing.T, m *Mem) { must(t, m.Link("a", "e/a")) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B d/c=C e/a=A"},
	},
	{
		"link synced", func(t *testing.T, m *Mem) { must(t, m.Link("a", "e/a")); must(t, m.SyncDir("e")) },
		[]string{"a=A b=B d/c=C e/a=A"},
	},
	{
		"link, first name removed and synced",
		func(t *testing.T, m *Mem) {
			must(t, m.Link("a", "e/a"))
			must(t, m.Remove("a"))
			must(t, m.SyncDir("/"))
		},
		[]string{"b=B d/c=C e/", "b=B d/c=C e/a=A"},
	},
	{
		"both parents synced", func(t *testing.T, m *Mem) {
			must(t, m.Rename("a", "e/a"))
			must(t, m.SyncDir("/"))
			must(t, m.SyncDir("e"))
		},
		[]string{"b=B d/c=C e/a=A"},
	},
	{
		"moved directory", func(t *testing.T, m *Mem) { must(t, m.Rename("d", "e/d")) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B e/d/c=C"},
	},
	{
		"moved directory, old parent synced", func(t *testing.T, m *Mem) { must(t, m.Rename("d", "e/d")); must(t, m.SyncDir("/")) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B e/d/c=C"},
	},
	{
		"moved directory, new parent synced", func(t *testing.T, m *Mem) { must(t, m.Rename("d", "e/d")); must(t, m.SyncDir("e")) },
		[]string{"a=A b=B e/d/c=C"},
	},
	{
		"directory moved twice, last parent synced", func(t *testing.T, m *Mem) {
			must(t, m.MkdirAll("n"))
			must(t, m.SyncDir("/"))
			must(t, m.Rename("d", "e/d"))
			must(t, m.Rename("e/d", "n/d"))
			must(t, m.SyncDir("n"))
		},
		[]string{"a=A b=B e/ n/d/c=C"},
	},
	{
		"new directories are names of their own", func(t *testing.T, m *Mem) { must(t, m.MkdirAll("n/o")); put(t, m, "n/o/f", "") },
		[]string{
			"a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n/", "a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n/o/",
			"a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n/", "a=A b=B d/c=C e/", "a=A b=B d/c=C e/ n/o/f=",
		},
	},
	{
		"name taken again", func(t *testing.T, m *Mem) {
			must(t, m.Remove("a"))
			put(t, m, "a", "A2")
			must(t, open(t, m, "a", false).Sync())
		},
		[]string{"a=A b=B d/c=C e/", "b=B d/c=C e/", "a=A2 b=B d/c=C e/", "a=A2 b=B d/c=C e/"},
	},
	{
		"old name taken again before the move is whole", func(t *testing.T, m *Mem) {
			must(t, m.Rename("a", "e/a"))
			must(t, m.SyncDir("e"))
			putSynced(t, m, "a", "A2")
		},
		[]string{"a=A2 b=B d/c=C e/a=A"},
	},
	{
		"removed directory", func(t *testing.T, m *Mem) { must(t, m.Remove("d/c")); must(t, m.Remove("d")) },
		[]string{"a=A b=B d/c=C e/", "a=A b=B d/ e/", "a=A b=B e/", "a=A b=B e/"},
	},
}

func TestPowerLossOfNames(t *testing.T) {
	for _, tt := range nameLosses {
		t.Run(tt.name, func(t *testing.T) {
			m := NewMem()
			must(t, m.MkdirAll("d"))
			must(t, m.MkdirAll("e"))
			for name, data := range map[string]string{"a": "A", "b": "B", "d/c": "C"} {
				putSynced(t, m, name, data)
			}
			tt.do(t, m)
			seen := tree(t, m, "/")
			for mask, want := range tt.want {
				asked := 0
				c := m.Crash(ChooserFunc(func(u Unsynced) Fate {
					if u.Kind == OpWrite || u.Kind == OpTruncate {
						return Fate{}
					}
					asked++
					return Fate{How: How(mask >> (asked - 1) & 1)}
				}))
				if got := tree(t, c, "/"); got != want {
					t.Errorf("case %d: %s, want %s", mask, got, want)
				}
				if 1<<asked != len(tt.want) {
					t.Errorf("%d pending changes for %d cases", asked, len(tt.want))
				}
				if again := tree(t, c.Crash(KeepNothing), "/"); again != want {
					t.Errorf("case %d: not durable: %s", mask, again)
				}
			}
			if got := tree(t, m.Crash(KeepAll), "/"); got != seen {
				t.Errorf("a process crash shows %s, want %s", got, seen)
			}
		})
	}
}

func TestDecisionsNameWhatTheyAreAbout(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("d"))
	put(t, m, "d/f", "abc") // cutting an empty file is no change
	must(t, m.Rename("d/f", "d/g"))
	must(t, open(t, m, "d/g", false).Truncate(1))
	var got []string
	m.Crash(ChooserFunc(func(u Unsynced) Fate {
		got = append(got, fmt.Sprintf("%s %s %d+%d", u.Kind, u.Path, u.Off, u.Len))
		return Fate{How: Kept}
	}))
	want := "mkdir /d 0+0, create /d/g 0+0, rename /d/g 0+0, write /d/g 0+3, truncate /d/g 1+0"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("asked %s, want %s", s, want)
	}
}

// history makes a file system with a bit of everything unsynced.
func history(t *testing.T, seed uint64) *Mem {
	rnd := rand.New(rand.NewPCG(seed, 2))
	m := NewMem()
	must(t, m.MkdirAll("d"))
	for range 40 {
		name := []string{"a", "b", "d/a", "d/b"}[rnd.IntN(4)]
		switch rnd.IntN(6) {
		case 0:
			_ = m.Remove(name)
		case 1:
			_ = m.Rename(name, "d/c")
		case 2:
			must(t, m.SyncDir([]string{"/", "d"}[rnd.IntN(2)]))
		default:
			f := open(t, m, name, true)
			write(t, f, int64(rnd.IntN(2000)), strings.Repeat(name, 1+rnd.IntN(500)))
			if rnd.IntN(3) == 0 {
				must(t, f.Sync())
			}
		}
	}
	return m
}

func TestRandomIsReproducibleAndVaried(t *testing.T) {
	m := history(t, 1)
	found := map[string]bool{}
	for seed := range uint64(60) {
		first := tree(t, m.Crash(Random(seed)), "/")
		if again := tree(t, m.Clone().Crash(Random(seed)), "/"); again != first {
			t.Fatalf("seed %d: %q and %q", seed, first, again)
		}
		found[first] = true
	}
	if len(found) < 40 {
		t.Errorf("60 seeds gave only %d outcomes", len(found))
	}
}

// TestSyncedIsNeverLost writes files with both syncs in between other unsynced work and crashes at random.
func TestSyncedIsNeverLost(t *testing.T) {
	for seed := range uint64(200) {
		m := history(t, seed)
		putSynced(t, m, "d/safe", "safe")
		must(t, m.SyncDir("/"))
		f := open(t, m, "d/safe", false)
		write(t, f, 4, " and more")
		c := m.Crash(Random(seed))
		got, err := ReadFile(c, "d/safe", 100)
		if err != nil || !bytes.HasPrefix(got, []byte("safe")) {
			t.Fatalf("seed %d: %q, %v", seed, got, err)
		}
		if c.mu.used != spaceOf(c.mu.root) {
			t.Fatalf("seed %d: %d bytes in use, files have %d", seed, c.mu.used, spaceOf(c.mu.root))
		}
	}
}

func spaceOf(n *inode) int64 {
	sum := n.alloc
	for _, child := range n.entries {
		sum += spaceOf(child)
	}
	return sum
}

func BenchmarkCrash(b *testing.B) {
	m := NewMem()
	for i := range 10 {
		name := fmt.Sprintf("d%d", i)
		_ = m.MkdirAll(name)
		f, err := m.Open(name+"/f", true)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = f.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 0)
		_ = f.Sync()
		_ = m.SyncDir(name)
		_, _ = f.WriteAt([]byte("more"), 1<<20)
	}
	_ = m.SyncDir("/")
	for name, crash := range map[string]func(i int) *Mem{
		"clone":  func(int) *Mem { return m.Clone() },
		"random": func(i int) *Mem { return m.Crash(Random(uint64(i))) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f, err := crash(i).Open("d3/f", true)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = f.WriteAt([]byte("x"), 5)
			}
		})
	}
}
