package bytes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// damage is one file that is not what it was.
type damage struct {
	kind kind
	file string
	what string
	now  []byte // nil: it is missing
	tmp  []byte // not nil: what stands beside it as <file>.tmp
}

func (d *damage) String() string { return fmt.Sprintf("%s (%s): %s", d.file, d.kind, d.what) }

const pageSize = 4096

// rot draws one of the damages that happen to bytes at rest.
func rot(rng *rand.Rand, k kind, file string, was []byte) *damage {
	for {
		d := &damage{kind: k, file: file, now: slices.Clone(was)}
		pages := len(was) / pageSize
		switch rng.IntN(5) {
		case 0:
			if len(was) == 0 {
				continue
			}
			bit := rng.Int64N(8 * int64(len(was)))
			d.now[bit/8] ^= 1 << (bit % 8)
			d.what = fmt.Sprintf("bit %d of byte %d turned", bit%8, bit/8)
		case 1:
			if len(was) == 0 {
				continue
			}
			n := rng.IntN(len(was))
			d.now = d.now[:n]
			d.what = fmt.Sprintf("cut from %d bytes to %d", len(was), n)
		case 2:
			at := pageSize * rng.IntN(pages+1)
			clear(d.now[at:min(at+pageSize, len(was))])
			d.what = fmt.Sprintf("page at byte %d is zeros", at)
		case 3:
			if pages < 2 {
				continue
			}
			a, b := pageSize*rng.IntN(pages), pageSize*rng.IntN(pages)
			copy(d.now[a:a+pageSize], was[b:])
			copy(d.now[b:b+pageSize], was[a:])
			d.what = fmt.Sprintf("pages at bytes %d and %d are swapped", a, b)
		case 4:
			garbage := random(rng, 1+rng.IntN(1<<rng.IntN(13)))
			d.now = append(d.now, garbage...)
			d.what = fmt.Sprintf("%d bytes of garbage follow", len(garbage))
		}
		if !bytes.Equal(d.now, was) {
			return d
		}
	}
}

// sideDamages are what can happen to a file as a whole.
var sideDamages = []string{"missing", "empty", "a .tmp is left", "from yesterday", "another's"}

// side does one of those to a file; nil where there is no such thing.
func (ma *master) side(k kind, file, what string) *damage {
	was := ma.files[file]
	d := &damage{kind: k, file: file, what: what}
	switch what {
	case "missing":
	case "empty":
		d.now = []byte{}
	case "a .tmp is left":
		d.now, d.tmp = was, append([]byte{}, was[:len(was)/2]...)
	case "from yesterday":
		d.now = ma.older(k, file)
	case "another's":
		d.now = ma.foreign(k, file)
	}
	if what != "missing" && d.now == nil || d.tmp == nil && d.now != nil && bytes.Equal(d.now, was) {
		return nil
	}
	return d
}

// older returns what the file was at an earlier time; where it never changed, an older one of its kind beside it.
func (ma *master) older(k kind, file string) []byte {
	if b, was := ma.yesterday[file]; was && !bytes.Equal(b, ma.files[file]) {
		return b
	}
	sorted, _ := ma.yesterday.kinds()
	for _, name := range sorted[k] {
		if path.Dir(name) == path.Dir(file) && name < file {
			return ma.yesterday[name]
		}
	}
	if k == newSnapshot && len(ma.kinds[oldSnapshot]) > 0 {
		return ma.files[ma.kinds[oldSnapshot][0]]
	}
	var older []byte
	for _, name := range ma.kinds[k] {
		if path.Dir(name) == path.Dir(file) && name < file {
			older = ma.files[name]
		}
	}
	return older
}

// foreign returns a file of the same kind that belongs to something else.
func (ma *master) foreign(k kind, file string) []byte {
	switch k {
	case identity, run, registration, lock:
		return ma.other[file]
	case reserve, deleted, salvage:
		return ma.other["identity"]
	case newSnapshot, oldSnapshot:
		for _, name := range slices.Concat(ma.kinds[newSnapshot], ma.kinds[oldSnapshot]) {
			if name != file {
				return ma.files[name]
			}
		}
		return ma.files["identity"]
	}
	for k, in := range map[kind]kind{metaSealed: sealedLog, metaActive: activeLog, metaIndex: offsetIndex, metaTime: timeIndex, metaMark: durableMark, metaProducers: producers} {
		if ma.kindOf(file) == k {
			return ma.files[ma.kinds[in][0]]
		}
	}
	list := ma.kinds[k]
	at := slices.Index(list, file)
	for i := 1; i < len(list); i++ {
		if other := list[(at+i)%len(list)]; path.Dir(other) != path.Dir(file) {
			return ma.files[other]
		}
	}
	return nil
}

func (ma *master) kindOf(file string) kind {
	for k, list := range ma.kinds {
		if slices.Contains(list, file) {
			return k
		}
	}
	return ""
}

// apply does the damage in a directory.
func (d *damage) apply(t *testing.T, dir string) {
	t.Helper()
	replace(t, dir, d.file, d.now)
	if d.tmp != nil {
		replace(t, dir, d.file+".tmp", d.tmp)
	}
}

// heal puts back what was there.
func (d *damage) heal(t *testing.T, dir string, was []byte) {
	t.Helper()
	replace(t, dir, d.file, was)
	replace(t, dir, d.file+".tmp", nil)
}

// replace puts a new file where another may be, also one that is a link; nil removes it.
func replace(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	to := filepath.Join(dir, filepath.FromSlash(name))
	err := os.Remove(to)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if b != nil {
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// compare says what is not as it was in a directory, but for the files named.
func compare(was, is files, but ...string) string {
	var wrong []string
	for name, b := range was {
		now, there := is[name]
		switch {
		case slices.Contains(but, name):
		case !there:
			wrong = append(wrong, name+" is gone")
		case !bytes.Equal(b, now):
			wrong = append(wrong, name+" has changed")
		}
	}
	for name := range is {
		if _, was := was[name]; !was && !slices.Contains(but, name) {
			wrong = append(wrong, name+" is new")
		}
	}
	slices.Sort(wrong)
	return strings.Join(wrong, ", ")
}
