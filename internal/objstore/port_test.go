package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFailures says what every kind of answer means, for reads and for both writes.
func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		status             int
		sent               bool
		get, absent, match *fault.Error
	}{
		{0, false, ErrUnavailable, ErrUnavailable, ErrUnavailable},
		{0, true, ErrUnavailable, ErrOutcomeUnknown, ErrOutcomeUnknown},
		{200, true, ErrUnavailable, ErrOutcomeUnknown, ErrOutcomeUnknown}, // and cannot be read
		{302, false, ErrUnavailable, ErrUnavailable, ErrUnavailable},
		{400, true, ErrInvalid, ErrInvalid, ErrInvalid},
		{401, true, ErrDenied, ErrDenied, ErrDenied},
		{403, true, ErrDenied, ErrDenied, ErrDenied},
		{404, true, ErrNotFound, ErrInvalid, ErrConflict},
		{408, true, ErrUnavailable, ErrUnavailable, ErrUnavailable},
		{409, true, ErrUnavailable, ErrUnavailable, ErrConflict},
		{412, true, ErrConflict, ErrExists, ErrConflict},
		{413, true, ErrInvalid, ErrInvalid, ErrInvalid},
		{416, true, ErrRange, ErrRange, ErrRange},
		{429, true, ErrThrottled, ErrThrottled, ErrThrottled},
		{500, false, ErrUnavailable, ErrUnavailable, ErrUnavailable},
		{500, true, ErrUnavailable, ErrOutcomeUnknown, ErrOutcomeUnknown},
		{503, true, ErrUnavailable, ErrOutcomeUnknown, ErrOutcomeUnknown},
		{507, true, ErrNoSpace, ErrNoSpace, ErrNoSpace},
		{520, true, ErrUnavailable, ErrOutcomeUnknown, ErrOutcomeUnknown},
	} {
		cause := errors.New("the cause")
		for op, want := range map[Op]*fault.Error{OpGet: tt.get, OpPutIfAbsent: tt.absent, OpPutIfMatch: tt.match} {
			err := Failure{Op: op, Key: "k/x", Status: tt.status, Sent: tt.sent, Cause: cause}.Err()
			if !errors.Is(err, want) || !errors.Is(err, cause) || fault.KindOf(err) != want.Kind || !strings.Contains(err.Error(), op.String()+" k/x") {
				t.Errorf("%s: status %d, sent %v: %v, want %v", op, tt.status, tt.sent, err, want)
			}
		}
	}
}

// TestUnansweredFailures tells apart what may have happened from what cannot have.
func TestUnansweredFailures(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		cause error
		sent  bool
		want  fault.Kind
	}{
		{refused, true, fault.Unavailable}, // there was nothing to send it on
		{context.Canceled, false, fault.Canceled},
		{context.DeadlineExceeded, false, fault.Timeout},
		{context.Canceled, true, fault.OutcomeUnknown},
		{fmt.Errorf("%w: rotten", ErrSource), false, fault.IO},
		{io.ErrUnexpectedEOF, true, fault.OutcomeUnknown},
		{io.ErrUnexpectedEOF, false, fault.Unavailable},
	} {
		err := Failure{Op: OpPutIfAbsent, Key: "k", Sent: tt.sent, Cause: tt.cause}.Err()
		if fault.KindOf(err) != tt.want || !errors.Is(err, tt.cause) {
			t.Errorf("%v, sent %v: %v (%s), want %s", tt.cause, tt.sent, err, fault.KindOf(err), tt.want)
		}
	}
	slow := Failure{Op: OpPutIfAbsent, Key: "k", Status: 503, Slow: true, Sent: true, Cause: io.EOF}.Err()
	if !errors.Is(slow, ErrThrottled) || !Retryable(slow) {
		t.Errorf("slow down: %v", slow)
	}
	unknown := Failure{Op: OpDelete, Key: "k", Sent: true, Cause: io.EOF}.Err()
	if Retryable(unknown) {
		t.Errorf("may be repeated: %v", unknown)
	}
}

func TestContentRange(t *testing.T) {
	for _, tt := range []struct {
		header       string
		off, n       int64
		length, size int64 // -1: an error
	}{
		{"bytes 0-9/100", 0, 10, 10, 100},
		{"bytes 90-99/100", 90, 50, 10, 100},
		{"bytes 90-99/100", 90, -1, 10, 100},
		{"bytes 100-99/100", 100, 5, 0, 100},
		{"bytes 0--1/0", 0, 5, 0, 0},
		{"bytes 0-9/100", 5, 10, -1, -1},  // of another place
		{"bytes 5-9/100", 5, 10, -1, -1},  // less than there is
		{"bytes 5-20/100", 5, 10, -1, -1}, // more than was asked for
		{"bytes 5-14/10", 5, 10, -1, -1},
		{"bytes 5-14/*", 5, 10, -1, -1},
		{"bytes */100", 5, 10, -1, -1},
		{"", 0, 10, -1, -1},
		{"bytes x-y/z", 0, 10, -1, -1},
	} {
		length, size, err := ContentRange(tt.header, tt.off, tt.n)
		if (err != nil) != (tt.length < 0) || err == nil && (length != tt.length || size != tt.size) {
			t.Errorf("%q for %d at %d: %d of %d, %v", tt.header, tt.n, tt.off, length, size, err)
		}
	}
	for _, tt := range []struct {
		off, n int64
		want   string
	}{{0, -1, ""}, {5, -1, "bytes=5-"}, {0, 1, "bytes=0-0"}, {5, 10, "bytes=5-14"}, {5, 1<<63 - 1, "bytes=5-"}} {
		if got := RangeHeader(tt.off, tt.n); got != tt.want {
			t.Errorf("%d at %d: %q", tt.n, tt.off, got)
		}
	}
}

// FuzzContentRange: whatever a server says, what is accepted is what was asked for.
func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-9/100", int64(0), int64(10))
	f.Add("bytes 0--1/0", int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, header string, off, n int64) {
		if off < 0 {
			return
		}
		length, size, err := ContentRange(header, off, n)
		if err != nil {
			return
		}
		if want, cerr := Clamp("k", off, n, size); cerr != nil || length != want || length < 0 || size < 0 {
			t.Errorf("%q for %d at %d: %d of %d", header, n, off, length, size)
		}
	})
}

// FuzzCheckKey: a key that is accepted is a path below a directory, and itself when it is cleaned.
func FuzzCheckKey(f *testing.F) {
	f.Add("a/b c/100%.lvseg")
	f.Add("../a")
	f.Fuzz(func(t *testing.T, key string) {
		if CheckKey(key) != nil {
			return
		}
		for c := range strings.SplitSeq(key, "/") {
			if c == "" || c == "." || c == ".." || strings.ContainsAny(c, "\x00\\\r\n") {
				t.Errorf("%q is accepted", key)
			}
		}
	})
}

// halves is a body in two pieces and an end.
func halves(data string, end error) io.ReadCloser {
	return io.NopCloser(io.MultiReader(strings.NewReader(data[:len(data)/2]), strings.NewReader(data[len(data)/2:]), failing{end}))
}

type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestBody(t *testing.T) {
	const data = "0123456789"
	right := Bytes([]byte(data)).CRC32C()
	for _, tt := range []struct {
		name   string
		info   Info
		off, n int64
		body   io.ReadCloser
		got    string
		want   error
	}{
		{"whole", Info{Size: 10, CRC32C: right, HasCRC: true}, 0, 10, halves(data, io.EOF), data, nil},
		{"other bytes", Info{Size: 10, CRC32C: right + 1, HasCRC: true}, 0, 10, halves(data, io.EOF), data, ErrCorrupt},
		{"no checksum", Info{Size: 10}, 0, 10, halves(data, io.EOF), data, nil},
		{"a part has no checksum", Info{Size: 20, CRC32C: 1, HasCRC: true}, 0, 10, halves(data, io.EOF), data, nil},
		{"early end", Info{Size: 11}, 0, 11, halves(data, io.EOF), data, ErrUnavailable},
		{"broken", Info{Size: 11}, 0, 11, halves(data, errors.New("reset")), data, ErrUnavailable},
		{"more than announced", Info{Size: 9}, 0, 9, halves(data, io.EOF), data[:9], nil},
		{"more than announced, broken behind", Info{Size: 10}, 0, 10, halves(data, errors.New("reset")), data, nil},
		{"nothing, and that is wrong", Info{HasCRC: true, CRC32C: 7}, 0, 0, halves("", io.EOF), "", ErrCorrupt},
	} {
		b := NewBody(t.Context(), tt.info, tt.off, tt.n, tt.body)
		got, err := io.ReadAll(b)
		if string(got) != tt.got || !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if _, again := b.Read(make([]byte, 1)); tt.want != nil && !errors.Is(again, tt.want) {
			t.Errorf("%s: a second read says %v", tt.name, again)
		}
	}
}

func TestUpload(t *testing.T) {
	data := []byte("0123456789")
	src := Bytes(data)
	up := src.Open(t.Context())
	got, err := io.ReadAll(up)
	if delivered, broken := up.Stop(); string(got) != string(data) || err != nil || !delivered || broken != nil {
		t.Errorf("%q, %v, delivered %v, %v", got, err, delivered, broken)
	}
	if _, err := up.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read after stop: %v", err)
	}

	up = NewSource(bytes.NewReader(data), 10, src.CRC32C()+1).Open(t.Context())
	got, err = io.ReadAll(up)
	if delivered, broken := up.Stop(); len(got) == 10 || !errors.Is(err, ErrSource) || delivered || !errors.Is(broken, ErrSource) {
		t.Errorf("wrong checksum: %d bytes, %v, delivered %v, %v", len(got), err, delivered, broken)
	}

	up = src.Open(t.Context())
	end, err := up.Seek(0, io.SeekEnd)
	if end != 10 || err != nil {
		t.Errorf("end at %d, %v", end, err)
	}
	for range 2 { // as a client does that sends again
		if _, err := up.Seek(0, io.SeekStart); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(up); string(got) != string(data) || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := up.Seek(-1, io.SeekStart); !errors.Is(err, ErrInvalid) {
		t.Errorf("seek before the start: %v", err)
	}
}

// TestSendPieces: pieces are sent again where that may help, and what fails for good ends it all.
func TestSendPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := bytes.Repeat([]byte("abcdefg"), 1000)
		turns := make(chan struct{}, 1) // guards parts and tries
		turns <- struct{}{}
		parts, tries := map[int]string{}, map[int]int{}
		send := func(fail func(n, try int) error) func(context.Context, int, *Upload) error {
			return func(_ context.Context, n int, up *Upload) error {
				got, err := io.ReadAll(up)
				<-turns
				defer func() { turns <- struct{}{} }()
				tries[n]++
				if ferr := fail(n, tries[n]); err == nil {
					err = ferr
				}
				if err == nil {
					parts[n] = string(got)
				}
				return err
			}
		}
		err := SendPieces(t.Context(), Bytes(data), 1500, 2, send(func(n, try int) error {
			if n == 3 && try < 3 {
				return ErrThrottled
			}
			return nil
		}))
		whole := ""
		for i := range len(parts) {
			whole += parts[i]
		}
		if err != nil || whole != string(data) || tries[3] != 3 || len(parts) != 5 {
			t.Errorf("%v: %d bytes in %d parts, tries %v", err, len(whole), len(parts), tries)
		}
		err = SendPieces(t.Context(), Bytes(data), 500, 2, send(func(n, _ int) error {
			if n == 2 {
				return ErrDenied
			}
			return nil
		}))
		if !errors.Is(err, ErrDenied) {
			t.Errorf("denied: %v", err)
		}
		err = SendPieces(t.Context(), NewSource(bytes.NewReader(data), int64(len(data)), 1), 1500, 2, send(func(int, int) error { return nil }))
		if !errors.Is(err, ErrSource) {
			t.Errorf("wrong checksum: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = SendPieces(ctx, Bytes(data), 1500, 2, send(func(n, _ int) error {
			if n == 1 {
				cancel()
			}
			return nil
		}))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, tries := time.Now(), 0
		err := Retry(t.Context(), 5, func() error { tries++; return ErrThrottled })
		if !errors.Is(err, ErrThrottled) || tries != 5 {
			t.Errorf("%d tries, %v", tries, err)
		}
		if took := time.Since(start); took < 750*time.Millisecond || took > 1500*time.Millisecond {
			t.Errorf("waits of 50 to 100 ms, doubled three times, took %v", took)
		}
		tries = 0
		err = Retry(t.Context(), 5, func() error { tries++; return ErrOutcomeUnknown })
		if !errors.Is(err, ErrOutcomeUnknown) || tries != 1 {
			t.Errorf("%d tries of what is unknown, %v", tries, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		tries = 0
		if err := Retry(ctx, 5, func() error { tries++; return ErrThrottled }); !errors.Is(err, ErrThrottled) || tries != 1 {
			t.Errorf("%d tries after the end, %v", tries, err)
		}
	})
}

// careless is a store that overwrites, as servers do that do not know the conditions.
type careless struct{ *Mem }

// PutIfAbsent implements Store.
func (c careless) PutIfAbsent(ctx context.Context, key string, src Source) (Info, error) {
	info, err := c.Mem.PutIfAbsent(ctx, key, src)
	if errors.Is(err, ErrExists) {
		old, herr := c.Head(ctx, key)
		if herr != nil {
			return Info{}, herr
		}
		return c.Mem.PutIfMatch(ctx, key, old.Version, src)
	}
	return info, err
}

// forgetful is a store that compares no version.
type forgetful struct{ *Mem }

// PutIfMatch implements Store.
func (f forgetful) PutIfMatch(ctx context.Context, key string, _ Version, src Source) (Info, error) {
	old, err := f.Head(ctx, key)
	if err != nil {
		return Info{}, err
	}
	return f.Mem.PutIfMatch(ctx, key, old.Version, src)
}

func TestProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		s    Store
		says string
	}{
		"ignores If-None-Match": {careless{NewMem()}, "If-None-Match"},
		"ignores If-Match":      {forgetful{NewMem()}, "If-Match"},
	} {
		err := Probe(t.Context(), tt.s, "p")
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		for info := range tt.s.List(t.Context(), "", "") {
			t.Errorf("%s: left %s", name, info.Key)
		}
	}
}
