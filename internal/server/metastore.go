package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
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
	state     *meta.State
	group     *raft.Group
	confirmer *atomic.Pointer[metatier.Confirmer] // as in metaLog
	keeper    *atomic.Pointer[metatier.Keeper]    // copies it to an object store; nil, or nothing in it: nobody does
	log       *slog.Logger
}

var _ meta.Store = metaStore{}

// newMetaStore returns the store of a state and of the group whose machine is newMetaMachine of that state.
func newMetaStore(s *meta.State, g *raft.Group) metaStore { return metaStore{state: s, group: g} }

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
	if m.confirmer != nil {
		if by := m.confirmer.Load(); by != nil {
			// Before it is written: what is in the log stays there.
			if err := by.Refused(); err != nil {
				return meta.Result{}, fmt.Errorf("%s: %w", c.Op(), err)
			}
			limited, cancel := context.WithTimeoutCause(ctx, by.Patience(), errUnconfirmed)
			defer cancel()
			ctx = limited
		}
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
	if err := m.copied(ctx, c, r.Index); err != nil {
		return meta.Result{}, fmt.Errorf("%s: %w", c.Op(), err)
	}
	return r, nil
}

// copied waits until what the write buffer lacks is noted in the object store, too: the write buffer's copy of the metadata
// lacks it, and who takes over from there alone would take that for everything. A store that does not answer soon holds up
// nothing, since going on without others is what the operator chose. An error says that the data is not this broker's any
// more: nothing may be acknowledged on the strength of the change.
func (m metaStore) copied(ctx context.Context, c meta.Command, index uint64) error {
	if lacking, ok := c.(meta.SetUncovered); !ok || lacking.From < 0 || m.keeper == nil {
		return nil
	}
	if k := m.keeper.Load(); k != nil {
		soon, cancel := context.WithTimeout(ctx, copyPatience)
		defer cancel()
		if err := k.Await(soon, index); err != nil {
			if fence := k.Err(); fence != nil {
				return fence
			}
			m.log.Warn("the object store does not know yet what the write buffer lacks: if this disk and the write buffer's metadata are lost now, nobody does", "err", err)
		}
	}
	return nil
}

// copyPatience is how long a change waits for its copy in the object store, where it waits at all.
const copyPatience = time.Second

// errUnconfirmed is why a change that waits for the write buffer is not waited for any longer.
var errUnconfirmed = fault.New(fault.Timeout, "the write buffer does not confirm it")

// View implements meta.Store.
func (m metaStore) View() *meta.View { return m.state.View() }

// Changed implements meta.Store.
func (m metaStore) Changed() <-chan struct{} { return m.state.Changed() }
