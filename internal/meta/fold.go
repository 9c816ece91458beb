package meta

import (
	"fmt"

	"github.com/leveemq/levee/internal/fault"
)

// MaxFoldedObjects bounds the objects of one manifest. It is part of what Apply does.
const MaxFoldedObjects = 1 << 20

// Manifest points at the object that describes the older objects of a partition, so that the metadata need not. It never
// changes: each command makes another.
type Manifest struct {
	First int64  `json:"f"` // the oldest offset that is kept: what ends at or below it was dropped since
	Base  int64  `json:"o"` // the first offset that it describes
	Next  int64  `json:"n"` // one behind the last
	Count int64  `json:"c"` // objects that it describes
	CRC   uint32 `json:"r"` // CRC-32C of all its bytes
}

func (m *Manifest) validate() error {
	if m.Base < 0 || m.First < m.Base || m.Next <= m.First || m.Count <= 0 || m.Count > MaxFoldedObjects {
		return fault.New(fault.InvalidArgument, "manifest of offsets %d to %d is out of range", m.Base, m.Next-1)
	}
	return nil
}

// same reports whether two name one object.
func (m *Manifest) same(o *Manifest) bool {
	return m == o || m != nil && o != nil && m.Base == o.Base && m.Next == o.Next && m.Count == o.Count && m.CRC == o.CRC
}

// FoldObjects puts a manifest in the place of the oldest objects, which it describes together with those of the manifest
// before. It is stored, and was read back. It may be repeated. Refused with fenced where the generation moved, and with
// conflict where From, Base and Through are not what is there.
type FoldObjects struct {
	Name       Name      `json:"name"`
	ID         TopicID   `json:"id"`
	Partition  int32     `json:"partition"`
	Generation uint32    `json:"generation"`     // the partition's
	From       *Manifest `json:"from,omitempty"` // the one before; nil: none
	Base       int64     `json:"base"`           // of the oldest object that is folded
	Objects    int       `json:"objects"`        // how many
	Through    int64     `json:"through"`        // where the last of them ends
	Manifest   Manifest  `json:"manifest"`
}

// Op returns the command's stored name.
func (FoldObjects) Op() string { return "export.fold" }

// Validate refuses names and numbers that cannot be.
func (c FoldObjects) Validate() error {
	if err := firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("base", c.Base), c.Manifest.validate()); err != nil {
		return err
	}
	if c.From != nil {
		if err := c.From.validate(); err != nil {
			return err
		}
	}
	if c.Objects < 1 || c.Objects >= MaxExportedObjects || c.Through != c.Manifest.Next || c.Through <= c.Base || c.From != nil && c.Base < c.From.Next {
		return fault.New(fault.InvalidArgument, "%d objects of offsets %d to %d cannot be folded into a manifest that ends at %d", c.Objects, c.Base, c.Through-1, c.Manifest.Next)
	}
	return nil
}

func (c FoldObjects) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, old, refused := v.exporting(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	if old != nil && old.Manifest.same(&c.Manifest) {
		return Result{Topic: t, Export: old}, nil // said before
	}
	if old == nil || !old.Manifest.same(c.From) || len(old.Objects) <= c.Objects || old.Objects[0].Base != c.Base || old.Objects[c.Objects-1].Next != c.Through {
		return Result{}, fault.New(fault.Conflict, "%s/%d: the objects of offsets %d to %d cannot be folded: they are not the oldest any more", c.Name, c.Partition, c.Base, c.Through-1)
	}
	m := c.Manifest
	if old.Manifest != nil {
		m.First = max(m.First, old.Manifest.First)
	}
	e := &Export{Manifest: &m, Objects: append([]ExportedObject(nil), old.Objects[c.Objects:]...)}
	v.exports = v.exports.set(exportKey(c.ID, c.Partition), e)
	return Result{Topic: t, Export: e}, nil
}

// check returns what cannot be of a manifest beside the objects behind it.
func (m *Manifest) check(behind []ExportedObject) error {
	if m == nil {
		return nil
	}
	if err := m.validate(); err != nil {
		return err
	}
	if behind[0].Base < m.Next {
		return fmt.Errorf("the manifest of offsets %d to %d overlaps what is behind it", m.Base, m.Next-1)
	}
	return nil
}

// drop returns what is left of e once what ends at or below an offset is dropped; e itself where nothing is.
func (e *Export) drop(below int64) *Export {
	if m := e.Manifest; m != nil && below < m.Next {
		if below <= m.First {
			return e
		}
		left := *m
		left.First = below
		return &Export{Manifest: &left, Objects: e.Objects}
	}
	n := 0
	for n < len(e.Objects)-1 && e.Objects[n].Next <= below { // the last one says where the frontier is
		n++
	}
	if n == 0 && e.Manifest == nil {
		return e
	}
	return &Export{Objects: append([]ExportedObject(nil), e.Objects[n:]...)}
}
