package record

// scanned is what scanRecord found out about a record without copying or allocating anything.
type scanned struct {
	size        int   // bytes of the whole record, its length included
	body        int   // where the record begins behind its length
	offsetDelta int32 // its offset relative to the batch's
	timestamp   int64 // its timestamp relative to the batch's first
	key, value  []byte
	headers     int    // how many
	headerBytes []byte // they themselves
}

// scanRecord checks that b begins with a well-formed record and finds its parts, without allocating: lengths fit in one
// another exactly and no count is larger than its bytes could hold. Key and value alias b; nil is an absent one.
func scanRecord(b []byte) (scanned, bool) {
	length, n := varint32(b)
	if n == 0 || length <= 0 || int(length) > len(b)-n {
		return scanned{}, false
	}
	s := scanned{size: n + int(length), body: n}
	p := b[n : n+int(length)]
	p = p[1:] // attributes: none are defined
	if s.timestamp, n = varint64(p); n == 0 {
		return s, false
	}
	p = p[n:]
	if s.offsetDelta, n = varint32(p); n == 0 {
		return s, false
	}
	p = p[n:]
	var ok bool
	if s.key, p, ok = cutBytes(p, -1); !ok {
		return s, false
	}
	if s.value, p, ok = cutBytes(p, -1); !ok {
		return s, false
	}
	headers, n := varint32(p)
	p = p[n:]
	if n == 0 || headers < 0 || int(headers) > len(p)/2 {
		return s, false
	}
	s.headers, s.headerBytes = int(headers), p
	for range headers {
		if _, p, ok = cutBytes(p, 0); !ok {
			return s, false
		}
		if _, p, ok = cutBytes(p, -1); !ok {
			return s, false
		}
	}
	return s, len(p) == 0
}

// list returns the headers, which scanRecord has checked. Their values alias the record.
func (s *scanned) list() []Header {
	if s.headers == 0 {
		return nil
	}
	headers := make([]Header, s.headers)
	p := s.headerBytes
	for i := range headers {
		var key []byte
		key, p, _ = cutBytes(p, 0)
		headers[i].Key = string(key)
		headers[i].Value, p, _ = cutBytes(p, -1)
	}
	return headers
}

// cutBytes cuts a length and as many bytes off p. Lengths below least are refused; -1 means absent.
func cutBytes(p []byte, least int32) (cut, rest []byte, ok bool) {
	l, n := varint32(p)
	if n == 0 || l < least || int(l) > len(p)-n {
		return nil, nil, false
	}
	if l < 0 {
		return nil, p[n:], true
	}
	end := n + int(l)
	return p[n:end:end], p[end:], true
}

// varint32 decodes a zigzag varint of at most 32 bits; n is 0 when there is none.
func varint32(b []byte) (v int32, n int) {
	if len(b) > 0 && b[0] < 0x80 { // most are this short
		u := uint32(b[0])
		return int32(u>>1) ^ -int32(u&1), 1 //nolint:gosec // zigzag
	}
	var u uint64
	for i, c := range b[:min(len(b), 5)] {
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			if u > 1<<32-1 {
				return 0, 0
			}
			return int32(u>>1) ^ -int32(u&1), i + 1 //nolint:gosec // zigzag
		}
	}
	return 0, 0
}

// varint64 decodes a zigzag varint of at most 64 bits; n is 0 when there is none.
func varint64(b []byte) (v int64, n int) {
	var u uint64
	for i, c := range b[:min(len(b), 10)] {
		if i == 9 && c > 1 {
			return 0, 0
		}
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), i + 1 //nolint:gosec // zigzag
		}
	}
	return 0, 0
}
