package tier

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// goldenFooter is the vector's.
var goldenFooter = Footer{
	Object: Object{
		Base: 1000, Next: 1500, BaseSeq: 40, NextSeq: 47, Generation: 9, MaxTime: 1767225600123,
		SegmentBytes: 100_000, IndexBytes: 48, TimesBytes: 48, Size: 100_000 + 48 + 48 + FooterSize, CRC: 0x01020304,
	},
	TopicID:   [16]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff},
	Partition: 0x31323334, PrevGeneration: 8, SegmentCRC: 0x21222324, SidesCRC: 0x31323334,
}

func TestGoldenFooter(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "footer-v1.hex"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := goldenFooter.Append(nil); !bytes.Equal(got, want) || len(got) != FooterSize {
		t.Errorf("the encoding changed:\n got %x\nwant %x", got, want)
	}
	if f, err := ParseFooter(want, goldenFooter.Size); err != nil || f != goldenFooter {
		t.Errorf("%+v, %v", f, err)
	}
}

// reseal makes the footer's checksum right again.
func reseal(b []byte) []byte {
	le.PutUint32(b[FooterSize-4:], checksum(b[:FooterSize-4]))
	return b
}

func TestFooterRefuses(t *testing.T) {
	size := goldenFooter.Size
	set := func(at int, v uint64, n int) func([]byte) {
		return func(b []byte) {
			for i := range n {
				b[at+i] = byte(v >> (8 * i))
			}
		}
	}
	minus := uint64(math.MaxUint64)
	for name, tc := range map[string]struct {
		change func([]byte)
		want   error
	}{
		"magic":                     {set(0, 0, 1), segfmt.ErrMagic},
		"a newer version":           {set(4, 2, 2), segfmt.ErrVersion},
		"version 0":                 {set(4, 0, 2), segfmt.ErrVersion},
		"a flag":                    {set(6, 1, 2), segfmt.ErrFlags},
		"a partition below 0":       {set(24, minus, 4), segfmt.ErrField},
		"a generation above":        {set(28, 1<<31, 4), segfmt.ErrField},
		"a generation that falls":   {set(28, 7, 4), segfmt.ErrField},
		"a base below 0":            {set(32, minus, 8), segfmt.ErrField},
		"a base that is next":       {set(32, 1500, 8), segfmt.ErrField},
		"next at the end":           {set(40, math.MaxInt64, 8), segfmt.ErrField},
		"base seq 0":                {set(48, 0, 8), segfmt.ErrField},
		"no frames":                 {set(56, 40, 8), segfmt.ErrField},
		"too many frames":           {set(56, 40+(100_000-64)/77+1, 8), segfmt.ErrField},
		"next seq without end":      {set(56, minus, 8), segfmt.ErrField},
		"a segment that is longer":  {set(72, 100_001, 8), segfmt.ErrField},
		"a segment without end":     {set(72, math.MaxInt64, 8), segfmt.ErrField},
		"a segment below 0":         {set(72, minus, 8), segfmt.ErrField},
		"an index that is longer":   {set(80, 72, 8), segfmt.ErrField},
		"an index below 0":          {set(80, minus-23, 8), segfmt.ErrField},
		"half an entry":             {set(80, 36, 8), segfmt.ErrField},
		"times without end":         {set(88, math.MaxInt64-15, 8), segfmt.ErrField},
		"times too short":           {set(88, 16, 8), segfmt.ErrField},
		"aborted transactions":      {set(96, 8, 8), segfmt.ErrField},
		"reserved":                  {set(120, 1, 4), segfmt.ErrField},
		"index more, segment less":  {func(b []byte) { set(80, 72, 8)(b); set(72, 100_000-24, 8)(b) }, nil},
		"an entry more than frames": {func(b []byte) { set(80, 24*8, 8)(b); set(72, 100_000-24*6, 8)(b) }, segfmt.ErrField},
	} {
		b := goldenFooter.Append(nil)
		tc.change(b)
		if _, err := ParseFooter(reseal(b), size); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := goldenFooter.Append(nil)
	for at := range good {
		b := bytes.Clone(good)
		b[at] ^= 1 << (at % 8)
		if _, err := ParseFooter(b, size); !errors.Is(err, segfmt.ErrChecksum) && (at >= 4 || !errors.Is(err, segfmt.ErrMagic)) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if _, err := ParseFooter(good[1:], size); !errors.Is(err, segfmt.ErrShort) {
		t.Error(err)
	}
	if _, err := ParseFooter(good, size-1); !errors.Is(err, segfmt.ErrField) {
		t.Error(err)
	}
}

func FuzzFooter(f *testing.F) {
	f.Add(goldenFooter.Append(nil), goldenFooter.Size)
	f.Add([]byte("LVXS"), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		if len(b) == FooterSize { // otherwise the checksum would hide the fields
			reseal(b)
		}
		got, err := ParseFooter(b, size)
		if err != nil {
			return
		}
		if again := got.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x\nbecame\n%x", b, again)
		}
		if got.SegmentBytes+got.IndexBytes+got.TimesBytes+FooterSize != size || min(got.SegmentBytes, got.IndexBytes, got.TimesBytes) < 0 {
			t.Errorf("%+v of %d bytes", got, size)
		}
	})
}

func TestKeys(t *testing.T) {
	o := goldenFooter.Object
	for _, p := range []Place{testPlace, {Cluster: "c"}, {Prefix: "x", Cluster: "c-1", Partition: math.MaxInt32}} {
		key := o.Key(p)
		got, n, ok := ParseKey(key)
		if !ok || got != p || n != o.Name() || objstore.CheckKey(key) != nil {
			t.Errorf("%s: %+v %+v %v", key, got, n, ok)
		}
	}
	good := "a/b/c1/010203000000000000000000000000ff/7/00000000000000001000-00000000000000001499-9-01020304.lvseg"
	if key := o.Key(testPlace); key != good {
		t.Errorf("the key changed: %s", key)
	}
	for _, bad := range []string{
		"", "x", Suffix, "a/b/c", "/" + good, good + "x", strings.ToUpper(good),
		strings.Replace(good, "/7/", "/07/", 1), strings.Replace(good, "/7/", "/-7/", 1), strings.Replace(good, "/7/", "/2147483648/", 1),
		strings.Replace(good, "0102030000", "01020300", 1), strings.Replace(good, "0102030000", "010203000x", 1),
		strings.Replace(good, "-9-", "-09-", 1), strings.Replace(good, "-9-", "-2147483648-", 1), strings.Replace(good, "-9-", "-9-1-", 1),
		strings.Replace(good, "1499", "0999", 1), strings.Replace(good, "00000000000000001000", "1000", 1),
		strings.Replace(good, "00000000000000001000", "99999999999999999999", 1), strings.Replace(good, "01020304", "1020304", 1),
		strings.Replace(good, "01020304", "0102030F", 1), strings.TrimSuffix(good, Suffix), strings.Replace(good, ".lvseg", ".lvsegx", 1),
	} {
		if p, n, ok := ParseKey(bad); ok {
			t.Errorf("%q: %+v %+v", bad, p, n)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add(goldenFooter.Key(testPlace))
	f.Fuzz(func(t *testing.T, key string) {
		if p, n, ok := ParseKey(key); ok && KeyOf(p, n) != key {
			t.Errorf("%q is %q", key, KeyOf(p, n))
		}
	})
}

func TestEveryErrorHasAKind(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want fault.Kind
	}{
		{&CorruptError{Where: "f", Cause: segfmt.ErrShort}, fault.Corrupt},
		{&MissingError{Key: "k", Cause: objstore.ErrNotFound}, fault.Corrupt},
		{undecodable("k", 1, segfmt.ErrVersion), fault.Unsupported},
		{undecodable("k", 1, segfmt.ErrMagic), fault.Corrupt},
		{Object{}.Validate(), fault.InvalidArgument},
		{ExporterConfig{Parallel: -1, BytesPerSec: -1}.Validate(), fault.InvalidArgument},
		{ColdConfig{StretchBytes: 1, CacheBytes: -1}.Validate(), fault.InvalidArgument},
	} {
		if got := fault.KindOf(tc.err); got != tc.want || tc.err.Error() == "" {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}
