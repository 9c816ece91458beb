package metatier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/writebuf"
)

// Buffers are the parts of a write buffer that hold a cluster's metadata: the log's frames under their ordinals, and
// snapshots in pieces. docs/formats/metadata-tier.md describes them.
type Buffers struct {
	Log       writebuf.Buffer
	Snapshots writebuf.Buffer
	Cluster   string // whose they are; what names another one is neither read nor replaced
}

// OtherClusterError says that a write buffer has the metadata of a cluster of another name.
type OtherClusterError struct{ There, Cluster string }

// Error implements error.
func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("the metadata in the write buffer is that of cluster %q, and this broker is of cluster %q: nothing of it was touched. "+
		"Set valkey.prefix to another prefix, which makes this cluster's keys its own, or storage.cluster to %q if it is that cluster that this broker is to go on with", e.There, e.Cluster, e.There)
}

// FaultKind classifies the error.
func (e *OtherClusterError) FaultKind() fault.Kind { return fault.Fenced }

// FaultDetails returns the two names.
func (e *OtherClusterError) FaultDetails() map[string]string {
	return map[string]string{"there": e.There, "cluster": e.Cluster}
}

// A snapshot on the shelf is one entry with a head, and then its bytes in pieces, an entry each. A head without pieces says
// whose the shelf is where there is nothing to be copied yet. Numbers are little-endian.
//
//	 0  magic "LVMS"
//	 4  version u16      2; 1 has no cluster
//	 6  flags u16        0
//	 8  index u64        of the last entry in the snapshot
//	16  term u32         of that entry
//	20  pieces u32
//	24  size u64         of all pieces together
//	32  crc u32          CRC-32C of them
//	36  cluster_size u16
//	38  reserved u16     0
//	40  cluster          its name
//	    head_crc u32     CRC-32C of what comes before it
const (
	headMagic = "LVMS"
	headSize  = 44 // without the cluster
	pieceSize = 512 << 10
)

type head struct {
	index   uint64
	term    uint32
	pieces  uint32
	size    uint64
	crc     uint32
	cluster string // empty: of version 1, which did not say
}

func (h head) encode() []byte {
	le := binary.LittleEndian
	version := uint16(2)
	if h.cluster == "" {
		version = 1
	}
	b := append(make([]byte, 0, headSize+len(h.cluster)), headMagic...)
	b = le.AppendUint16(b, version)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, h.index)
	b = le.AppendUint32(b, h.term)
	b = le.AppendUint32(b, h.pieces)
	b = le.AppendUint64(b, h.size)
	b = le.AppendUint32(b, h.crc)
	b = le.AppendUint16(b, uint16(len(h.cluster))) //nolint:gosec // a name has 63 at most
	b = le.AppendUint16(b, 0)
	b = append(b, h.cluster...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHead reports false for what is no head: it may be a piece.
func decodeHead(b []byte) (h head, ok bool, err error) {
	le := binary.LittleEndian
	if len(b) < headSize || len(b) > headSize+math.MaxUint16 || string(b[:4]) != headMagic {
		return head{}, false, nil
	}
	sum := len(b) - 4
	if crc32.Checksum(b[:sum], castagnoli) != le.Uint32(b[sum:]) {
		return head{}, false, nil
	}
	v, flags, named := le.Uint16(b[4:]), le.Uint16(b[6:]), int(le.Uint16(b[36:]))
	if known := v == 1 && named == 0 || v == 2 && named > 0; !known || flags != 0 || le.Uint16(b[38:]) != 0 || len(b) != headSize+named {
		return head{}, false, fault.New(fault.Unsupported, "a snapshot of the metadata in the write buffer has version %d and flags %d: a newer program wrote it, so run that", v, flags)
	}
	h = head{
		index: le.Uint64(b[8:]), term: le.Uint32(b[16:]), pieces: le.Uint32(b[20:]), size: le.Uint64(b[24:]), crc: le.Uint32(b[32:]),
		cluster: string(b[40:sum]),
	}
	return h, h.size <= MaxSnapshot && uint64(h.pieces) == (h.size+pieceSize-1)/pieceSize, nil
}

// ours fails where the shelf says that it is another cluster's. What the write buffer has forgotten is nobody's.
func (b *Buffers) ours(ctx context.Context) error {
	st, err := b.Snapshots.Bounds(ctx)
	if errors.Is(err, writebuf.ErrForgotten) {
		return nil
	}
	if err != nil || st.Last == 0 {
		return err
	}
	for from := max(st.Floor, 1); from <= st.Last; {
		entries, err := b.Snapshots.Read(ctx, from, writebuf.Limit{Entries: 1})
		var hole *writebuf.MissingError
		switch {
		case errors.As(err, &hole):
			from = hole.Missing[0].Last + 1
			continue
		case err != nil:
			return err
		case len(entries) == 0:
			return nil
		}
		h, is, err := decodeHead(entries[0].Frame)
		switch {
		case err != nil:
			return err
		case is && h.cluster != "" && h.cluster != b.Cluster:
			return &OtherClusterError{There: h.cluster, Cluster: b.Cluster}
		case is:
			return nil
		}
		from = entries[0].Seq + 1
	}
	return nil
}

// shelve puts a snapshot behind what is there, and removes what was before it. It returns the ordinal of its last entry. No
// data is no snapshot: then it says no more than whose the shelf is.
func (b *Buffers) shelve(ctx context.Context, generation uint32, data []byte, index uint64, term uint32) (uint64, error) {
	if err := b.ours(ctx); err != nil {
		return 0, err
	}
	buf := b.Snapshots
	if _, err := buf.Fence(ctx, generation); err != nil { // a server that forgot it answers nothing before
		return 0, err
	}
	st, err := buf.Bounds(ctx)
	if err != nil {
		return 0, err
	}
	first, floor := st.Last+1, st.Floor
	if !st.Known || !st.Whole() || st.Last == 0 {
		if err := buf.Reset(ctx, generation); err != nil {
			return 0, err
		}
		first, floor = 1, 1
	}
	h := head{index: index, term: term, size: uint64(len(data)), crc: crc32.Checksum(data, castagnoli), cluster: b.Cluster}
	h.pieces = uint32((h.size + pieceSize - 1) / pieceSize) //nolint:gosec // far below
	next := first
	put := func(b []byte) error {
		err := buf.Append(ctx, writebuf.Batch{Generation: generation, Floor: floor, Entries: []writebuf.Entry{{Seq: next, Frame: b}}})
		next++
		return err
	}
	if err := put(h.encode()); err != nil {
		return 0, err
	}
	for at := 0; at < len(data); at += pieceSize {
		if err := put(data[at:min(at+pieceSize, len(data))]); err != nil {
			return 0, err
		}
	}
	return next - 1, buf.Trim(ctx, generation, first)
}

// newest returns the newest snapshot on the shelf that is whole; nil where there is none.
func newest(ctx context.Context, buf writebuf.Buffer) (data []byte, err error) {
	st, err := buf.Bounds(ctx)
	if err != nil || st.Last == 0 {
		return nil, err
	}
	var h head
	var at *bytes.Buffer // pieces of the snapshot that is being read; nil: none is
	for from := max(st.Floor, 1); from <= st.Last; {
		entries, err := buf.Read(ctx, from, writebuf.Limit{})
		var hole *writebuf.MissingError
		switch {
		case errors.As(err, &hole):
			at, from = nil, hole.Missing[0].Last+1
			continue
		case err != nil:
			return nil, err
		case len(entries) == 0:
			return data, nil
		}
		for _, e := range entries {
			found, is, err := decodeHead(e.Frame)
			switch {
			case err != nil:
				return nil, err
			case is:
				h, at = found, &bytes.Buffer{}
			case at != nil:
				at.Write(e.Frame)
			}
			if at != nil && uint64(at.Len()) >= h.size {
				if uint64(at.Len()) == h.size && crc32.Checksum(at.Bytes(), castagnoli) == h.crc {
					data = at.Bytes()
				}
				at = nil
			}
			from = e.Seq + 1
		}
	}
	return data, nil
}

// follow applies the log's entries from one on that the write buffer has, in order. whole is false where it lacks some of
// them: what it has behind a hole is not applied, for it was decided on what is missing.
func follow(ctx context.Context, buf writebuf.Buffer, o *opened) (whole bool, err error) {
	for {
		entries, err := buf.Read(ctx, o.Seq+1, writebuf.Limit{})
		if errors.Is(err, writebuf.ErrMissing) || errors.Is(err, writebuf.ErrTrimmed) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(entries) == 0 {
			return true, nil
		}
		for _, e := range entries {
			if err := o.applyFrame(e); err != nil {
				return false, fmt.Errorf("entry %d of the metadata in the write buffer: %w", e.Seq, err)
			}
		}
	}
}

// applyFrame applies one frame of the log.
func (o *opened) applyFrame(e writebuf.Entry) error {
	f, err := segfmt.ParseFrame(e.Frame)
	if err == nil && f.Size() == len(e.Frame) {
		err = segfmt.CheckFrame(&f, e.Frame)
	}
	if err == nil && (f.Size() != len(e.Frame) || f.Seq != e.Seq || e.Seq != o.Seq+1 || uint32(f.Batch.Generation) < o.Term) {
		err = fmt.Errorf("frame %d of generation %d", f.Seq, f.Batch.Generation)
	}
	if err != nil {
		return fault.New(fault.Corrupt, "it is no frame that can follow entry %d of term %d: %w", o.Seq, o.Term, err)
	}
	command, ok, err := raft.Command(raft.Entry{Seq: f.Seq, Term: uint32(f.Batch.Generation), Kind: f.Kind, Batch: e.Frame[segfmt.FrameHeaderSize:]})
	if err != nil {
		return err
	}
	if ok {
		if _, err := o.state.ApplyEncoded(f.Seq, command); err != nil {
			return err
		}
	}
	o.Seq, o.Term = f.Seq, uint32(f.Batch.Generation)
	return nil
}
