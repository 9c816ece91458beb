package raft

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/leveemq/levee/internal/fault"
)

// A snapshot file, version 1; all numbers are little-endian, all checksums CRC-32C. See docs/formats/snapshot.md.
//
//	 0  magic "LVSN"
//	 4  version u16       1
//	 6  flags u16         0
//	 8  header_crc u32    of bytes 0 to 7 and 12 to 63
//	12  term u32          of the last entry in the snapshot
//	16  seq u64           of that entry
//	24  payload_len u64
//	32  payload_crc u32
//	36  members u32       how many
//	40  members_crc u32
//	44  zeros             20 bytes
//	64  members           16 bytes each: id u64, role u8, 7 zeros
//	 …  payload           what the state machine wrote
//
// The first twelve bytes, and what header_crc covers, are the same in every version: so rot is told from a newer
// version, and only the former makes a start fall back to an older snapshot.
const (
	snapshotMagic   = "LVSN"
	snapshotVersion = 1
	snapshotHeader  = 64
	memberSize      = 16
	maxMembers      = 1024
)

// Roles of members.
const (
	roleVoter   uint8 = 1
	roleLearner uint8 = 2
)

type member struct {
	id   uint64
	role uint8
}

type snapshot struct {
	seq     uint64
	term    uint32
	members []member
	payload []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func headerChecksum(b []byte) uint32 {
	return crc32.Update(checksum(b[:8]), castagnoli, b[12:snapshotHeader])
}

func (s snapshot) encode() []byte {
	le := binary.LittleEndian
	head := snapshotHeader + memberSize*len(s.members)
	b := make([]byte, head, head+len(s.payload))
	copy(b, snapshotMagic)
	le.PutUint16(b[4:], snapshotVersion)
	le.PutUint32(b[12:], s.term)
	le.PutUint64(b[16:], s.seq)
	le.PutUint64(b[24:], uint64(len(s.payload)))
	le.PutUint32(b[32:], checksum(s.payload))
	le.PutUint32(b[36:], uint32(len(s.members))) //nolint:gosec // a handful
	for i, m := range s.members {
		at := b[snapshotHeader+i*memberSize:]
		le.PutUint64(at, m.id)
		at[8] = m.role
	}
	le.PutUint32(b[40:], checksum(b[snapshotHeader:head]))
	le.PutUint32(b[8:], headerChecksum(b))
	return append(b, s.payload...)
}

// decodeSnapshot reads a whole file. The payload aliases b. Errors are of kind corrupt where the bytes are not what was
// written, and of kind unsupported where they are, but a newer program wrote them.
func decodeSnapshot(b []byte) (snapshot, error) {
	le := binary.LittleEndian
	damaged := func(format string, args ...any) (snapshot, error) {
		return snapshot{}, fault.New(fault.Corrupt, format, args...)
	}
	if len(b) < snapshotHeader || string(b[:4]) != snapshotMagic {
		return damaged("it does not begin as a snapshot does")
	}
	if headerChecksum(b) != le.Uint32(b[8:]) {
		return damaged("the header's checksum is wrong")
	}
	if v := le.Uint16(b[4:]); v != snapshotVersion {
		return snapshot{}, fault.New(fault.Unsupported, "it has version %d, and this program knows version %d only: a newer one wrote it, so run that", v, snapshotVersion)
	}
	if f := le.Uint16(b[6:]); f != 0 {
		return snapshot{}, fault.New(fault.Unsupported, "it has flags %#x, which this program does not know: a newer one wrote it, so run that", f)
	}
	s := snapshot{term: le.Uint32(b[12:]), seq: le.Uint64(b[16:])}
	members, length := le.Uint32(b[36:]), le.Uint64(b[24:])
	if members == 0 || members > maxMembers || s.seq == 0 || length > math.MaxInt64/2 {
		return damaged("a field of the header is out of range")
	}
	head := uint64(snapshotHeader) + uint64(members)*memberSize
	if uint64(len(b)) != head+length {
		return damaged("it has %d bytes instead of %d", len(b), head+length)
	}
	if checksum(b[snapshotHeader:head]) != le.Uint32(b[40:]) {
		return damaged("the checksum of the members is wrong")
	}
	if s.payload = b[head:]; checksum(s.payload) != le.Uint32(b[32:]) {
		return damaged("the payload's checksum is wrong")
	}
	for at := snapshotHeader; at < int(head); at += memberSize {
		m := member{id: le.Uint64(b[at:]), role: b[at+8]}
		if m.id == 0 || m.role != roleVoter && m.role != roleLearner || !allZero(b[at+9:at+memberSize]) {
			return damaged("a member is out of range")
		}
		s.members = append(s.members, m)
	}
	if !allZero(b[44:snapshotHeader]) {
		return damaged("a field of the header is out of range")
	}
	return s, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// snapshotName is the name of the file of a snapshot. Names sort as their seqs do.
func snapshotName(seq uint64, term uint32) string {
	return fmt.Sprintf("%020d-%d%s", seq, term, snapshotSuffix)
}

const (
	snapshotSuffix = ".snap"
	tmpSuffix      = ".tmp"
)

// parseSnapshotName is strict: a name has one spelling.
func parseSnapshotName(name string) (seq uint64, term uint32, ok bool) {
	if _, err := fmt.Sscanf(name, "%d-%d"+snapshotSuffix, &seq, &term); err != nil {
		return 0, 0, false
	}
	return seq, term, seq > 0 && name == snapshotName(seq, term)
}
