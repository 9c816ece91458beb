package gcs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
)

// interrupted is a server of one upload in chunks. It keeps what it was sent as Google's does, in units, and does
// something to the nth chunk; the emulator the other tests use takes a question for how far it got for the upload's end.
type interrupted struct {
	t     *testing.T
	total int
	nth   int
	what  string // keep half, keep nothing, lose answer, forget

	mu     sync.Mutex
	got    []byte // guarded by mu
	chunks int    // guarded by mu
	asked  int    // guarded by mu
	ended  bool   // guarded by mu
}

func (s *interrupted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodPost:
		w.Header().Set("Location", "http://"+r.Host+"/session")
		return
	case http.MethodDelete:
		s.ended = true
		w.WriteHeader(499)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Header.Get("Content-Range") == fmt.Sprintf("bytes */%d", s.total) {
		s.asked++
		s.answer(w)
		return
	}
	var from, to, total int
	if _, err := fmt.Sscanf(r.Header.Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &total); err != nil || from != len(s.got) || to-from+1 != len(body) || total != s.total {
		s.t.Errorf("%d bytes for %q, the server has %d", len(body), r.Header.Get("Content-Range"), len(s.got))
	}
	if s.chunks++; s.chunks != s.nth {
		s.got = append(s.got, body...)
		s.answer(w)
		return
	}
	switch s.what {
	case "keep half":
		s.got = append(s.got, body[:len(body)/2]...)
	case "lose answer":
		s.got = append(s.got, body...)
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

func (s *interrupted) answer(w http.ResponseWriter) {
	if s.what == "forget" && s.asked > 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if len(s.got) < s.total {
		if len(s.got) > 0 {
			w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(s.got)-1))
		}
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	sum := encodeSum(crc32.Checksum(s.got, crc32.MakeTable(crc32.Castagnoli)))
	if err := json.NewEncoder(w).Encode(map[string]string{"name": "x", "size": fmt.Sprint(s.total), "generation": "7", "crc32c": sum}); err != nil {
		s.t.Error(err)
	}
}

// TestInterruptedUpload goes on from where the server got to, whatever happened to a chunk.
func TestInterruptedUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 3*chunkUnit/16+5000)
	chunks := (len(content) + chunkUnit - 1) / chunkUnit
	for _, what := range []string{"keep half", "keep nothing", "lose answer", "forget"} {
		for nth := 1; nth <= chunks; nth++ {
			t.Run(fmt.Sprintf("%s, chunk %d", what, nth), func(t *testing.T) {
				t.Parallel()
				s := &interrupted{t: t, total: len(content), nth: nth, what: what}
				server := httptest.NewServer(s)
				defer server.Close()
				store, err := Open(t.Context(), Config{Endpoint: server.URL, Bucket: "bucket", Anonymous: true, ChunkSize: chunkUnit})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				info, err := store.PutIfAbsent(t.Context(), "x", objstore.Bytes(content))
				s.mu.Lock()
				defer s.mu.Unlock()
				if what == "forget" {
					last := nth == chunks
					if last != errors.Is(err, objstore.ErrOutcomeUnknown) || last == errors.Is(err, objstore.ErrUnavailable) || last == s.ended {
						t.Errorf("%v, session ended: %v", err, s.ended)
					}
					return
				}
				if err != nil || info.Version != "7" || !bytes.Equal(s.got, content) || s.asked != 1 {
					t.Errorf("%+v, %v: the server has %d of %d bytes, was asked %d times", info, err, len(s.got), len(content), s.asked)
				}
			})
		}
	}
}
