package faulty

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/objstore"
)

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := objstore.CheckRange(key, off); err != nil {
		return nil, err
	}
	t, err := s.begin(objstore.OpGet)
	if err != nil {
		return nil, err
	}
	if err := s.refuse(ctx, objstore.OpGet, key, t); err != nil {
		return nil, err
	}
	under, err := s.under.Get(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	rotten := s.mu.rotten[key+"\x00"+string(under.Info.Version)]
	s.mu.Unlock()
	var content io.ReadCloser = under
	if rotten {
		content = &rottenReader{ReadCloser: under, at: off, bad: int64(len(key)) * 7919 % max(under.Info.Size, 1)}
	}
	r := &badReader{ctx: ctx, under: content, turn: t, length: under.Len, bandwidth: s.cfg.Bandwidth}
	info, length := under.Info, under.Len
	if t.kind == Truncated && length > 0 && off+length == info.Size {
		info.Size--
		length--
	}
	if length == 0 && slices.Contains([]Kind{Short, Cut, Flipped, Shifted, HangMid, Truncated}, t.kind) {
		_ = under.Close() // there is no byte that something could happen to
		return nil, objstore.Failure{Op: objstore.OpGet, Key: key, Cause: errors.New("connection reset")}.Err()
	}
	return objstore.NewBody(ctx, info, off, length, r), nil
}

// rottenReader is the content of an object that rotted: the same byte is another one for whoever reads it, whatever else
// happens on the way.
type rottenReader struct {
	io.ReadCloser
	at  int64 // in the object, of what comes next
	bad int64
}

// Read implements io.Reader.
func (r *rottenReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if i := r.bad - r.at; i >= 0 && i < int64(n) {
		p[i] ^= 0xff
	}
	r.at += int64(n)
	return n, err
}

// badReader is the content of a body that something happens to.
type badReader struct {
	ctx       context.Context // of the Get that it belongs to
	under     io.ReadCloser
	turn      turn
	length    int64
	at        int64
	bandwidth int64
	first     []byte // Shifted: what comes last
}

// Read implements io.Reader.
func (r *badReader) Read(p []byte) (int, error) {
	if r.turn.kind == Shifted && r.first == nil {
		r.first = make([]byte, 1)
		if _, err := io.ReadFull(r.under, r.first); err != nil {
			return 0, err
		}
	}
	half := r.length / 2
	stops := r.turn.kind == Short || r.turn.kind == Cut || r.turn.kind == HangMid
	if stops {
		if r.at >= half {
			return 0, r.stop()
		}
		p = p[:min(int64(len(p)), half-r.at)]
	}
	n, err := r.under.Read(p)
	if r.turn.kind == Shifted && errors.Is(err, io.EOF) && n == 0 && len(r.first) > 0 && len(p) > 0 {
		n, err = copy(p, r.first), nil
		r.first = r.first[:0]
	}
	if bit := int64(r.turn.luck % uint64(8*r.length)); r.turn.kind == Flipped && bit/8 >= r.at && bit/8 < r.at+int64(n) {
		p[bit/8-r.at] ^= 1 << (bit % 8)
	}
	r.at += int64(n)
	if r.bandwidth > 0 && n > 0 {
		if err := pause(r.ctx, time.Duration(n)*time.Second/time.Duration(r.bandwidth)); err != nil {
			return n, err
		}
	}
	return n, err
}

func (r *badReader) stop() error {
	switch r.turn.kind {
	case Short:
		return io.EOF
	case HangMid:
		<-r.ctx.Done()
		return r.ctx.Err()
	}
	return errors.New("connection reset")
}

// Close implements io.Closer.
func (r *badReader) Close() error { return r.under.Close() }

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	t, err := s.begin(objstore.OpHead)
	if err != nil {
		return objstore.Info{}, err
	}
	if err := s.refuse(ctx, objstore.OpHead, key, t); err != nil {
		return objstore.Info{}, err
	}
	s.mu.Lock()
	last, changed := s.mu.changes[key]
	s.mu.Unlock()
	if t.kind == Stale && changed {
		if !last.had {
			return objstore.Info{}, fmt.Errorf("head %s: %w", key, objstore.ErrNotFound)
		}
		return last.was, nil
	}
	return s.under.Head(ctx, key)
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := objstore.CheckPrefix(prefix); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		t, err := s.begin(objstore.OpList)
		if err == nil {
			err = s.refuse(ctx, objstore.OpList, prefix, t)
		}
		if err != nil {
			yield(objstore.Info{}, err)
			return
		}
		var found []objstore.Info
		for info, err := range s.under.List(ctx, prefix, after) {
			if err != nil {
				yield(objstore.Info{}, err)
				return
			}
			found = append(found, info)
		}
		if t.kind == Lagging {
			found = s.yesterday(found, prefix, after, t.at)
		}
		for i, info := range found {
			if t.kind == Half && i == len(found)/2 {
				break
			}
			if !yield(info, nil) {
				return
			}
		}
		if t.kind == Half {
			yield(objstore.Info{}, objstore.Failure{Op: objstore.OpList, Key: prefix, Cause: errors.New("connection reset")}.Err())
		}
	}
}

// yesterday takes out of a list what was put last, and puts in what was deleted last.
func (s *Store) yesterday(found []objstore.Info, prefix, after string, now int) []objstore.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := func(key string) (change, bool) {
		c, ok := s.mu.changes[key]
		return c, ok && c.at+s.cfg.Lag >= now
	}
	found = slices.DeleteFunc(found, func(info objstore.Info) bool {
		c, ok := recent(info.Key)
		return ok && !c.had
	})
	for key := range s.mu.changes {
		c, ok := recent(key)
		if ok && c.gone && c.had && strings.HasPrefix(key, prefix) && key > after {
			found = append(found, c.was)
		}
	}
	slices.SortFunc(found, func(a, b objstore.Info) int { return strings.Compare(a.Key, b.Key) })
	return found
}
