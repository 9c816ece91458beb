package server

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// former opens the data directory of a lost broker, for reading alone: no byte of it changes, and while it is open no broker
// starts on it.
func (s *server) former(dir string) (_ *broker.Former, err error) {
	if !filepath.IsAbs(dir) {
		return nil, fault.New(fault.InvalidArgument, "directory %q: it is to be absolute, as this broker's machine sees it", dir)
	}
	disk := vfs.ReadOnly{}
	o := &Offline{Dir: filepath.ToSlash(filepath.Clean(dir)), fs: disk, cfg: s.cfg}
	if _, err := disk.List(o.Dir + "/" + metadataDir); errors.Is(err, vfs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "%s is not a broker's data directory on this broker's machine: there is no %s in it", dir, metadataDir)
	} else if err != nil {
		return nil, fault.New(fault.IO, "read data directory %s: %w", dir, err)
	}
	o.lock, err = vfs.Hold(o.Dir + "/" + lockFile)
	var locked *vfs.LockedError
	switch {
	case errors.As(err, &locked):
		return nil, fault.New(fault.Unavailable, "data directory %s is in use: %w: stop that broker first", dir, err).With("holder", locked.Holder)
	case err != nil:
		return nil, fault.New(fault.IO, "lock data directory %s: %w", dir, err)
	}
	f, err := o.asFormer()
	if err != nil {
		return nil, errors.Join(err, o.lock.Close())
	}
	return f, nil
}

func (o *Offline) asFormer() (_ *broker.Former, err error) {
	if o.found, err = look(o.fs, o.Dir, thisMachine(), slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	o.Crash = decide(o.found).crash
	view, _, err := o.Metadata()
	if err != nil {
		return nil, err
	}
	return &broker.Former{FS: o.fs, Dir: o.Dir, Crash: o.Crash, View: view, Release: o.lock.Close}, nil
}
