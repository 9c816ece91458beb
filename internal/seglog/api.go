package seglog

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// Mode says when an append counts as done.
type Mode uint8

// The fsync modes of a topic.
const (
	OnCommit Mode = iota // on the device before it is acknowledged or read by anyone
	Periodic             // written; flushed within FsyncInterval
	None                 // written; flushed when the operating system likes, when a segment is sealed, and on Close
)

// String returns the mode's name as configuration spells it.
func (m Mode) String() string {
	switch m {
	case Periodic:
		return "periodic"
	case None:
		return "none"
	}
	return "on_commit"
}

// Crash says how the previous run on this data directory ended.
type Crash uint8

// The ways a run ends, mildest first.
const (
	CleanStop    Crash = iota // everything was flushed and recorded
	ProcessCrash              // the process died; the machine, and so the page cache, lived on
	MachineCrash              // the machine died, or nobody can tell
)

// Range is a closed range of offsets.
type Range struct{ From, To int64 }

// Config is what one log needs to know. The zero value of a field means its default.
//
// size: configuration, one setting a field
type Config struct {
	FS         vfs.FS
	Dir        string // the partition's directory; made with the first append
	SalvageDir string // where recovery keeps bytes that it cuts off; made when needed
	Topic      string // namespace/name, for errors and logs
	TopicID    [16]byte
	Partition  int32

	// Generation is what the first frame carries while the log is empty; default 1. See StartGeneration for later ones.
	Generation uint32

	FsyncInterval time.Duration // Periodic only; default 250ms
	SegmentBytes  int64         // default 256 MiB
	IndexInterval int64         // bytes between index entries; default 4 KiB
	MaxBatchBytes int           // largest batch taken; default 16 MiB, at most 64 MiB - 16
	QueueBytes    int64         // bound of batches waiting to be written, per log; more wait; default 32 MiB

	Retention Retention
	// Copied, when not nil, returns the offset below which there is a copy elsewhere: retention removes nothing above it.
	// It must be cheap, and what it returns may only rise.
	Copied         func() int64
	ProducerExpiry time.Duration // idle idempotent producers are forgotten after; default 7 days

	Mode               Mode
	Crash              Crash // how the previous run ended
	VerifyAllOnOpen    bool  // read sealed segments in full, too
	RepairChecksumTail bool  // cut a bad complete batch at the tail that would otherwise be refused

	// Limit, when not nil, bounds the offsets that may be assigned: the log stops before Limit.Offset() and calls
	// Limit.Extend, off every lock, until there is room. Logs that acknowledge before the device has the data use it,
	// so that an offset never names two records (see docs/formats/segment.md).
	Limit OffsetLimit

	Files   *Files           // shared descriptors; nil: the log has its own
	MakeDir MakeDir          // nil: as vfs.MkdirSync does
	Metrics *Metrics         // nil: none
	Logger  *slog.Logger     // nil: silent
	Now     func() time.Time // broker's clock, for retention and producers' expiry only; nil: time.Now

	ahead aheadRule // tests use smaller numbers
}

// MakeDir makes the directory of a log that has no segment yet, with all above it. When it returns nil all their names are
// on the device, whoever made them.
type MakeDir func(dir string) error

// Retention says what may be removed from the head, in whole sealed segments. Zero means no limit.
type Retention struct {
	Bytes int64
	Age   time.Duration
}

// OffsetLimit is the reservation of offsets a log may assign.
type OffsetLimit interface {
	// Offset is the first offset that may not be assigned yet. It must be cheap and may only rise.
	Offset() int64
	// Extend raises Offset above need or returns why not; it may block.
	Extend(need int64) error
}

// Append is one batch on its way into the log.
type Append struct {
	// Batch is one encoded record batch. The log owns it from Submit until Done and does not change it.
	Batch []byte
	// Done is called exactly once, after the result is set, from whichever goroutine commits: it must not block and
	// must not call the log.
	Done func(*Append)

	Result
	Err error
}

// Result is where a batch went.
type Result struct {
	Offset     int64 // of the batch's first record; -1 for a duplicate whose record is no longer retained
	LastOffset int64 // of its last record
	Duplicate  bool  // all of it was there before: an idempotent producer sent it again
	// Ranges tells, in record order, where the records are when they are not one run of offsets (a batch re-sent with
	// other boundaries). nil otherwise.
	Ranges []Range
}

// Chunk is what one read returned.
type Chunk struct {
	// Data holds whole record batches, back to back, each with its base offset set; nil when there were none. It
	// belongs to the caller. The first batch may begin below the offset asked for: batches are never cut.
	Data    []byte
	First   int64  // base offset of the first batch
	Next    int64  // the offset to go on at
	Records int    // records in Data
	Lost    *Range // set, with Data nil, when the next offsets were lost: skip to Next and say so
	End     int64  // the bound when the read was made: Next == End means caught up
}

// Entry is one frame as replication sees it.
type Entry struct {
	Seq        uint64
	Generation uint32
	Kind       uint8  // see segfmt.Kind…
	Batch      []byte // the batch, or a control frame's header and payload
}

// Bounds is a consistent view of where a log stands.
type Bounds struct {
	First      int64  // oldest offset retained
	End        int64  // readers see offsets below it
	Durable    int64  // offsets below it are on the device
	Written    int64  // offsets below it are in the file
	FirstSeq   uint64 // oldest frame's ordinal; NextSeq where the log holds no frame
	NextSeq    uint64 // ordinal of the next frame
	DurableSeq uint64 // frames up to it are on the device
	Generation uint32 // of the newest frame
	Segments   int
	Bytes      int64 // of all segment files
}

// TrimmedError says that an offset is below the oldest one retained.
type TrimmedError struct {
	Topic             string
	Partition         int32
	Requested, Oldest int64
}

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("%s/%d: offset %d was removed by retention; the oldest is %d: start there, or at \"earliest\"", e.Topic, e.Partition, e.Requested, e.Oldest)
}

// FaultKind classifies the error.
func (e *TrimmedError) FaultKind() fault.Kind { return fault.Trimmed }

// FaultDetails returns requested and oldest.
func (e *TrimmedError) FaultDetails() map[string]string {
	return map[string]string{"requested": fmt.Sprint(e.Requested), "oldest": fmt.Sprint(e.Oldest)}
}

// BeyondEndError says that an offset is above the end of the log.
type BeyondEndError struct {
	Topic          string
	Partition      int32
	Requested, End int64
}

func (e *BeyondEndError) Error() string {
	return fmt.Sprintf("%s/%d: offset %d is beyond the end, %d: start at or below it, or at \"latest\"", e.Topic, e.Partition, e.Requested, e.End)
}

// FaultKind classifies the error.
func (e *BeyondEndError) FaultKind() fault.Kind { return fault.OutOfRange }

// FaultDetails returns requested and end.
func (e *BeyondEndError) FaultDetails() map[string]string {
	return map[string]string{"requested": fmt.Sprint(e.Requested), "end": fmt.Sprint(e.End)}
}

// CorruptionError says that bytes on disk are not what was written. Nothing was changed.
type CorruptionError struct {
	Topic     string
	Partition int32
	Path      string
	Position  int64 // byte position in Path
	Offset    int64 // the offset expected there; -1 when unknown
	Cause     string
}

func (e *CorruptionError) Error() string {
	where := fmt.Sprintf("%s: byte %d", e.Path, e.Position)
	if e.Offset >= 0 {
		where += fmt.Sprintf(" (offset %d)", e.Offset)
	}
	return fmt.Sprintf("%s/%d: corrupt: %s: %s: see `levee inspect segments` on the directory", e.Topic, e.Partition, where, e.Cause)
}

// FaultKind classifies the error.
func (e *CorruptionError) FaultKind() fault.Kind { return fault.Corrupt }

// FaultDetails returns file and position.
func (e *CorruptionError) FaultDetails() map[string]string {
	return map[string]string{"file": e.Path, "position": fmt.Sprint(e.Position)}
}
