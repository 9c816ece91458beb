package segfmt

const (
	producersMagic   = "LVPS"
	producersVersion = 1
	producersHead    = 32
	producerHead     = 28
	sequenceRange    = 16
)

// Producers is a snapshot of the idempotent producers of one partition.
//
//	 0  magic "LVPS"      then per producer, in rising order of id:
//	 4  version u16         id i64 | epoch i16 | reserved u16 | last_sequence i32 | last_ms i64 | ranges u32
//	 6  flags u16 (0)       then per range: sequence i32 | count i32 | offset i64
//	 8  offset i64
//	16  producers u64     at the end: CRC-32C of everything before it
//	24  length u64        of the whole file
type Producers struct {
	Offset    int64 // the snapshot covers every record below it
	Producers []Producer
}

// Producer is what is known of one.
type Producer struct {
	ID           int64
	Epoch        int16
	LastSequence int32
	LastMs       int64 // broker's clock at its last append
	Ranges       []SequenceRange
}

// SequenceRange says that Count records from Sequence on stand at Offset and behind. Between the end of one range and
// the start of the next, sequences stand somewhere between the two, in order.
type SequenceRange struct {
	Sequence int32
	Count    int32
	Offset   int64
}

// Append appends the snapshot's bytes.
func (s *Producers) Append(dst []byte) []byte {
	at := len(dst)
	size := producersHead + 4
	for i := range s.Producers {
		size += producerHead + sequenceRange*len(s.Producers[i].Ranges)
	}
	dst = append(dst, producersMagic...)
	dst = le.AppendUint16(dst, producersVersion)
	dst = le.AppendUint16(dst, 0)
	dst = le.AppendUint64(dst, uint64(s.Offset))
	dst = le.AppendUint64(dst, uint64(len(s.Producers)))
	dst = le.AppendUint64(dst, uint64(size))
	for i := range s.Producers {
		p := &s.Producers[i]
		dst = le.AppendUint64(dst, uint64(p.ID))
		dst = le.AppendUint16(dst, uint16(p.Epoch))
		dst = le.AppendUint16(dst, 0)
		dst = le.AppendUint32(dst, uint32(p.LastSequence))
		dst = le.AppendUint64(dst, uint64(p.LastMs))
		dst = le.AppendUint32(dst, uint32(len(p.Ranges)))
		for _, r := range p.Ranges {
			dst = le.AppendUint32(dst, uint32(r.Sequence))
			dst = le.AppendUint32(dst, uint32(r.Count))
			dst = le.AppendUint64(dst, uint64(r.Offset))
		}
	}
	return le.AppendUint32(dst, checksum(dst[at:]))
}

// ParseProducers decodes a whole snapshot file.
func ParseProducers(b []byte) (*Producers, error) {
	if len(b) < producersHead+4 {
		return nil, ErrShort
	}
	if string(b[:4]) != producersMagic {
		return nil, ErrMagic
	}
	if le.Uint16(b[4:]) != producersVersion {
		return nil, ErrVersion
	}
	if le.Uint16(b[6:]) != 0 {
		return nil, ErrFlags
	}
	if le.Uint64(b[24:]) != uint64(len(b)) {
		return nil, ErrShort
	}
	body := b[:len(b)-4]
	if checksum(body) != le.Uint32(b[len(b)-4:]) {
		return nil, ErrChecksum
	}
	s := &Producers{Offset: int64(le.Uint64(b[8:]))}
	n := le.Uint64(b[16:])
	body = body[producersHead:]
	if s.Offset < 0 || n > uint64(len(body)/producerHead) {
		return nil, ErrField
	}
	s.Producers = make([]Producer, 0, n)
	for ; n > 0; n-- {
		if len(body) < producerHead {
			return nil, ErrField
		}
		p := Producer{ID: int64(le.Uint64(body)), Epoch: int16(le.Uint16(body[8:])),
			LastSequence: int32(le.Uint32(body[12:])), LastMs: int64(le.Uint64(body[16:]))}
		ranges := int(le.Uint32(body[24:]))
		body = body[producerHead:]
		if ranges > len(body)/sequenceRange || p.ID < 0 || p.Epoch < 0 || p.LastSequence < 0 ||
			len(s.Producers) > 0 && s.Producers[len(s.Producers)-1].ID >= p.ID {
			return nil, ErrField
		}
		p.Ranges = make([]SequenceRange, ranges)
		for i := range p.Ranges {
			r := SequenceRange{int32(le.Uint32(body)), int32(le.Uint32(body[4:])), int64(le.Uint64(body[8:]))}
			if r.Sequence < 0 || r.Count <= 0 || r.Offset < 0 || i > 0 && p.Ranges[i-1].Offset >= r.Offset {
				return nil, ErrField
			}
			p.Ranges[i] = r
			body = body[sequenceRange:]
		}
		s.Producers = append(s.Producers, p)
	}
	if len(body) != 0 {
		return nil, ErrField
	}
	return s, nil
}
