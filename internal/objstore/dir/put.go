package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"syscall"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/vfs"
)

// PutIfAbsent implements objstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if err := errors.Join(objstore.CheckPut(key, src), ctx.Err()); err != nil {
		return objstore.Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	if _, err := s.fsys.Stat(s.path(key)); err == nil {
		return objstore.Info{}, s.taken(key) // without copying a large source first
	}
	tmp, t, err := s.write(ctx, key, src)
	if err != nil {
		return objstore.Info{}, failed("put", key, err)
	}
	defer s.fsys.Remove(tmp) //nolint:errcheck // swept later where it stays
	if err := s.link(key, tmp, t); err != nil {
		return objstore.Info{}, err
	}
	if err := s.fsys.SyncDir(path.Dir(s.path(key))); err != nil {
		return objstore.Info{}, doubt("put", key, err)
	}
	return t.info(key, time.Now()), nil
}

// attempts is how often a put makes its directory anew because somebody who emptied it has removed it.
const attempts = 50

// link gives the file its key's name.
func (s *Store) link(key, tmp string, t trailer) error {
	name := s.path(key)
	var err error
	for range attempts {
		err = s.mkdir(path.Dir(name))
		if errors.Is(err, vfs.ErrNotExist) || errors.Is(err, vfs.ErrExist) && !s.below(key) {
			continue // it went, or came and went, while it was made
		}
		if err != nil {
			return s.misplaced(key, err)
		}
		err = s.fsys.Link(tmp, name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, vfs.ErrExist):
			return s.takenBy(key, t)
		case errors.Is(err, vfs.ErrNotExist):
		case errors.Is(err, syscall.ENOTDIR):
			return s.misplaced(key, err)
		case errors.Is(err, vfs.ErrIO), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ETIMEDOUT):
			return doubt("put", key, err) // a server may have done it all the same
		default:
			return failed("put", key, err)
		}
	}
	return failed("put", key, err)
}

// mkdir makes a directory of objects durably. The root it does not make again: that is gone where its file system is not mounted
// any more, and what is put in its place is gone once it is.
func (s *Store) mkdir(dir string) error {
	if _, err := s.fsys.Stat(s.path(tmpDir)); err != nil {
		return err
	}
	return vfs.MkdirSync(s.fsys, dir)
}

// takenBy is taken, unless the name is this very file's: a server repeats a request whose answer was lost, and then finds
// the name taken by it.
func (s *Store) takenBy(key string, t trailer) error {
	f, there, err := s.open(key)
	if err == nil {
		f.Close()
		if there.id == t.id {
			return nil
		}
	}
	return s.taken(key)
}

// taken is the error of a put whose key's name is there. Before it says so, the name is made durable: whoever made it may
// have died before that.
func (s *Store) taken(key string) error {
	info, err := s.fsys.Stat(s.path(key))
	switch {
	case errors.Is(err, vfs.ErrNotExist): // deleted again; while it was there nothing could be put
	case err != nil:
		return failed("put", key, err)
	case info.Dir:
		return fmt.Errorf("put %s: %w: there are keys below it", key, objstore.ErrInvalid)
	}
	if err := s.fsys.SyncDir(path.Dir(s.path(key))); err != nil && !errors.Is(err, vfs.ErrNotExist) {
		return failed("put", key, err)
	}
	return fmt.Errorf("put %s: %w", key, objstore.ErrExists)
}

// misplaced is the error of a put whose directory cannot be made: because it would be below an object?
func (s *Store) misplaced(key string, cause error) error {
	if s.below(key) {
		return fmt.Errorf("put %s: %w: a part of it is an object", key, objstore.ErrInvalid)
	}
	return failed("put", key, cause)
}

// below reports whether a key is below an object.
func (s *Store) below(key string) bool {
	for at := path.Dir(key); at != "."; at = path.Dir(at) {
		if info, err := s.fsys.Stat(s.path(at)); err == nil && !info.Dir {
			return true
		}
	}
	return false
}

// PutIfMatch implements objstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, version objstore.Version, src objstore.Source) (objstore.Info, error) {
	if err := errors.Join(objstore.CheckMatch(key, version, src), ctx.Err()); err != nil {
		return objstore.Info{}, fmt.Errorf("replace %s: %w", key, err)
	}
	tmp, t, err := s.write(ctx, key, src)
	if err != nil {
		return objstore.Info{}, failed("replace", key, err)
	}
	defer s.fsys.Remove(tmp) //nolint:errcheck // it has got another name, or is swept later
	unlock, err := s.acquire(ctx, key)
	if err != nil {
		return objstore.Info{}, failed("replace", key, err)
	}
	defer unlock()
	f, old, err := s.open(key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return objstore.Info{}, fmt.Errorf("replace %s: %w", key, objstore.ErrConflict)
	case err != nil:
		return objstore.Info{}, opened(objstore.OpPutIfMatch, key, err)
	}
	f.Close()
	parent := path.Dir(s.path(key))
	if old.version() != version {
		if err := s.fsys.SyncDir(parent); err != nil { // who is told of a newer version builds on it
			return objstore.Info{}, failed("replace", key, err)
		}
		return objstore.Info{}, fmt.Errorf("replace %s: %w: it has version %s", key, objstore.ErrConflict, old.version())
	}
	if err := s.fsys.Rename(tmp, s.path(key)); err != nil {
		return objstore.Info{}, doubt("replace", key, err)
	}
	if err := s.fsys.SyncDir(parent); err != nil {
		return objstore.Info{}, doubt("replace", key, err)
	}
	return t.info(key, time.Now()), nil
}

// write makes a durable file of the source under a temporary name.
func (s *Store) write(ctx context.Context, key string, src objstore.Source) (tmp string, t trailer, err error) {
	tmp = s.path(tmpDir + "/" + rand.Text())
	t = trailer{size: src.Size(), id: randomID(), crc: src.CRC32C()}
	f, err := s.fsys.Open(tmp, true)
	if err != nil {
		return "", trailer{}, err
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = s.fsys.Remove(tmp) // swept later where it stays
		}
	}()
	up := src.Open(ctx)
	defer up.Stop() //nolint:errcheck // reading has told
	buf := make([]byte, min(copying, src.Size()))
	var off, flushed int64
	for off < src.Size() {
		n, err := up.Read(buf)
		if err != nil {
			return "", trailer{}, err
		}
		if _, err := f.WriteAt(buf[:n], off); err != nil {
			return "", trailer{}, err
		}
		if off += int64(n); off-flushed >= flushing {
			if err := f.Sync(); err != nil {
				return "", trailer{}, err
			}
			flushed = off
		}
	}
	if _, err := f.WriteAt(t.encode(), off); err != nil {
		return "", trailer{}, err
	}
	if err := ctx.Err(); err != nil { // as long as nothing can be seen of it
		return "", trailer{}, err
	}
	return tmp, t, f.Sync()
}
