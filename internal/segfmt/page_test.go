package segfmt

import (
	"bytes"
	"encoding/binary"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/leveemq/levee/record"
)

// pageExample returns the bytes of the example in docs/formats/segment.md, and checks the positions in its comments.
func pageExample(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile("../../docs/formats/segment.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```segment\n(.*?)^```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no example")
	}
	at := 0
	for _, line := range strings.Split(string(block[1]), "\n") {
		digits, comment, _ := strings.Cut(line, "#")
		if strings.TrimSpace(digits) == "" {
			continue
		}
		if n, err := strconv.ParseInt(strings.Fields(comment)[0], 16, 32); err != nil || int(n) != at {
			t.Errorf("%q: stands at %04x", line, at)
		}
		at += len(unhex(t, digits))
	}
	return unhex(t, string(block[1]))
}

// TestPageExample reads the page's example twice: by the page alone, and with this package.
func TestPageExample(t *testing.T) {
	b := pageExample(t)
	big := binary.BigEndian

	// By the page.
	if string(b[:4]) != "LVSG" || le.Uint16(b[4:]) != 1 || le.Uint32(b[60:]) != checksum(b[:60]) {
		t.Fatal("header")
	}
	seq, next := le.Uint64(b[16:]), int64(le.Uint64(b[8:]))
	var events []string
	for at := 64; at < len(b); {
		f := b[at:]
		if le.Uint32(f) != checksum(f[4:77]) {
			t.Fatalf("head_crc at %#x", at)
		}
		length := int(big.Uint32(f[24:])) + 28
		if length > len(f) || big.Uint32(f[33:]) != checksum(f[37:length]) {
			t.Fatalf("batch_crc at %#x", at)
		}
		base := int64(big.Uint64(f[16:]))
		if f[4] == 4 {
			events = append(events, "lost "+strconv.Itoa(int(le.Uint64(f[77:])))+" to "+strconv.Itoa(int(le.Uint64(f[85:]))))
			if int64(le.Uint64(f[77:])) != next {
				t.Fatalf("from at %#x", at)
			}
			next = int64(le.Uint64(f[85:])) + 1
		}
		if le.Uint64(f[8:]) != seq || base != next {
			t.Fatalf("frame at %#x does not follow", at)
		}
		if f[4] == 0 {
			events = append(events, strconv.Itoa(int(big.Uint32(f[73:])))+" record at "+strconv.Itoa(int(base)))
			next += int64(big.Uint32(f[39:])) + 1
		}
		seq, at = seq+1, at+length
	}
	if got := strings.Join(events, ", "); got != "1 record at 0, lost 1 to 999" || seq != 4 || next != 1000 {
		t.Fatalf("%s; then frame %d at offset %d", got, seq, next)
	}

	// With this package, decoding and encoding.
	h, err := ParseSegmentHeader(b)
	if err != nil || h.CreatedMs != 1767225600000 || h.Partition != 2 || h.BaseSeq != 1 {
		t.Fatalf("%+v, %v", h, err)
	}
	again := h.Append(nil)
	for at := SegmentHeaderSize; at < len(b); {
		f, err := ParseFrame(b[at:])
		if err != nil {
			t.Fatal(err)
		}
		whole := b[at : at+f.Size()]
		if err := CheckFrame(&f, whole); err != nil {
			t.Fatal(err)
		}
		if f.Kind == KindData {
			recs, err := record.Records(whole[FrameHeaderSize:])
			if err != nil || len(recs) != 1 || string(recs[0].Key) != "k" || string(recs[0].Value) != "hello" {
				t.Fatalf("%v, %v", recs, err)
			}
		}
		again = AppendFrame(again, f.Kind, uint64(f.Undurable), f.Seq, f.Batch.BaseOffset, uint32(f.Batch.Generation), whole[FrameHeaderSize:])
		at += f.Size()
	}
	if !bytes.Equal(again, b) {
		t.Fatalf("encoded again:\n%x, the page has\n%x", again, b)
	}
	if checksum([]byte("123456789")) != 0xe3069283 {
		t.Error("the page names another checksum")
	}
}
