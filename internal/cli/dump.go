package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

type inspectDumpCmd struct {
	File  string `arg:"" help:"A segment file (….log)."`
	From  int64  `placeholder:"OFFSET" default:"0" help:"Leave out frames that end below this offset."`
	Count int64  `placeholder:"N" default:"0" help:"Stop after this many frames; 0 is all."`
}

// Help describes the command.
func (inspectDumpCmd) Help() string {
	return manual{
		text: "Checks every frame before it prints it. What follows the last good frame is told on standard error: nothing is said " +
			"about space that was reserved and is still zero; anything else makes the command exit with 3.",
		example: "levee inspect dump ./levee-data/topics/default/orders@1/0/00000000000000000000.log --count 10",
		rows:    "one object a frame", row: frameJSON{},
	}.String()
}

type frameJSON struct {
	Offset       int64  `json:"offset" doc:"of the frame's first record; of the next record for a frame without any"`
	Position     int64  `json:"position" doc:"where the frame begins in the file, in bytes"`
	Length       int    `json:"length" doc:"of the whole frame in bytes"`
	Seq          uint64 `json:"seq" doc:"the frame's ordinal in the log"`
	Generation   uint32 `json:"generation" doc:"of the owner that wrote it"`
	Kind         string `json:"kind" doc:"data, generation-start, membership, no-op or lost"`
	Records      int32  `json:"records" doc:"how many it holds"`
	MaxTimestamp int64  `json:"max_timestamp" doc:"newest record's, milliseconds since 1970, UTC; -1 without records"`
}

// Run prints the frames.
func (c *inspectDumpCmd) Run(a *app) error {
	file, err := vfs.ReadOnly{}.Open(c.File, false)
	if err != nil {
		return fault.New(kindOfIO(err), "open segment file %s: %w", c.File, err)
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return fault.New(fault.IO, "read size of %s: %w", c.File, err)
	}
	d := &dumper{path: c.File, window: window{file: file, size: size}}
	if err := d.open(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(a.stdout, 64<<10)
	if !a.json {
		fmt.Fprintf(out, frameColumns, "OFFSET", "POSITION", "LENGTH", "SEQ", "GENERATION", "KIND", "RECORDS", "MAX TIMESTAMP")
	}
	err = c.dump(a, d, out)
	if ferr := out.Flush(); ferr != nil {
		return ferr
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// frameColumns is fixed: a file may have millions of frames, which are not held back to measure them.
const frameColumns = "%12v %12v %9v %12v %10v  %-16v %7v  %v\n"

// dump prints frames until an error, which is io.EOF at the proper end, or until there were enough: nil.
func (c *inspectDumpCmd) dump(a *app, d *dumper, out *bufio.Writer) error {
	for printed := int64(0); c.Count == 0 || printed < c.Count; {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		f, at, err := d.next()
		if err != nil {
			return err
		}
		if f.NextOffset() <= c.From && (f.Kind == segfmt.KindData || f.NextOffset() < c.From) {
			continue
		}
		printed++
		row := newFrameJSON(f, at)
		if a.json {
			err = writeJSON(out, row)
		} else {
			stamp := "-"
			if row.MaxTimestamp >= 0 {
				stamp = time.UnixMilli(row.MaxTimestamp).UTC().Format(timeFormat)
			}
			_, err = fmt.Fprintf(out, frameColumns, row.Offset, row.Position, row.Length, row.Seq, row.Generation, row.Kind, row.Records, stamp)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func newFrameJSON(f segfmt.Frame, at int64) frameJSON {
	row := frameJSON{
		Offset: f.Batch.BaseOffset, Position: at, Length: f.Size(), Seq: f.Seq, Generation: uint32(f.Batch.Generation), //nolint:gosec // ParseFrame refuses negative ones
		Kind: segfmt.KindName(f.Kind), Records: f.Batch.Count, MaxTimestamp: -1,
	}
	if f.Batch.Count > 0 {
		row.MaxTimestamp = f.Batch.MaxTimestamp
	}
	return row
}

// dumper walks the frames of one file.
type dumper struct {
	path   string
	window window
	at     int64
}

// open checks the file's header.
func (d *dumper) open() error {
	head, err := d.window.read(0, segfmt.SegmentHeaderSize)
	if err == nil {
		_, err = segfmt.ParseSegmentHeader(head)
	}
	if err != nil {
		return d.corrupt(0, "segment header: %w", err)
	}
	d.at = segfmt.SegmentHeaderSize
	return nil
}

// next returns the next frame and its position; io.EOF where the file ends or only zeros follow.
func (d *dumper) next() (segfmt.Frame, int64, error) {
	at := d.at
	if at == d.window.size {
		return segfmt.Frame{}, at, io.EOF
	}
	b, err := d.window.read(at, segfmt.MinFrame)
	if err != nil {
		return segfmt.Frame{}, at, err
	}
	f, err := segfmt.ParseFrame(b)
	if err == nil {
		if b, err = d.window.read(at, f.Size()); err != nil {
			return f, at, err
		}
		err = segfmt.CheckFrame(&f, b)
	}
	if err == nil {
		d.at += int64(f.Size())
		return f, at, nil
	}
	zero, zerr := d.window.zeroFrom(at)
	switch {
	case zerr != nil:
		return f, at, zerr
	case zero:
		return f, at, io.EOF
	}
	return f, at, d.corrupt(at, "no whole frame is here: %w", err)
}

func (d *dumper) corrupt(at int64, format string, err error) error {
	cause := fmt.Errorf(format, err)
	return &exitError{code: exitData, hint: "levee inspect segments " + filepath.Dir(d.path) + ", for what a broker would do about it",
		err: fault.New(fault.Corrupt, "%s: byte %d: %w", d.path, at, cause)}
}

// window reads a file front to back through one buffer.
type window struct {
	file  vfs.File
	size  int64
	start int64 // position of buf
	buf   []byte
}

const windowSize = 1 << 20

// read returns up to n bytes at position at, fewer only where the file ends. They are valid until the next call.
func (w *window) read(at int64, n int) ([]byte, error) {
	n = int(min(int64(n), w.size-at))
	if at < w.start || at+int64(n) > w.start+int64(len(w.buf)) {
		length := min(int64(max(n, windowSize)), w.size-at)
		if int64(cap(w.buf)) < length {
			w.buf = make([]byte, length)
		}
		w.start, w.buf = at, w.buf[:length]
		if got, err := w.file.ReadAt(w.buf, at); got < len(w.buf) {
			w.buf = w.buf[:0]
			return nil, fault.New(fault.IO, "read %d bytes at byte %d: %w", length, at, err)
		}
	}
	return w.buf[at-w.start:][:n], nil
}

// zeroFrom reports whether nothing but zeros follows.
func (w *window) zeroFrom(at int64) (bool, error) {
	for at < w.size {
		b, err := w.read(at, windowSize)
		if err != nil {
			return false, err
		}
		for _, c := range b {
			if c != 0 {
				return false, nil
			}
		}
		at += int64(len(b))
	}
	return true, nil
}
