package segfmt

// StopsShort reports whether tail, which stands at position and is written so far, is what a killed process leaves of a
// write into unwritten space: the kernel copies page by page, so the frame that should come next, seq, ends with a page,
// and unwritten space follows to the end of the file.
func StopsShort(tail []byte, position int64, written int, seq uint64) bool {
	const page = 4096 // or a multiple
	end := (position+int64(written)+page-1)/page*page - position
	if end-int64(written) >= UnwrittenPeriod { // the page's last bytes may be alike by chance
		return false
	}
	f, err := ParseFrame(tail)
	if err != nil {
		return end < MinFrame
	}
	return f.Seq == seq && end < int64(f.Size())
}

// BodyEnd returns where a frame behind the bad one at the start of tail may begin. Where the bad one's head is good
// that is behind its body: what looks like a frame in there is what a publisher sent.
func BodyEnd(tail []byte, seq uint64) int {
	if f, err := ParseFrame(tail); err == nil && f.Seq == seq {
		return f.Size()
	}
	return 1
}

// ProvedDurable returns the position in tail, at or after from, of a whole frame that proves frame seq to have been on
// the device; -1 where there is none.
func ProvedDurable(tail []byte, from int, seq uint64) int {
	for {
		at, f := FindFrame(tail, from, seq)
		if at < 0 {
			return -1
		}
		// Frames that lie closer together than frames can are left over from another life of these blocks.
		if plausible := (f.Seq-seq)*MinFrame <= uint64(at); plausible && f.DurableThrough() >= seq {
			return at
		}
		from = at + f.Size()
	}
}

// GivenOut returns an offset that no record in tail was given or came behind, as far as anybody can tell: the frames
// that are left say where they stood; bytes that say nothing may have been records of a byte each.
func GivenOut(tail []byte, seq uint64, offset int64) int64 {
	end, behind := offset, 0 // the offset after the last frame found, and where it ends in tail
	note := func(at int, f *Frame) {
		if plausible := f.Seq >= seq && (f.Seq-seq)*MinFrame <= uint64(at); plausible && f.NextOffset() > end {
			end, behind = f.NextOffset(), at+f.Size()
		}
	}
	if f, err := ParseFrame(tail); err == nil {
		note(0, &f)
	}
	for from := BodyEnd(tail, seq); ; {
		at, f := FindFrame(tail, from, seq)
		if at < 0 {
			return end + int64(max(0, len(tail)-behind))
		}
		note(at, &f)
		from = at + f.Size()
	}
}
