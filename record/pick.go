package record

// Glimpse is what Scan sees of a record without decoding it. Its slices alias the batch, or memory that is used again once
// the function that Scan calls has returned: copy what is to be kept.
type Glimpse struct {
	Offset    int64
	Timestamp int64 // milliseconds
	Key       []byte
	HasKey    bool
	Bytes     int // of the encoded record, uncompressed
	At        int // where it begins in the batch, for PickAt; 0 where the batch is compressed

	headers     int
	headerBytes []byte
}

// Header returns the value of the first header of that name.
func (g *Glimpse) Header(name string) (value []byte, ok bool) {
	p := g.headerBytes
	for range g.headers {
		var key []byte
		key, p, _ = cutBytes(p, 0)
		value, p, _ = cutBytes(p, -1)
		if string(key) == name {
			return value, true
		}
	}
	return nil, false
}

// Scan calls fn with every record of the batch b in order, and returns the first error. It does not allocate where b is
// not compressed. The checksum is not looked at.
func Scan(b []byte, fn func(*Glimpse) error) error {
	return scanPlain(b, func(d *decoder) error {
		var g Glimpse
		plain := d.info.Codec() == None
		for d.more() {
			left := len(d.rest)
			s, err := d.scan()
			if err != nil {
				return err
			}
			g = Glimpse{
				Offset: d.info.BaseOffset + int64(s.offsetDelta), Timestamp: d.info.FirstTimestamp + s.timestamp,
				Key: s.key, HasKey: s.key != nil, Bytes: s.size, headers: s.headers, headerBytes: s.headerBytes,
			}
			if plain {
				g.At = len(b) - left
			}
			if d.info.LogAppendTime() {
				g.Timestamp = d.info.MaxTimestamp
			}
			if err := fn(&g); err != nil {
				return err
			}
		}
		return d.end()
	})
}

// Pick appends to dst a batch of those records of the batch b whose offsets keep accepts, and returns dst; nothing where
// it accepts none. The records keep their offsets and timestamps and are not compressed; the checksum is made anew. The
// result is to be read, not to be published again: it carries no producer's sequence. b must not overlap dst.
func Pick(dst, b []byte, keep func(offset int64) bool) ([]byte, error) {
	at := len(dst)
	err := scanPlain(b, func(d *decoder) error {
		info := picked(d.info)
		dst = append(dst, emptyHeader[:]...)
		// Records that are kept one after the other are copied together.
		run := d.rest[:0]
		for d.more() {
			rest := d.rest
			s, err := d.scan()
			if err != nil {
				return err
			}
			switch {
			case !keep(info.BaseOffset + int64(s.offsetDelta)):
				dst = append(dst, run...)
				run = d.rest[:0]
			case len(run) == 0:
				run = rest[:s.size]
				info.Count++
			default:
				run = run[:len(run)+s.size]
				info.Count++
			}
		}
		dst = append(dst, run...)
		if info.Count > 0 {
			putHeader(dst[at:], info)
		}
		if info.Count == 0 {
			dst = dst[:at]
		}
		return d.end()
	})
	return dst, err
}

// picked is what a header says of some of its batch's records, but for their count.
func picked(info BatchInfo) BatchInfo {
	info.Count, info.ProducerID, info.ProducerEpoch, info.BaseSequence = 0, -1, -1, -1
	info.Attributes &^= attrCodec
	return info
}

// PickAt is Pick for records of which Scan has said where they begin: at are their Glimpse.At, ascending and at least one.
// It looks at nothing else of b, which must not be compressed, and says where it meets something that is no record.
func PickAt(dst, b []byte, at []int) ([]byte, error) {
	info, err := ParseHeader(b)
	if err != nil {
		return dst, err
	}
	if info.Codec() != None || info.Length != len(b) || len(at) > int(info.Count) {
		return dst, invalid("%d records are wanted by their places, of the %d of %d compressed (%s) bytes, and %d are here", len(at), info.Count, info.Length, info.Codec(), len(b))
	}
	start := len(dst)
	dst = append(dst, emptyHeader[:]...)
	// Records that are adjacent are copied together.
	from, to := HeaderSize, HeaderSize
	for i, p := range at {
		if p < to || p >= len(b) {
			return dst[:start], malformed(int32(i)) //nolint:gosec // at most Count
		}
		size, n := varint32(b[p:])
		if n == 0 || size <= 0 || int(size) > len(b)-p-n {
			return dst[:start], malformed(int32(i)) //nolint:gosec // at most Count
		}
		if p > to {
			dst = append(dst, b[from:to]...)
			from = p
		}
		to = p + n + int(size)
	}
	dst = append(dst, b[from:to]...)
	info = picked(info)
	info.Count = int32(len(at)) //nolint:gosec // it was compared above
	putHeader(dst[start:], info)
	return dst, nil
}

// HasHeader reports whether a record of the batch b has a header of that name. It does not allocate where b is not
// compressed. A batch that cannot be scanned may have it.
func HasHeader(b []byte, name string) bool {
	found := false
	err := scanPlain(b, func(d *decoder) error {
		for d.more() && !found {
			s, err := d.scan()
			if err != nil {
				return err
			}
			if s.headers > 0 {
				g := Glimpse{headers: s.headers, headerBytes: s.headerBytes}
				_, found = g.Header(name)
			}
		}
		return nil
	})
	return found || err != nil
}

// scanPlain gives fn a decoder of b. Where b is compressed, what it reads lies in pooled memory until fn returns.
func scanPlain(b []byte, fn func(*decoder) error) error {
	info, err := ParseHeader(b)
	if err != nil {
		return err
	}
	if info.Codec() == None || info.Count == 0 {
		d, err := newDecoder(b)
		if err != nil {
			return err
		}
		return fn(d)
	}
	if info.Length != len(b) {
		return invalid("length %d, but %d bytes are here", info.Length, len(b))
	}
	buf := getBuffer()
	defer putBuffer(buf)
	plain, err := decompress((*buf)[:0], info.Codec(), b[HeaderSize:], MaxDecompressedBytes)
	if err != nil {
		return err
	}
	*buf = plain
	if int(info.Count) > len(plain)/smallestRecord {
		return invalid("%d bytes cannot hold %d records", len(plain), info.Count)
	}
	return fn(&decoder{info: info, rest: plain})
}
