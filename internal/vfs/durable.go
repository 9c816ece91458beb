package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// MkdirSync makes dir and its missing parents, and makes every new name durable before anything is put below it. A
// directory that is there already may be what a crashed run made last, so its name is synced as well.
func MkdirSync(fsys FS, dir string) error {
	dir = path.Clean(dir)
	var missing []string // innermost first
	at := dir
	for {
		info, err := fsys.Stat(at)
		if err == nil {
			if !info.Dir {
				return fmt.Errorf("make directory %s: %s is a file", dir, at)
			}
			break
		}
		if !errors.Is(err, ErrNotExist) || at == path.Dir(at) {
			return fmt.Errorf("make directory %s: %w", dir, err)
		}
		missing = append(missing, at)
		at = path.Dir(at)
	}
	// A parent that may not be read is not one that an earlier run could have made this directory in: it would have
	// failed there.
	if err := fsys.SyncDir(path.Dir(at)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := fsys.MkdirAll(missing[i]); err != nil {
			return fmt.Errorf("make directory %s: %w", dir, err)
		}
		if err := fsys.SyncDir(path.Dir(missing[i])); err != nil {
			return fmt.Errorf("make directory %s: %w", dir, err)
		}
	}
	return nil
}

// WriteFileAtomic replaces the content of name, or creates it, so that a crash at any moment leaves the old file or
// the new one, whole. When it returns nil the new one is durable; after an error it is one of the two. It uses
// name + ".tmp" in the same directory, which two calls for one name must not do at the same time.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeSynced(fsys, tmp, data); err != nil {
		// Not to take space from whoever deals with the error; what is left is overwritten next time.
		_ = fsys.Remove(tmp)
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeSynced(fsys FS, name string, data []byte) (err error) {
	f, err := fsys.Open(name, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(0); err != nil { // left by a crash
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Sync()
}

// ErrTooLarge is returned by ReadFile for a file above the limit.
var ErrTooLarge = errors.New("file is larger than allowed")

// ReadFile returns the content of name, or ErrTooLarge, before memory is taken, when it has more than limit bytes.
func ReadFile(fsys FS, name string, limit int64) (data []byte, err error) {
	f, err := fsys.Open(name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("read %s: %w: %d bytes, limit %d", name, ErrTooLarge, size, limit)
	}
	if data, err = ReadPartOf(f, 0, size); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// ReadPart returns up to n bytes of name from a position on, fewer where the file ends before.
func ReadPart(fsys FS, name string, position, n int64) (data []byte, err error) {
	f, err := fsys.Open(name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	return ReadPartOf(f, position, max(0, min(n, size-position)))
}

// ReadPartOf returns n bytes that are there: io.ErrUnexpectedEOF says that they are not.
func ReadPartOf(f File, position, n int64) ([]byte, error) {
	b := make([]byte, n)
	if err := ReadFull(f, b, position); err != nil {
		return nil, err
	}
	return b, nil
}

// ReadFull fills b with what is in f from a position on: io.ErrUnexpectedEOF says that it is not there.
func ReadFull(f File, b []byte, position int64) error {
	n, err := f.ReadAt(b, position)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // cut while it was read
	}
	return err
}

// Exists reports whether there is a file or directory of that name.
func Exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RemoveAll removes a file, or a directory and all in it, one name at a time, each removal durable before the next.
// When it returns nil the name is durably gone. One that was gone before is not an error, but its directory is synced
// all the same: the removal may be that of a run that crashed before it was durable.
func RemoveAll(fsys FS, dir string) error {
	info, err := fsys.Stat(dir)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	gone := err != nil
	err = removeAll(fsys, dir, info.Dir)
	if gone && errors.Is(err, ErrNotExist) {
		return nil // its parent is gone as well
	}
	return err
}

// removeAll is told by the parent's list what is a directory: a symbolic link to one is not.
func removeAll(fsys FS, name string, dir bool) error {
	if dir {
		list, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, child := range list {
			if err := removeAll(fsys, path.Join(name, child.Name), child.Dir); err != nil {
				return err
			}
		}
	}
	if err := fsys.Remove(name); err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}
