package seglog

import (
	"bytes"
	"errors"
	"testing"
)

// without returns the content of a segment file with one of its frames taken out.
func (p *picture) without(f *frameAt) []byte {
	b := p.content[f.file]
	return append(bytes.Clone(b[:f.pos]), b[f.end():]...)
}

// TestReadersRefuseGaps covers REC-05 where recovery does not look, in the middle of a sealed segment and after the log
// was opened: where a frame is gone, though every checksum is right, the reader ends with an error that names the file
// and the place, having given what stood before it.
func TestReadersRefuseGaps(t *testing.T) {
	clean, _ := threeSegments(t)
	tried := 0
	for i := range clean.frames {
		f, next := &clean.frames[i], &clean.frames[min(i+1, len(clean.frames)-1)]
		if f.file != clean.frames[0].file || next.file != f.file {
			continue
		}
		fs := clean.fs.Clone()
		l := clean.mustOpen(t, fs, CleanStop)
		tail := make([]byte, len(f.b)) // as long as it was: a file that became shorter is another error
		put(t, fs, clean.path(f.file), append(clean.without(f), tail...))
		at, wrong, err := clean.follow(l, clean.first)
		var c *CorruptionError
		if !errors.As(err, &c) || c.Path != clean.path(f.file) || c.Position != f.pos || at > f.NextOffset() || wrong != "" {
			t.Errorf("without frame %d at byte %d: read up to %d: %v %s", f.Seq, f.pos, at, err, wrong)
		}
		mustClose(t, l)
		tried++
	}
	if tried < 10 {
		t.Fatalf("only %d gaps tried", tried)
	}
}
