package raft

import (
	"bytes"
	"encoding/binary"
	"flag"
	"reflect"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/goldentest"
)

var rewrite = flag.Bool("rewrite", false, "write golden files that are missing; those that are there are never replaced")

func goldenSnapshot() snapshot {
	return snapshot{seq: 1 << 40, term: 7, members: []member{{1, roleVoter}, {9, roleLearner}}, payload: []byte("{\"state\":1}\n")}
}

// TestGoldenSnapshot opens a file that was written once and must open for ever, and is written alike to the byte.
func TestGoldenSnapshot(t *testing.T) {
	const file = "testdata/snapshot-v1.snap"
	b := goldentest.Once(t, file, goldenSnapshot().encode(), *rewrite)
	s, err := decodeSnapshot(b)
	if err != nil || !reflect.DeepEqual(s, goldenSnapshot()) {
		t.Errorf("decoded %+v, %v", s, err)
	}
}

// resign makes the header's checksum right again.
func resign(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[8:], headerChecksum(b))
	return b
}

func TestNewerSnapshotsAreNotTakenForDamage(t *testing.T) {
	for name, c := range map[string]struct {
		at   int
		to   byte
		kind fault.Kind
	}{
		"version":  {4, 2, fault.Unsupported},
		"flags":    {7, 1, fault.Unsupported},
		"reserved": {63, 1, fault.Corrupt},
		"members":  {36, 0, fault.Corrupt},
		"length":   {24, 99, fault.Corrupt},
		"huge":     {31, 0xff, fault.Corrupt},
	} {
		b := goldenSnapshot().encode()
		b[c.at] = c.to
		if _, err := decodeSnapshot(b); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%s, rotten: %v", name, err)
		}
		if _, err := decodeSnapshot(resign(b)); fault.KindOf(err) != c.kind {
			t.Errorf("%s, as written: %v", name, err)
		}
	}
}

func TestSnapshotNames(t *testing.T) {
	if got := snapshotName(12, 3); got != "00000000000000000012-3.snap" {
		t.Error(got)
	}
	for name, ok := range map[string]bool{
		"00000000000000000012-3.snap":  true,
		"18446744073709551615-1.snap":  true,
		"18446744073709551616-1.snap":  false,
		"12-3.snap":                    false,
		"00000000000000000012-03.snap": false,
		"00000000000000000012-+3.snap": false,
		"00000000000000000000-3.snap":  false,
		"00000000000000000012-3.snapx": false,
		"00000000000000000012-3":       false,
		"":                             false,
	} {
		if _, _, got := parseSnapshotName(name); got != ok {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// FuzzSnapshot: what is read is written again alike, to the byte. The checksums are made right first, or nothing would
// ever pass them.
func FuzzSnapshot(f *testing.F) {
	f.Add(goldenSnapshot().encode(), true)
	f.Add(goldenSnapshot().encode()[:70], true)
	f.Add([]byte("LVSN"), false)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		if sign && len(b) >= snapshotHeader {
			b = bytes.Clone(b)
			le := binary.LittleEndian
			head := snapshotHeader + uint64(le.Uint32(b[36:]))*memberSize
			if head <= uint64(len(b)) {
				le.PutUint32(b[40:], checksum(b[snapshotHeader:head]))
				le.PutUint32(b[32:], checksum(b[head:]))
				le.PutUint64(b[24:], uint64(len(b))-head)
			}
			resign(b)
		}
		s, err := decodeSnapshot(b)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Corrupt && k != fault.Unsupported {
				t.Fatalf("kind %v: %v", k, err)
			}
			return
		}
		if again := s.encode(); !bytes.Equal(b, again) {
			t.Fatalf("%x\n%x", b, again)
		}
	})
}
