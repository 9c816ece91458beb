package partition

import (
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/leveemq/levee/internal/vfs"
)

// Dirs makes the directories of logs that lie below one root, and makes their names durable. Logs that are made at the
// same time share the flushes of the directories that are common to them: a broker on which very many topics are created
// would spend most of its time on those otherwise. It is safe for concurrent use.
type Dirs struct {
	fs   vfs.FS
	root string
	kept int

	mu     sync.Mutex
	common map[string]*commonDir // guarded by mu
}

// commonDir is the root, or a directory that stays once it is there.
type commonDir struct {
	durable bool       // guarded by Dirs.mu; its name is on the device
	next    *dirFlush  // guarded by Dirs.mu; the flush that has not begun, which whoever comes now shares
	running sync.Mutex // held by the flush that runs
}

// dirFlush is one SyncDir that serves everybody who came before it began.
type dirFlush struct {
	done chan struct{} // closed once err is set
	err  error
}

// NewDirs returns the directories below root, of which nobody ever removes the uppermost levels, kept of them.
func NewDirs(fs vfs.FS, root string, kept int) *Dirs {
	return &Dirs{fs: fs, root: path.Clean(root), kept: kept, common: map[string]*commonDir{}}
}

// Make makes dir, which must lie below the root, with all above it. When it returns nil the names of all of them are on
// the device, also where an earlier attempt, or a process that died, had made some of them.
func (d *Dirs) Make(dir string) error {
	dir = path.Clean(dir)
	below, ok := strings.CutPrefix(dir, strings.TrimSuffix(d.root, "/")+"/")
	if !ok {
		return fmt.Errorf("make directory %s: it is not below %s", dir, d.root)
	}
	if err := d.keep(d.root, func() error { return vfs.MkdirSync(d.fs, d.root) }); err != nil {
		return err
	}
	if err := d.fs.MkdirAll(dir); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	// From above: the flush of a directory that is common to many most likely finds the device busy with what the others
	// of them made, and leaves little for those of one log alone.
	at := d.root
	for level, name := range strings.Split(below, "/") {
		parent := at
		at = path.Join(at, name)
		var err error
		switch {
		case level < d.kept:
			err = d.keep(at, func() error { return d.flush(parent) })
		case level == d.kept:
			err = d.flush(parent)
		default:
			err = d.fs.SyncDir(parent)
		}
		if err != nil {
			return fmt.Errorf("make directory %s: %w", dir, err)
		}
	}
	return nil
}

// keep makes dir's name durable, by calling sync, unless this process has done so before.
func (d *Dirs) keep(dir string, sync func() error) error {
	d.mu.Lock()
	durable := d.dir(dir).durable
	d.mu.Unlock()
	if durable {
		return nil
	}
	if err := sync(); err != nil {
		return err
	}
	d.mu.Lock()
	d.dir(dir).durable = true
	d.mu.Unlock()
	return nil
}

// dir returns what is known of a common directory. The caller holds mu.
func (d *Dirs) dir(name string) *commonDir {
	c := d.common[name]
	if c == nil {
		c = &commonDir{}
		d.common[name] = c
	}
	return c
}

// flush makes the names in a common directory durable that are there now.
func (d *Dirs) flush(name string) error {
	d.mu.Lock()
	c := d.dir(name)
	if f := c.next; f != nil {
		d.mu.Unlock()
		<-f.done
		return f.err
	}
	f := &dirFlush{done: make(chan struct{})}
	c.next = f
	d.mu.Unlock()
	c.running.Lock()
	defer c.running.Unlock()
	d.mu.Lock()
	c.next = nil // whoever comes now may have made a name that this flush misses
	d.mu.Unlock()
	f.err = d.fs.SyncDir(name)
	close(f.done)
	return f.err
}
