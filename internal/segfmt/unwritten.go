package segfmt

// unwritten is what a segment file holds behind its frames where space was written ahead of them: this text again and
// again, so that its first byte stands at every position that is a multiple of its length. Records may well be zeros;
// that they are this is not to be feared.
const unwritten = "levee: unwritten"

// UnwrittenPeriod is after how many bytes unwritten space repeats itself.
const UnwrittenPeriod = int64(len(unwritten))

// FillUnwritten makes b, which stands at position in a segment file, what unwritten space holds.
func FillUnwritten(b []byte, position int64) {
	n := copy(b, unwritten[position%UnwrittenPeriod:])
	n += copy(b[n:], unwritten)
	n += copy(b[n:], unwritten[:position%UnwrittenPeriod])
	for n < len(b) {
		n += copy(b[n:], b[:n])
	}
}

// Written returns how much of b, which stands at position in a segment file and ends with it, is not unwritten space at
// its end. Less than a period of it is taken for what was written, unless b is nothing else: a few bytes are alike by
// chance.
func Written(b []byte, position int64) int {
	i := len(b)
	for i > 0 && b[i-1] == unwritten[(position+int64(i)-1)%UnwrittenPeriod] {
		i--
	}
	if i > 0 && int64(len(b)-i) < UnwrittenPeriod {
		return len(b)
	}
	return i
}
