package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/objstore"
)

// Bounds of going on with an upload that was interrupted.
const (
	chunkAttempts = 4
	chunkWait     = 200 * time.Millisecond // doubled each time
)

// session is an upload in chunks. The server keeps what it has got of them, and says how much that is.
type session struct {
	s       *Store
	op      objstore.Op
	key     string
	address string
	src     objstore.Source
}

// send sends one piece, and goes on from where the server got to where that fails for now. It returns the object once
// there is one.
func (u *session) send(ctx context.Context, piece objstore.Piece) (*resource, error) {
	wait := chunkWait
	for attempt := 1; ; attempt++ {
		done, err := u.try(ctx, piece)
		if err == nil || attempt == chunkAttempts || !u.s.resume || ctx.Err() != nil || !objstore.Retryable(err) && !errors.Is(err, objstore.ErrOutcomeUnknown) {
			return done, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
		wait *= 2
		at, done, aerr := u.progress(ctx)
		end := piece.Off + piece.Size
		switch {
		case aerr != nil:
			return nil, err // what failed first says what may have happened
		case done != nil:
			return done, nil
		case at == end && end < u.src.Size():
			return nil, nil // it got there
		case at < piece.Off || at >= end:
			return nil, fmt.Errorf("%w: the server has %d bytes", err, at)
		}
		if piece, err = u.rest(ctx, at, end); err != nil {
			return nil, err
		}
	}
}

// rest is the piece from where the server got to.
func (u *session) rest(ctx context.Context, at, end int64) (objstore.Piece, error) {
	sum, err := objstore.Checksum(ctx, io.NewSectionReader(u.src, at, end-at), end-at)
	if err != nil {
		return objstore.Piece{}, fmt.Errorf("%s %s: %w", u.op, u.key, err)
	}
	return u.src.Piece(at, end-at, sum), nil
}

func (u *session) try(ctx context.Context, piece objstore.Piece) (*resource, error) {
	up := piece.Open(ctx)
	end := piece.Off + piece.Size
	last := end == u.src.Size()
	res, err := u.request(ctx, up, piece.Size, fmt.Sprintf("bytes %d-%d/%d", piece.Off, end-1, u.src.Size()))
	sent, broken := up.Stop()
	if broken != nil {
		if err == nil {
			_ = res.Body.Close() // an answer to what was not sent in full
		}
		return nil, fmt.Errorf("%s %s: %w", u.op, u.key, broken)
	}
	if err != nil {
		return nil, failure(u.op, u.key, sent && last, err)
	}
	at, done, err := u.read(res)
	switch {
	case err != nil:
		return nil, failure(u.op, u.key, last, err)
	case done == nil && (last || at != end), done != nil && !last:
		return nil, failure(u.op, u.key, last, fmt.Errorf("the server has %d bytes of the %d it was sent", at, end))
	}
	return done, nil
}

// progress asks how many bytes the server has, or for the object where it has all.
func (u *session) progress(ctx context.Context) (at int64, done *resource, err error) {
	res, err := u.request(ctx, http.NoBody, 0, fmt.Sprintf("bytes */%d", u.src.Size()))
	if err != nil {
		return 0, nil, err
	}
	return u.read(res)
}

func (u *session) request(ctx context.Context, body io.Reader, n int64, contentRange string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.address, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = n
	req.Header.Set("Content-Range", contentRange)
	return u.s.do(req, http.StatusOK, http.StatusCreated, http.StatusPermanentRedirect)
}

// read reads an answer: the object, or how far the server got.
func (u *session) read(res *http.Response) (at int64, done *resource, err error) {
	if res.StatusCode != http.StatusPermanentRedirect {
		var r resource
		if err := decode(res, &r); err != nil {
			return 0, nil, err
		}
		return u.src.Size(), &r, nil
	}
	_ = res.Body.Close() // the header says it
	text := res.Header.Get("Range")
	if text == "" {
		return 0, nil, nil
	}
	last, err := strconv.ParseInt(strings.TrimPrefix(text, "bytes=0-"), 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("range %q of what the server has", text)
	}
	return last + 1, nil, nil
}
