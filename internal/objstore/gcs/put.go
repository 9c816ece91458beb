package gcs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/leveemq/levee/internal/objstore"
)

const cancelWithin = 30 * time.Second

// PutIfAbsent implements objstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if err := objstore.CheckPut(key, src); err != nil {
		return objstore.Info{}, err
	}
	return s.put(ctx, objstore.OpPutIfAbsent, key, "0", src) // the generation of what is not there
}

// PutIfMatch implements objstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, version objstore.Version, src objstore.Source) (objstore.Info, error) {
	if err := objstore.CheckMatch(key, version, src); err != nil {
		return objstore.Info{}, err
	}
	if _, err := strconv.ParseUint(string(version), 10, 63); err != nil {
		return objstore.Info{}, fmt.Errorf("replace %s: %w: version %q is no generation", key, objstore.ErrConflict, version)
	}
	return s.put(ctx, objstore.OpPutIfMatch, key, string(version), src)
}

func (s *Store) put(ctx context.Context, op objstore.Op, key, generation string, src objstore.Source) (objstore.Info, error) {
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, op, key)
	}
	meta, err := json.Marshal(map[string]string{
		"name": key, "crc32c": encodeSum(src.CRC32C()), "contentType": "application/octet-stream",
	})
	if err != nil {
		return objstore.Info{}, fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrInvalid, err)
	}
	var r resource
	if src.Size() <= s.chunk {
		r, err = s.putWhole(ctx, op, key, generation, meta, src)
	} else {
		r, err = s.putChunks(ctx, op, key, generation, meta, src)
	}
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := r.info()
	if err != nil {
		return objstore.Info{}, failure(op, key, true, err)
	}
	if info.Size != src.Size() || info.HasCRC && info.CRC32C != src.CRC32C() {
		cause := fmt.Errorf("the server made %d bytes with CRC-32C %08x of %d with %08x", info.Size, info.CRC32C, src.Size(), src.CRC32C())
		return objstore.Info{}, &objstore.CorruptError{Key: key, Cause: cause}
	}
	info.Key = key
	return info, nil
}

func (s *Store) uploadURL(kind, generation string) string {
	q := url.Values{"uploadType": {kind}, "ifGenerationMatch": {generation}}
	return s.base + "/upload/storage/v1/b/" + url.PathEscape(s.bucket) + "/o?" + q.Encode()
}

const boundary = "levee-0d1c9a52f7b04f5e" // binary content may hold it: its length is announced, and its checksum is compared

// putWhole stores in one request. The server compares the checksum before the object appears.
func (s *Store) putWhole(ctx context.Context, op objstore.Op, key, generation string, meta []byte, src objstore.Source) (resource, error) {
	head := fmt.Sprintf("--%s\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%s\r\n--%s\r\nContent-Type: application/octet-stream\r\n\r\n", boundary, meta, boundary)
	tail := fmt.Sprintf("\r\n--%s--\r\n", boundary)
	up := src.Open(ctx)
	body := io.MultiReader(bytes.NewReader([]byte(head)), up, bytes.NewReader([]byte(tail)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.uploadURL("multipart", generation), body)
	if err != nil {
		return resource{}, fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrInvalid, err)
	}
	req.ContentLength = int64(len(head)) + src.Size() + int64(len(tail))
	req.Header.Set("Content-Type", "multipart/related; boundary="+boundary)
	res, err := s.do(req, http.StatusOK)
	sent, broken := up.Stop()
	switch {
	case broken != nil:
		return resource{}, fmt.Errorf("%s %s: %w", op, key, broken)
	case err != nil:
		return resource{}, failure(op, key, sent, err)
	}
	var r resource
	if err := decode(res, &r); err != nil {
		return resource{}, failure(op, key, true, err)
	}
	return r, nil
}

// putChunks stores in chunks of one session. The object appears with the last one, under the condition that the session
// was begun with; every earlier failure ends the session.
func (s *Store) putChunks(ctx context.Context, op objstore.Op, key, generation string, meta []byte, src objstore.Source) (resource, error) {
	address, err := s.begin(ctx, generation, meta, src.Size())
	if err != nil {
		return resource{}, failure(op, key, false, err)
	}
	u := &session{s: s, op: op, key: key, address: address, src: src}
	for piece, err := range src.Pieces(ctx, s.chunk) {
		if err != nil {
			s.cancel(ctx, address)
			return resource{}, fmt.Errorf("%s %s: %w", op, key, err)
		}
		done, err := u.send(ctx, piece)
		if err != nil {
			if !errors.Is(err, objstore.ErrOutcomeUnknown) { // otherwise it may yet be made an object
				s.cancel(ctx, address)
			}
			return resource{}, err
		}
		if done != nil {
			return *done, nil
		}
	}
	s.cancel(ctx, address)
	return resource{}, objstore.Ended(ctx, op, key)
}

func (s *Store) begin(ctx context.Context, generation string, meta []byte, size int64) (address string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.uploadURL("resumable", generation), bytes.NewReader(meta))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json; charset=UTF-8")
	req.Header.Set("X-Upload-Content-Length", strconv.FormatInt(size, 10))
	res, err := s.do(req, http.StatusOK, http.StatusCreated)
	if err != nil {
		return "", err
	}
	if address = res.Header.Get("Location"); address == "" {
		err = errors.New("the answer names no session")
	}
	return address, errors.Join(err, res.Body.Close())
}

// cancel ends a session, also where the caller has given up. One that it cannot reach ends by itself after a week.
func (s *Store) cancel(ctx context.Context, session string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelWithin)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, session, nil)
	if err != nil {
		return
	}
	if res, err := s.do(req, 499, http.StatusNoContent, http.StatusOK); err == nil {
		_ = res.Body.Close()
	}
}

func encodeSum(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

func decodeSum(text string) (crc uint32, ok bool) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}
