package broker

import (
	"log/slog"
	"time"

	"github.com/leveemq/levee/internal/exposure"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/prometheus/client_golang/prometheus"
)

// size: configuration, one setting a field
//
// Config is what a broker needs. Meta, FS and DataDir are required; the zero value of any other field means its
// default.
type Config struct {
	Meta    meta.Store
	FS      vfs.FS
	DataDir string // holds topics/, .deleted/ and salvage/; must exist and be locked by the caller

	// Housekeeping is FS for what makes room, the removal of deleted topics: it may go on where FS finds the disk full.
	// nil: FS.
	Housekeeping vfs.FS
	Tier         *partition.Tier   // where sealed segments are copied to; nil: nowhere
	Buffer       *partition.Buffer // what holds records until then; nil: nothing
	Unbuffered   bool              // nothing does now, and something did in an earlier run

	// Former opens a lost broker's data directory. nil: there is none but this broker's.
	Former func(dir string) (*Former, error)

	Room       func() error          // asked before a topic is made, whose error refuses it; nil: there always is
	Full       func() bool           // asked before each publish to a log: true refuses it with kind no_space; must be cheap; nil: never
	Files      *seglog.Files         // shared descriptors; nil: each log has its own
	LogMetrics *seglog.Metrics       // what the logs count; nil: nothing
	Registerer prometheus.Registerer // the broker's own metrics; nil: none
	Logger     *slog.Logger          // nil: silent
	Now        func() time.Time      // for the times that clients see; nil: time.Now
	Age        func() time.Time      // for retention and expiry; should never jump; nil: Now
	NewID      func() [16]byte       // ids of new topics; nil: random

	Defaults TopicDefaults
	Limits   Limits

	Crash              seglog.Crash  // how the previous run on DataDir ended
	VerifyAllOnOpen    bool          // read sealed segments in full, too
	RepairChecksumTail bool          // see seglog.Config
	StrictStart        bool          // a partition that cannot be served ends Run with its error
	IndexInterval      int64         // bytes between index entries of a segment; default 4 KiB
	RecordsPerRead     int           // most records of one read of a log; default 10,000
	BytesPerRead       int           // most bytes of one, where the subscriber names no bound; default 1 MiB
	OpenParallel       int           // partitions opened side by side; default eight times the cores: opening waits for the device mostly
	RetentionEvery     time.Duration // default 30 s
	ProducerExpiry     time.Duration // default 7 days
}

// TopicDefaults are the settings that a topic gets where it sets nothing itself. They are read when the broker is
// made; a zero field is on_commit, 250 ms, no limit and 256 MiB respectively.
type TopicDefaults struct {
	Fsync          seglog.Mode
	FsyncInterval  time.Duration
	RetentionBytes int64
	RetentionAge   time.Duration
	SegmentBytes   int64
}

// Limits bound what clients can make the broker hold.
type Limits struct {
	RecordBytes       int   // one record as it is encoded; default 10 MiB
	BatchBytes        int   // one encoded batch; default 16 MiB, at most 64 MiB - 16
	DecompressedBytes int   // one batch after decompression; default 64 MiB
	InFlightBytes     int64 // batches submitted and not answered, whole broker; publishers wait for room; default 256 MiB
	Subscribers       int   // open at once, whole broker; more are refused (kind exhausted); default 10,000
	Partitions        int   // of one topic; default 1,024
	TotalPartitions   int   // of all topics; default 20,000
	SubscriptionSpan  int   // how far above what is not settled a subscription hands records out; default 16,777,216
	RingBytes         int   // non-reliable: waiting for one subscriber; the oldest is dropped; default 16 MiB
	RingBatches       int   // non-reliable: as RingBytes, in batches; default 4,096
}

// Dispatch says what becomes of a topic's records. It is chosen at creation and never changes.
type Dispatch = meta.Dispatch

// The dispatch modes.
const (
	Reliable    = meta.Reliable    // logged, replayable, at least once
	NonReliable = meta.NonReliable // in memory only, at most once
)

// Settings are what can be set on a topic and changed while it exists. nil: not set here, the broker's default
// counts. A non-reliable topic takes none.
type Settings struct {
	Fsync          *string        // "on_commit", "periodic" or "none"
	FsyncInterval  *time.Duration // periodic: how long written data may wait for its flush; 1 ms to 1 h
	RetentionBytes *int64         // per partition; 0: unlimited
	RetentionAge   *time.Duration // 0: unlimited
	SegmentBytes   *int64         // 64 KiB to 2 GiB

	ObjectRetentionBytes *int64         // of what is exported of a partition; 0: unlimited
	ObjectRetentionAge   *time.Duration // 0: unlimited
}

// Names of Settings' fields, as SetTopic's unset and error messages spell them.
const (
	SettingFsync          = meta.KeyFsync
	SettingFsyncInterval  = meta.KeyFsyncInterval
	SettingRetentionBytes = meta.KeyRetentionBytes
	SettingRetentionAge   = meta.KeyRetentionAge
	SettingSegmentBytes   = meta.KeySegmentBytes

	SettingObjectRetentionBytes = meta.KeyObjectRetentionBytes
	SettingObjectRetentionAge   = meta.KeyObjectRetentionAge
)

// TopicSpec describes a topic to be created.
type TopicSpec struct {
	Name       string   // namespace/name, or name in namespace "default"
	Partitions int32    // 0: 1
	Dispatch   Dispatch // "": Reliable
	Settings   Settings
}

// TopicInfo is what the metadata says about a topic. It is a copy; its pointers may be kept, not written through.
type TopicInfo struct {
	Name        string   // namespace/name
	ID          [16]byte // names the incarnation
	Incarnation uint64
	Partitions  int32
	Dispatch    Dispatch
	Settings    Settings // as set
	Effective   Settings // with the broker's defaults filled in: no field is nil on a reliable topic
	CreatedMs   int64
}

// Reliable reports whether the topic has a log.
func (t TopicInfo) Reliable() bool { return t.Dispatch == Reliable }

// TopicDescription is a topic as it stands here and now.
type TopicDescription struct {
	TopicInfo
	Parts     []PartitionInfo // by number
	Exposures []Exposure
}

// PartitionInfo is where a partition stands.
type PartitionInfo struct {
	Partition    int32
	State        string // "serving", "opening", "unloaded: …" or "unavailable: why"
	First        int64  // oldest offset retained
	End          int64  // the next offset readers will see
	Durable      int64  // offsets below it are on the device
	Copied       bool   // sealed segments are copied to a store of objects
	CopiedBelow  int64  // with Copied: offsets below it have a copy there
	ExposedBytes int64  // with Copied: of the log above that, which has them alone
	ExposedMs    int64  // with Copied: how long ago the oldest segment of those was begun
	Bytes        int64  // of its segment files
	Segments     int
	Generation   uint32
	Subscribers  int
	Buffered     bool   // a record is acknowledged once the write buffer has it
	Confirmed    int64  // with Buffered: offsets below it are there, or in a copy
	Uncovered    *int64 // with Buffered, not nil: from here on records were acknowledged without it
	TakenOver    *TakenOver
}

// TakenOver tells where a partition's records were found when its log was made again, because the broker that had it was
// lost with its disk.
type TakenOver = meta.TakeoverReport

// Exposure says what one fault could cost under a topic's settings, in words.
type Exposure = exposure.Loss

// NamespaceInfo is one namespace.
type NamespaceInfo struct {
	Name   string
	Topics int
}

// Range is a closed range of offsets.
type Range = seglog.Range

// PublishResult says what became of one batch.
type PublishResult struct {
	Offset     int64   // of the batch's first record; -1: a duplicate that is no longer retained
	LastOffset int64   // of its last record
	Duplicate  bool    // all of it was there before
	Ranges     []Range // where the records are when they are not one run of offsets; nil otherwise
	Err        error   // set: the batch was not taken, or nobody knows (kind outcome_unknown)
}

// PositionKind says how a Position is meant.
type PositionKind uint8

// The kinds of position.
const (
	AtEarliest PositionKind = iota // the oldest record retained
	AtLatest                       // what is published from now on
	AtOffset                       // Position.Value is an offset
	AtTime                         // Position.Value is in ms since the epoch: the first record at or after it
)

// Position is where a subscriber starts. The zero value is the oldest record retained.
type Position struct {
	Kind  PositionKind
	Value int64
}

// Earliest is the oldest record retained.
func Earliest() Position { return Position{Kind: AtEarliest} }

// Latest is the end of the log.
func Latest() Position { return Position{Kind: AtLatest} }

// Offset is one offset, from the oldest retained to the end.
func Offset(n int64) Position { return Position{Kind: AtOffset, Value: n} }

// Time is the first record with a timestamp at or after ms; the end where there is none.
func Time(ms int64) Position { return Position{Kind: AtTime, Value: ms} }

// SubscribeSpec describes a subscriber of one partition.
type SubscribeSpec struct {
	Topic     string // namespace/name, or name in namespace "default"
	ID        []byte // not empty: refuse another incarnation than this (kind deleted)
	Partition int32
	Start     Position // ignored on non-reliable topics, which have no past
	// Memory, unless nil, gives the memory that batches of a reliable topic are read into. What it held does not matter; an
	// event with data hands it on, from its start, and the subscriber keeps nothing of it.
	Memory func(size int) []byte
}

// SubscriberInfo is what a subscriber was given when it opened.
type SubscriberInfo struct {
	Topic      string // namespace/name
	TopicID    [16]byte
	Partition  int32
	Start      int64 // the offset delivery starts at
	End        int64 // the end of the log when it opened
	Partitions int32
	Reliable   bool
}

// EventKind says what an Event is.
type EventKind uint8

// The kinds of event.
const (
	EventData  EventKind = iota + 1 // Batches, Next, Records, Dropped
	EventLost                       // Lost, Next: these offsets were lost in a crash; delivery goes on behind them
	EventAtEnd                      // Next is the end: all before it was delivered, or dropped; once per arrival
)

// Event is one thing a subscriber is told.
type Event struct {
	Kind EventKind
	// Batches are whole record batches, back to back. The first may begin below the position asked for: skip those
	// records. They belong to the receiver on reliable topics; on non-reliable ones they are shared with other
	// subscribers and must not be written to.
	Batches []byte
	Records int   // in Batches
	Next    int64 // the offset to resume at once this is handled
	Lost    Range // EventLost only
	Dropped int64 // non-reliable: records this subscriber lost so far because it was slow
}

// DrainReport says how a drain went.
type DrainReport struct {
	// Clean: every log was flushed and closed, and none had been stopped by a failed flush. Only then may the stop be
	// recorded as clean.
	Clean   bool
	Stopped []string // partitions whose log stood stopped or could not be flushed: "namespace/name/partition: why"
	// Hung: partitions, as namespace/name/partition, whose log the drain gave up on: closing it waits for the disk and
	// goes on in the background, so the process should end, and Run does not return before it is over.
	Hung []string
	// Recovered: see Broker.Recovered.
	Recovered bool
}
