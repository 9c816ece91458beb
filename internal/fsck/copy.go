package fsck

import (
	"context"
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
)

// copied checks the metadata's copy in the bucket, and returns it; nil where there is none or it is damaged. Its error is
// the store's.
func (c *check) copied(ctx context.Context) (*metatier.Copied, error) {
	c.Progress.at("copy of the metadata")
	place := c.copyPlace()
	is, err := place.Examine(ctx)
	kind := fault.KindOf(err)
	c.theirs = err != nil
	switch {
	case err == nil:
		return is, nil
	case errors.Is(err, objstore.ErrNotFound):
		c.found(Finding{Level: Lost, Area: "copy", Kind: "missing", Where: place.Key(), Why: err.Error()})
	case kind == fault.Corrupt || kind == fault.Unsupported:
		c.found(Finding{Level: Lost, Area: "copy", Kind: kind.String(), Where: place.Key(), Why: err.Error()})
	default:
		return nil, err
	}
	return nil, nil
}

// compare holds the copy against the metadata that is here.
func (c *check) compare(is *metatier.Copied) {
	if is == nil {
		return
	}
	if is.Owner.Claim != c.Claim {
		c.theirs = true
		c.found(Finding{Level: Lost, Area: "copy", Kind: "taken_over", Where: c.ownerKey(), Why: fmt.Sprintf(
			"what is in the bucket belongs to %s, and not to this directory: what the metadata here says of objects does not count any more, and none is removed", &is.Owner)})
		return
	}
	if is.View == nil || is.View.Index() <= c.View.Index() {
		return // what changed last may not have been copied when the broker ended
	}
	c.theirs = true
	c.found(Finding{Level: Lost, Area: "copy", Kind: "newer", Where: is.Owner.Snapshot.Name, Why: fmt.Sprintf(
		"the bucket has the metadata as of entry %d, put there by %s, and here it ends at %d: another directory took the data over, or this one is of an earlier time",
		is.View.Index(), &is.Owner, c.View.Index())})
}

func (c *check) copyPlace() metatier.Place {
	return metatier.Place{Store: c.Store, Prefix: c.Prefix, Cluster: c.Cluster}
}

func (c *check) ownerKey() string {
	p := c.copyPlace()
	return p.Key()
}

// ours fails once another directory owns what is in the bucket: a take-over may come at any moment, and what does not count
// by the metadata here may then count by the new owner's.
func (c *check) ours(ctx context.Context) error {
	o, err := c.copyPlace().Owner(ctx)
	if err == nil && o != nil && o.Claim != c.Claim {
		err = fault.New(fault.Fenced, "what is in the bucket belongs to %s by now, as object %s says: nothing more is removed", o, c.ownerKey())
	}
	return err
}
