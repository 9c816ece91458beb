package cursor

// Change is what a save has to write: the position, and the blocks that changed, each whole. Stored blocks that lie
// wholly below the position go without being named.
type Change struct {
	Position int64
	Blocks   []Block
}

// State returns everything, as NewSet takes it.
func (s *Set) State() State {
	state := State{Position: s.position}
	for i := range s.blocks {
		state.Blocks = append(state.Blocks, s.blocks[i].encode())
	}
	return state
}

func (b *block) encode() Block {
	if b.bits == nil {
		return Block{b.number, []byte{kindFull}}
	}
	return Block{b.number, b.bits.Encode()}
}

// Dirty reports whether anything changed that no Change holds, or that only failed ones hold.
func (s *Set) Dirty() bool {
	if s.sent != s.position {
		return true
	}
	for i := range s.blocks {
		if s.blocks[i].dirty {
			return true
		}
	}
	return false
}

// Changes returns what changed since the last call, and what the changes that failed since held. It must be followed by
// Saved or Failed once the outcome is known; other changes may be taken before that, as long as all are written in the
// order in which they were taken.
func (s *Set) Changes() Change {
	c := Change{Position: s.position}
	for i := range s.blocks {
		if b := &s.blocks[i]; b.dirty {
			b.dirty = false
			c.Blocks = append(c.Blocks, b.encode())
		}
	}
	s.sent = s.position
	return c
}

// Saved notes that a change is stored.
func (s *Set) Saved(Change) {
	// Nothing is kept per change: what it holds counts as saved from the moment it was taken, until Failed.
}

// Failed notes that a change is perhaps not stored: the next one holds all of it again.
func (s *Set) Failed(c Change) {
	s.sent = -1
	for _, saved := range c.Blocks {
		if i, ok := s.find(saved.Number); ok {
			s.blocks[i].dirty = true
		}
	}
}
