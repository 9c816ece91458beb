package tier

import (
	"context"
	"errors"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// described is a manifest that was read; nil where it could not be.
type described struct {
	ref ManifestRef
	m   *Manifest
}

// describe reads the manifest that counts. One that is missing or damaged is reported; its error is the store's, which ends
// the scrub.
func (s *scrub) describe(ctx context.Context, p Partition, k Known) (described, error) {
	if k.Manifest == nil {
		return described{}, nil
	}
	r := *k.Manifest
	s.guard.hold()
	m, err := ReadManifest(ctx, s.store, s.place(p), r)
	s.guard.release()
	switch kind := fault.KindOf(err); {
	case err == nil:
		s.report.Manifests++
		return described{r, m}, nil
	case !errors.Is(err, objstore.ErrNotFound) && kind != fault.Corrupt && kind != fault.Unsupported:
		return described{}, err
	}
	if now := s.known(p); now.State != Live || now.Manifest == nil || *now.Manifest != r {
		return described{ref: r}, nil // it was replaced
	}
	key := r.Key(s.place(p))
	if errors.Is(err, objstore.ErrNotFound) {
		s.report.Missing.add(Finding{Key: key, Size: r.Size(), Why: &MissingError{Key: key, Base: r.Base, Next: r.Next, Cause: err}})
	} else {
		s.report.Damaged.add(Finding{Key: key, Size: r.Size(), Why: err})
	}
	return described{ref: r}, nil
}

// counting returns the objects that count, as far as that is known.
func (s *scrub) counting(k Known) []Object {
	if k.Manifest == nil || s.older.m == nil {
		return k.Objects
	}
	// Of one of an earlier time all objects count still that end above First.
	return append(s.older.m.Objects(k.First), k.Objects...)
}

// untold reports whether an object may be one of those that count, because what describes them could not be read, or is
// another one by now.
func (s *scrub) untold(k Known, key string) bool {
	if k.State != Live || k.Manifest == nil || s.older.m != nil && s.older.ref == *k.Manifest {
		return false
	}
	_, name, ok := ParseKey(key)
	return ok && name.Last >= k.First && name.Base < k.Manifest.Next
}
