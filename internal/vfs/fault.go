package vfs

// Inject returns fsys with a hook before every operation, as Mem.SetHook has one. It is for tests that want the real
// file system: an operation for which the hook returns an error is not passed on at all (so a failed Sync has not
// synced, and the system's cache is as it was), and a ShortWrite passes a part on.
func Inject(fsys FS, hook func(Op) error) FS {
	in := &injected{fs: fsys}
	in.hooks.set(hook)
	return in
}

type injected struct {
	fs    FS
	hooks hooks
}

func (in *injected) Open(name string, create bool) (File, error) {
	kind := OpOpen
	if create {
		kind = OpCreate
	}
	if err := in.hooks.before(Op{Kind: kind, Path: name}); err != nil {
		return nil, err
	}
	f, err := in.fs.Open(name, create)
	if err != nil {
		return nil, err
	}
	return &injectedFile{File: f, in: in, name: name}, nil
}

func (in *injected) Rename(oldname, newname string) error {
	if err := in.hooks.before(Op{Kind: OpRename, Path: oldname, To: newname}); err != nil {
		return err
	}
	return in.fs.Rename(oldname, newname)
}

func (in *injected) Link(oldname, newname string) error {
	if err := in.hooks.before(Op{Kind: OpLink, Path: oldname, To: newname}); err != nil {
		return err
	}
	return in.fs.Link(oldname, newname)
}

func (in *injected) Remove(name string) error {
	if err := in.hooks.before(Op{Kind: OpRemove, Path: name}); err != nil {
		return err
	}
	return in.fs.Remove(name)
}

func (in *injected) MkdirAll(dir string) error {
	if err := in.hooks.before(Op{Kind: OpMkdir, Path: dir}); err != nil {
		return err
	}
	return in.fs.MkdirAll(dir)
}

func (in *injected) List(dir string) ([]Info, error) {
	if err := in.hooks.before(Op{Kind: OpList, Path: dir}); err != nil {
		return nil, err
	}
	return in.fs.List(dir)
}

func (in *injected) Stat(name string) (Info, error) {
	if err := in.hooks.before(Op{Kind: OpStat, Path: name}); err != nil {
		return Info{}, err
	}
	return in.fs.Stat(name)
}

func (in *injected) SyncDir(dir string) error {
	if err := in.hooks.before(Op{Kind: OpSyncDir, Path: dir}); err != nil {
		return err
	}
	return in.fs.SyncDir(dir)
}

// injectedFile takes Size and Close from the file below: they are not operations that a hook sees.
type injectedFile struct {
	File
	in   *injected
	name string
}

var _ Advisor = (*injectedFile)(nil)

func (f *injectedFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.in.hooks.before(Op{Kind: OpRead, Path: f.name, Off: off, Len: int64(len(p))}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *injectedFile) WriteAt(p []byte, off int64) (int, error) {
	p, hook := f.in.hooks.beforeWrite(f.name, p, off)
	if hook != nil && len(p) == 0 {
		return 0, hook
	}
	n, err := f.File.WriteAt(p, off)
	if err == nil {
		err = hook
	}
	return n, err
}

func (f *injectedFile) Truncate(size int64) error {
	if err := f.in.hooks.before(Op{Kind: OpTruncate, Path: f.name, Off: size}); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *injectedFile) Sync() error {
	if err := f.in.hooks.before(Op{Kind: OpSync, Path: f.name}); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *injectedFile) Reserve(off, n int64) error {
	if err := f.in.hooks.before(Op{Kind: OpReserve, Path: f.name, Off: off, Len: n}); err != nil {
		return err
	}
	return f.File.Reserve(off, n)
}

func (f *injectedFile) DropCache(off, n int64) error {
	if err := f.in.hooks.before(Op{Kind: OpDropCache, Path: f.name, Off: off, Len: n}); err != nil {
		return err
	}
	if a, ok := f.File.(Advisor); ok {
		return a.DropCache(off, n)
	}
	return nil
}

func (f *injectedFile) WillNeed(off, n int64) error {
	if a, ok := f.File.(Advisor); ok {
		return a.WillNeed(off, n)
	}
	return nil
}
