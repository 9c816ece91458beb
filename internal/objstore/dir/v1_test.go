package dir

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// golden is the trailer of the object "hello" with the id 000102…0f. It must be read for ever.
const golden = "4c564f42" + "0100" + "0000" + "0500000000000000" + "000102030405060708090a0b0c0d0e0f" + "4cbb719a" + "bb9ae031"

func TestTrailerV1(t *testing.T) {
	want := trailer{size: 5, crc: 0x9a71bb4c}
	for i := range want.id {
		want.id[i] = byte(i)
	}
	b, err := hex.DecodeString(golden)
	must(t, err)
	if got := want.encode(); !bytes.Equal(got, b) {
		t.Errorf("encoded %x", got)
	}
	if got, err := decode(b, 45); err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
	if _, err := decode(b, 46); err == nil {
		t.Error("decoded for a file of another size")
	}
}

func FuzzTrailer(f *testing.F) {
	f.Add([]byte{}, int64(0))
	f.Add(trailer{size: 5}.encode(), int64(45))
	f.Add(trailer{size: -1}.encode(), int64(39))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		got, err := decode(b, size)
		if err != nil {
			return
		}
		if got.size < 0 || got.size != size-trailerSize {
			t.Errorf("%+v of a file of %d bytes", got, size)
		}
		if back := got.encode(); !bytes.Equal(back, b) {
			t.Errorf("%x was read, %x is written", b, back)
		}
	})
}
