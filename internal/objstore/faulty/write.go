package faulty

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/leveemq/levee/internal/objstore"
)

// PutIfAbsent implements objstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	return s.put(ctx, objstore.OpPutIfAbsent, key, src, func(ctx context.Context, src objstore.Source) (objstore.Info, error) {
		return s.under.PutIfAbsent(ctx, key, src)
	})
}

// PutIfMatch implements objstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, version objstore.Version, src objstore.Source) (objstore.Info, error) {
	return s.put(ctx, objstore.OpPutIfMatch, key, src, func(ctx context.Context, src objstore.Source) (objstore.Info, error) {
		return s.under.PutIfMatch(ctx, key, version, src)
	})
}

type putFunc func(ctx context.Context, src objstore.Source) (objstore.Info, error)

func (s *Store) put(ctx context.Context, op objstore.Op, key string, src objstore.Source, do putFunc) (objstore.Info, error) {
	if err := objstore.CheckPut(key, src); err != nil {
		return objstore.Info{}, err
	}
	t, err := s.begin(op)
	if err != nil {
		return objstore.Info{}, err
	}
	if err := s.refuse(ctx, op, key, t); err != nil {
		return objstore.Info{}, err
	}
	lost := objstore.Failure{Op: op, Key: key, Sent: true, Cause: errors.New("connection reset")}.Err()
	switch t.kind {
	case Torn:
		return objstore.Info{}, s.tear(ctx, op, key, src)
	case Late:
		if err := s.later(ctx, t, key, src, do); err != nil {
			return objstore.Info{}, err
		}
		return objstore.Info{}, lost
	}
	info, err := s.change(ctx, t.at, key, func() (objstore.Info, error) { return do(ctx, src) })
	if err != nil {
		return objstore.Info{}, err
	}
	switch t.kind {
	case LostAnswer:
		return objstore.Info{}, lost
	case OwnConflict:
		again := objstore.Failure{Op: op, Key: key, Status: 412, Sent: true, Cause: errors.New("precondition failed")}
		return objstore.Info{}, again.Err()
	case Rotten:
		s.mu.Lock()
		s.mu.rotten[key+"\x00"+string(info.Version)] = true
		s.mu.Unlock()
	}
	return info, nil
}

// change does a write and remembers what was there before.
func (s *Store) change(ctx context.Context, at int, key string, do func() (objstore.Info, error)) (objstore.Info, error) {
	was, herr := s.under.Head(ctx, key)
	info, err := do()
	if err == nil {
		s.mu.Lock()
		s.mu.changes[key] = change{at: at, was: was, had: herr == nil, gone: info.Key == ""}
		s.mu.Unlock()
	}
	return info, err
}

// tear reads half of the source, as an upload does that breaks off.
func (s *Store) tear(ctx context.Context, op objstore.Op, key string, src objstore.Source) error {
	up := src.Open(ctx)
	_, err := io.CopyN(io.Discard, up, src.Size()/2)
	_, broken := up.Stop()
	if err = errors.Join(err, broken); err != nil {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return objstore.Failure{Op: op, Key: key, Cause: errors.New("broken pipe")}.Err()
}

// later keeps a write for an operation to come. The source is the caller's again by then.
func (s *Store) later(ctx context.Context, t turn, key string, src objstore.Source, do putFunc) error {
	up := src.Open(ctx)
	data, err := io.ReadAll(up)
	if _, broken := up.Stop(); broken != nil || err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	after := context.WithoutCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.late = append(s.mu.late, lateWrite{t.at + s.cfg.Lag, func() error {
		_, err := s.change(after, t.at, key, func() (objstore.Info, error) { return do(after, objstore.Bytes(data)) })
		return err
	}})
	return nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	t, err := s.begin(objstore.OpDelete)
	if err != nil {
		return err
	}
	if err := s.refuse(ctx, objstore.OpDelete, key, t); err != nil {
		return err
	}
	_, err = s.change(ctx, t.at, key, func() (objstore.Info, error) { return objstore.Info{}, s.under.Delete(ctx, key) })
	if err == nil && t.kind == LostAnswer {
		err = objstore.Failure{Op: objstore.OpDelete, Key: key, Sent: true, Cause: errors.New("connection reset")}.Err()
	}
	return err
}
