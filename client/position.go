package client

import (
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// Position is where in a partition to begin. Its zero value is Earliest.
type Position struct {
	kind  positionKind
	value int64
}

type positionKind uint8

const (
	atEarliest positionKind = iota
	atLatest
	atOffset
	atTime
)

// Earliest is the oldest record that is retained.
func Earliest() Position { return Position{} }

// Latest is behind the newest record.
func Latest() Position { return Position{kind: atLatest} }

// Offset is the record with that offset, or the next one where none has it.
func Offset(offset int64) Position { return Position{kind: atOffset, value: offset} }

// At is the first record with a timestamp at or after t, to the millisecond.
func At(t time.Time) Position { return Position{kind: atTime, value: t.UnixMilli()} }

func (p Position) into(open *leveev1.OpenSubscribe) {
	switch p.kind {
	case atEarliest:
		open.Start = &leveev1.OpenSubscribe_Earliest{Earliest: true}
	case atLatest:
		open.Start = &leveev1.OpenSubscribe_Latest{Latest: true}
	case atOffset:
		open.Start = &leveev1.OpenSubscribe_Offset{Offset: p.value}
	case atTime:
		open.Start = &leveev1.OpenSubscribe_TimeMs{TimeMs: p.value}
	}
}

func (p Position) intoConsume(open *leveev1.OpenConsume) {
	switch p.kind {
	case atEarliest:
		open.Start = &leveev1.OpenConsume_Earliest{Earliest: true}
	case atLatest:
		open.Start = &leveev1.OpenConsume_Latest{Latest: true}
	case atOffset:
		open.Start = &leveev1.OpenConsume_Offset{Offset: p.value}
	case atTime:
		open.Start = &leveev1.OpenConsume_TimeMs{TimeMs: p.value}
	}
}

func (p Position) message() *leveev1.Position {
	switch p.kind {
	case atLatest:
		return &leveev1.Position{At: &leveev1.Position_Latest{Latest: true}}
	case atOffset:
		return &leveev1.Position{At: &leveev1.Position_Offset{Offset: p.value}}
	case atTime:
		return &leveev1.Position{At: &leveev1.Position_TimeMs{TimeMs: p.value}}
	case atEarliest:
	}
	return &leveev1.Position{At: &leveev1.Position_Earliest{Earliest: true}}
}
