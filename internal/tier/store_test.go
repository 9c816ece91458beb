package tier

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"

	"github.com/leveemq/levee/internal/objstore"
)

// testStore is a store in memory whose calls can be counted, held up, and made to fail.
type testStore struct {
	*objstore.Mem

	mu     sync.Mutex
	gets   int
	puts   int
	before func(op, key string) error // an error is returned instead of doing it
	after  func(op, key string) error // an error is returned although it was done
	change func(key string, off int64, data []byte) []byte
}

func newTestStore() *testStore { return &testStore{Mem: objstore.NewMem()} }

func (s *testStore) hooks() (before, after func(op, key string) error, change func(string, int64, []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	none := func(string, string) error { return nil }
	if before = s.before; before == nil {
		before = none
	}
	if after = s.after; after == nil {
		after = none
	}
	return before, after, s.change
}

func (s *testStore) set(fn func(s *testStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s)
}

func (s *testStore) counts() (gets, puts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets, s.puts
}

func (s *testStore) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	before, after, _ := s.hooks()
	s.set(func(s *testStore) { s.puts++ })
	if err := before("put", key); err != nil {
		return objstore.Info{}, err
	}
	info, err := s.Mem.PutIfAbsent(ctx, key, src)
	if err == nil {
		err = after("put", key)
	}
	return info, err
}

func (s *testStore) PutIfMatch(ctx context.Context, key string, v objstore.Version, src objstore.Source) (objstore.Info, error) {
	before, after, _ := s.hooks()
	if err := before("replace", key); err != nil {
		return objstore.Info{}, err
	}
	info, err := s.Mem.PutIfMatch(ctx, key, v, src)
	if err == nil {
		err = after("replace", key)
	}
	return info, err
}

func (s *testStore) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	before, _, change := s.hooks()
	s.set(func(s *testStore) { s.gets++ })
	if err := before("get", key); err != nil {
		return nil, err
	}
	b, err := s.Mem.Get(ctx, key, off, n)
	if err != nil || change == nil {
		return b, err
	}
	data, err := io.ReadAll(b)
	if err != nil {
		return nil, err
	}
	data = change(key, off, data)
	info := b.Info
	info.HasCRC = false // a store that does not notice
	if off == 0 && n < 0 {
		info.Size = int64(len(data))
	}
	return objstore.NewBody(ctx, info, off, int64(len(data)), io.NopCloser(bytes.NewReader(data))), nil
}

func (s *testStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	before, _, _ := s.hooks()
	if err := before("head", key); err != nil {
		return objstore.Info{}, err
	}
	return s.Mem.Head(ctx, key)
}

func (s *testStore) Delete(ctx context.Context, key string) error {
	before, _, _ := s.hooks()
	if err := before("delete", key); err != nil {
		return err
	}
	return s.Mem.Delete(ctx, key)
}

func (s *testStore) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return s.Mem.List(ctx, prefix, after)
}

// keys returns what is in the store.
func keys(s objstore.Store) (all []string) {
	for info, err := range s.List(context.Background(), "", "") {
		if err != nil {
			return append(all, fmt.Sprint(err))
		}
		all = append(all, info.Key)
	}
	return all
}

// rot replaces an object's bytes by others of the same length.
func rot(s objstore.Store, key string, at int64) {
	data, info, err := objstore.Read(context.Background(), s, key, 1<<30)
	if err != nil {
		panic(err)
	}
	data[at] ^= 0x20
	if _, err := s.PutIfMatch(context.Background(), key, info.Version, objstore.Bytes(data)); err != nil {
		panic(err)
	}
}

// failing returns a hook that fails the op's next n calls.
func failing(op string, n int, err error) func(string, string) error {
	var mu sync.Mutex
	return func(got, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 && strings.HasPrefix(got, op) {
			n--
			return err
		}
		return nil
	}
}
