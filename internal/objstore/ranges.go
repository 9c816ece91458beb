package objstore

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// RangeHeader returns the value of HTTP's Range header for n bytes from off on (n < 0: all), "" for a whole object.
func RangeHeader(off, n int64) string {
	switch {
	case n < 0 && off == 0:
		return ""
	case n < 0 || off+n < off:
		return fmt.Sprintf("bytes=%d-", off)
	}
	return fmt.Sprintf("bytes=%d-%d", off, off+n-1)
}

// ContentRange reads HTTP's Content-Range header: how many bytes the body has and how many the object has. What does not
// begin at off, or has not all of the n bytes that the object has there, is an error: a server that ignores a range would
// otherwise give other bytes.
func ContentRange(header string, off, n int64) (length, size int64, err error) {
	wrong := fmt.Errorf("asked for %d bytes at %d, the answer has Content-Range %q", n, off, header)
	span, total, ok := strings.Cut(strings.TrimPrefix(header, "bytes "), "/")
	first, last, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 {
		return 0, 0, wrong
	}
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || from != off || to < from-1 || to >= size {
		return 0, 0, wrong // to = from-1 is how some say that there is nothing
	}
	want, err := Clamp("", off, n, size)
	if err != nil || to-from+1 != want {
		return 0, 0, wrong
	}
	return want, size, nil
}

// Nothing answers a Get of no bytes, or of which a server said that its range is not in the object. Servers say so also
// where it begins right at the end, and HTTP cannot ask for no bytes; so the object's size decides.
func Nothing(ctx context.Context, s Store, key string, off int64) (*Body, error) {
	info, err := s.Head(ctx, key)
	if err != nil {
		return nil, err
	}
	if _, err := Clamp(key, off, 0, info.Size); err != nil {
		return nil, err
	}
	return NewBody(ctx, info, off, 0, http.NoBody), nil
}
