// Package objstore owns the port behind which objects are kept: names, conditional writes, ranged reads, listing. What is
// behind it (a directory, S3, Google Cloud Storage, Azure Blob) is one package each below this one, and the only importer
// of its SDK. Beside the port stand what every user of it needs (checked reads, a put that settles its own doubts, a probe
// of what a store can do) and a store in memory for tests. It never retries a write whose outcome it does not know, and
// never lists, guesses or caches to answer something else. Invariant: an object is seen whole or not at all, and what is
// not proven to be stored is not reported as stored.
package objstore

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"
)

// Store is a flat space of objects. It is safe for concurrent use.
//
// Durability: when a put returns nil, the object is on stable storage and every later Get, Head and List anywhere sees
// it. When it returns an error other than ErrOutcomeUnknown, nothing was stored and nothing will be. A put whose source
// fails, or whose context ends before the last byte was handed over, leaves nothing to be seen.
//
// Errors: every one has a fault.Kind and answers errors.Is for one of the sentinels of this package, or for the context's
// error where the caller gave up and nothing can have happened. Arguments that no store could take are ErrInvalid before
// anything is sent. Keys are checked by CheckKey.
//
// A store need not hold a key and one below it ("a" and "a/b"); callers use either as an object or as a directory.
type Store interface {
	// PutIfAbsent stores an object under a key that has none, or fails with ErrExists. Of several that run at once one
	// succeeds. The source is not read any more once the call has returned.
	PutIfAbsent(ctx context.Context, key string, src Source) (Info, error)

	// PutIfMatch replaces the object of exactly that version, or fails with ErrConflict: then it was replaced meanwhile,
	// or is gone. It is for small objects that few write. Where two contents are equal, so may be their versions: who
	// needs to tell them apart writes something unique into each.
	PutIfMatch(ctx context.Context, key string, version Version, src Source) (Info, error)

	// Get opens the bytes [off, off+n) of an object, fewer where it ends before; n < 0 means up to the end. An offset
	// that is the object's size gives no bytes, one beyond it ErrRange. The caller must close the body. The context
	// governs the reading of the body as well.
	Get(ctx context.Context, key string, off, n int64) (*Body, error)

	// Head returns what is known of an object, its checksum included.
	Head(ctx context.Context, key string) (Info, error)

	// List yields the objects whose key has a prefix and is greater than after, in the order of the keys' bytes. Key and
	// Size are always there; the rest as far as the store tells it for nothing. It asks page by page; an error ends it.
	// What is put or deleted meanwhile may be in it or not.
	List(ctx context.Context, prefix, after string) iter.Seq2[Info, error]

	// Delete removes an object. One that is not there is no error. When it returns nil, the object is gone for good.
	Delete(ctx context.Context, key string) error

	// Close gives back connections and files. No call may be under way or follow.
	Close() error
}

// Version names one content of an object, as its store does. It is opaque.
type Version string

// Info is what a store knows of an object.
type Info struct {
	Key      string
	Size     int64
	Version  Version
	CRC32C   uint32 // of the whole content, as its writer computed it; see HasCRC
	HasCRC   bool   // false: the object came from elsewhere, or this is a listing that does not tell
	Modified time.Time
}

// Limits of keys: the strictest of all stores.
const (
	MaxKey       = 1024 // bytes
	MaxComponent = 200  // bytes between slashes; file systems take 255, and servers on them add to a name
)

// CheckKey returns ErrInvalid for a key that some store could not hold, or not tell from another one: not UTF-8, empty or
// too long, control characters, a backslash, or a component between slashes that is empty, too long, begins with a dot or
// ends with one.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty key", ErrInvalid)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: key of %d bytes, at most %d", ErrInvalid, len(key), MaxKey)
	}
	if err := checkText(key); err != nil {
		return err
	}
	for c := range strings.SplitSeq(key, "/") {
		switch {
		case c == "":
			return fmt.Errorf("%w: key %q: empty between slashes", ErrInvalid, key)
		case len(c) > MaxComponent:
			return fmt.Errorf("%w: key %q: %d bytes between slashes, at most %d", ErrInvalid, key, len(c), MaxComponent)
		case c[0] == '.' || c[len(c)-1] == '.':
			return fmt.Errorf("%w: key %q: %q begins or ends with a dot", ErrInvalid, key, c)
		}
	}
	return nil
}

// CheckPrefix returns ErrInvalid for what cannot be the beginning of a key. Empty is everything.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxKey {
		return fmt.Errorf("%w: prefix of %d bytes, at most %d", ErrInvalid, len(prefix), MaxKey)
	}
	return checkText(prefix)
}

func checkText(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: %q is not UTF-8", ErrInvalid, s)
	}
	for _, r := range s {
		if r < 0x20 || r == 0x7f || r == '\\' || r == 0xfffe || r == 0xffff {
			return fmt.Errorf("%w: %q holds %q", ErrInvalid, s, r)
		}
	}
	return nil
}

// CheckRange returns ErrInvalid for an offset that no object has.
func CheckRange(key string, off int64) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if off < 0 {
		return fmt.Errorf("%w: get %s: offset %d", ErrInvalid, key, off)
	}
	return nil
}

// Clamp returns how many of n bytes from off on an object of that size has (n < 0: all), or ErrRange.
func Clamp(key string, off, n, size int64) (int64, error) {
	if off > size {
		return 0, fmt.Errorf("get %s: %w: offset %d of %d bytes", key, ErrRange, off, size)
	}
	if n < 0 || n > size-off {
		n = size - off
	}
	return n, nil
}
