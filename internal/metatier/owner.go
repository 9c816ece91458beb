// Package metatier owns the copy of the metadata beside the data directory: snapshots in the object store, and the record
// that says which of them counts and whose they are. It takes a cluster's data over for a directory that holds nothing, and
// tells a broker whose data was taken over that it has to stop. It does not know how the metadata is kept on disk, nor what
// partitions do with a new generation. Invariant: at every moment one claim owns the data, and whoever owns it began with
// the snapshot that the record named, or is the one who wrote it.
package metatier

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// ID is a random identity. The zero ID is none.
type ID [16]byte

// String returns 32 hex digits.
func (i ID) String() string { return hex.EncodeToString(i[:]) }

// MarshalText writes 32 hex digits.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads 32 hex digits in lower case.
func (i *ID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(i)) || bytes.ContainsAny(text, "ABCDEF") {
		return fmt.Errorf("%q is no id of %d hex digits", text, hex.EncodedLen(len(i)))
	}
	if _, err := hex.Decode(i[:], text); err != nil {
		return fmt.Errorf("%q is no id: %w", text, err)
	}
	return nil
}

// Owner is the record of who owns a cluster's data. docs/formats/metadata-tier.md describes its form.
type Owner struct {
	Claim    ID       `json:"claim"`    // of the data directory that owns
	Run      ID       `json:"run"`      // of the process that runs on it
	Write    ID       `json:"write"`    // of this content: no two are the same
	Broker   string   `json:"broker"`   // its id
	Who      string   `json:"who"`      // machine and directory, for people
	Epoch    uint64   `json:"epoch"`    // 1, and one more with each time that another directory took over
	Before   string   `json:"before"`   // who had the data until then, for people; empty: nobody
	TakenMs  int64    `json:"taken_ms"` // when the epoch began; since 1970
	TimeMs   int64    `json:"time_ms"`  // when this was written
	Snapshot Snapshot `json:"snapshot"`
}

// Snapshot names the metadata that counts. The zero Snapshot is none: nothing was there to be copied yet.
type Snapshot struct {
	Name  string `json:"name"` // of the object, below metadata/
	Index uint64 `json:"index"`
	Term  uint32 `json:"term"`
	Size  int64  `json:"size"`
	CRC   uint32 `json:"crc"`   // CRC-32C of all of it
	Epoch uint64 `json:"epoch"` // in which it was made
}

// MaxSnapshot bounds what is read of a snapshot. It is far above what any metadata has.
const MaxSnapshot = 4 << 30

const (
	ownerVersion = 1
	ownerLimit   = 4096 // bytes of a whole record; a real one has a few hundred
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshotName is the name of a snapshot's object.
func snapshotName(index uint64, term, crc uint32) string {
	return fmt.Sprintf("%020d-%d-%08x%s", index, term, crc, snapshotSuffix)
}

const snapshotSuffix = ".snap"

// parseSnapshotName is strict: a name has one spelling.
func parseSnapshotName(name string) (s Snapshot, ok bool) {
	parts := strings.Split(strings.TrimSuffix(name, snapshotSuffix), "-")
	if len(parts) != 3 {
		return Snapshot{}, false
	}
	index, err1 := strconv.ParseUint(parts[0], 10, 64)
	term, err2 := strconv.ParseUint(parts[1], 10, 32)
	crc, err3 := strconv.ParseUint(parts[2], 16, 32)
	if err := errors.Join(err1, err2, err3); err != nil || snapshotName(index, uint32(term), uint32(crc)) != name {
		return Snapshot{}, false
	}
	return Snapshot{Name: name, Index: index, Term: uint32(term), CRC: uint32(crc)}, true
}

// check returns why there can be no such record.
func (o *Owner) check() error {
	s := &o.Snapshot
	switch {
	case o.Claim == (ID{}) || o.Run == (ID{}) || o.Write == (ID{}):
		return errors.New("claim, run or write is missing")
	case o.Broker == "" || len(o.Broker) > maxBroker || len(o.Who) > maxWho || len(o.Before) > maxName || strings.ContainsAny(o.Who+o.Before, "\r\n"):
		return errors.New("broker, who or before is missing or too long")
	case (o.Before == "") != (o.Epoch == 1):
		return errors.New("before does not go with the epoch")
	case o.Epoch == 0 || o.Epoch > math.MaxInt64 || o.TakenMs < 0 || o.TimeMs < 0:
		return errors.New("epoch or a time is out of range")
	case *s == (Snapshot{}):
		return nil
	case s.Index == 0 || s.Index > math.MaxInt64 || s.Term == 0 || s.Size <= 0 || s.Size > MaxSnapshot || s.Epoch == 0 || s.Epoch > o.Epoch:
		return errors.New("a field of the snapshot is out of range")
	case s.Name != snapshotName(s.Index, s.Term, s.CRC):
		return errors.New("the snapshot's name is not what its fields make")
	}
	return nil
}

// Bounds of the words for people, in bytes. What the metadata notes of a takeover takes maxName.
const (
	maxBroker = 40
	maxWho    = 140
	maxName   = 200
)

// String says for people who it is.
func (o *Owner) String() string {
	if o.Who == "" {
		return "broker " + o.Broker
	}
	return fmt.Sprintf("broker %s at %s", o.Broker, o.Who)
}

// Encode returns the record's form. The same record is always the same bytes.
func (o *Owner) Encode() ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, fault.New(fault.Internal, "owner record: %w", err)
	}
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("owner record: %w", err)
	}
	head := fmt.Sprintf("levee-owner version=%d flags=0", ownerVersion)
	return fmt.Appendf(nil, "%s crc32c=%08x\n%s\n", head, ownerSum(head, body), body), nil
}

func ownerSum(head string, body []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(head+"\n"), castagnoli), castagnoli, append(bytes.Clone(body), '\n'))
}

// DecodeOwner reads what Encode wrote. Its errors are of kind corrupt for what no broker wrote, and of kind unsupported
// for what a newer one did.
func DecodeOwner(b []byte) (*Owner, error) {
	damaged := func(format string, args ...any) (*Owner, error) {
		return nil, fault.New(fault.Corrupt, format, args...)
	}
	if len(b) > ownerLimit {
		return damaged("it has more than %d bytes", ownerLimit)
	}
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	head, sum, ok := strings.Cut(string(first), " crc32c=")
	body, end, ok2 := bytes.Cut(rest, []byte("\n"))
	var version, flags uint16
	if _, err := fmt.Sscanf(head, "levee-owner version=%d flags=%d", &version, &flags); err != nil || !ok || !ok2 || len(end) > 0 ||
		head != fmt.Sprintf("levee-owner version=%d flags=%d", version, flags) {
		return damaged("it is not of the form of an owner record")
	}
	if want := fmt.Sprintf("%08x", ownerSum(head, body)); sum != want {
		return damaged("its checksum does not match its content")
	}
	if version != ownerVersion || flags != 0 {
		return nil, fault.New(fault.Unsupported, "it has version %d and flags %d, this program knows version %d and no flags: a newer one wrote it, so run that", version, flags, ownerVersion)
	}
	o := &Owner{}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		return damaged("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return damaged("something follows its content")
	}
	if err := o.check(); err != nil {
		return damaged("%v", err)
	}
	return o, nil
}
