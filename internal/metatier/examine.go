package metatier

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/raft"
)

// Copied is what a bucket has of a cluster's metadata.
type Copied struct {
	Owner   Owner
	View    *meta.View // of the snapshot that counts; nil: there is none yet
	Objects int64      // that belong to the copy, the record among them
}

// Owner reads the record; nil where there is none.
func (p Place) Owner(ctx context.Context) (*Owner, error) {
	o, _, err := p.read(ctx)
	return o, err
}

// Examine reads the record and the snapshot that it names, every byte; nil where there is no copy. It changes nothing. An
// error of kind corrupt or unsupported is about what is there, any other one about the store.
func (p Place) Examine(ctx context.Context) (*Copied, error) {
	c := &Copied{}
	for info, err := range p.Store.List(ctx, p.dir(), "") {
		if err != nil {
			return nil, fmt.Errorf("list the copy of the metadata: %w", err)
		}
		if _, snapshot := parseSnapshotName(info.Key[len(p.dir()):]); snapshot || info.Key == p.Key() {
			c.Objects++
		}
	}
	owner, _, err := p.read(ctx)
	if err != nil || owner == nil {
		return nil, err
	}
	c.Owner = *owner
	if owner.Snapshot == (Snapshot{}) {
		return c, nil
	}
	b, err := p.fetch(ctx, owner.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("read the copy of the metadata, %s: %w", p.dir()+owner.Snapshot.Name, err)
	}
	whole, err := raft.ParseCopy(b)
	if err != nil {
		return nil, fmt.Errorf("the copy of the metadata, %s: %w", p.dir()+owner.Snapshot.Name, err)
	}
	state := meta.NewState()
	if err := state.Restore(whole.Payload); err != nil {
		return nil, fault.New(fault.KindOf(err), "the copy of the metadata, %s: %w", p.dir()+owner.Snapshot.Name, err)
	}
	c.View = state.View()
	return c, nil
}
