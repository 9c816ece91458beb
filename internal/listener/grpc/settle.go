package grpc

import (
	"errors"
	"io"
	"math"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// mostSettled bounds the ranges and nacks of one message: a few bytes of it become many of memory.
const mostSettled = 1 << 16

// keptAcks bounds what a stream keeps of the list of its largest message.
const keptAcks = 1 << 10

// consumeMessage receives one ConsumeRequest after another. Clients that acknowledge record by record send a hundred
// thousand of them a second, so acks take no memory of their own: they are in acks, and not in Acks.
type consumeMessage struct {
	leveev1.ConsumeRequest
	acks []broker.Range

	other bool // ConsumeRequest has something
}

// Fields of ConsumeRequest.
const (
	acksField  = 3
	nacksField = 6
)

// decode fills m with data, and keeps nothing of it.
func (m *consumeMessage) decode(data mem.BufferSlice) error {
	if cap(m.acks) > keptAcks {
		m.acks = nil
	}
	m.acks = m.acks[:0]
	if m.other {
		m.other = false
		m.Reset()
	}
	var raw []byte
	if len(data) == 1 {
		raw = data[0].ReadOnlyData()
	} else {
		raw = data.Materialize()
	}
	var others []byte
	settled := 0
	for len(raw) > 0 {
		field, kind, head := protowire.ConsumeTag(raw)
		if head < 0 {
			return protowire.ParseError(head)
		}
		body := protowire.ConsumeFieldValue(field, kind, raw[head:])
		if body < 0 {
			return protowire.ParseError(body)
		}
		if field == acksField || field == nacksField {
			if settled++; settled > mostSettled {
				return invalid("more than %d ranges and nacks in one message", mostSettled)
			}
		}
		if field == acksField && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(raw[head:])
			r, err := decodeRange(inner)
			if err != nil {
				return err
			}
			m.acks = append(m.acks, r)
		} else {
			others = append(others, raw[:head+body]...)
		}
		raw = raw[head+body:]
	}
	if others == nil {
		return nil
	}
	m.other = true
	return m.UnmarshalVTUnsafe(others)
}

// decodeRange decodes a Range. Fields that it does not know are passed over.
func decodeRange(raw []byte) (r broker.Range, err error) {
	for len(raw) > 0 {
		field, kind, head := protowire.ConsumeTag(raw)
		if head < 0 {
			return r, protowire.ParseError(head)
		}
		body := protowire.ConsumeFieldValue(field, kind, raw[head:])
		if body < 0 {
			return r, protowire.ParseError(body)
		}
		if kind == protowire.VarintType {
			switch v, _ := protowire.ConsumeVarint(raw[head:]); field {
			case 1:
				r.From = int64(v) //nolint:gosec // two's complement
			case 2:
				r.To = int64(v) //nolint:gosec // two's complement
			}
		}
		raw = raw[head+body:]
	}
	return r, nil
}

// settlement returns what m settles.
func (m *consumeMessage) settlement() (s broker.Settlement, anything bool, err error) {
	s = broker.Settlement{Acks: m.acks, Below: -1}
	for _, r := range m.acks {
		if r.From < 0 || r.To < r.From {
			return s, false, invalid("consume: acks of %d to %d: from is at least 0, and to at least from", r.From, r.To)
		}
	}
	if m.HasAckBelow {
		if m.AckBelow < 0 {
			return s, false, invalid("consume: ack_below is %d: it must not be negative", m.AckBelow)
		}
		s.Below = m.AckBelow
	}
	for _, n := range m.Nacks {
		nack := broker.Nack{Range: broker.Range{From: n.GetRange().GetFrom(), To: n.GetRange().GetTo()}, Delay: -1, Reason: clip(n.Reason, messageChars)}
		if nack.Range.From < 0 || nack.Range.To < nack.Range.From {
			return s, false, invalid("consume: nack of %d to %d: from is at least 0, and to at least from", nack.Range.From, nack.Range.To)
		}
		if n.DelayMs != nil {
			const most = math.MaxInt64 / int64(time.Millisecond)
			if *n.DelayMs < 0 || *n.DelayMs > most {
				return s, false, invalid("consume: delay_ms is %d: it is 0 to %d, or absent for the subscription's backoff", *n.DelayMs, most)
			}
			nack.Delay = time.Duration(*n.DelayMs) * time.Millisecond
		}
		s.Nacks = append(s.Nacks, nack)
	}
	return s, len(s.Acks) > 0 || len(s.Nacks) > 0 || s.Below >= 0, nil
}

// take does what one message says.
func (c *consuming) take(m *consumeMessage) error {
	if err := c.tab.give(m.Credit); err != nil {
		return err
	}
	s, anything, err := m.settlement()
	if err != nil {
		return err
	}
	if anything && c.info.Reliable { // otherwise delivered is settled
		if err := c.consumer.Settle(s); err != nil {
			return err
		}
	}
	if m.Heartbeat {
		c.consumer.Heartbeat()
	}
	if m.Save == 0 {
		return nil
	}
	return c.saves.ask(m.Save, c)
}

// receive takes what the client sends until its side ends, which always has a reason.
func (c *consuming) receive(m *consumeMessage) error {
	for {
		switch err := c.stream.RecvMsg(m); {
		case errors.Is(err, io.EOF):
			return errSideClosed
		case err != nil:
			return err
		case m.Open != nil:
			return invalid("consume: open came twice: one stream consumes one partition")
		}
		if err := c.take(m); err != nil {
			return err
		}
	}
}
