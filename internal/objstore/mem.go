package objstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Mem is a store in memory, for tests of what stands on a store. It holds no key below another one.
type Mem struct {
	mu struct {
		sync.Mutex
		keys    []string // sorted
		objects map[string]memObject
		last    uint64 // version given out
	}
}

// memObject is immutable.
type memObject struct {
	info Info
	data []byte
}

var _ Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem {
	m := &Mem{}
	m.mu.objects = map[string]memObject{}
	return m
}

// PutIfAbsent implements Store.
func (m *Mem) PutIfAbsent(ctx context.Context, key string, src Source) (Info, error) {
	return m.put(ctx, OpPutIfAbsent, key, src, func(_ memObject, there bool) error {
		if there {
			return ErrExists
		}
		return m.fitsLocked(key)
	})
}

// PutIfMatch implements Store.
func (m *Mem) PutIfMatch(ctx context.Context, key string, version Version, src Source) (Info, error) {
	if err := CheckMatch(key, version, src); err != nil {
		return Info{}, err
	}
	return m.put(ctx, OpPutIfMatch, key, src, func(o memObject, there bool) error {
		if !there || o.info.Version != version {
			return ErrConflict
		}
		return nil
	})
}

func (m *Mem) put(ctx context.Context, op Op, key string, src Source, may func(o memObject, there bool) error) (Info, error) {
	if err := CheckPut(key, src); err != nil {
		return Info{}, err
	}
	up := src.Open(ctx)
	data, err := io.ReadAll(up)
	if _, uerr := up.Stop(); uerr != nil || err != nil {
		return Info{}, fmt.Errorf("%s %s: %w", op, key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, there := m.mu.objects[key]
	if err := may(old, there); err != nil {
		return Info{}, fmt.Errorf("%s %s: %w", op, key, err)
	}
	m.mu.last++
	info := Info{
		Key: key, Size: src.Size(), Version: Version(strconv.FormatUint(m.mu.last, 10)),
		CRC32C: src.CRC32C(), HasCRC: true, Modified: time.Now(),
	}
	if !there {
		i, _ := slices.BinarySearch(m.mu.keys, key)
		m.mu.keys = slices.Insert(m.mu.keys, i, key)
	}
	m.mu.objects[key] = memObject{info, data}
	return info, nil
}

// fitsLocked refuses a key above or below one that is there.
func (m *Mem) fitsLocked(key string) error {
	for i := range key {
		if key[i] != '/' {
			continue
		}
		if _, there := m.mu.objects[key[:i]]; there {
			return fmt.Errorf("%w: %s is an object", ErrInvalid, key[:i])
		}
	}
	i, _ := slices.BinarySearch(m.mu.keys, key+"/")
	if i < len(m.mu.keys) && strings.HasPrefix(m.mu.keys[i], key+"/") {
		return fmt.Errorf("%w: %s is below it", ErrInvalid, m.mu.keys[i])
	}
	return nil
}

// Get implements Store.
func (m *Mem) Get(ctx context.Context, key string, off, n int64) (*Body, error) {
	if err := CheckRange(key, off); err != nil {
		return nil, err
	}
	o, err := m.find(ctx, OpGet, key)
	if err != nil {
		return nil, err
	}
	if n, err = Clamp(key, off, n, o.info.Size); err != nil {
		return nil, err
	}
	return NewBody(ctx, o.info, off, n, io.NopCloser(bytes.NewReader(o.data[off:off+n]))), nil
}

// Head implements Store.
func (m *Mem) Head(ctx context.Context, key string) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, err
	}
	o, err := m.find(ctx, OpHead, key)
	return o.info, err
}

func (m *Mem) find(ctx context.Context, op Op, key string) (memObject, error) {
	if err := ctx.Err(); err != nil {
		return memObject{}, fmt.Errorf("%s %s: %w", op, key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, there := m.mu.objects[key]
	if !there {
		return memObject{}, fmt.Errorf("%s %s: %w", op, key, ErrNotFound)
	}
	return o, nil
}

// List implements Store.
func (m *Mem) List(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := CheckPrefix(prefix); err != nil {
			yield(Info{}, err)
			return
		}
		for {
			if err := ctx.Err(); err != nil {
				yield(Info{}, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			info, ok := m.next(prefix, after)
			if !ok || !yield(info, nil) {
				return
			}
			after = info.Key
		}
	}
}

func (m *Mem) next(prefix, after string) (Info, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := slices.BinarySearch(m.mu.keys, max(prefix, after))
	if found && m.mu.keys[i] == after {
		i++
	}
	if i == len(m.mu.keys) || !strings.HasPrefix(m.mu.keys[i], prefix) {
		return Info{}, false
	}
	return m.mu.objects[m.mu.keys[i]].info, true
}

// Delete implements Store.
func (m *Mem) Delete(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.mu.objects[key]; there {
		delete(m.mu.objects, key)
		i, _ := slices.BinarySearch(m.mu.keys, key)
		m.mu.keys = slices.Delete(m.mu.keys, i, i+1)
	}
	return nil
}

// Close implements Store. The objects stay.
func (m *Mem) Close() error { return nil }
