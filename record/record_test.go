package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func build(t testing.TB, codec Codec, p ProducerInfo, records ...Record) []byte {
	t.Helper()
	b := NewBuilder(codec)
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// compressible returns n records that every codec makes smaller.
func compressible(n int) []Record {
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{
			Key: fmt.Appendf(nil, "key-%d", i), Value: bytes.Repeat([]byte("levee "), 40+i%7),
			Timestamp: 1700000000000 + int64(i%5), Offset: int64(i),
		}
		if i%3 == 0 {
			records[i].Headers = []Header{{"", []byte("x")}, {"empty", []byte{}}, {"null", nil}}
		}
	}
	return records
}

func kindOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return fmt.Sprint(err)
}

// reseal recomputes the checksum of a batch that a test changed.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-lengthOverhead))
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttributes:], castagnoli))
	return b
}

func TestRoundTrip(t *testing.T) {
	for codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			records := compressible(1000)
			b := build(t, codec, NoProducer, records...)
			info, err := Verify(b, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if info.Codec() != codec || info.Generation != -1 || info.ProducerID != -1 || info.BaseSequence != -1 {
				t.Errorf("header: %+v", info)
			}
			SetPlacement(b, 5000, 9)
			info, err = Check(b)
			if err != nil || info.BaseOffset != 5000 || info.Generation != 9 || info.LastOffset() != 5999 {
				t.Errorf("after placement: %+v, %v", info, err)
			}
			for i := range records {
				records[i].Offset += 5000
			}
			got, err := Records(b)
			if err != nil || !reflect.DeepEqual(got, records) {
				t.Errorf("records differ (%d), %v", len(got), err)
			}
		})
	}
}

func TestExtremes(t *testing.T) {
	records := []Record{
		{Timestamp: math.MaxInt64},
		{Timestamp: math.MinInt64, Offset: 1},
		{Timestamp: 0, Offset: 2, Key: []byte{}, Value: nil},
		{Timestamp: -1, Offset: 3, Key: nil, Value: []byte{}},
		{Offset: 4, Value: make([]byte, 1<<20)},
		{Offset: 5, Headers: make([]Header, 5000)},
	}
	got, err := Records(build(t, None, NoProducer, records...))
	if err != nil || !reflect.DeepEqual(got, records) {
		t.Errorf("records differ: %v", err)
	}
}

func TestIncompressibleStaysPlain(t *testing.T) {
	for codec := range codecs {
		info, err := Verify(build(t, codec, NoProducer, Record{Value: []byte{1, 7, 3}}), Limits{})
		if err != nil || info.Codec() != None {
			t.Errorf("%s: codec %s, %v", codec, info.Codec(), err)
		}
	}
}

func TestBuilder(t *testing.T) {
	b := NewBuilder(Zstd)
	if _, err := b.Build(NoProducer); kindOf(err) != KindInvalid {
		t.Errorf("empty batch: %v", err)
	}
	records := compressible(50)
	for _, r := range records {
		before := b.Len()
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
		if grew := b.Len() - before; grew > r.Size() {
			t.Errorf("record took %d bytes, Size says at most %d", grew, r.Size())
		}
	}
	one, _ := b.Build(goldenProducer)
	two, _ := b.Build(goldenProducer)
	if b.Count() != 50 || !bytes.Equal(one, two) {
		t.Errorf("the same records gave different batches")
	}
	b.Reset()
	if b.Count() != 0 || b.Len() != HeaderSize {
		t.Errorf("after Reset: %d records, %d bytes", b.Count(), b.Len())
	}
	if err := b.Append(Record{Value: make([]byte, MaxBatchBytes)}); kindOf(err) != KindTooLarge || b.Count() != 0 {
		t.Errorf("huge record: %v", err)
	}
	if _, err := Check(one); err != nil {
		t.Errorf("a batch built before Reset changed: %v", err)
	}
}

func TestHeaderRefused(t *testing.T) {
	good := build(t, None, NoProducer, Record{Value: []byte("v")})
	for name, change := range map[string]func(b []byte) []byte{
		"short":           func(b []byte) []byte { return b[:HeaderSize-1] },
		"magic":           func(b []byte) []byte { b[posMagic] = 1; return b },
		"length":          func(b []byte) []byte { binary.BigEndian.PutUint32(b[posLength:], 48); return b },
		"negative length": func(b []byte) []byte { b[posLength] = 0x80; return b },
		"negative count":  func(b []byte) []byte { b[57] = 0xff; return b },
		"negative delta":  func(b []byte) []byte { b[23] = 0xff; return b },
		"count":           func(b []byte) []byte { b[60] = 2; return b },
	} {
		if _, err := ParseHeader(change(bytes.Clone(good))); kindOf(err) != KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if info, err := ParseHeader(append(bytes.Clone(good), "more"...)); err != nil || info.Length != len(good) {
		t.Errorf("with bytes behind: %+v, %v", info, err)
	}
	if _, err := Check(append(bytes.Clone(good), 0)); kindOf(err) != KindInvalid {
		t.Errorf("Check of more than a batch: %v", err)
	}
	for i := posAttributes; i < len(good); i++ {
		b := bytes.Clone(good)
		b[i] ^= 1
		if _, err := Check(b); err == nil {
			t.Errorf("byte %d changed, and nobody noticed", i)
		}
	}
	b := bytes.Clone(good)
	b[len(b)-1] ^= 1
	if _, err := Check(b); kindOf(err) != KindCorrupt {
		t.Errorf("changed record: %v", err)
	}
}

func TestControlFrameHeader(t *testing.T) {
	b := encode(BatchInfo{BaseOffset: 77, Generation: 3, ProducerID: -1}, []byte("payload"))
	info, err := Check(b)
	if err != nil || info.Count != 0 || info.BaseOffset != 77 {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := Verify(b, Limits{}); kindOf(err) != KindInvalid {
		t.Errorf("published: %v", err)
	}
	if records, err := Records(b); err != nil || len(records) != 0 {
		t.Errorf("records: %v, %v", records, err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	records := compressible(3)
	for name, change := range map[string]func(i *BatchInfo, plain *[]byte){
		"control":            func(i *BatchInfo, _ *[]byte) { i.Attributes |= attrControl },
		"log append time":    func(i *BatchInfo, _ *[]byte) { i.Attributes |= attrLogAppendTime },
		"codec":              func(i *BatchInfo, _ *[]byte) { i.Attributes |= 5 },
		"not what it says":   func(i *BatchInfo, _ *[]byte) { i.Attributes |= int16(Zstd) },
		"compacted":          func(i *BatchInfo, _ *[]byte) { i.LastOffsetDelta++ },
		"more than counted":  func(i *BatchInfo, _ *[]byte) { i.Count--; i.LastOffsetDelta-- },
		"fewer than counted": func(i *BatchInfo, _ *[]byte) { i.Count++; i.LastOffsetDelta++ },
		"a billion":          func(i *BatchInfo, _ *[]byte) { i.Count = 1 << 30; i.LastOffsetDelta = 1<<30 - 1 },
		"trailing":           func(_ *BatchInfo, p *[]byte) { *p = append(*p, 0) },
		"producer":           func(i *BatchInfo, _ *[]byte) { i.ProducerID = 1; i.BaseSequence = -1 },
		"producer id":        func(i *BatchInfo, _ *[]byte) { i.ProducerID = -2 },
	} {
		b := NewBuilder(None)
		for _, r := range records {
			_ = b.Append(r)
		}
		info := BatchInfo{Count: 3, LastOffsetDelta: 2, FirstTimestamp: b.first, MaxTimestamp: b.newest, ProducerID: -1}
		plain := bytes.Clone(b.plain)
		change(&info, &plain)
		batch := encode(info, plain)
		if _, err := Verify(batch, Limits{}); kindOf(err) != KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMalformedRecords(t *testing.T) {
	for name, plain := range map[string][]byte{
		"empty":            {},
		"zero length":      {0},
		"negative length":  {1, 0, 0, 0, 1, 1, 0},
		"long length":      {0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 1, 1, 0},
		"overlong varint":  {0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"key beyond":       {12, 0, 0, 0, 100, 1, 0},
		"key -2":           {12, 0, 0, 0, 3, 1, 0},
		"value beyond":     {12, 0, 0, 0, 1, 100, 0},
		"headers beyond":   {12, 0, 0, 0, 1, 1, 100},
		"headers negative": {12, 0, 0, 0, 1, 1, 1},
		"header name null": {16, 0, 0, 0, 1, 1, 2, 1, 1},
		"rest":             {14, 0, 0, 0, 1, 1, 0, 0},
		"offset delta":     {12, 0, 0, 2, 1, 1, 0},
		"cut":              {12, 0, 0, 0, 1, 1},
	} {
		b := encode(BatchInfo{Count: 1, ProducerID: -1}, plain)
		if _, err := Verify(b, Limits{}); kindOf(err) != KindInvalid {
			t.Errorf("Verify %s: %v", name, err)
		}
		if _, err := Records(b); kindOf(err) != KindInvalid {
			t.Errorf("Records %s: %v", name, err)
		}
		if err := Each(b, func(Record) error { return nil }); kindOf(err) != KindInvalid {
			t.Errorf("Each %s: %v", name, err)
		}
	}
	ok := encode(BatchInfo{Count: 1, ProducerID: -1}, []byte{12, 0, 0, 0, 1, 1, 0})
	if _, err := Verify(ok, Limits{}); err != nil {
		t.Errorf("the smallest record: %v", err)
	}
}

func TestLimits(t *testing.T) {
	for codec := range codecs {
		b := build(t, codec, NoProducer, Record{Value: bytes.Repeat([]byte("0123456789"), 10000)})
		for name, l := range map[string]Limits{
			"record": {RecordBytes: 1000},
			"batch":  {BatchBytes: len(b) - 1},
		} {
			if _, err := Verify(b, l); kindOf(err) != KindTooLarge {
				t.Errorf("%s %s: %v", codec, name, err)
			}
		}
		if _, err := Verify(b, Limits{RecordBytes: 100100, BatchBytes: len(b), DecompressedBytes: 100100}); err != nil {
			t.Errorf("%s within limits: %v", codec, err)
		}
		if codec == None {
			continue
		}
		for _, limit := range []int{1, 1000, 99999} {
			if _, err := Verify(b, Limits{DecompressedBytes: limit}); kindOf(err) != KindTooLarge {
				t.Errorf("%s decompressed %d: %v", codec, limit, err)
			}
		}
	}
}

// A few bytes that unpack to a gigabyte, or claim to, are refused without claiming the memory.
func TestBombs(t *testing.T) {
	const gigabyte = 1 << 30
	zeros := make([]byte, 1<<20)
	var deflated bytes.Buffer
	w, _ := gzip.NewWriterLevel(&deflated, gzip.BestSpeed)
	for range 64 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	var streamed bytes.Buffer // a frame that does not state its size
	z, _ := zstd.NewWriter(&streamed, zstd.WithEncoderConcurrency(1))
	for range 64 {
		_, _ = z.Write(zeros)
	}
	_ = z.Close()
	claim := binary.AppendUvarint(nil, gigabyte)
	framed := append(append(bytes.Clone(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, byte(len(claim))), claim...)
	stated := binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, gigabyte)
	for name, c := range map[string]struct {
		codec Codec
		block []byte
	}{
		"gzip":           {Gzip, deflated.Bytes()},
		"zstd":           {Zstd, streamed.Bytes()},
		"zstd stated":    {Zstd, append(stated, 1, 0, 0)},
		"snappy claimed": {Snappy, claim},
		"xerial claimed": {Snappy, framed},
		"snappy real":    {Snappy, snappy.Encode(nil, make([]byte, 64<<20))},
		"lz4":            {LZ4, mustCompress(t, LZ4, make([]byte, 64<<20))},
	} {
		b := encode(BatchInfo{Attributes: int16(c.codec), Count: 1, ProducerID: -1}, c.block)
		limits := Limits{DecompressedBytes: 1 << 20}
		if _, err := Verify(b, limits); err == nil {
			t.Errorf("%s: taken", name)
		}
		if got := allocated(func() { _, _ = Verify(b, limits) }); got > 8<<20 {
			t.Errorf("%s: %d bytes claimed to refuse it", name, got)
		}
	}
}

// allocated returns the bytes claimed by a call of fn after the pools are warm.
func allocated(fn func()) uint64 {
	fn()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func mustCompress(t testing.TB, codec Codec, plain []byte) []byte {
	t.Helper()
	b, err := compress(nil, codec, plain)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlainSnappy(t *testing.T) {
	b := build(t, None, NoProducer, compressible(10)...)
	info, _ := ParseHeader(b)
	info.Attributes = int16(Snappy)
	plain := encode(info, snappy.Encode(nil, b[HeaderSize:]))
	if _, err := Verify(plain, Limits{}); err != nil {
		t.Fatal(err)
	}
	if got, err := Records(plain); err != nil || !reflect.DeepEqual(got, compressible(10)) {
		t.Errorf("%v", err)
	}
}

func TestSplit(t *testing.T) {
	for codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			records := compressible(100)
			b := build(t, codec, ProducerInfo{ID: 5, Epoch: 1, Sequence: 1<<31 - 10}, records...)
			SetPlacement(b, 1000, 4)
			for i := range records {
				records[i].Offset += 1000
			}
			for _, skip := range []int{0, 1, 37, 99} {
				left, err := Split(b, skip)
				if err != nil {
					t.Fatal(err)
				}
				info, err := Verify(left, Limits{})
				if err != nil {
					t.Fatal(err)
				}
				if info.BaseOffset != int64(1000+skip) || info.Generation != 4 || int(info.Count) != 100-skip ||
					info.ProducerID != 5 || info.ProducerEpoch != 1 || info.Codec() != codec ||
					info.BaseSequence != NextSequence(1<<31-10, int32(skip)) {
					t.Errorf("skip %d: %+v", skip, info)
				}
				got, err := Records(left)
				if err != nil || !reflect.DeepEqual(got, records[skip:]) {
					t.Errorf("skip %d: %d records, %v", skip, len(got), err)
				}
			}
			for _, skip := range []int{-1, 100} {
				if _, err := Split(b, skip); kindOf(err) != KindInvalid {
					t.Errorf("skip %d: %v", skip, err)
				}
			}
		})
	}
}

func TestNext(t *testing.T) {
	one, two := build(t, None, NoProducer, compressible(1)...), build(t, Zstd, NoProducer, compressible(9)...)
	rest := append(bytes.Clone(one), two...)
	var got [][]byte
	for len(rest) > 0 {
		batch, r, err := Next(rest)
		if err != nil {
			t.Fatal(err)
		}
		got, rest = append(got, batch), r
	}
	if !reflect.DeepEqual(got, [][]byte{one, two}) {
		t.Errorf("cut into %d", len(got))
	}
	for _, b := range [][]byte{nil, one[:len(one)-1], one[:10]} {
		if _, _, err := Next(b); kindOf(err) != KindInvalid {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

func TestLogAppendTime(t *testing.T) {
	b := build(t, None, NoProducer, compressible(4)...)
	b[22] |= attrLogAppendTime
	binary.BigEndian.PutUint64(b[35:], 42)
	got, err := Records(reseal(b))
	if err != nil || got[0].Timestamp != 42 || got[3].Timestamp != 42 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestEach(t *testing.T) {
	b := build(t, LZ4, NoProducer, compressible(10)...)
	var n int
	stop := errors.New("enough")
	err := Each(b, func(r Record) error {
		if r.Offset != int64(n) {
			t.Errorf("record %d has offset %d", n, r.Offset)
		}
		if n++; n == 5 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || n != 5 {
		t.Errorf("%d records, %v", n, err)
	}
}

func TestNextSequence(t *testing.T) {
	for _, c := range [][3]int32{{0, 0, 0}, {0, 1, 1}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 5, 3}, {7, math.MaxInt32, 6}} {
		if got := NextSequence(c[0], c[1]); got != c[2] {
			t.Errorf("NextSequence(%d, %d) = %d, not %d", c[0], c[1], got, c[2])
		}
	}
}

func TestParseCodec(t *testing.T) {
	for c := range codecs {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%s: %v, %v", c, got, err)
		}
	}
	if _, err := ParseCodec("brotli"); kindOf(err) != KindInvalid {
		t.Error(err)
	}
}

func TestNoAllocations(t *testing.T) {
	plain := build(t, None, NoProducer, compressible(100)...)
	for name, fn := range map[string]func() error{
		"ParseHeader": func() error { _, err := ParseHeader(plain); return err },
		"Check":       func() error { _, err := Check(plain); return err },
		"Verify":      func() error { _, err := Verify(plain, Limits{}); return err },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := fn(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// encode puts info in front of payload, whatever that is.
func encode(info BatchInfo, payload []byte) []byte {
	return putHeader(append(bytes.Clone(emptyHeader[:]), payload...), info)
}

// What Seal returns is what Build returns, and lies in memory that the next batch uses again.
func TestSealCopiesNothing(t *testing.T) {
	for codec := range codecs {
		builder := NewBuilder(codec)
		records := compressible(200)
		want := build(t, codec, ProducerInfo{ID: 4, Epoch: 1, Sequence: 9}, records...)
		round := func() {
			builder.Reset()
			for _, r := range records {
				if err := builder.Append(r); err != nil {
					t.Fatal(err)
				}
			}
			got, err := builder.Seal(ProducerInfo{ID: 4, Epoch: 1, Sequence: 9})
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: got %d bytes, %v; want those of Build", codec, len(got), err)
			}
		}
		round()
		if n := testing.AllocsPerRun(50, round); codec == None && n > 0 {
			t.Errorf("a batch in memory that is there allocates %v times", n)
		}
	}
	if _, err := NewBuilder(None).Seal(NoProducer); err == nil {
		t.Error("a batch without records was made")
	}
}

// Records are written and found without kmsg, for speed; kmsg has to see the same ones.
func TestRecordsAgainstKmsg(t *testing.T) {
	want := []Record{
		{},
		{Key: []byte{}, Value: []byte{}, Timestamp: 5},
		{Key: []byte("k"), Timestamp: -1},
		{Value: bytes.Repeat([]byte("v"), 300), Timestamp: 1 << 50},
		{Value: []byte("v"), Headers: []Header{{Key: "", Value: nil}, {Key: "h", Value: []byte{}}, {Key: "long", Value: bytes.Repeat([]byte("x"), 9000)}}},
	}
	batch := build(t, None, NoProducer, want...)
	rest := batch[HeaderSize:]
	for i, r := range want {
		var raw kmsg.Record
		s, ok := scanRecord(rest)
		if !ok {
			t.Fatalf("record %d is malformed", i)
		}
		if err := raw.ReadFrom(rest[:s.size]); err != nil {
			t.Fatal(err)
		}
		headers := make([]Header, len(raw.Headers))
		for j := range headers {
			headers[j] = Header(raw.Headers[j])
		}
		if int(raw.Length) != s.size-s.body || raw.OffsetDelta != int32(i) || raw.TimestampDelta64 != r.Timestamp-want[0].Timestamp ||
			!same(raw.Key, r.Key) || !same(raw.Value, r.Value) || len(headers) != len(r.Headers) {
			t.Errorf("kmsg reads record %d as %+v", i, raw)
		}
		for j, h := range r.Headers {
			if headers[j].Key != h.Key || !same(headers[j].Value, h.Value) {
				t.Errorf("kmsg reads header %d of record %d as %+v", j, i, headers[j])
			}
		}
		if !same(s.key, raw.Key) || !same(s.value, raw.Value) || !reflect.DeepEqual(append([]Header{}, s.list()...), headers) {
			t.Errorf("record %d: %+v is not what kmsg reads, %+v", i, s, raw)
		}
		rest = rest[s.size:]
	}
}

func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
