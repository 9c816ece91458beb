package record

import (
	"bytes"
	"reflect"
	"testing"
)

// small limits keep every input's cost low, so that memory claimed beyond them shows as a crash.
var fuzzLimits = Limits{RecordBytes: 64 << 10, BatchBytes: 1 << 20, DecompressedBytes: 1 << 20}

func seedBatches(f *testing.F) {
	for codec := range codecs {
		f.Add(readGolden(f, codec))
		f.Add(build(f, codec, NoProducer, compressible(20)...))
	}
	f.Add(encode(BatchInfo{Generation: 1}, []byte("control payload")))
}

// FuzzBatch feeds every decoder of whole batches. Where Verify accepts, all others must agree with it.
func FuzzBatch(f *testing.F) {
	seedBatches(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if batch, rest, err := Next(b); err == nil && len(batch)+len(rest) != len(b) {
			t.Fatal("Next lost bytes")
		}
		if len(b) >= HeaderSize {
			reseal(b) // else hardly any input passes the checksum
		}
		info, err := Verify(b, fuzzLimits)
		if err != nil {
			_, _ = Records(b)
			_, _ = Split(b, 1)
			return
		}
		records, err := Records(b)
		if err != nil || len(records) != int(info.Count) {
			t.Fatalf("verified, but %d records of %d: %v", len(records), info.Count, err)
		}
		var each []Record
		if err := Each(b, func(r Record) error { each = append(each, r); return nil }); err != nil || !reflect.DeepEqual(each, records) {
			t.Fatalf("Each differs: %v", err)
		}
		skip := len(records) / 2
		left, err := Split(b, skip)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Records(left)
		if err != nil || !reflect.DeepEqual(got, records[skip:]) {
			t.Fatalf("split records differ: %v", err)
		}
	})
}

// FuzzDecompress feeds each codec's decoder bytes of unknown origin.
func FuzzDecompress(f *testing.F) {
	for codec := Gzip; codec < codecs; codec++ {
		f.Add(uint8(codec), readGolden(f, codec)[HeaderSize:])
		f.Add(uint8(codec), mustCompress(f, codec, nil))
		f.Add(uint8(codec), mustCompress(f, codec, bytes.Repeat([]byte("levee"), 20000)))
	}
	f.Fuzz(func(t *testing.T, c uint8, block []byte) {
		const limit = 256 << 10
		out, err := decompress(nil, Codec(c), block, limit)
		if err == nil && len(out) > limit {
			t.Fatalf("%d bytes came out, above the limit", len(out))
		}
		if err != nil && kindOf(err) != KindInvalid && kindOf(err) != KindTooLarge {
			t.Fatalf("untyped error: %v", err)
		}
	})
}

// FuzzRoundTrip builds a batch of what it is given and reads it back.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(0), []byte("key"), []byte("value"), "name", int64(1700000000000), int64(-1))
	f.Add(uint8(4), []byte{}, bytes.Repeat([]byte("x"), 1000), "", int64(0), int64(1)<<62)
	f.Fuzz(func(t *testing.T, c uint8, key, value []byte, name string, t1, t2 int64) {
		records := []Record{
			{Key: key, Value: value, Timestamp: t1, Headers: []Header{{name, key}, {name, nil}}},
			{Key: nil, Value: nil, Timestamp: t2, Offset: 1},
		}
		b := build(t, Codec(c%uint8(codecs)), NoProducer, records...)
		if _, err := Verify(b, Limits{}); err != nil {
			t.Fatal(err)
		}
		got, err := Records(b)
		if err != nil || len(got) != 2 {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, records) {
			t.Fatalf("got %v, not %v", got, records)
		}
	})
}
