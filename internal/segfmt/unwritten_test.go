package segfmt

import (
	"bytes"
	"strings"
	"testing"
)

func TestUnwritten(t *testing.T) {
	whole := []byte(strings.Repeat(unwritten, 10))
	for position := range 40 {
		for n := range 70 {
			b := make([]byte, n)
			FillUnwritten(b, int64(position))
			if !bytes.Equal(b, whole[position:position+n]) {
				t.Fatalf("%d bytes at %d: %q", n, position, b)
			}
			if got := Written(b, int64(position)); got != 0 {
				t.Fatalf("%d bytes at %d: %d are taken for written", n, position, got)
			}
			for i := range b {
				b[i] ^= 1
				want := i + 1
				if n-want < len(unwritten) {
					want = n // by chance
				}
				if got := Written(b, int64(position)); got != want {
					t.Fatalf("%d bytes at %d, the one at %d is another: %d are taken for written, not %d", n, position, i, got, want)
				}
				b[i] ^= 1
			}
		}
	}
}
