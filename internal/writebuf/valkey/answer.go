package valkey

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

// prefixes says what an error answer means by how it begins; the library takes "ERR " away. Every one of them is given before anything is changed.
var prefixes = []struct {
	prefix string
	means  error
}{
	{"OOM ", writebuf.ErrFull},
	{"READONLY ", writebuf.ErrReadOnly},
	{"MISCONF ", writebuf.ErrReadOnly},
	{"NOREPLICAS ", writebuf.ErrReadOnly},
	{"NOAUTH ", writebuf.ErrDenied},
	{"NOPERM ", writebuf.ErrDenied},
	{"WRONGPASS ", writebuf.ErrDenied},
	{"WRONGTYPE ", writebuf.ErrForeign},
	{"LOADING ", writebuf.ErrUnavailable},
	{"BUSY ", writebuf.ErrUnavailable},
	{"MASTERDOWN ", writebuf.ErrUnavailable},
	{"CLUSTERDOWN ", writebuf.ErrUnavailable},
	{"TRYAGAIN ", writebuf.ErrUnavailable},
	{"MOVED ", writebuf.ErrUnavailable},
	{"ASK ", writebuf.ErrUnavailable},
	{"max number of clients reached", writebuf.ErrUnavailable},
}

// sentinelOf says what an error means; unanswered is what it means where the server did not answer.
func sentinelOf(err error, unanswered error) error {
	ve, answered := asAnswer(err)
	if !answered {
		return unanswered
	}
	text := plain(ve)
	for _, p := range prefixes {
		if strings.HasPrefix(text, p.prefix) {
			return p.means
		}
	}
	switch {
	// An error inside of a script is wrapped by older servers: "Error running script (call to f_…): @user_script:…: -OOM …"
	case strings.Contains(text, "-OOM ") || strings.Contains(text, "OOM command not allowed"):
		return writebuf.ErrFull
	case strings.Contains(text, "WRONGTYPE "):
		return writebuf.ErrForeign
	case strings.Contains(text, "-NOPERM ") || strings.Contains(text, "can't run this command") || strings.Contains(text, "No permissions"):
		return writebuf.ErrDenied
	case strings.Contains(text, "READONLY "), strings.Contains(text, "-MISCONF "), strings.Contains(text, "-NOREPLICAS "):
		return writebuf.ErrReadOnly
	}
	return writebuf.ErrRefused
}

// asAnswer returns the error that the server answered with, if it did. (The library's own test does not unwrap.)
func asAnswer(err error) (*valkey.ValkeyError, bool) {
	var ve *valkey.ValkeyError
	ok := errors.As(err, &ve) && !ve.IsNil()
	return ve, ok
}

func plain(ve *valkey.ValkeyError) string { return ve.Error() }

func begins(err error, prefix string) bool {
	ve, ok := asAnswer(err)
	return ok && strings.HasPrefix(plain(ve), prefix)
}

// isDial reports that there was no connection.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func isNoScript(err error) bool { return begins(err, "NOSCRIPT") }
func isMoved(err error) bool    { return begins(err, "MOVED ") }

// isSmallID reports that XADD found a higher id: the stream once had entries that the record does not know of.
func isSmallID(err error) bool {
	ve, ok := asAnswer(err)
	return ok && strings.Contains(plain(ve), "equal or smaller than the target stream")
}

var errNoAnswer = errors.New("it is empty")

// answer is what a script returns: a word, and what goes with it.
type answer []valkey.ValkeyMessage

func readAnswer(msg valkey.ValkeyMessage) (word string, rest answer, err error) {
	list, err := msg.ToArray()
	if err == nil && len(list) > 0 {
		if word, err = list[0].ToString(); err == nil {
			return word, list[1:], nil
		}
	}
	return "", nil, fmt.Errorf("%w: its answer cannot be read: %w", writebuf.ErrForeign, cmp.Or(err, errNoAnswer))
}

// number reads field i, an integer or a decimal in text; false where it is neither.
func (a answer) number(i int) (uint64, bool) {
	if i >= len(a) {
		return 0, false
	}
	if n, err := a[i].ToInt64(); err == nil {
		return uint64(n), n >= 0
	}
	text, err := a[i].ToString()
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// seqOf reads an entry's id; false for one that was not written here.
func seqOf(id string) (uint64, bool) {
	ms, n, ok := strings.Cut(id, "-")
	if !ok || n != "0" {
		return 0, false
	}
	seq, err := strconv.ParseUint(ms, 10, 64)
	return seq, err == nil && seq > 0 && seq <= writebuf.MaxSeq
}

// state reads what the scripts return of the record, and with the ends what they found.
func (a answer) state(ends bool) (writebuf.State, error) {
	var n [5]uint64
	for i := range n {
		v, ok := a.number(i)
		if !ok {
			return writebuf.State{}, fmt.Errorf("%w: field %d of the record cannot be read", writebuf.ErrForeign, i)
		}
		n[i] = v
	}
	s := writebuf.State{Known: n[0] == 1, Generation: uint32(min(n[1], 1<<32-1)), Floor: n[2], Last: n[3], Count: n[4]}
	if !ends || s.Count == 0 {
		return s, nil
	}
	for i, to := range []*uint64{&s.First, &s.End} {
		if len(a) < 7 {
			return s, fmt.Errorf("%w: no ends", writebuf.ErrForeign)
		}
		id, err := a[5+i].ToString()
		seq, ok := seqOf(id)
		if err != nil || !ok {
			return s, fmt.Errorf("%w: entry %q", writebuf.ErrForeign, id)
		}
		*to = seq
	}
	return s, nil
}

// outcomes are the label values of failures, and their errors.
var outcomes = []struct {
	name string
	err  error
}{
	{"fenced", writebuf.ErrFenced}, {"unconfirmed", writebuf.ErrUnconfirmed}, {"unknown", writebuf.ErrOutcomeUnknown},
	{"unavailable", writebuf.ErrUnavailable}, {"read_only", writebuf.ErrReadOnly}, {"full", writebuf.ErrFull},
	{"denied", writebuf.ErrDenied}, {"foreign", writebuf.ErrForeign}, {"corrupt", writebuf.ErrCorrupt},
	{"lost", writebuf.ErrLost}, {"missing", writebuf.ErrMissing}, {"trimmed", writebuf.ErrTrimmed},
	{"invalid", writebuf.ErrInvalid}, {"refused", writebuf.ErrRefused}, {"closed", writebuf.ErrClosed},
	{"unsupported", writebuf.ErrUnsupported}, {"forgotten", writebuf.ErrForgotten},
}

func outcome(err error) string {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "other"
}
