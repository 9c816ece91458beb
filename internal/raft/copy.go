package raft

import (
	"fmt"
	"path"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// Copy is a snapshot away from its group: to be kept elsewhere, and to begin a group with that has lost everything.
type Copy struct {
	Seq     uint64 // of the last entry in it
	Term    uint32 // of that entry
	Payload []byte // what the machine wrote down
}

// Encode returns the bytes of a snapshot file for a group of one, which is member 1.
func (c Copy) Encode() []byte {
	return snapshot{seq: c.Seq, term: c.Term, members: []member{{1, roleVoter}}, payload: c.Payload}.encode()
}

// ParseCopy reads what Encode wrote. The payload aliases b. Its errors are those of reading a snapshot file.
func ParseCopy(b []byte) (Copy, error) {
	s, err := decodeSnapshot(b)
	if err != nil {
		return Copy{}, err
	}
	if len(s.members) != 1 || s.members[0] != (member{1, roleVoter}) {
		return Copy{}, fault.New(fault.Unsupported, "it is of a group of %d members that is not one broker alone: this program knows groups of one only", len(s.members))
	}
	return Copy{Seq: s.seq, Term: s.term, Payload: s.payload}, nil
}

// InstallCopy makes an encoded copy the snapshot that a group starts from. The directory has no other snapshots, and the
// group's log is empty and goes on behind the copy.
func InstallCopy(fsys vfs.FS, dir string, b []byte) error {
	c, err := ParseCopy(b)
	if err != nil {
		return fmt.Errorf("install snapshot: %w", err)
	}
	if err := vfs.MkdirSync(fsys, dir); err != nil {
		return fault.New(fault.IO, "install snapshot: %w", err)
	}
	if err := vfs.WriteFileAtomic(fsys, path.Join(dir, snapshotName(c.Seq, c.Term)), b); err != nil {
		return fault.New(fault.IO, "install snapshot: %w", err)
	}
	return nil
}

// Term returns the term of the entries that this group appends. It stays the same while the group runs.
func (g *Group) Term() uint32 { return g.owner.term }
