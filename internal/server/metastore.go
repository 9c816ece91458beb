package server

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/raft"
)

// metaMachine is the metadata's state as a raft group sees it.
type metaMachine struct{ state *meta.State }

var _ raft.Machine = metaMachine{}

func newMetaMachine(s *meta.State) metaMachine { return metaMachine{s} }

// Apply implements raft.Machine. A command that is refused is an answer, not an error.
func (m metaMachine) Apply(index uint64, command []byte) (any, error) {
	return m.state.ApplyEncoded(index, command)
}

// Snapshot implements raft.Machine: a view never changes, so it can be written down at leisure.
func (m metaMachine) Snapshot() func() ([]byte, error) { return m.state.View().Snapshot }

// Restore implements raft.Machine.
func (m metaMachine) Restore(snapshot []byte) error { return m.state.Restore(snapshot) }

// metaStore is the durable meta.Store: commands go through a raft group, views come from the state it applies them to.
type metaStore struct {
	state *meta.State
	group *raft.Group
}

var _ meta.Store = metaStore{}

// newMetaStore returns the store of a state and of the group whose machine is newMetaMachine of that state.
func newMetaStore(s *meta.State, g *raft.Group) metaStore { return metaStore{s, g} }

// Propose implements meta.Store.
func (m metaStore) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	// Before it is stored: a log keeps what is in it for ever, and must not fill with what no state could accept.
	if err := c.Validate(); err != nil {
		return meta.Result{}, err
	}
	b, err := meta.Encode(c)
	if err != nil {
		return meta.Result{}, err
	}
	answer, err := m.group.Propose(ctx, b)
	if err != nil {
		return meta.Result{}, fmt.Errorf("%s: %w", c.Op(), err)
	}
	r, ok := answer.(meta.Result)
	if !ok {
		return meta.Result{}, fault.New(fault.Internal, "%s: the metadata answered with a %T: this is a bug", c.Op(), answer)
	}
	if r.Refused != nil {
		return r, r.Refused
	}
	return r, nil
}

// View implements meta.Store.
func (m metaStore) View() *meta.View { return m.state.View() }

// Changed implements meta.Store.
func (m metaStore) Changed() <-chan struct{} { return m.state.Changed() }
