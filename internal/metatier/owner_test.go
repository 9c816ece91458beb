package metatier

import (
	"bytes"
	"flag"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/goldentest"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

func seq(from byte) (i ID) {
	for n := range i {
		i[n] = from + byte(n)
	}
	return i
}

func sample() *Owner {
	s := Snapshot{Index: 4711, Term: 3, Size: 12345, CRC: 0xdeadbeef, Epoch: 2}
	s.Name = snapshotName(s.Index, s.Term, s.CRC)
	return &Owner{
		Claim: seq(0x10), Run: seq(0x40), Write: seq(0x80), Broker: "1", Who: "host:/data", Epoch: 2, Before: "broker 1 at old:/data",
		TakenMs: 1700000000000, TimeMs: 1700000001000, Snapshot: s,
	}
}

// The golden file is what released versions wrote: it is never rewritten.
func TestOwnerRecordsOfEveryVersionOpen(t *testing.T) {
	const file = "testdata/owner.v1"
	data, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden := goldentest.Once(t, file, data, *update)
	if got, err := DecodeOwner(golden); err != nil || *got != *sample() {
		t.Errorf("%+v, %v", got, err)
	}
}

// Any damage at all is noticed: every byte changed, every cut, anything added.
func TestDamagedOwnerRecordsAreRefused(t *testing.T) {
	data, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := DecodeOwner(b); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", what, err)
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
	refused("huge", bytes.Repeat([]byte{'x'}, ownerLimit+1))
}

func TestOwnerRecordsOfNewerVersionsAreNotDamage(t *testing.T) {
	for _, head := range []string{"levee-owner version=2 flags=0", "levee-owner version=1 flags=1"} {
		body := []byte(`{"new":1}`)
		b := append([]byte(head), []byte(" crc32c=")...)
		b = append(b, []byte(hex8(ownerSum(head, body)))...)
		b = append(append(append(b, '\n'), body...), '\n')
		if _, err := DecodeOwner(b); fault.KindOf(err) != fault.Unsupported {
			t.Errorf("%s: %v", head, err)
		}
	}
}

func hex8(v uint32) string { return snapshotName(0, 0, v)[len("00000000000000000000-0-"):][:8] }

func TestImpossibleOwnerRecordsAreNotWritten(t *testing.T) {
	for what, change := range map[string]func(o *Owner){
		"no claim":         func(o *Owner) { o.Claim = ID{} },
		"no run":           func(o *Owner) { o.Run = ID{} },
		"no broker":        func(o *Owner) { o.Broker = "" },
		"two lines":        func(o *Owner) { o.Who = "a\nb" },
		"epoch 0":          func(o *Owner) { o.Epoch = 0 },
		"nobody before":    func(o *Owner) { o.Before = "" },
		"another name":     func(o *Owner) { o.Snapshot.Name = "x" },
		"a later epoch":    func(o *Owner) { o.Snapshot.Epoch = 3 },
		"an empty one":     func(o *Owner) { o.Snapshot.Size = 0 },
		"a snapshot of 0":  func(o *Owner) { o.Snapshot.Index = 0 },
		"a negative time":  func(o *Owner) { o.TimeMs = -1 },
		"a name of a term": func(o *Owner) { o.Snapshot.Term++ },
	} {
		o := sample()
		change(o)
		if _, err := o.Encode(); err == nil {
			t.Errorf("%s: it was encoded", what)
		}
	}
}

func TestSnapshotNames(t *testing.T) {
	s := sample().Snapshot
	if got, ok := parseSnapshotName(s.Name); !ok || got.Index != s.Index || got.Term != s.Term || got.CRC != s.CRC {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, name := range []string{"", "owner", "1-1-00000000.snap", s.Name + "x", s.Name[1:], "00000000000000004711-3-DEADBEEF.snap", "00000000000000004711-03-deadbeef.snap"} {
		if _, ok := parseSnapshotName(name); ok {
			t.Errorf("%q was taken", name)
		}
	}
}

func FuzzDecodeOwner(f *testing.F) {
	data, err := sample().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("levee-owner version=1 flags=0 crc32c=00000000\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := DecodeOwner(data)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Corrupt && k != fault.Unsupported {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := o.Encode()
		if err != nil {
			t.Fatalf("it was read but cannot be written: %v", err)
		}
		if got, err := DecodeOwner(again); err != nil || *got != *o {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}
