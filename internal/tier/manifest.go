package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// ManifestSuffix ends the key of every manifest.
const ManifestSuffix = ".lvman"

// MaxManifest bounds the objects that one manifest describes.
const MaxManifest = 1 << 20

const (
	manifestMagic   = "LVXM"
	manifestVersion = 1
	manifestHeader  = 64
	manifestEntry   = 88
)

// ManifestRef names a manifest, and is what the metadata keeps of it. CRC is that of all its bytes.
type ManifestRef struct {
	Base, Next int64 // its objects hold offsets from Base up to Next
	Count      int64 // of its objects
	CRC        uint32
}

// Key returns the key that the manifest has in a place: <base>-<last>-<count>-<crc>.lvman beside the objects.
func (r ManifestRef) Key(p Place) string {
	return fmt.Sprintf("%s%d/%020d-%020d-%d-%08x%s", topicDir(p.Prefix, p.Cluster, p.TopicID), p.Partition, r.Base, r.Next-1, r.Count, r.CRC, ManifestSuffix)
}

// Size returns how many bytes it has.
func (r ManifestRef) Size() int64 { return manifestHeader + r.Count*manifestEntry }

// ParseManifestKey is Key backwards; ok is false for any key that Key does not make.
func ParseManifestKey(key string) (p Place, r ManifestRef, ok bool) {
	whole, is := strings.CutSuffix(key, ManifestSuffix)
	if !is {
		return Place{}, ManifestRef{}, false
	}
	// An object's key has the same form, but for what the third number says.
	p, n, ok := ParseKey(whole + Suffix)
	if !ok {
		return Place{}, ManifestRef{}, false
	}
	r = ManifestRef{Base: n.Base, Next: n.Last + 1, Count: int64(n.Generation), CRC: n.CRC}
	return p, r, r.Count > 0 && r.Count <= MaxManifest && r.Key(p) == key
}

// Manifest describes objects of one partition, rising. It never changes.
//
//	0  magic "LVXM"          28  count u32            then count entries of 88 bytes:
//	4  version u16           32  base_offset i64       0  base_offset, next_offset i64, base_seq, next_seq u64, max_timestamp i64
//	6  flags u16             40  next_offset i64      40  segment_bytes, index_bytes, times_bytes, size, stored_ms i64
//	8  topic id 16 bytes     48  entries_crc u32      80  generation, crc u32
//	24  partition u32        52  reserved u64 (zero)
//	                         60  CRC-32C of bytes 0 to 59
type Manifest struct{ entries []byte }

// AppendManifest appends the bytes of the manifest of a place's objects, which rise, to dst.
func AppendManifest(dst []byte, p Place, all []Object) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, manifestHeader)...)
	for i := range all {
		o := &all[i]
		for _, v := range []int64{
			o.Base, o.Next, int64(o.BaseSeq), int64(o.NextSeq), o.MaxTime, o.SegmentBytes, o.IndexBytes, o.TimesBytes, o.Size, o.StoredMs,
		} {
			dst = le.AppendUint64(dst, uint64(v))
		}
		dst = le.AppendUint32(le.AppendUint32(dst, o.Generation), o.CRC)
	}
	h := append(dst[:at], manifestMagic...)
	h = le.AppendUint16(le.AppendUint16(h, manifestVersion), 0)
	h = append(h, p.TopicID[:]...)
	h = le.AppendUint32(le.AppendUint32(h, uint32(p.Partition)), uint32(len(all)))
	h = le.AppendUint64(le.AppendUint64(h, uint64(all[0].Base)), uint64(all[len(all)-1].Next))
	h = le.AppendUint64(le.AppendUint32(h, checksum(dst[at+manifestHeader:])), 0)
	le.AppendUint32(h, checksum(h[at:]))
	return dst
}

// ParseManifest checks the bytes of a manifest of a place, every one of them. The Manifest keeps b.
func ParseManifest(b []byte, p Place) (*Manifest, error) {
	if len(b) < manifestHeader {
		return nil, segfmt.ErrShort
	}
	h, entries := b[:manifestHeader], b[manifestHeader:]
	if string(h[:4]) != manifestMagic {
		return nil, segfmt.ErrMagic
	}
	if checksum(h[:manifestHeader-4]) != le.Uint32(h[manifestHeader-4:]) {
		return nil, segfmt.ErrChecksum
	}
	if v := le.Uint16(h[4:]); v != manifestVersion {
		return nil, fmt.Errorf("%w (version %d, not %d)", segfmt.ErrVersion, v, manifestVersion)
	}
	if v := le.Uint16(h[6:]); v != 0 {
		return nil, fmt.Errorf("%w (%#x)", segfmt.ErrFlags, v)
	}
	count := int(le.Uint32(h[28:]))
	switch {
	case count < 1 || count > MaxManifest || le.Uint64(h[52:]) != 0:
		return nil, segfmt.ErrField
	case len(entries) != count*manifestEntry:
		return nil, segfmt.ErrShort
	case checksum(entries) != le.Uint32(h[48:]):
		return nil, segfmt.ErrChecksum
	case !bytes.Equal(h[8:24], p.TopicID[:]) || le.Uint32(h[24:]) != uint32(p.Partition):
		return nil, fmt.Errorf("%w: it is of partition %d of topic %x", segfmt.ErrField, le.Uint32(h[24:]), h[8:24])
	}
	m := &Manifest{entries}
	before := Object{}
	for i := range count {
		o := m.At(i)
		if err := o.Validate(); err != nil {
			return nil, fmt.Errorf("%w: %w", segfmt.ErrField, err)
		}
		if o.StoredMs < 0 || o.Base < before.Next || o.BaseSeq < before.NextSeq || o.Generation < before.Generation {
			return nil, fmt.Errorf("%w: object %d does not rise", segfmt.ErrField, i)
		}
		before = o
	}
	if int64(le.Uint64(h[32:])) != m.At(0).Base || int64(le.Uint64(h[40:])) != before.Next {
		return nil, segfmt.ErrField
	}
	return m, nil
}

// Len returns how many objects it describes.
func (m *Manifest) Len() int { return len(m.entries) / manifestEntry }

// Next returns where its last object ends.
func (m *Manifest) Next() int64 { return m.At(m.Len() - 1).Next }

// At returns one of its objects.
func (m *Manifest) At(i int) Object {
	e := m.entries[i*manifestEntry:]
	i64 := func(at int) int64 { return int64(le.Uint64(e[at:])) }
	return Object{
		Base: i64(0), Next: i64(8), BaseSeq: le.Uint64(e[16:]), NextSeq: le.Uint64(e[24:]), MaxTime: i64(32),
		SegmentBytes: i64(40), IndexBytes: i64(48), TimesBytes: i64(56), Size: i64(64), StoredMs: i64(72),
		Generation: le.Uint32(e[80:]), CRC: le.Uint32(e[84:]),
	}
}

// Search returns the index of the object that holds an offset, or else of the next one; Len where there is none.
func (m *Manifest) Search(offset int64) int {
	return sort.Search(m.Len(), func(i int) bool { return int64(le.Uint64(m.entries[i*manifestEntry+8:])) > offset })
}

// Objects returns those that end above an offset.
func (m *Manifest) Objects(above int64) (all []Object) {
	for i := m.Search(above); i < m.Len(); i++ {
		all = append(all, m.At(i))
	}
	return all
}

// PutManifest stores the manifest of a place's objects, and has read it back when it returns. It may be repeated.
func PutManifest(ctx context.Context, store objstore.Store, p Place, all []Object) (ManifestRef, error) {
	if len(all) == 0 || len(all) > MaxManifest {
		return ManifestRef{}, fault.New(fault.Exhausted, "a manifest of %d objects: from 1 to %d", len(all), MaxManifest)
	}
	b := AppendManifest(nil, p, all)
	if _, err := ParseManifest(b, p); err != nil {
		return ManifestRef{}, fault.New(fault.InvalidArgument, "manifest: %w", err)
	}
	r := ManifestRef{Base: all[0].Base, Next: all[len(all)-1].Next, Count: int64(len(all)), CRC: checksum(b)}
	key := r.Key(p)
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(ctx, stalled)
		_, err := objstore.PutOnce(ctx, store, key, objstore.Bytes(b))
		if err == nil || errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrOutcomeUnknown) {
			_, err = ReadManifest(ctx, store, p, r)
		}
		if fault.KindOf(err) == fault.Corrupt && try < readBacks {
			if there, herr := store.Head(ctx, key); herr == nil {
				_, _ = store.PutIfMatch(ctx, key, there.Version, objstore.Bytes(b)) // reading it back tells
			}
			cancel()
			continue
		}
		cancel()
		if err != nil {
			return ManifestRef{}, fmt.Errorf("put manifest %s: %w", key, err)
		}
		return r, nil
	}
}

// ReadManifest reads and checks a manifest. Its error is a *CorruptError for bytes that are not what was written,
// objstore.ErrNotFound, or the store's.
func ReadManifest(ctx context.Context, store objstore.Store, p Place, r ManifestRef) (m *Manifest, err error) {
	key := r.Key(p)
	err = objstore.Retry(ctx, fetchTries, func() error {
		for range 2 { // damage may have come on the way to here
			var b []byte
			if b, err = readManifest(ctx, store, key, r.Size()); err == nil {
				if checksum(b) != r.CRC {
					err = &CorruptError{Where: key, Offset: -1, Cause: segfmt.ErrChecksum}
				} else if m, err = ParseManifest(b, p); err != nil {
					err = undecodable(key, 0, err)
				}
			}
			if fault.KindOf(err) != fault.Corrupt {
				break
			}
		}
		return err
	})
	return m, err
}

func readManifest(ctx context.Context, store objstore.Store, key string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	b, _, err := objstore.Read(ctx, store, key, size)
	if err == nil && int64(len(b)) != size {
		err = &CorruptError{Where: key, Position: int64(len(b)), Offset: -1, Cause: segfmt.ErrShort}
	}
	return b, err
}

// manifestBytes is how much a Cold keeps of manifests; the newest one always.
const manifestBytes = 32 << 20

type keptManifest struct {
	key string
	m   *Manifest
}

// Manifest returns a manifest, from memory where it is there.
func (c *Cold) Manifest(ctx context.Context, p Place, r ManifestRef) (*Manifest, error) {
	key := r.Key(p)
	c.mu.Lock()
	for i, k := range c.manifests {
		if k.key == key {
			copy(c.manifests[1:i+1], c.manifests[:i])
			c.manifests[0] = k
			c.mu.Unlock()
			return k.m, nil
		}
	}
	c.mu.Unlock()
	m, err := ReadManifest(ctx, c.store, p, r)
	if err != nil {
		if errors.Is(err, objstore.ErrNotFound) {
			err = &MissingError{Key: key, Base: r.Base, Next: r.Next, Cause: err}
		}
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.manifests = append([]keptManifest{{key, m}}, c.manifests...)
	used := 0
	for i := range c.manifests {
		if used += len(c.manifests[i].m.entries); used > manifestBytes && i > 0 || i > math.MaxUint8 {
			c.manifests = c.manifests[:i:i]
			break
		}
	}
	return m, nil
}
