package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/leveemq/levee/internal/fault"
)

// lineBuffer is how much is read at a time; a line may be longer.
const lineBuffer = 64 << 10

// lineReader cuts an input into lines. It holds one buffer and at most one line beyond it. A line ends at \n, which is
// not part of it; a \r before it is. An empty line is a line; what follows the last \n is one unless it is empty.
type lineReader struct {
	in    io.Reader
	limit int // longest line in bytes
	// buf[:start] was handed out, buf[start:fill] is the beginning of a line, what follows is free.
	buf         []byte
	start, fill int
	taken       int64 // lines handed out
	end         bool
}

func newLineReader(in io.Reader, limit int) *lineReader {
	return &lineReader{in: in, limit: limit, buf: make([]byte, lineBuffer)}
}

// next returns the lines that one read completed, at least one, so that what somebody types is sent line by line. The
// lines are the caller's: no later call touches them. Lines may come together with the error that ended the input;
// io.EOF is its proper end.
func (r *lineReader) next() (lines [][]byte, err error) {
	for !r.end {
		if len(r.buf)-r.fill < lineBuffer/16 {
			begun := r.buf[r.start:r.fill]
			r.buf = make([]byte, max(lineBuffer, 2*len(begun)))
			r.start, r.fill = 0, copy(r.buf, begun)
		}
		n, err := r.in.Read(r.buf[r.fill:])
		last := bytes.LastIndexByte(r.buf[r.fill:r.fill+n], '\n')
		if last >= 0 {
			last += r.fill
		}
		r.fill += n
		switch {
		case err != nil:
			r.end = true
			return r.finish(r.buf[r.start:r.fill], err)
		case last >= 0:
			whole := r.buf[r.start : last+1]
			r.start = last + 1
			return r.cut(whole)
		case r.fill-r.start > r.limit:
			r.end = true
			return nil, r.tooLong(r.taken + 1)
		}
	}
	return nil, io.EOF
}

// finish deals with all that is left when the input has ended or failed. A line that a failed read cut short is not
// one; after a proper end it is.
func (r *lineReader) finish(data []byte, cause error) ([][]byte, error) {
	if errors.Is(cause, io.EOF) && len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	lines, err := r.cut(data[:bytes.LastIndexByte(data, '\n')+1])
	if err == nil {
		err = cause
	}
	return lines, err
}

// cut splits whole lines and stops at one that is over the limit.
func (r *lineReader) cut(data []byte) ([][]byte, error) {
	lines := make([][]byte, 0, bytes.Count(data, []byte{'\n'}))
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		if i > r.limit {
			r.end = true
			return lines, r.tooLong(r.taken + 1)
		}
		lines = append(lines, data[:i:i])
		data = data[i+1:]
		r.taken++
	}
	return lines, nil
}

func (r *lineReader) tooLong(number int64) error {
	return fault.New(fault.TooLarge, "line %d is longer than the broker's limit of %s a record: shorten it, or raise limits.record_bytes in the broker's configuration", number, byteSize(r.limit)).
		With("limit", r.limit).With("line", number)
}

// keyed splits a line at the first separator into key and value. Without one (or with an empty separator) the line is
// a record without a key.
func keyed(line, separator []byte) (key, value []byte) {
	if len(separator) > 0 {
		if before, after, ok := bytes.Cut(line, separator); ok {
			return before, after
		}
	}
	return nil, line
}

// header is one --header k=v.
type header struct{ key, value string }

// UnmarshalText splits at the first =.
func (h *header) UnmarshalText(text []byte) error {
	k, v, ok := bytes.Cut(text, []byte{'='})
	if !ok || len(k) == 0 {
		return fmt.Errorf("%q is not a header: write name=value", text)
	}
	*h = header{string(k), string(v)}
	return nil
}
