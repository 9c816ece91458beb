package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sort"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/segfmt"
)

// ColdConfig is what cold reads need to know. The zero value of a field means its default.
type ColdConfig struct {
	CacheBytes   int64        // kept of objects; default 64 MiB
	StretchBytes int64        // of an object that are asked for at once; default 1 MiB
	ReadAhead    int          // stretches asked for ahead of a reader that reads on, at least; default 8; -1: none
	Together     int          // of these, asked for with one request; default 4
	Metrics      *Metrics     // nil: none
	Logger       *slog.Logger // nil: silent
}

func (c ColdConfig) withDefaults() ColdConfig {
	if c.CacheBytes == 0 {
		c.CacheBytes = 64 << 20
	}
	if c.StretchBytes == 0 {
		c.StretchBytes = 1 << 20
	}
	if c.ReadAhead == 0 {
		c.ReadAhead = 8
	}
	if c.Together <= 0 {
		c.Together = 4
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	c.Logger = obs.Logger(c.Logger)
	return c
}

// Validate returns every setting that cannot be.
func (c ColdConfig) Validate() error {
	var errs []error
	if c.StretchBytes < 0 || c.StretchBytes > 0 && c.StretchBytes < 4<<10 || c.StretchBytes > 64<<20 {
		errs = append(errs, fault.New(fault.InvalidArgument, "cold reads of %d bytes at once: from 4 KiB to 64 MiB", c.StretchBytes))
	}
	if d := c.withDefaults(); c.CacheBytes < 0 || d.CacheBytes < 2*d.StretchBytes {
		errs = append(errs, fault.New(fault.InvalidArgument, "a cache of %d bytes for cold reads: at least two stretches of %d", d.CacheBytes, d.StretchBytes))
	}
	return errors.Join(errs...)
}

// Cold reads objects, for any number of readers of any partitions, through one cache. It is safe for concurrent use.
type Cold struct {
	cfg   ColdConfig
	store objstore.Store
	cache *cache

	mu        sync.Mutex
	manifests []keptManifest // guarded by mu; the most recently used first
}

// NewCold returns one that reads from store until ctx ends or Close is called.
func NewCold(ctx context.Context, store objstore.Store, cfg ColdConfig) (*Cold, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	// What is read ahead must not push out what was read ahead before it was used.
	fits := int(cfg.CacheBytes / cfg.StretchBytes)
	cfg.ReadAhead = max(0, min(cfg.ReadAhead, fits/4))
	cfg.Together = max(1, min(cfg.Together, cfg.ReadAhead))
	ahead := min(8*cfg.ReadAhead, fits/2)
	return &Cold{cfg: cfg, store: store, cache: newCache(ctx, cfg.CacheBytes, max(cfg.CacheBytes/2, cfg.StretchBytes), ahead, cfg.Metrics)}, nil
}

// Close ends what is under way and waits for it.
func (c *Cold) Close() error { return c.cache.close() }

// fetchTries is how often a read is tried that the store could not serve, before whoever waits for it hears of it.
const fetchTries = 3

// fetchTimeout is how long one of these tries may take.
const fetchTimeout = 20 * time.Second

// fetch reads bytes of an object.
func (c *Cold) fetch(ctx context.Context, key string, at, n int64) ([]byte, error) {
	var data []byte
	err := objstore.Retry(ctx, fetchTries, func() (err error) {
		start := time.Now()
		once, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		data, err = readRange(once, c.store, key, at, n)
		c.cfg.Metrics.Fetch.Observe(time.Since(start).Seconds())
		if err != nil && ctx.Err() == nil && once.Err() != nil {
			err = fmt.Errorf("%w: no answer from it for %s: %w", objstore.ErrUnavailable, fetchTimeout, err)
		}
		return err
	})
	return data, err
}

// fetchAll reads bytes of an object with one request, and gives them to got a stretch after the other, as they come. What
// did not come is asked for again.
func (c *Cold) fetchAll(ctx context.Context, key string, at, n int64, got func([]byte)) error {
	for {
		came := false
		err := objstore.Retry(ctx, fetchTries, func() error {
			start := time.Now()
			defer func() { c.cfg.Metrics.Fetch.Observe(time.Since(start).Seconds()) }()
			once, cancel := context.WithCancel(ctx)
			defer cancel()
			patience := time.AfterFunc(fetchTimeout, cancel)
			defer patience.Stop()
			err := readPieces(once, c.store, key, at, n, c.cfg.StretchBytes, func(data []byte) {
				patience.Reset(fetchTimeout)
				got(data)
				came, at, n = true, at+int64(len(data)), n-int64(len(data))
			})
			if n == 0 {
				return nil
			}
			if err != nil && ctx.Err() == nil && once.Err() != nil {
				err = fmt.Errorf("%w: nothing of it came from %s for %s: %w", objstore.ErrUnavailable, key, fetchTimeout, err)
			}
			return err
		})
		if err == nil || !came || !objstore.Retryable(err) {
			return err
		}
	}
}

// readPieces reads n bytes of an object that must have them, and gives them to got, size bytes at a time.
func readPieces(ctx context.Context, s objstore.Store, key string, at, n, size int64, got func([]byte)) error {
	body, err := open(ctx, s, key, at, n)
	if err != nil {
		return err
	}
	for n > 0 && err == nil {
		data := make([]byte, min(n, size))
		if _, err = io.ReadFull(body, data); err == nil {
			got(data)
			n -= int64(len(data))
		}
	}
	return errors.Join(err, body.Close())
}

// readRange reads n bytes of an object that must have them.
func readRange(ctx context.Context, s objstore.Store, key string, at, n int64) ([]byte, error) {
	body, err := open(ctx, s, key, at, n)
	if err != nil {
		return nil, err
	}
	return readBody(body)
}

// open asks for n bytes of an object that must have them.
func open(ctx context.Context, s objstore.Store, key string, at, n int64) (*objstore.Body, error) {
	body, err := s.Get(ctx, key, at, n)
	if errors.Is(err, objstore.ErrRange) {
		return nil, &CorruptError{Where: key, Position: at, Offset: -1, Cause: segfmt.ErrShort}
	}
	if err != nil {
		return nil, err
	}
	if body.Len != n {
		cause := fmt.Errorf("%w: it has %d bytes", segfmt.ErrShort, body.Info.Size)
		return nil, errors.Join(&CorruptError{Where: key, Position: body.Info.Size, Offset: -1, Cause: cause}, body.Close())
	}
	return body, nil
}

// readBody reads and closes what a Get has opened.
func readBody(body *objstore.Body) ([]byte, error) {
	data := make([]byte, body.Len)
	_, err := io.ReadFull(body, data)
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, err
	}
	return data, nil
}

// stretchAt returns the stretch of an object's segment that position lies in, and where it begins. Stretches are the same
// for all readers, so that they find each other's.
func (c *Cold) stretchAt(ctx context.Context, o *Object, key string, position int64) (data []byte, at int64, err error) {
	at, n := c.bounds(o, position)
	data, err = c.cache.get(ctx, piece{key, at}, n, func(ctx context.Context) ([]byte, error) { return c.fetch(ctx, key, at, n) })
	return data, at, err
}

func (c *Cold) bounds(o *Object, position int64) (at, n int64) {
	at = position / c.cfg.StretchBytes * c.cfg.StretchBytes
	return at, min(c.cfg.StretchBytes, o.SegmentBytes-at)
}

// ahead asks for the stretches from at on up to where the next request would begin, or the segment ends, and does not
// wait for them. It returns where they end.
func (c *Cold) ahead(o *Object, key string, at int64) (end int64) {
	one := c.cfg.StretchBytes * int64(c.cfg.Together) // requests of several readers begin at the same positions
	end = min(at/one*one+one, o.SegmentBytes)
	c.cache.prefetch(key, at, end, c.cfg.StretchBytes, func(ctx context.Context, at, n int64, got func([]byte)) error {
		return c.fetchAll(ctx, key, at, n, got)
	})
	return end
}

// sides returns an object's index and time index, which have been checked against its footer, and that against o.
func (c *Cold) sides(ctx context.Context, place Place, o *Object, key string) (index, times []byte, err error) {
	at, n := o.SegmentBytes, o.Size-o.SegmentBytes
	data, err := c.cache.get(ctx, piece{key, at}, n, func(ctx context.Context) (data []byte, err error) {
		for range 2 { // damage may have come on the way to here
			if data, err = c.fetch(ctx, key, at, n); err == nil {
				err = checkSides(place, o, key, data)
			}
			if fault.KindOf(err) != fault.Corrupt {
				break
			}
			c.cfg.Metrics.Damaged.Inc()
		}
		return data, err
	})
	if err != nil {
		return nil, nil, err
	}
	return data[:o.IndexBytes], data[o.IndexBytes : o.IndexBytes+o.TimesBytes], nil
}

// checkSides checks what stands behind an object's segment.
func checkSides(place Place, o *Object, key string, data []byte) error {
	sides, footer := data[:len(data)-FooterSize], data[len(data)-FooterSize:]
	f, err := ParseFooter(footer, o.Size)
	if err != nil {
		return undecodable(key, o.Size-FooterSize, err)
	}
	if err := f.is(place, *o); err != nil {
		return &CorruptError{Where: key, Position: o.Size - FooterSize, Offset: -1, Cause: err}
	}
	if checksum(sides) != f.SidesCRC {
		return &CorruptError{Where: key, Position: o.SegmentBytes, Offset: -1, Cause: segfmt.ErrChecksum}
	}
	return nil
}

// entryFor returns the last entry of an index that is not behind offset.
func entryFor(index []byte, offset int64) (segfmt.IndexEntry, bool) {
	at := func(i int) segfmt.IndexEntry { return segfmt.ParseIndexEntry(index[i*segfmt.IndexEntrySize:]) }
	n := sort.Search(len(index)/segfmt.IndexEntrySize, func(i int) bool { return at(i).Offset > offset })
	if n == 0 {
		return segfmt.IndexEntry{}, false
	}
	return at(n - 1), true
}
