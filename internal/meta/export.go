package meta

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/leveemq/levee/internal/fault"
)

// MaxExportedObjects bounds the objects of one partition. As the bounds of settings it is part of what Apply does.
const MaxExportedObjects = 100_000

// Export is what the object store holds of a partition. Objects follow each other, but for gaps that retention tore into
// the log before they were exported. It never changes: each command makes another.
type Export struct {
	Manifest *Manifest        // says where the older ones are described; nil: there are no others
	Objects  []ExportedObject // the newer ones, by Base; at least one
}

// Frontier returns the offset below which everything that there still was is stored; 0 where nothing is.
func (e *Export) Frontier() int64 {
	if e == nil || len(e.Objects) == 0 {
		return 0
	}
	return e.Objects[len(e.Objects)-1].Next
}

// NextSeq returns the ordinal behind the newest frame that is stored; 0 where nothing is.
func (e *Export) NextSeq() uint64 {
	if e == nil || len(e.Objects) == 0 {
		return 0
	}
	return e.Objects[len(e.Objects)-1].NextSeq
}

// First returns the oldest offset that is stored, and false where none is.
func (e *Export) First() (int64, bool) {
	if e == nil || len(e.Objects) == 0 {
		return 0, false
	}
	if e.Manifest != nil {
		return e.Manifest.First, true
	}
	return e.Objects[0].Base, true
}

// At returns the object that holds an offset, or else the next one; false where there is none. Those that Manifest
// describes it does not know: what is below Manifest.Next has to be looked up there.
func (e *Export) At(offset int64) (ExportedObject, bool) {
	if e == nil {
		return ExportedObject{}, false
	}
	i := sort.Search(len(e.Objects), func(i int) bool { return e.Objects[i].Next > offset })
	if i == len(e.Objects) {
		return ExportedObject{}, false
	}
	return e.Objects[i], true
}

// ExportedObject describes one object: a sealed segment of a partition's log and what belongs to it.
type ExportedObject struct {
	Base         int64  `json:"o"` // its first offset
	Next         int64  `json:"n"` // one behind its last
	BaseSeq      uint64 `json:"s"` // ordinal of its first frame
	NextSeq      uint64 `json:"m"` // one behind that of its last
	Generation   uint32 `json:"g"` // of its last frame
	MaxTime      int64  `json:"t"` // the newest record's time, in milliseconds
	SegmentBytes int64  `json:"b"`
	IndexBytes   int64  `json:"i,omitempty"`
	TimesBytes   int64  `json:"j,omitempty"`
	Size         int64  `json:"z"` // of the object
	CRC          uint32 `json:"c"` // CRC-32C of what stands before its footer
	// StoredMs is when it was noted, by the clock that ages are measured by; 0 where that is not known. It is not what makes
	// an object this one: see same.
	StoredMs int64 `json:"a,omitempty"`
}

// ExportObject notes that a segment is stored: it was written, read back and compared. It may be repeated. Refused with
// fenced where the generation moved, and with conflict where the object does not begin where Frontier says that the stored
// ones end, or at an offset above it: then somebody else has exported meanwhile.
type ExportObject struct {
	Name       Name           `json:"name"`
	ID         TopicID        `json:"id"`
	Partition  int32          `json:"partition"`
	Generation uint32         `json:"generation"` // the partition's
	Frontier   int64          `json:"frontier"`   // Export.Frontier it was decided on
	Object     ExportedObject `json:"object"`
}

// DropObjects forgets the oldest objects of a partition, those that end at or below an offset: their own retention is
// over. They are to be deleted only after it took effect. Result.Export is what is left.
type DropObjects struct {
	Name      Name    `json:"name"`
	ID        TopicID `json:"id"`
	Partition int32   `json:"partition"`
	Below     int64   `json:"below"`
}

// Op returns the command's stored name.
func (ExportObject) Op() string { return "export.add" }

// Op returns the command's stored name.
func (DropObjects) Op() string { return "export.drop" }

// Validate refuses names and numbers that cannot be.
func (c ExportObject) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("frontier", c.Frontier), c.Object.validate())
}

// Validate refuses names and numbers that cannot be.
func (c DropObjects) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("below", c.Below))
}

func (o *ExportedObject) validate() error {
	if o.Base < 0 || o.Next <= o.Base || o.BaseSeq == 0 || o.NextSeq <= o.BaseSeq || o.Generation == 0 || o.Generation > maxGeneration ||
		o.StoredMs < 0 || o.StoredMs > maxMs || o.SegmentBytes <= 0 || o.IndexBytes < 0 || o.TimesBytes < 0 || o.Size < o.SegmentBytes || o.Size-o.SegmentBytes < o.IndexBytes || o.Size-o.SegmentBytes-o.IndexBytes < o.TimesBytes {
		return fault.New(fault.InvalidArgument, "exported object of offsets %d to %d is out of range", o.Base, o.Next-1)
	}
	return nil
}

// same reports whether o and other describe one object, whenever either was noted.
func (o ExportedObject) same(other ExportedObject) bool {
	other.StoredMs = o.StoredMs
	return o == other
}

// exporting returns a topic and what is exported of one of its partitions, nil: nothing; or why nobody may change that who
// knows this generation.
func (v *View) exporting(n Name, id TopicID, partition int32, generation uint32) (*Topic, *Export, *fault.Error) {
	t, refused := v.partition(n, id, partition, generation)
	if refused != nil {
		return nil, nil, refused
	}
	return t, v.Export(id, partition), nil
}

func (c ExportObject) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, old, refused := v.exporting(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	if o, ok := old.At(c.Object.Base); ok && o.same(c.Object) {
		return Result{Topic: t, Export: old}, nil // said before
	}
	frontier := old.Frontier()
	if c.Frontier == frontier && c.Object.Base < frontier {
		return Result{}, fault.New(fault.Conflict, "%s/%d: offsets %d to %d cannot be noted as exported: what is below %d is exported, otherwise", c.Name, c.Partition, c.Object.Base, c.Object.Next-1, frontier).
			With("frontier", frontier)
	}
	if c.Frontier != frontier {
		return Result{}, fault.New(fault.Conflict, "%s/%d: offsets %d to %d cannot be noted as exported: what is exported ends at %d, not at %d", c.Name, c.Partition, c.Object.Base, c.Object.Next-1, frontier, c.Frontier).
			With("frontier", frontier)
	}
	if old == nil {
		old = &Export{}
	}
	if len(old.Objects) >= MaxExportedObjects {
		return Result{}, fault.New(fault.Exhausted, "%s/%d: %d objects are exported, the most there may be: raise segment_bytes, or let older ones expire", c.Name, c.Partition, MaxExportedObjects)
	}
	e := &Export{Manifest: old.Manifest, Objects: append(slices.Clip(old.Objects), c.Object)}
	v.exports = v.exports.set(exportKey(c.ID, c.Partition), e)
	return Result{Topic: t, Export: e}, nil
}

func (c DropObjects) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Name, c.ID)
	if refused != nil {
		return Result{}, refused
	}
	key := exportKey(c.ID, c.Partition)
	old, ok := v.exports.get(key)
	if !ok {
		return Result{Topic: t}, nil
	}
	e := old.drop(c.Below)
	if e != old {
		v.exports = v.exports.set(exportKey(c.ID, c.Partition), e)
	}
	return Result{Topic: t, Export: e}, nil
}

// exportKey orders exports by topic and partition.
func exportKey(id TopicID, partition int32) string {
	var b [20]byte
	copy(b[:], id[:])
	binary.BigEndian.PutUint32(b[16:], uint32(partition)) //nolint:gosec // not negative
	return string(b[:])
}

// splitExportKey is the inverse of exportKey.
func splitExportKey(key string) (TopicID, int32) {
	return TopicID([]byte(key[:16])), int32(binary.BigEndian.Uint32([]byte(key[16:]))) //nolint:gosec // it was one
}

// Export returns what is stored of a partition; nil where nothing is.
func (v *View) Export(id TopicID, partition int32) *Export {
	e, _ := v.exports.get(exportKey(id, partition))
	return e
}

type snapshotExport struct {
	ID        TopicID          `json:"id"` // of the topic
	Partition int32            `json:"partition"`
	Manifest  *Manifest        `json:"manifest,omitempty"`
	Objects   []ExportedObject `json:"objects"`
}

func (w *snapshotWriter) writeExports(v *View) {
	for key, e := range v.exports.all() {
		id, partition := splitExportKey(key)
		w.write(snapshotLine{Export: &snapshotExport{id, partition, e.Manifest, e.Objects}})
	}
}

func (r *snapshotReader) takeExport(e *snapshotExport) error {
	v, key := r.v, exportKey(e.ID, e.Partition)
	if t, ok := v.TopicByID(e.ID); !ok || e.Partition < 0 || int(e.Partition) >= len(t.Partitions) {
		return fmt.Errorf("what is exported of %s/%d has no partition", e.ID, e.Partition)
	}
	if err := r.order(sectionExports, key); err != nil {
		return err
	}
	if len(e.Objects) == 0 || len(e.Objects) > MaxExportedObjects {
		return fmt.Errorf("%d objects are exported of %s/%d", len(e.Objects), e.ID, e.Partition)
	}
	for i := range e.Objects {
		if err := e.Objects[i].validate(); err != nil {
			return err
		}
		if i > 0 && e.Objects[i].Base < e.Objects[i-1].Next {
			return fmt.Errorf("exported objects of %s/%d overlap at offset %d", e.ID, e.Partition, e.Objects[i].Base)
		}
	}
	if err := e.Manifest.check(e.Objects); err != nil {
		return err
	}
	v.exports = v.exports.set(key, &Export{Manifest: e.Manifest, Objects: slices.Clip(e.Objects)})
	return nil
}
