package meta

import (
	"slices"

	"github.com/leveemq/levee/internal/fault"
)

// Command is one change of the metadata. The types in this file, and those that are about subscriptions,
// cursors and schemas in theirs, are all there are. A command carries everything its
// outcome depends on, also time and ids; it is a value and is not changed once proposed.
//
// A command names what it was decided on (a topic's id, its version, a partition's generation) and is refused where
// that has moved: with deleted where the topic is gone or was created again, otherwise with conflict or fenced.
type Command interface {
	// Op returns the name of the command as it is stored.
	Op() string
	// Validate returns an invalid_argument error for what no state could accept. Propose calls it before anything is
	// stored; Apply calls it again.
	Validate() error
	// apply changes the view under construction or refuses and leaves it as it is.
	apply(s *State, v *View, index uint64) (Result, *fault.Error)
}

// CreateNamespace makes a namespace. Refused with already_exists.
type CreateNamespace struct {
	Name   string `json:"name"`
	TimeMs int64  `json:"time_ms"` // since the epoch
}

// DeleteNamespace removes a namespace. Refused with conflict while it has topics, with invalid_argument for the
// default one.
type DeleteNamespace struct {
	Name string `json:"name"`
}

// CreateTopic makes a topic. Refused with already_exists where the name is taken, or where one of X and X-part-N exists
// and the other is to be made; with not_found where the namespace is missing; with exhausted at the limit of topics.
// Result.Topic is the new topic.
type CreateTopic struct {
	Name       Name     `json:"name"`
	ID         TopicID  `json:"id"`      // random; not zero
	TimeMs     int64    `json:"time_ms"` // since the epoch
	Partitions int32    `json:"partitions"`
	Dispatch   Dispatch `json:"dispatch"`
	Settings   Settings `json:"settings"`
	// Reserved is each partition's first reservation: offsets below it may be assigned. 0 reserves none.
	Reserved int64 `json:"reserved,omitempty"`
}

// SetTopic changes settings of a topic: those that are not nil are set, those named in Unset go back to the broker's
// default. Result.Topic is the topic as changed.
type SetTopic struct {
	Name     Name     `json:"name"`
	ID       TopicID  `json:"id"`
	Version  uint64   `json:"version"` // Topic.Version the change was decided on; refused with conflict when it moved
	Settings Settings `json:"settings"`
	Unset    []string `json:"unset,omitempty"` // names of settings
}

// DeleteTopic removes a topic from the metadata, leaves a tombstone, and notes that its data is to be removed.
// Result.Deletion says which.
type DeleteTopic struct {
	Name   Name    `json:"name"`
	ID     TopicID `json:"id"`
	TimeMs int64   `json:"time_ms"` // since the epoch
}

// TopicPurged says that the data of a deleted incarnation is gone from the disk. It may be repeated.
type TopicPurged struct {
	Name        Name   `json:"name"`
	Incarnation uint64 `json:"incarnation"`
}

// ReserveOffsets lets a partition's log assign the offsets below Through. A lower Through than the one in force changes
// nothing and is no error. Refused with fenced where the generation moved. Result.Topic is the topic as changed.
type ReserveOffsets struct {
	Name       Name    `json:"name"`
	ID         TopicID `json:"id"`
	Partition  int32   `json:"partition"`
	Generation uint32  `json:"generation"`
	Through    int64   `json:"through"` // first offset that stays unreserved
}

// NewGeneration moves a partition from one generation to a higher one and may extend its reservation in the same step.
// Refused with fenced where the partition is not at From. Result.Topic is the topic as changed.
type NewGeneration struct {
	Name      Name    `json:"name"`
	ID        TopicID `json:"id"`
	Partition int32   `json:"partition"`
	From      uint32  `json:"from"`
	To        uint32  `json:"to"`                 // above From, below 2^31
	Reserved  int64   `json:"reserved,omitempty"` // as ReserveOffsets.Through; 0 keeps what is reserved
}

// ReserveProducerIDs takes Count producer ids that were never given out and never will be again.
// Result.FirstProducerID is the first of them.
type ReserveProducerIDs struct {
	Count int64 `json:"count"` // 1 to 1,000,000
}

// RaiseRegistration counts a broker's start: its registration number becomes From + 1. Refused with conflict where it
// is not at From (0: never registered). Result.Registration is the new number.
type RaiseRegistration struct {
	Broker string `json:"broker"` // the broker's id, spelled as a name is
	From   uint64 `json:"from"`
}

// Result is what a command did.
type Result struct {
	Index           uint64 // the command's position in the sequence of all commands
	Topic           *Topic // the topic as it is now; do not change it
	Deletion        *Deletion
	FirstProducerID int64
	Registration    uint64
	Subscription    *Subscription // as it is now, or as it was where it was deleted; do not change it
	Cursor          *Cursor
	Subject         *Subject
	Schema          *Schema
	SchemaVersion   *SubjectVersion
	Export          *Export
	Skipped         int // entries of SaveCursors that were left out
	// Refused is why the command changed nothing; nil where it took effect. Store.Propose returns it as its error.
	Refused *fault.Error
}

// Op returns the command's stored name.
func (CreateNamespace) Op() string { return "namespace.create" }

// Op returns the command's stored name.
func (DeleteNamespace) Op() string { return "namespace.delete" }

// Op returns the command's stored name.
func (CreateTopic) Op() string { return "topic.create" }

// Op returns the command's stored name.
func (SetTopic) Op() string { return "topic.set" }

// Op returns the command's stored name.
func (DeleteTopic) Op() string { return "topic.delete" }

// Op returns the command's stored name.
func (TopicPurged) Op() string { return "topic.purged" }

// Op returns the command's stored name.
func (ReserveOffsets) Op() string { return "partition.reserve" }

// Op returns the command's stored name.
func (NewGeneration) Op() string { return "partition.generation" }

// Op returns the command's stored name.
func (ReserveProducerIDs) Op() string { return "producers.reserve" }

// Op returns the command's stored name.
func (RaiseRegistration) Op() string { return "broker.register" }

// Validate refuses a name or a time that cannot be.
func (c CreateNamespace) Validate() error {
	return firstError(ValidateNamespace(c.Name), checkTime(c.TimeMs))
}

// Validate refuses a name that cannot be, and the default namespace.
func (c DeleteNamespace) Validate() error {
	if err := ValidateNamespace(c.Name); err != nil {
		return err
	}
	if c.Name == DefaultNamespace {
		return fault.New(fault.InvalidArgument, "namespace %q always exists and cannot be deleted", c.Name)
	}
	return nil
}

// Validate refuses names, counts and settings out of range.
func (c CreateTopic) Validate() error {
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		return fault.New(fault.InvalidArgument, "partitions = %d is not allowed: use 1 to %d", c.Partitions, MaxPartitions).With("key", "partitions")
	}
	return firstError(checkTopic(c.Name, c.ID), checkTime(c.TimeMs), c.Settings.Validate(c.Dispatch),
		checkOffset("reserved", c.Reserved))
}

// Validate refuses unknown names of settings, names both set and unset, and a command that changes nothing. Values are
// checked against the topic's dispatch mode when it is applied.
func (c SetTopic) Validate() error {
	for _, k := range c.Unset {
		if !slices.Contains(SettingKeys(), k) {
			return fault.New(fault.InvalidArgument, "unset: %q is no setting: use %v", k, SettingKeys()).With("key", k)
		}
		if c.Settings.has(k) {
			return fault.New(fault.InvalidArgument, "%s is both set and unset: do one of the two", k).With("key", k)
		}
	}
	if len(c.Unset) == 0 && len(c.Settings.Keys()) == 0 {
		return fault.New(fault.InvalidArgument, "nothing to set on topic %s: name a setting out of %v", c.Name, SettingKeys())
	}
	return firstError(checkTopic(c.Name, c.ID), c.Settings.Validate(Reliable))
}

// Validate refuses a name, id or time that cannot be.
func (c DeleteTopic) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkTime(c.TimeMs))
}

// Validate refuses a name or incarnation that cannot be.
func (c TopicPurged) Validate() error {
	if c.Incarnation == 0 {
		return fault.New(fault.InvalidArgument, "topic %s has no incarnation 0: they count from 1", c.Name)
	}
	return c.Name.Validate()
}

// Validate refuses a name, id, partition or offset that cannot be.
func (c ReserveOffsets) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("through", c.Through))
}

// Validate refuses a generation that does not rise or is out of range.
func (c NewGeneration) Validate() error {
	if c.To <= c.From || c.To > maxGeneration {
		return fault.New(fault.InvalidArgument, "generation %d cannot follow %d: use a higher one below 2^31", c.To, c.From)
	}
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("reserved", c.Reserved))
}

// Validate refuses a count out of range.
func (c ReserveProducerIDs) Validate() error {
	if c.Count < 1 || c.Count > 1_000_000 {
		return fault.New(fault.InvalidArgument, "count = %d producer ids is not allowed: use 1 to 1000000", c.Count)
	}
	return nil
}

// Validate refuses a broker id that cannot be.
func (c RaiseRegistration) Validate() error {
	if err := checkPart("broker id", c.Broker); err != nil {
		return err
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkTopic(n Name, id TopicID) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if id == (TopicID{}) {
		return fault.New(fault.InvalidArgument, "topic %s: the topic id must not be zero", n)
	}
	return nil
}

func checkTime(ms int64) error {
	if ms < 0 || ms > maxMs {
		return fault.New(fault.InvalidArgument, "time_ms = %d is no time: use milliseconds since 1970", ms)
	}
	return nil
}

func checkPartition(p int32) error {
	if p < 0 || p >= MaxPartitions {
		return fault.New(fault.InvalidArgument, "partition = %d is not allowed: use 0 to %d", p, MaxPartitions-1)
	}
	return nil
}

func checkOffset(key string, offset int64) error {
	if offset < 0 {
		return fault.New(fault.InvalidArgument, "%s = %d is not allowed: offsets are 0 or above", key, offset)
	}
	return nil
}
