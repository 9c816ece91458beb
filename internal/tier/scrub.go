package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// State is what the metadata knows of a topic's incarnation.
type State uint8

// The states.
const (
	Unknown State = iota // nobody has heard of it: its objects are left alone
	Live
	Dead // it was deleted, and never comes back
)

// Known is what the metadata says of one partition now.
type Known struct {
	State   State
	Objects []Object // those that count, rising; without those that Manifest describes
	// Frontier is the offset up to which the partition was ever exported; retention does not lower it. Whatever is
	// exported from now on begins there or above, so an object that begins below it and does not count never will.
	Frontier int64
	// Manifest is the one that the metadata points at; nil: none. Of its objects those count that end above First. Of other
	// manifests, those that reach no further never count.
	Manifest *ManifestRef
	First    int64
}

// Partition names one partition of one incarnation of a topic.
type Partition struct {
	TopicID [16]byte
	Number  int32
}

// ScrubOptions say what a scrub does. The zero value looks at footers and removes nothing.
type ScrubOptions struct {
	Full   bool          // read every object that counts from end to end
	Remove bool          // remove what can never count and is older than Grace
	Grace  time.Duration // default 24 h
	// May, unless nil, is asked before each object is removed; its error ends the scrub.
	May         func(ctx context.Context) error
	BytesPerSec int64 // that are read to verify; 0: no limit
	// Expect names partitions that have objects: so it shows, too, where nothing at all is left of one.
	Expect []Partition
	Now    func() time.Time // nil: time.Now
	Read   func(n int64)    // unless nil, told how many bytes of an object that counts were read
}

// Finding is an object that is not as it should be.
type Finding struct {
	Key     string
	Size    int64
	Why     error // for one that counts: what is wrong with it; nil for an orphan
	Removed bool
}

// maxFindings bounds the findings of each sort that a Report names. The counts go on.
const maxFindings = 1000

// Findings are the objects of one sort, the first thousand by name.
type Findings struct {
	Count int64
	Named []Finding
}

func (f *Findings) add(one Finding) {
	if f.Count++; f.Count <= maxFindings {
		f.Named = append(f.Named, one)
	}
}

// Report is what a scrub found.
type Report struct {
	Objects, Bytes int64 // of exported segments, wherever they belong
	Verified       int64 // objects that count and are right
	Manifests      int64 // that count and are right
	Foreign        int64 // objects of other names, which were left alone
	Unknown        int64 // objects of incarnations that nobody knows, which were left alone

	Orphans Findings // do not count: of deleted topics, replaced, or put and never recorded
	Missing Findings // count, and are not there
	Damaged Findings // count, and are not what was written

	Removed, RemovedBytes int64
}

// scrub is one run.
type scrub struct {
	store           objstore.Store
	prefix, cluster string
	known           func(Partition) Known
	opts            ScrubOptions
	pace            *pace
	guard           *guard
	report          Report
	older           described // of the partition at hand
}

// Scrub compares the bucket with the metadata. It changes nothing but what opts.Remove allows, and of that only objects
// that cannot come to count any more; so exports may go on meanwhile. With an error, the report is of what was looked at.
func Scrub(ctx context.Context, store objstore.Store, prefix, cluster string, known func(Partition) Known, opts ScrubOptions) (Report, error) {
	if opts.Grace == 0 {
		opts.Grace = 24 * time.Hour
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &scrub{store: store, prefix: prefix, cluster: cluster, known: known, opts: opts, pace: newPace(opts.BytesPerSec), guard: newGuard(ctx)}
	seen := map[Partition]bool{}
	err := eachPartition(s.guard, store, prefix, cluster, &s.report.Foreign, func(p Partition, list []objstore.Info) error {
		seen[p] = true
		return s.partition(s.guard.ctx, p, list)
	})
	for _, p := range opts.Expect {
		if err == nil && !seen[p] {
			err = s.partition(s.guard.ctx, p, nil)
		}
	}
	if err = s.guard.end(ctx, err); err != nil {
		err = fmt.Errorf("scrub %s: %w", ClusterDir(prefix, cluster), err)
	}
	return s.report, err
}

// eachPartition lists a cluster's objects and calls fn for those of each partition together.
func eachPartition(g *guard, store objstore.Store, prefix, cluster string, foreign *int64, fn func(Partition, []objstore.Info) error) error {
	var at Partition
	var list []objstore.Info
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		err := fn(at, list)
		list = nil
		return err
	}
	for info, err := range store.List(g.ctx, ClusterDir(prefix, cluster), "") {
		if err != nil {
			return err
		}
		g.progress()
		place, _, ok := ParseKey(info.Key)
		if !ok {
			place, _, ok = ParseManifestKey(info.Key)
		}
		if !ok || place.Prefix != prefix || place.Cluster != cluster {
			*foreign++
			continue
		}
		if p := (Partition{place.TopicID, place.Partition}); p != at {
			if err := flush(); err != nil {
				return err
			}
			at = p
		}
		list = append(list, info)
	}
	return flush()
}

func (s *scrub) place(p Partition) Place {
	return Place{Prefix: s.prefix, Cluster: s.cluster, TopicID: p.TopicID, Partition: p.Number}
}

// partition looks at what was listed of one. The metadata is asked afterwards: what was recorded before the listing is in
// both.
func (s *scrub) partition(ctx context.Context, p Partition, list []objstore.Info) (err error) {
	k := s.known(p)
	counts := map[string]Object{}
	s.older = described{}
	if k.State == Live {
		if s.older, err = s.describe(ctx, p, k); err != nil {
			return err
		}
		for _, o := range s.counting(k) {
			counts[o.Key(s.place(p))] = o
		}
	}
	for _, info := range list {
		if k.Manifest != nil && info.Key == k.Manifest.Key(s.place(p)) {
			continue // read above
		}
		if _, _, manifest := ParseManifestKey(info.Key); !manifest {
			s.report.Objects++
			s.report.Bytes += info.Size
		}
		if o, ok := counts[info.Key]; ok {
			delete(counts, info.Key)
			if err := s.verify(ctx, p, o, info.Key); err != nil {
				return err
			}
			continue
		}
		if k.State == Unknown || s.untold(k, info.Key) {
			s.report.Unknown++
			continue
		}
		if err := s.orphan(ctx, p, info); err != nil {
			return err
		}
	}
	for _, key := range sortedKeys(counts) { // recorded since, listed late, or missing
		if err := s.verify(ctx, p, counts[key], key); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys(m map[string]Object) []string {
	all := make([]string, 0, len(m))
	for key := range m {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// verify reads an object that counts. Its error is the store's, which ends the scrub.
func (s *scrub) verify(ctx context.Context, p Partition, o Object, key string) error {
	n := int64(FooterSize)
	if s.opts.Full {
		n = o.Size
	}
	s.guard.hold()
	err := s.pace.wait(ctx, n)
	s.guard.release()
	if err != nil {
		return err
	}
	var why error
	err = objstore.Retry(ctx, fetchTries, func() (err error) {
		for range 2 { // it may have happened on the way to here
			if err = s.look(ctx, p, o, key); fault.KindOf(err) != fault.Corrupt && fault.KindOf(err) != fault.NotFound {
				break
			}
		}
		why = err
		return err
	})
	if s.opts.Read != nil {
		s.opts.Read(n)
	}
	if err == nil {
		s.report.Verified++
		return nil
	}
	gone := errors.Is(err, objstore.ErrNotFound)
	if !gone && fault.KindOf(err) != fault.Corrupt && fault.KindOf(err) != fault.Unsupported {
		return err
	}
	if now := s.known(p); now.State != Live || !slices.ContainsFunc(s.counting(now), func(one Object) bool { return one.bytes() == o.bytes() }) {
		return nil // retention was faster
	}
	if gone {
		s.report.Missing.add(Finding{Key: key, Size: o.Size, Why: &MissingError{Key: key, Base: o.Base, Next: o.Next, Cause: why}})
	} else {
		s.report.Damaged.add(Finding{Key: key, Size: o.Size, Why: why})
	}
	return nil
}

func (s *scrub) look(ctx context.Context, p Partition, o Object, key string) (err error) {
	var f *Footer
	if s.opts.Full {
		f, err = fetchWhole(s.guard, s.store, key)
	} else {
		f, err = fetchFooter(ctx, s.store, key, o.Size)
	}
	if err != nil {
		return err
	}
	if err := f.is(s.place(p), o); err != nil {
		return &CorruptError{Where: key, Position: o.Size - FooterSize, Offset: -1, Cause: err}
	}
	return nil
}

// Verify reads an object from end to end and says what is wrong with it: a *CorruptError, objstore.ErrNotFound, or the
// store's own error.
func Verify(ctx context.Context, store objstore.Store, place Place, o Object) error {
	g := newGuard(ctx)
	s := &scrub{store: store, prefix: place.Prefix, cluster: place.Cluster, opts: ScrubOptions{Full: true}, guard: g}
	err := objstore.Retry(g.ctx, fetchTries, func() error { return s.look(g.ctx, Partition{place.TopicID, place.Partition}, o, o.Key(place)) })
	return g.end(ctx, err)
}

// fetchFooter reads the footer of an object of that size.
func fetchFooter(ctx context.Context, store objstore.Store, key string, size int64) (*Footer, error) {
	if size < FooterSize {
		return nil, &CorruptError{Where: key, Offset: -1, Cause: segfmt.ErrShort}
	}
	// One byte more than there is, so that an object that goes on behind it shows.
	body, err := store.Get(ctx, key, size-FooterSize, FooterSize+1)
	if errors.Is(err, objstore.ErrRange) {
		return nil, &CorruptError{Where: key, Position: size - FooterSize, Offset: -1, Cause: segfmt.ErrShort}
	}
	if err != nil {
		return nil, err
	}
	b, err := readBody(body)
	if err != nil {
		return nil, err
	}
	f, err := ParseFooter(b, size)
	if err != nil {
		return nil, undecodable(key, size-FooterSize, err)
	}
	return &f, nil
}

// orphan deals with an object that does not count.
func (s *scrub) orphan(ctx context.Context, p Partition, info objstore.Info) error {
	s.guard.progress()
	found := Finding{Key: info.Key, Size: info.Size}
	if s.opts.Remove {
		if info.Modified.IsZero() { // the listing does not tell
			head, err := s.store.Head(ctx, info.Key)
			if errors.Is(err, objstore.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			info.Modified = head.Modified
		}
		old := !info.Modified.IsZero() && s.opts.Now().Sub(info.Modified) > s.opts.Grace
		if old && s.hopeless(p, info.Key) {
			if s.opts.May != nil {
				if err := s.opts.May(ctx); err != nil {
					return err
				}
			}
			if err := s.store.Delete(ctx, info.Key); err != nil {
				return err
			}
			found.Removed = true
			s.report.Removed++
			s.report.RemovedBytes += info.Size
		}
	}
	s.report.Orphans.add(found)
	return nil
}

// hopeless reports whether an object does not count and never can. The metadata is asked once more, right before the
// object goes: what it says of the past is so for good.
func (s *scrub) hopeless(p Partition, key string) bool {
	k := s.known(p)
	if k.State != Live {
		return k.State == Dead
	}
	if _, m, ok := ParseManifestKey(key); ok {
		// What is yet to be recorded reaches further than what is, or than the oldest that counts where nothing is.
		reached := int64(0)
		if k.Manifest != nil {
			reached = k.Manifest.Next
		} else if len(k.Objects) > 0 {
			reached = k.Objects[0].Base
		}
		return m.Next <= reached && (k.Manifest == nil || key != k.Manifest.Key(s.place(p)))
	}
	_, name, _ := ParseKey(key)
	return name.Base < k.Frontier && !s.untold(k, key) && !slices.ContainsFunc(s.counting(k), func(o Object) bool { return o.Name() == name })
}

// Ours reports whether a key is that of an exported segment or of a manifest.
func Ours(key string) bool {
	_, _, segment := ParseKey(key)
	_, _, manifest := ParseManifestKey(key)
	return segment || manifest
}

// DeleteTopic removes every object of an incarnation that is gone for good, and returns how many. It may be repeated
// after an error. What an export that was under way puts afterwards is found by a scrub.
func DeleteTopic(ctx context.Context, store objstore.Store, prefix, cluster string, topic [16]byte) (removed int64, err error) {
	g := newGuard(ctx)
	removed, err = deleteTopic(g, store, topicDir(prefix, cluster, topic))
	return removed, g.end(ctx, err)
}

func deleteTopic(g *guard, store objstore.Store, dir string) (removed int64, err error) {
	for info, err := range store.List(g.ctx, dir, "") {
		if err == nil {
			if !Ours(info.Key) {
				continue
			}
			g.progress()
			err = objstore.Retry(g.ctx, fetchTries, func() error { return store.Delete(g.ctx, info.Key) })
		}
		if err != nil {
			return removed, fmt.Errorf("delete objects of topic below %s: %w", dir, err)
		}
		removed++
	}
	return removed, nil
}
