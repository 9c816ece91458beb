package valkey

import (
	"context"
	"fmt"
	"strconv"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

// page is what the server returned to a read.
type page struct {
	state   writebuf.State
	entries []writebuf.Entry
	all     bool // nothing follows them
}

// Read implements writebuf.Buffer.
func (b *buffer) Read(ctx context.Context, from uint64, limit writebuf.Limit) ([]writebuf.Entry, error) {
	entries, err := b.read(ctx, from, limit.WithDefaults())
	return entries, b.s.count("read", err)
}

func (b *buffer) read(ctx context.Context, from uint64, limit writebuf.Limit) ([]writebuf.Entry, error) {
	if err := writebuf.CheckSeq(from); err != nil {
		return nil, err
	}
	wrote := b.wrote.Load()
	p, ok := b.plainPage(ctx, from, limit)
	if !ok {
		rest, err := b.ask(ctx, "read", readScript, decimal(from), strconv.Itoa(limit.Entries), strconv.Itoa(limit.Bytes))
		if err == nil {
			p, err = scriptPage(rest)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", b.id, err)
		}
	}
	if err := writebuf.CheckKnown(p.state, wrote); err != nil {
		return nil, fmt.Errorf("read %s: %w", b.id, err)
	}
	largest := 0
	for _, e := range p.entries {
		largest = max(largest, len(e.Frame))
	}
	b.largest.Store(int64(largest))
	return writebuf.Page(b.id, p.state, from, p.entries, p.all)
}

func scriptPage(rest answer) (p page, err error) {
	if p.state, err = rest.state(false); err != nil {
		return p, err
	}
	if len(rest) < 7 {
		return p, fmt.Errorf("%w: no entries", writebuf.ErrForeign)
	}
	all, _ := rest.number(5)
	p.all = all == 1
	p.entries, err = readEntries(rest[6])
	return p, err
}

// readEntries reads the rows of a stream. They hold what the connection read, which nobody else has.
func readEntries(msg valkey.ValkeyMessage) ([]writebuf.Entry, error) {
	rows, err := msg.ToArray()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", writebuf.ErrForeign, err)
	}
	entries := make([]writebuf.Entry, len(rows))
	for i, r := range rows {
		var ok bool
		if entries[i], ok = readEntry(r); !ok {
			id := ""
			if row, err := r.ToArray(); err == nil && len(row) > 0 {
				id, _ = row[0].ToString()
			}
			return nil, fmt.Errorf("%w: entry %q", writebuf.ErrForeign, id)
		}
	}
	return entries, nil
}

func readEntry(row valkey.ValkeyMessage) (e writebuf.Entry, ok bool) {
	parts, err := row.ToArray()
	if err != nil || len(parts) != 2 {
		return e, false
	}
	id, err := parts[0].ToString()
	if err != nil {
		return e, false
	}
	if e.Seq, ok = seqOf(id); !ok {
		return e, false
	}
	fields, err := parts[1].ToArray()
	if err != nil || len(fields) != 2 {
		return e, false
	}
	if name, err := fields[0].ToString(); err != nil || name != "f" {
		return e, false
	}
	e.Frame, err = fields[1].AsBytes()
	return e, err == nil
}

// plainEntries is how many entries a plain page has at most. They may be larger than those before them, and the server holds
// all that it answers with, so it is no more than what readScript asks for at once. Of entries below plainLeast bytes that
// would be too small a page.
const plainEntries, plainLeast = 64, 8 << 10

// plainPage reads a page in a transaction of the record and a plain XRANGE. That costs the server half as much as
// readScript, through whose language every entry passes; but the number of entries must be told, so it is for large ones,
// once one page was read. Where it returns false, readScript is to be asked, which also tells what is wrong: nothing that a
// server, or what stands before it, may refuse here ends a read that would succeed.
func (b *buffer) plainPage(ctx context.Context, from uint64, limit writebuf.Limit) (p page, ok bool) {
	largest := int(b.largest.Load())
	if largest < plainLeast || b.barred.Load() {
		return p, false
	}
	count := min(max(limit.Bytes/largest, 1), plainEntries, limit.Entries)
	p, err := b.transaction(ctx, from, count)
	if err != nil {
		if ctx.Err() == nil {
			b.barred.Store(true)
		}
		return p, false
	}
	size := 0
	for i, e := range p.entries {
		if size += len(e.Frame); i > 0 && size > limit.Bytes {
			p.entries, p.all = p.entries[:i], false
			break
		}
	}
	return p, true
}

// transaction reads the record and count entries in one piece.
func (b *buffer) transaction(ctx context.Context, from uint64, count int) (p page, err error) {
	n, err := b.s.route(ctx, b.slot)
	if err != nil {
		return p, err
	}
	msg, err := b.s.askTogether(ctx, n, []string{"EVALSHA", recordScript.sha, "2", b.keys[0], b.keys[1]},
		[]string{"XRANGE", b.keys[0], decimal(from), "+", "COUNT", strconv.Itoa(count)})
	if err != nil {
		return p, err
	}
	both, err := msg.ToArray()
	if err != nil {
		return p, err
	}
	if len(both) != 2 {
		return p, fmt.Errorf("%w: %d answers to two commands", writebuf.ErrForeign, len(both))
	}
	for i := range both {
		if err := both[i].Error(); err != nil {
			return p, err
		}
	}
	word, rest, err := readAnswer(both[0])
	if err != nil {
		return p, err
	}
	if word != "OK" {
		return p, fmt.Errorf("%w: %s", writebuf.ErrForeign, word)
	}
	if p.state, err = rest.state(false); err != nil {
		return p, err
	}
	p.entries, err = readEntries(both[1])
	p.all = len(p.entries) < count
	return p, err
}

// askTogether sends commands that change nothing as one transaction, on a connection as ask does, but only once.
func (s *Store) askTogether(ctx context.Context, n *node, commands ...[]string) (valkey.ValkeyMessage, error) {
	client, err := s.connect(ctx, n)
	if err != nil {
		return valkey.ValkeyMessage{}, err
	}
	select { // before the time runs
	case n.asking <- struct{}{}:
		defer func() { <-n.asking }()
	case <-ctx.Done():
		return valkey.ValkeyMessage{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout) // the script that is asked where this fails takes twice as long
	defer cancel()
	conn, release := client.Dedicate()
	defer release()
	multi := valkey.Commands{conn.B().Arbitrary("MULTI").Build()}
	for _, c := range commands {
		multi = append(multi, conn.B().Arbitrary(c...).Build())
	}
	results := conn.DoMulti(ctx, append(multi, conn.B().Arbitrary("EXEC").Build())...)
	for i := range results { // why a command is not taken is said before EXEC says that it does nothing
		if err = results[i].Error(); err != nil {
			conn.Close() // it may be in the middle of the transaction
			return valkey.ValkeyMessage{}, err
		}
	}
	return results[len(results)-1].ToMessage()
}
