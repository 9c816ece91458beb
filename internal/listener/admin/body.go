package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/leveemq/levee/internal/fault"
)

// readBody reads a whole body within the limits. The caller calls release once it needs the bytes no more.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	reserve := s.limits.BodyBytes
	if r.ContentLength >= 0 && r.ContentLength < reserve {
		reserve = r.ContentLength
	}
	if r.ContentLength > s.limits.BodyBytes {
		return nil, nil, s.bodyTooLarge()
	}
	if !s.held.take(reserve) {
		return nil, nil, fault.New(fault.Exhausted, "the broker holds too many request bodies at once: try again, or send less at a time").
			With("limit", s.limits.InFlightBytes)
	}
	release = func() { s.held.give(reserve) }
	body, err = readAll(http.MaxBytesReader(w, r.Body, s.limits.BodyBytes), r.ContentLength)
	if err != nil {
		release()
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, nil, s.bodyTooLarge()
		}
		return nil, nil, fault.New(fault.Canceled, "read request body: %w", err)
	}
	return body, release, nil
}

func (s *Server) bodyTooLarge() error {
	return fault.New(fault.TooLarge, "the body has more than %d bytes: send it in several requests", s.limits.BodyBytes).
		With("limit", s.limits.BodyBytes)
}

// readAll is io.ReadAll that allocates once where the length is known; MaxBytesReader has bounded it.
func readAll(r io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(r)
	}
	body := make([]byte, length)
	_, err := io.ReadFull(r, body)
	return body, err
}

// decode reads a JSON body into v. It refuses what encoding/json would let pass: unknown fields, text behind the
// value, bytes that are not UTF-8. With optional, an empty body leaves v as it is.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, v any, optional bool) error {
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	if optional && len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	return strictJSON(body, v)
}

func strictJSON(body []byte, v any) error {
	if !utf8.Valid(body) {
		return fault.New(fault.InvalidArgument, "the body is not UTF-8: send bytes as value_base64, or with Content-Type: application/octet-stream")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fault.New(fault.InvalidArgument, "read JSON body near byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.InvalidArgument, "read JSON body: there is something behind the value, at byte %d", dec.InputOffset())
	}
	return nil
}
