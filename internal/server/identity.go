package server

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// id is a random identity. The zero id is none.
type id [16]byte

// String returns 32 hex digits.
func (i id) String() string { return hex.EncodeToString(i[:]) }

// MarshalText writes 32 hex digits.
func (i id) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads 32 hex digits.
func (i *id) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(i)) {
		return fmt.Errorf("%q is no id of %d hex digits", text, hex.EncodedLen(len(i)))
	}
	if _, err := hex.Decode(i[:], text); err != nil {
		return fmt.Errorf("%q is no id: %w", text, err)
	}
	return nil
}

// firstBroker is the id of the broker that founds a cluster.
const firstBroker = "1"

// identity says who a data directory belongs to and what its content may be taken for. An id that changed says: what
// the logs that it vouches for once acknowledged may be gone.
type identity struct {
	Broker string `json:"broker"`
	// Storage vouches for everything: the metadata, and every log.
	Storage id `json:"storage_id"`
	// Volatile vouches besides for logs that acknowledge before the device has the data (periodic, none).
	Volatile  id    `json:"volatile_id"`
	CreatedMs int64 `json:"created_ms"` // when Storage was made; ms since the epoch
	RotatedMs int64 `json:"rotated_ms"` // when Volatile was made
}

func (*identity) kind() string { return "identity" }

func (*identity) advice() string {
	return "put back a copy of it, or move it away: then the broker takes new ids and opens every log as after a power loss, so topics that are not on_commit declare the end of their logs lost"
}

func (i *identity) check() error {
	if i.Broker == "" || len(i.Broker) > 200 {
		return errors.New("broker is missing or too long")
	}
	if i.Storage == (id{}) || i.Volatile == (id{}) {
		return errors.New("storage_id or volatile_id is missing")
	}
	return nil
}

// registration is the newest number that the metadata gave this data directory. The metadata gives a higher one at
// every start, so a directory that shows a lower one than the metadata once gave is an older copy.
type registration struct {
	Number uint64 `json:"number"`
}

func (*registration) kind() string { return "registration" }

func (*registration) advice() string {
	return "put back a copy of it, or move it away: the next start writes a new one; without it, that the metadata is an older copy than the rest cannot be noticed"
}

func (r *registration) check() error {
	if r.Number == 0 {
		return errors.New("number is missing")
	}
	return nil
}
