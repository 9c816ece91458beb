package dir

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/vfs"
)

// List implements objstore.Store. It reads one directory at a time and no file, so it tells neither versions nor
// checksums.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := objstore.CheckPrefix(prefix); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		w := walk{s: s, ctx: ctx, prefix: prefix, after: after, yield: yield}
		from := ""
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			from = prefix[:i+1]
		}
		if from != "" && objstore.CheckKey(strings.TrimSuffix(from, "/")) != nil {
			return // no key begins so, and the path may lead elsewhere
		}
		w.dir(from)
	}
}

type walk struct {
	s             *Store
	ctx           context.Context // of the one List that it is
	prefix, after string
	yield         func(objstore.Info, error) bool
}

// dir yields what is below a directory, whose name ends in a slash or is empty, in the order of the keys: a directory
// stands where its name with the slash belongs. It reports whether to go on.
func (w *walk) dir(at string) bool {
	if err := w.ctx.Err(); err != nil {
		return w.fail(err)
	}
	list, err := w.s.fsys.List(path.Join(w.s.root, at))
	if errors.Is(err, vfs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return true // removed meanwhile, or no key begins so
	}
	if err != nil {
		return w.fail(err)
	}
	list = slices.DeleteFunc(list, func(e vfs.Info) bool { return strings.HasPrefix(e.Name, ".") })
	for i := range list {
		list[i].Name = at + list[i].Name
		if list[i].Dir {
			list[i].Name += "/"
		}
	}
	slices.SortFunc(list, func(a, b vfs.Info) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range list {
		switch {
		case e.Dir && w.mayHold(e.Name):
			if !w.dir(e.Name) {
				return false
			}
		case !e.Dir && strings.HasPrefix(e.Name, w.prefix) && e.Name > w.after:
			if !w.yield(objstore.Info{Key: e.Name, Size: max(0, e.Size-trailerSize), Modified: e.ModTime}, nil) {
				return false
			}
		}
	}
	return true
}

// mayHold reports whether keys that are wanted may be below a directory.
func (w *walk) mayHold(at string) bool {
	wanted := strings.HasPrefix(at, w.prefix) || strings.HasPrefix(w.prefix, at)
	return wanted && (at > w.after || strings.HasPrefix(w.after, at))
}

func (w *walk) fail(err error) bool {
	w.yield(objstore.Info{}, failed("list", w.prefix, fmt.Errorf("below %s: %w", w.s.root, err)))
	return false
}

// Delete implements objstore.Store. Directories that it empties go as well.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := errors.Join(objstore.CheckKey(key), ctx.Err()); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	unlock, err := s.acquire(ctx, key)
	if err != nil {
		return failed("delete", key, err)
	}
	defer unlock()
	name := s.path(key)
	info, err := s.fsys.Stat(name)
	if err == nil && info.Dir {
		return nil // no object
	}
	err = s.fsys.Remove(name)
	gone := errors.Is(err, vfs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	if err != nil && !gone {
		return failed("delete", key, err)
	}
	err = s.fsys.SyncDir(path.Dir(name)) // also where it was gone: whoever removed it may have died before that
	if err != nil && !(gone && (errors.Is(err, vfs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR))) {
		return doubt("delete", key, err)
	}
	for d := path.Dir(key); d != "."; d = path.Dir(d) {
		if s.fsys.Remove(s.path(d)) != nil {
			break // not empty. One that a crash brings back is as good as none
		}
	}
	return nil
}
