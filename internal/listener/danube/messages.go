package danube

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/record"
)

// What a message has beside its payload, key, time and attributes is kept in headers of the record, under names that
// other clients of the broker see. Attributes are headers as they are.
const (
	headerProducer      = "levee-producer"
	headerSchemaID      = "levee-schema-id"
	headerSchemaVersion = "levee-schema-version"
	headerDeliverAt     = "levee-deliver-at" // ms since 1970: not to be delivered earlier

	attributeDeliverAfter = "deliver_after_ms" // becomes headerDeliverAt
)

// fill makes x.headers those of m.
func (x *sending) fill(m *api.StreamMessage, producer string, now time.Time) error {
	x.bytes = x.bytes[:0]
	x.headers = append(x.headers[:0], record.Header{Key: headerProducer, Value: x.bytesOf(producer)})
	if m.SchemaId != nil {
		x.headers = append(x.headers, record.Header{Key: headerSchemaID, Value: x.decimal(*m.SchemaId)})
	}
	if m.SchemaVersion != nil {
		x.headers = append(x.headers, record.Header{Key: headerSchemaVersion, Value: x.decimal(uint64(*m.SchemaVersion))})
	}
	for k, v := range m.Attributes {
		h := record.Header{Key: k}
		switch k {
		case headerProducer, headerSchemaID, headerSchemaVersion:
			return invalid("send: attribute %q: the message has a field for that", k)
		case attributeDeliverAfter:
			after, err := strconv.ParseInt(v, 10, 64)
			if err != nil || after < 0 || after > math.MaxInt64-now.UnixMilli() {
				return invalid("send: attribute %q is %q: it is a number of milliseconds", k, clip(v, nameChars))
			}
			h.Key, h.Value = headerDeliverAt, x.decimal(uint64(now.UnixMilli()+after)) //nolint:gosec // not negative
		case headerDeliverAt:
			if _, err := strconv.ParseInt(v, 10, 64); err != nil {
				return invalid("send: attribute %q is %q: it is in ms since 1970", k, clip(v, nameChars))
			}
			h.Value = x.bytesOf(v)
		default:
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return invalid("send: attribute %q is not UTF-8", clip(k, nameChars))
			}
			h.Value = x.bytesOf(v)
		}
		x.headers = append(x.headers, h)
	}
	return nil
}

// bytesOf returns s as bytes, in x's memory.
func (x *sending) bytesOf(s string) []byte {
	at := len(x.bytes)
	x.bytes = append(x.bytes, s...)
	return x.bytes[at:len(x.bytes):len(x.bytes)]
}

func (x *sending) decimal(n uint64) []byte {
	at := len(x.bytes)
	x.bytes = strconv.AppendUint(x.bytes, n, 10)
	return x.bytes[at:len(x.bytes):len(x.bytes)]
}

// delivery turns records into messages, one after another in the same memory: a message is encoded when it is sent.
type delivery struct {
	message  api.StreamMessage
	id       api.MsgID
	producer []byte // the header's value that message.ProducerName and id.ProducerId were made from

	schemaID      uint64
	schemaVersion uint32
	key           string
}

// newDelivery returns the delivery of one stream. Request ids begin behind first.
func newDelivery(wire, subscription, brokerAddr string, first uint64) *delivery {
	d := &delivery{}
	d.id = api.MsgID{TopicName: wire, BrokerAddr: brokerAddr}
	d.message = api.StreamMessage{RequestId: first, MsgId: &d.id, SubscriptionName: subscription, Attributes: map[string]string{}}
	return d
}

// of returns r's message, which is good until the next call.
func (d *delivery) of(r *record.Record) *api.StreamMessage {
	m := &d.message
	m.RequestId++
	m.Payload = r.Value
	m.PublishTime = uint64(max(0, r.Timestamp)) //nolint:gosec // not negative
	d.id.TopicOffset = uint64(r.Offset)         //nolint:gosec // not negative
	m.SchemaId, m.SchemaVersion, m.RoutingKey = nil, nil, nil
	if r.Key != nil {
		d.key = strings.ToValidUTF8(string(r.Key), "\uFFFD")
		m.RoutingKey = &d.key
	}
	clear(m.Attributes)
	named := false
	for i := range r.Headers {
		h := &r.Headers[i]
		switch h.Key {
		case headerProducer:
			named = true
			d.from(h.Value)
		case headerSchemaID:
			if n, err := strconv.ParseUint(string(h.Value), 10, 64); err == nil {
				d.schemaID = n
				m.SchemaId = &d.schemaID
			}
		case headerSchemaVersion:
			if n, err := strconv.ParseUint(string(h.Value), 10, 32); err == nil {
				d.schemaVersion = uint32(n)
				m.SchemaVersion = &d.schemaVersion
			}
		default:
			m.Attributes[strings.ToValidUTF8(h.Key, "\uFFFD")] = strings.ToValidUTF8(string(h.Value), "\uFFFD")
		}
	}
	if !named {
		d.from(nil)
	}
	return m
}

// from sets who published the message. Most come from the one that the last one came from.
func (d *delivery) from(name []byte) {
	if bytes.Equal(name, d.producer) && (d.message.ProducerName != "" || len(name) == 0) {
		return
	}
	d.producer = append(d.producer[:0], name...)
	d.message.ProducerName = strings.ToValidUTF8(string(name), "\uFFFD")
	d.id.ProducerId = 0
	if len(name) > 0 {
		d.id.ProducerId = producerID(d.id.TopicName, d.message.ProducerName)
	}
}

// each calls fn with the records that an event hands out.
func each(ev *broker.ConsumerEvent, fn func(*record.Record) error) error {
	ranges := ev.Offsets
	for rest := ev.Batches; len(rest) > 0 && len(ranges) > 0; {
		batch, next, err := record.Next(rest)
		if err != nil {
			return err
		}
		rest = next
		info, err := record.ParseHeader(batch)
		if err != nil {
			return err
		}
		if info.LastOffset() < ranges[0].From {
			continue
		}
		err = record.Each(batch, func(r record.Record) error {
			for len(ranges) > 0 && r.Offset > ranges[0].To {
				ranges = ranges[1:]
			}
			if len(ranges) == 0 || r.Offset < ranges[0].From {
				return nil
			}
			return fn(&r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
