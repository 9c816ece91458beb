package meta

import (
	"math"

	"github.com/leveemq/levee/internal/fault"
)

// MaxMergedObjects bounds how many objects one command merges. It is part of what Apply does.
const MaxMergedObjects = 1024

// MergeObjects puts one object in the place of neighbouring ones: it holds their frames, all of them and no others. It is
// stored, and was read back; those whose place it takes are to be deleted only after the command took effect. It may be
// repeated. Refused with fenced where the generation moved, and with conflict where Sources are not what is there.
type MergeObjects struct {
	Name       Name           `json:"name"`
	ID         TopicID        `json:"id"`
	Partition  int32          `json:"partition"`
	Generation uint32         `json:"generation"` // the partition's
	Sources    []uint32       `json:"sources"`    // ExportedObject.CRC of each, in order; the first begins where Object does
	Object     ExportedObject `json:"object"`     // its StoredMs is taken from the last source
}

// Op returns the command's stored name.
func (MergeObjects) Op() string { return "export.merge" }

// Validate refuses names and numbers that cannot be.
func (c MergeObjects) Validate() error {
	if err := firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), c.Object.validate()); err != nil {
		return err
	}
	if len(c.Sources) < 2 || len(c.Sources) > MaxMergedObjects {
		return fault.New(fault.InvalidArgument, "%d objects cannot be merged: from 2 to %d", len(c.Sources), MaxMergedObjects)
	}
	return nil
}

func (c MergeObjects) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, old, refused := v.exporting(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	if o, ok := old.At(c.Object.Base); ok && o.same(c.Object) {
		return Result{Topic: t, Export: old}, nil // said before
	}
	from, ok := old.sources(c.Sources, c.Object)
	if !ok {
		return Result{}, fault.New(fault.Conflict, "%s/%d: the objects of offsets %d to %d cannot be merged: they are not what is there", c.Name, c.Partition, c.Object.Base, c.Object.Next-1)
	}
	through := from + len(c.Sources)
	merged := c.Object
	merged.StoredMs = old.Objects[through-1].StoredMs
	e := &Export{Manifest: old.Manifest, Objects: make([]ExportedObject, 0, len(old.Objects)-len(c.Sources)+1)}
	e.Objects = append(append(append(e.Objects, old.Objects[:from]...), merged), old.Objects[through:]...)
	v.exports = v.exports.set(exportKey(c.ID, c.Partition), e)
	return Result{Topic: t, Export: e}, nil
}

// sources returns where the objects begin that have these sums, follow each other without a gap, and hold what o does.
func (e *Export) sources(sums []uint32, o ExportedObject) (from int, ok bool) {
	if e == nil {
		return 0, false
	}
	for from < len(e.Objects) && e.Objects[from].Base < o.Base {
		from++
	}
	if len(e.Objects)-from < len(sums) {
		return 0, false
	}
	offset, seq, newest := o.Base, o.BaseSeq, int64(math.MinInt64)
	for i, crc := range sums {
		s := &e.Objects[from+i]
		if s.CRC != crc || s.Base != offset || s.BaseSeq != seq {
			return 0, false
		}
		offset, seq, newest = s.Next, s.NextSeq, max(newest, s.MaxTime)
	}
	last := &e.Objects[from+len(sums)-1]
	return from, offset == o.Next && seq == o.NextSeq && last.Generation == o.Generation && newest == o.MaxTime
}
