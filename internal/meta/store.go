package meta

import (
	"context"
	"sync"

	"github.com/leveemq/levee/internal/fault"
)

// Store is what the broker sees of the metadata: a place to propose changes and the newest state. It is safe for
// concurrent use.
type Store interface {
	// Propose makes a command durable and applies it; both are done when it returns nil, and View shows its effect. A
	// command that is refused returns the refusal, whose kind says why (see Command), and changes nothing. Any other
	// error tells by its kind what became of the command: after outcome_unknown and stopped it may take effect, now or
	// when the broker starts again; after every other kind it did not and will not. A ctx that ends stops the wait, not
	// a command that is already being written.
	Propose(ctx context.Context, c Command) (Result, error)
	// View returns the newest state. It never goes back, and it includes every command this Store answered.
	View() *View
	// Changed returns a channel that is closed once there is a newer view than the one View returned before the call.
	Changed() <-chan struct{}
}

// Memory is a Store that keeps nothing beyond its process: a fake for the tests of what stands above.
type Memory struct {
	mu    sync.Mutex // orders Propose
	state *State
	last  uint64
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{state: NewState()} }

// Propose applies the command by way of its stored form, as a durable store does.
func (m *Memory) Propose(ctx context.Context, c Command) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fault.New(fault.KindOf(err), "propose %s: %w", c.Op(), err)
	}
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	b, err := Encode(c)
	if err != nil {
		return Result{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r, err := m.state.ApplyEncoded(m.last, b)
	if err != nil {
		return Result{}, err
	}
	if r.Refused != nil {
		return r, r.Refused
	}
	return r, nil
}

// View returns the newest state.
func (m *Memory) View() *View { return m.state.View() }

// Changed returns a channel that is closed at the next change.
func (m *Memory) Changed() <-chan struct{} { return m.state.Changed() }

// NewMemoryFrom returns a Memory that goes on from a snapshot.
func NewMemoryFrom(snapshot []byte) (*Memory, error) {
	m := NewMemory()
	if err := m.state.Restore(snapshot); err != nil {
		return nil, err
	}
	m.last = m.View().Index()
	return m, nil
}
