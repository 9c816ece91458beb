package record

import (
	"bytes"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Records decodes every record of the batch b, each with its offset. The records' slices alias b when it is not
// compressed, and memory made for this call otherwise: either way they stay valid as long as b does not change. The
// checksum is not looked at: call Check first where b came over a network or from a disk.
func Records(b []byte) ([]Record, error) {
	d, err := newDecoder(b)
	if err != nil {
		return nil, err
	}
	records := make([]Record, 0, d.info.Count) // newDecoder has compared the count with the bytes
	for d.more() {
		r, err := d.next()
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, d.end()
}

// Each calls fn with every record of the batch b in order, and returns the first error. Ownership of slices is as with
// Records: fn may keep them.
func Each(b []byte, fn func(Record) error) error {
	d, err := newDecoder(b)
	if err != nil {
		return err
	}
	for d.more() {
		r, err := d.next()
		if err != nil {
			return err
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return d.end()
}

// smallestRecord is the length of a record with neither key nor value nor headers.
const smallestRecord = 7

// decoder walks the records of one batch.
type decoder struct {
	info BatchInfo
	rest []byte // plain records not yet decoded
	done int32
}

// newDecoder unpacks b, which must be exactly one batch.
func newDecoder(b []byte) (*decoder, error) {
	info, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	if info.Length != len(b) {
		return nil, invalid("length %d, but %d bytes are here", info.Length, len(b))
	}
	d := &decoder{info: info, rest: b[HeaderSize:]}
	if info.Count == 0 {
		d.rest = nil // a control frame of a log: what follows its header is not records
		return d, nil
	}
	if info.Codec() != None {
		if d.rest, err = unpack(info.Codec(), d.rest); err != nil {
			return nil, err
		}
	}
	if int(info.Count) > len(d.rest)/smallestRecord {
		return nil, invalid("%d bytes cannot hold %d records", len(d.rest), info.Count)
	}
	return d, nil
}

// unpack decompresses into pooled memory first: only then is it known how much the caller has to keep.
func unpack(codec Codec, block []byte) ([]byte, error) {
	buf := getBuffer()
	defer putBuffer(buf)
	plain, err := decompress(*buf, codec, block, MaxDecompressedBytes)
	if err != nil {
		return nil, err
	}
	*buf = plain
	return bytes.Clone(plain), nil
}

func (d *decoder) more() bool { return d.done < d.info.Count }

func (d *decoder) end() error {
	if len(d.rest) > 0 {
		return invalid("%d bytes follow its last record", len(d.rest))
	}
	return nil
}

// scan finds the next record.
func (d *decoder) scan() (scanned, error) {
	s, ok := scanRecord(d.rest)
	if !ok || s.offsetDelta < 0 || s.offsetDelta > d.info.LastOffsetDelta {
		return s, malformed(d.done)
	}
	d.rest = d.rest[s.size:]
	d.done++
	return s, nil
}

func (d *decoder) next() (Record, error) {
	s, err := d.scan()
	if err != nil {
		return Record{}, err
	}
	r := Record{
		Key:       s.key,
		Value:     s.value,
		Headers:   s.list(),
		Timestamp: d.info.FirstTimestamp + s.timestamp,
		Offset:    d.info.BaseOffset + int64(s.offsetDelta),
	}
	if d.info.LogAppendTime() {
		r.Timestamp = d.info.MaxTimestamp
	}
	return r, nil
}

// Split returns the batch that is left of b without its first skip records (0 to all but one), in memory of its own: the
// remaining records keep their offsets, timestamps and an idempotent producer's sequences, and the batch its codec and
// placement.
func Split(b []byte, skip int) ([]byte, error) {
	d, err := newDecoder(b)
	if err != nil {
		return nil, err
	}
	if skip < 0 || skip >= int(d.info.Count) {
		return nil, invalid("cannot take %d of its %d records off", skip, d.info.Count)
	}
	var (
		plain   []byte
		first   int32 // offset delta of the first record that stays
		newest  int64
		isFirst = true
	)
	for d.more() {
		at := d.rest
		s, err := d.scan()
		if err != nil {
			return nil, err
		}
		if int(d.done) <= skip {
			continue
		}
		if isFirst {
			first, newest, isFirst = s.offsetDelta, s.timestamp, false
		}
		newest = max(newest, s.timestamp)
		var raw kmsg.Record
		if err := raw.ReadFrom(at[:s.size:s.size]); err != nil {
			return nil, &Error{Kind: KindInvalid, Msg: fmt.Sprintf("record %d cannot be decoded: %v", d.done-1, err), Err: err}
		}
		raw.OffsetDelta -= first
		r := Record{Key: s.key, Value: s.value, Headers: s.list()}
		raw.Length = int32(r.bodySize(raw.TimestampDelta64, raw.OffsetDelta)) //nolint:gosec // not above what it was
		plain = raw.AppendTo(plain)
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	left := d.info
	left.BaseOffset += int64(first)
	left.LastOffsetDelta -= first
	left.Count -= int32(skip) //nolint:gosec // below Count
	if left.ProducerID >= 0 {
		left.BaseSequence = NextSequence(left.BaseSequence, first)
	}
	if !left.LogAppendTime() {
		left.MaxTimestamp = left.FirstTimestamp + newest
	}
	return seal(left, plain)
}
