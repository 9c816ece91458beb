package metatier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/goldentest"
	"github.com/leveemq/levee/internal/writebuf"
)

func sampleHead() head {
	return head{index: 4711, term: 3, pieces: 2, size: pieceSize + 1, crc: 0xdeadbeef, cluster: "orders-eu"}
}

// The golden files are what each version wrote: they are never rewritten.
func TestShelfHeadsOfEveryVersionOpen(t *testing.T) {
	nameless := sampleHead()
	nameless.cluster = ""
	for file, h := range map[string]head{"testdata/shelf-head.v1": nameless, "testdata/shelf-head.v2": sampleHead()} {
		golden := goldentest.Once(t, file, h.encode(), *update)
		if got, ok, err := decodeHead(golden); err != nil || !ok || got != h {
			t.Errorf("%+v, %v, %v", got, ok, err)
		}
	}
}

// What is not a head as it was written is none: every bit changed, every cut, anything added, and numbers that contradict
// each other.
func TestDamagedShelfHeadsAreNone(t *testing.T) {
	data := sampleHead().encode()
	none := func(what string, b []byte) {
		t.Helper()
		if _, ok, err := decodeHead(b); ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
	for i := range data {
		for bit := range 8 {
			b := bytes.Clone(data)
			b[i] ^= 1 << bit
			none(fmt.Sprintf("bit %d of byte %d changed", bit, i), b)
		}
		none(fmt.Sprintf("cut to %d", i), data[:i])
	}
	none("longer", append(bytes.Clone(data), 0))
	for what, change := range map[string]func(h *head){
		"too few pieces":  func(h *head) { h.pieces-- },
		"too many pieces": func(h *head) { h.pieces++ },
		"too large":       func(h *head) { h.size = MaxSnapshot + 1; h.pieces = uint32((h.size + pieceSize - 1) / pieceSize) },
		"of 2^64 bytes":   func(h *head) { h.size, h.pieces = 1<<64-1, 0 },
	} {
		h := sampleHead()
		change(&h)
		none(what, h.encode())
	}
}

func TestShelfHeadsOfNewerVersionsAreNotPieces(t *testing.T) {
	for what, at := range map[string]int{"version": 4, "flags": 6, "cluster_size": 36, "reserved": 38} {
		b := sampleHead().encode()
		b[at] = 3
		sum := len(b) - 4
		binary.LittleEndian.PutUint32(b[sum:], crc32.Checksum(b[:sum], castagnoli))
		if _, ok, err := decodeHead(b); ok || fault.KindOf(err) != fault.Unsupported {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
}

// A piece that looks like a head does not cut the snapshot before it short without a word: that one is none then, and the
// one before it counts.
func TestPiecesThatLookLikeHeads(t *testing.T) {
	buf := writebuf.NewMem().Buffer(idOf(1))
	shelf := &Buffers{Snapshots: buf, Cluster: "orders-eu"}
	first := []byte("the first snapshot")
	if _, err := shelf.shelve(t.Context(), 1, first, 7, 1); err != nil {
		t.Fatal(err)
	}
	if data, err := newest(t.Context(), buf); err != nil || !bytes.Equal(data, first) {
		t.Fatalf("%q, %v", data, err)
	}
	st, err := buf.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	like := sampleHead().encode()
	h := head{index: 8, term: 1, pieces: 1, size: uint64(len(like)), crc: crc32.Checksum(like, castagnoli)}
	for i, b := range [][]byte{h.encode(), like} {
		e := writebuf.Entry{Seq: st.Last + 1 + uint64(i), Frame: b}
		if err := buf.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: st.Floor, Entries: []writebuf.Entry{e}}); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := newest(t.Context(), buf); err != nil || !bytes.Equal(data, first) {
		t.Errorf("%q, %v", data, err)
	}
}

func FuzzShelfHead(f *testing.F) {
	f.Add(sampleHead().encode())
	f.Add(head{}.encode())
	f.Add([]byte(headMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok, err := decodeHead(data)
		switch {
		case err != nil:
			if ok || fault.KindOf(err) != fault.Unsupported {
				t.Fatalf("%v, %v", ok, err)
			}
		case ok:
			if !bytes.Equal(h.encode(), data) {
				t.Fatalf("%x was read as %+v, which is written as %x", data, h, h.encode())
			}
			if h.size > MaxSnapshot || uint64(h.pieces)*pieceSize < h.size {
				t.Fatalf("%+v", h)
			}
		}
	})
}
