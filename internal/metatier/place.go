package metatier

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// Place is where the copy of a cluster's metadata is.
type Place struct {
	Store           objstore.Store
	Prefix, Cluster string // Prefix may be empty, or have several components
}

func (p Place) dir() string { return path.Join(p.Prefix, p.Cluster, "metadata") + "/" }

// Key returns the key of the owner record.
func (p Place) Key() string { return p.dir() + "owner" }

// How long one request may take: a store that hangs must not be waited for, for ever.
const (
	patience    = 30 * time.Second
	slowestRate = 256 << 10 // bytes a second
)

func patient(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, patience+time.Duration(size/slowestRate)*time.Second)
}

// read returns the record and its version; nil where there is none, as far as the store tells: only a put on that condition
// makes sure.
func (p Place) read(ctx context.Context) (*Owner, objstore.Version, error) {
	ctx, cancel := patient(ctx, 0)
	defer cancel()
	b, info, err := objstore.Read(ctx, p.Store, p.Key(), ownerLimit)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, info.Version, err
	}
	o, err := DecodeOwner(b)
	if err != nil {
		return nil, info.Version, fmt.Errorf("object %s: %w", p.Key(), err)
	}
	return o, info.Version, nil
}

// put makes next the record, on condition that the one of that version is there ("": none), and reads it back. After an
// error that says anything but that nothing was done, only reading tells what is there.
func (p Place) put(ctx context.Context, version objstore.Version, next *Owner) (objstore.Version, error) {
	b, err := next.Encode()
	if err != nil {
		return "", err
	}
	for try := 0; ; try++ {
		written, err := p.putOnce(ctx, version, b)
		if err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrConflict) && !errors.Is(err, objstore.ErrOutcomeUnknown) {
			if try == 0 || try == putTries || ctx.Err() != nil {
				return "", err
			}
			continue // what is there must not stay
		}
		// What refused it may be what it wrote itself.
		var there *Owner
		var at objstore.Version
		var rerr error
		for range readBacks {
			if there, at, rerr = p.read(ctx); rerr == nil || ctx.Err() != nil || fault.KindOf(rerr) == fault.Corrupt {
				break
			}
		}
		switch {
		case rerr == nil && there != nil && *there == *next:
			return at, nil
		case err != nil:
			return "", errors.Join(err, rerr)
		case fault.KindOf(rerr) == fault.Corrupt && try < putTries:
			version = written // stored, but not as it was sent; nobody else can have replaced it
		case rerr != nil:
			return "", rerr
		default:
			return "", fmt.Errorf("put %s: %w", p.Key(), objstore.ErrConflict) // and replaced since
		}
	}
}

// readBacks is how often reading back is tried: nobody else mends a record that was stored wrongly.
const readBacks = 5

// putTries is how often bytes that were stored wrongly are put again.
const putTries = 5

func (p Place) putOnce(ctx context.Context, version objstore.Version, b []byte) (objstore.Version, error) {
	ctx, cancel := patient(ctx, 0)
	defer cancel()
	var info objstore.Info
	var err error
	if version == "" {
		info, err = p.Store.PutIfAbsent(ctx, p.Key(), objstore.Bytes(b))
	} else {
		info, err = p.Store.PutIfMatch(ctx, p.Key(), version, objstore.Bytes(b))
	}
	return info.Version, err
}

// keep stores a snapshot and reads it back. It may be repeated.
func (p Place) keep(ctx context.Context, data []byte, s Snapshot) error {
	ctx, cancel := patient(ctx, 2*int64(len(data)))
	defer cancel()
	key, src := p.dir()+s.Name, objstore.Bytes(data)
	for try := 0; ; try++ {
		_, err := objstore.PutOnce(ctx, p.Store, key, src)
		if err != nil && !errors.Is(err, objstore.ErrExists) {
			return err
		}
		there, info, rerr := objstore.Read(ctx, p.Store, key, int64(len(data)))
		switch {
		case rerr == nil && bytes.Equal(there, data):
			return nil
		case rerr != nil && fault.KindOf(rerr) != fault.Corrupt:
			return rerr
		case try == putTries:
			return fault.New(fault.Corrupt, "object %s is not what was put, again and again: %w", key, cmp.Or(rerr, error(objstore.ErrCorrupt)))
		}
		if info.Version == "" {
			if info, err = p.Store.Head(ctx, key); err != nil {
				return err
			}
		}
		if _, err := p.Store.PutIfMatch(ctx, key, info.Version, src); err != nil && !errors.Is(err, objstore.ErrConflict) && !errors.Is(err, objstore.ErrOutcomeUnknown) {
			return err
		}
	}
}

// fetch returns the snapshot's bytes, which are right.
func (p Place) fetch(ctx context.Context, s Snapshot) ([]byte, error) {
	ctx, cancel := patient(ctx, s.Size)
	defer cancel()
	key := p.dir() + s.Name
	b, info, err := objstore.Read(ctx, p.Store, key, s.Size)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != s.Size || objstore.Bytes(b).CRC32C() != s.CRC {
		cause := fmt.Errorf("%d bytes with CRC-32C %08x, its record says %d with %08x", len(b), objstore.Bytes(b).CRC32C(), s.Size, s.CRC)
		return nil, &objstore.CorruptError{Key: info.Key, Cause: cause}
	}
	return b, nil
}

// older reports whether a snapshot is of an earlier time.
func (s Snapshot) older(o Snapshot) bool {
	return cmp.Or(cmp.Compare(s.Term, o.Term), cmp.Compare(s.Index, o.Index)) < 0
}

// prune deletes the snapshots before the newest one below the one that counts. What is above it is left: whoever is about
// to take over has put it and is yet to name it.
func (p Place) prune(ctx context.Context, counts Snapshot) error {
	ctx, cancel := patient(ctx, 0)
	defer cancel()
	var below []Snapshot
	newest := Snapshot{}
	for info, err := range p.Store.List(ctx, p.dir(), "") {
		if err != nil {
			return err
		}
		s, ok := parseSnapshotName(path.Base(info.Key))
		if !ok || info.Key != p.dir()+s.Name || !s.older(counts) {
			continue
		}
		below = append(below, s)
		if newest.older(s) {
			newest = s
		}
	}
	for _, s := range below {
		if s.Name == newest.Name {
			continue
		}
		if err := p.Store.Delete(ctx, p.dir()+s.Name); err != nil {
			return err
		}
	}
	return nil
}

// FencedError says that somebody else owns the cluster's data.
type FencedError struct {
	Owner   Owner
	Key     string // of the record that says so
	Cluster string
	Dir     string // of the broker that has to stop
}

// Error implements error.
func (e *FencedError) Error() string {
	taken := time.UnixMilli(e.Owner.TakenMs).UTC().Format(time.RFC3339)
	return fmt.Sprintf("the data of cluster %q belongs to %s, which took it over at %s (epoch %d), as object %s says: what was acknowledged since is not in %s. "+
		"Leave the cluster to that broker; to take it over from there, stop that broker and start this one with an empty data directory",
		e.Cluster, &e.Owner, taken, e.Owner.Epoch, e.Key, e.Dir)
}

// FaultKind classifies the error.
func (e *FencedError) FaultKind() fault.Kind { return fault.Fenced }

// FaultDetails returns who it is.
func (e *FencedError) FaultDetails() map[string]string {
	return map[string]string{"owner": e.Owner.String(), "key": e.Key}
}

// GoneError says that the record is not there any more. Somebody else may have taken the data over before it went, so whoever
// knew it does not write it again: that would fence the owner.
type GoneError struct {
	Key     string // of the record
	Cluster string
	Dir     string
	Epoch   uint64 // in which it was last seen to name the directory
}

// Error implements error.
func (e *GoneError) Error() string {
	return fmt.Sprintf("object %s is gone, which named %s as the owner of cluster %q (epoch %d): another broker may have taken the data over before that, so it is not written again. "+
		"If the store, bucket, prefix or cluster is another one than before by mistake, set storage and object_store to what they were. Otherwise put the object back; "+
		"or, if no other broker has this cluster's data, stop this one, remove the file %s/ownership and start it: then the directory is the owner anew", e.Key, e.Dir, e.Cluster, e.Epoch, e.Dir)
}

// FaultKind classifies the error.
func (e *GoneError) FaultKind() fault.Kind { return fault.Conflict }

// FaultDetails returns the record's key.
func (e *GoneError) FaultDetails() map[string]string { return map[string]string{"key": e.Key} }

// StaleError says that a data directory has older metadata than its own copy: entries are missing that were acknowledged.
type StaleError struct {
	Dir   string
	Index uint64 // of the last entry that is there
	Term  uint32
	Key   string // where the copy is
	Copy  Snapshot
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("the metadata in %s ends with entry %d of term %d, and its copy, %s, has entry %d of term %d: the directory is an older state of itself, as a restored backup is. "+
		"Put its newest state back, or start with an empty data directory, which goes on with the copy",
		e.Dir, e.Index, e.Term, e.Key, e.Copy.Index, e.Copy.Term)
}

// FaultKind classifies the error.
func (e *StaleError) FaultKind() fault.Kind { return fault.Corrupt }
