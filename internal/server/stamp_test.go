package server

import (
	"bytes"
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/goldentest"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/vfs"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

func samples() map[string]stamped {
	seq := func(from byte) (i id) {
		for n := range i {
			i[n] = from + byte(n)
		}
		return i
	}
	return map[string]stamped{
		"identity":     &identity{Broker: "1", Storage: seq(0x10), Volatile: seq(0xa0), CreatedMs: 1700000000000, RotatedMs: 1700000001000},
		"run":          &run{State: runOpen, BootID: "4d1ebc0e-7a4e-4b8b-9c39-0f8f2b6d6a11", Unsettled: "process", StartedMs: 1700000000000, ChangedMs: 1700000002000},
		"registration": &registration{Number: 42},
		"ownership":    &ownership{ID: metatier.ID(seq(0x10)), State: metatier.Taking, From: metatier.ID(seq(0xa0)), FromEpoch: 7},
		"buffered":     &buffered{SinceMs: 1700000000000},
	}
}

func blank(kind string) stamped {
	switch kind {
	case "identity":
		return &identity{}
	case "run":
		return &run{}
	case "ownership":
		return &ownership{}
	case "buffered":
		return &buffered{}
	}
	return &registration{}
}

// The golden files are what released versions wrote: they are never rewritten.
func TestStampsOfEveryVersionOpen(t *testing.T) {
	for kind, want := range samples() {
		file := filepath.Join("testdata", kind+".v1")
		data, err := encodeStamp(want)
		if err != nil {
			t.Fatal(err)
		}
		golden := goldentest.Once(t, file, data, *update)
		got := blank(kind)
		if err := decodeStamp(file, golden, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
}

// Any damage at all is noticed: every byte changed, every cut, anything added.
func TestDamagedStampsAreRefused(t *testing.T) {
	for kind, s := range samples() {
		data, err := encodeStamp(s)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(what string, data []byte) {
			t.Helper()
			err := decodeStamp("/d/"+kind, data, blank(kind))
			if k := fault.KindOf(err); err == nil || k != fault.Corrupt && k != fault.Unsupported {
				t.Errorf("%s, %s: %v", kind, what, err)
				return
			}
			if fault.DetailsOf(err)["file"] != "/d/"+kind || !strings.Contains(err.Error(), "/d/"+kind) {
				t.Errorf("%s, %s: the file is not named: %v", kind, what, err)
			}
		}
		for i := range data {
			for _, bit := range []byte{1, 0x20, 0x80} {
				b := bytes.Clone(data)
				b[i] ^= bit
				refused("a bit changed", b)
			}
			refused("cut", data[:i])
		}
		refused("longer", append(bytes.Clone(data), '\n'))
		refused("twice", append(bytes.Clone(data), data...))
	}
}

func TestUnknownStampVersionIsNotDamage(t *testing.T) {
	for _, head := range []string{"version=2 flags=0", "version=1 flags=1", "version=0 flags=0"} {
		err := decodeStamp("/d/run", []byte("levee-run "+head+" crc32c=00000000\n{}\n"), &run{})
		if fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "version of Levee that wrote it") {
			t.Errorf("%s: %v", head, err)
		}
	}
}

func TestImpossibleStampsAreNotWritten(t *testing.T) {
	for _, s := range []stamped{&identity{}, &identity{Broker: "1"}, &run{}, &run{State: runOpen, Unsettled: "x"}, &registration{}, &ownership{}, &ownership{ID: metatier.ID{1}, State: "x"}, &buffered{}} {
		if _, err := encodeStamp(s); err == nil {
			t.Errorf("%+v was encoded", s)
		}
	}
}

func TestReadStamp(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	if there, err := readStamp(fs, "/d", &run{}); there || err != nil {
		t.Fatalf("missing: %v, %v", there, err)
	}
	if err := vfs.WriteFileAtomic(fs, "/d/run", make([]byte, stampLimit+1)); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, err := readStamp(fs, "/d", &run{}); !errors.As(err, &damaged) || damaged.Path != "/d/run" || damaged.Advice == "" {
		t.Fatalf("too large: %v", err)
	}
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpRead {
			return vfs.ErrIO
		}
		return nil
	})
	if err := vfs.WriteFileAtomic(fs, "/d/run", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := readStamp(fs, "/d", &run{}); fault.KindOf(err) != fault.IO || !errors.Is(err, vfs.ErrIO) {
		t.Fatalf("unreadable: %v", err)
	}
}

func FuzzDecodeStamp(f *testing.F) {
	for _, s := range samples() {
		data, err := encodeStamp(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("levee-run version=1 flags=0 crc32c=00000000\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range []string{"identity", "run", "registration", "ownership", "buffered"} {
			s := blank(kind)
			if decodeStamp("f", data, s) != nil {
				continue
			}
			again, err := encodeStamp(s)
			if err != nil {
				t.Fatalf("%s was read but cannot be written: %v", kind, err)
			}
			if err := decodeStamp("f", again, blank(kind)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
