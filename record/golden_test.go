package record

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var goldenProducer = ProducerInfo{ID: 4242, Epoch: 7, Sequence: 1<<31 - 2}

func goldenRecords() []Record {
	key := make([]byte, 64)
	for i := range key {
		key[i] = byte(i)
	}
	return []Record{
		{
			Key: []byte("k1"), Value: bytes.Repeat([]byte("v"), 200), Timestamp: 1700000000000,
			Headers: []Header{{"h", []byte("x")}, {"", []byte{}}, {"n", nil}},
		},
		{Timestamp: 1699999999990, Offset: 1},
		{Key: []byte{}, Value: []byte{}, Timestamp: 1700000000500, Offset: 2},
		{
			Key: key, Value: bytes.Repeat([]byte("abc"), 100), Timestamp: 1700000000001, Offset: 3,
			Headers: []Header{{"h", []byte("1")}, {"h", []byte("2")}},
		},
	}
}

func readGolden(t testing.TB, codec Codec) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "golden", codec.String()+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	for codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			b := readGolden(t, codec)
			info, err := Verify(b, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if info.Codec() != codec || info.Count != 4 || info.LastOffsetDelta != 3 || info.ProducerID != 4242 ||
				info.ProducerEpoch != 7 || info.BaseSequence != 1<<31-2 || info.LastSequence() != 1 ||
				info.FirstTimestamp != 1700000000000 || info.MaxTimestamp != 1700000000500 || info.Length != len(b) ||
				info.Transactional() || info.Control() {
				t.Errorf("header: %+v", info)
			}
			got, err := Records(b)
			if err != nil {
				t.Fatal(err)
			}
			if want := goldenRecords(); !reflect.DeepEqual(got, want) {
				t.Errorf("records:\n got %v\nwant %v", got, want)
			}
		})
	}
}

func TestGoldenEncode(t *testing.T) {
	b := build(t, None, goldenProducer, goldenRecords()...)
	SetPlacement(b, 0, 0)
	if want := readGolden(t, None); !bytes.Equal(b, want) {
		t.Errorf("encoding changed:\n got %x\nwant %x", b, want)
	}
}
