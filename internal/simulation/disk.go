package simulation

import (
	"errors"
	"strconv"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// DiskDelays says how long operations take.
type DiskDelays struct {
	Least  time.Duration // default 100µs
	Jitter time.Duration // up to this much more
}

// maxFile bounds what a node may find in one file.
const maxFile = 1 << 26

// disk is a node's disk: a crashable file system, and what is queued for it.
type disk struct {
	w     *World
	id    NodeID
	fs    *vfs.Mem
	ready map[string]time.Duration // when the last operation on a file is done

	crashIn  int      // operations until the node crashes at one; 0: it does not
	kind     Crash    // of that crash
	failSync int      // syncs until one fails; 0: none does
	dying    *vfs.Mem // what the crash that just struck left
}

var errDying = errors.New("the node is dead")

func newDisk(w *World, id NodeID) *disk {
	return &disk{w: w, id: id, fs: vfs.NewMem()}
}

// boot attaches the disk to a new life.
func (d *disk) boot() {
	d.ready = map[string]time.Duration{}
	d.crashIn, d.failSync, d.dying = 0, 0, nil
	d.fs.SetHook(func(op vfs.Op) error {
		switch {
		case d.dying != nil:
			return errDying
		case !op.Kind.Changes():
			return nil
		}
		if d.crashIn > 0 {
			if d.crashIn--; d.crashIn == 0 {
				d.dying = d.image(d.kind)
				return errDying
			}
		}
		if d.failSync > 0 && op.Kind == vfs.OpSync {
			if d.failSync--; d.failSync == 0 {
				d.w.Stats.SyncErrors++
				return vfs.ErrIO
			}
		}
		return nil
	})
}

// image is what a crash now leaves.
func (d *disk) image(kind Crash) *vfs.Mem {
	if kind != MachineCrash {
		return d.fs.Crash(vfs.KeepAll)
	}
	choose := Losses(d.w.choices, "loss "+string(d.id))
	return d.fs.Crash(vfs.ChooserFunc(func(u vfs.Unsynced) vfs.Fate {
		fate := choose.Decide(u)
		d.w.Stats.UnsyncedFound++
		if fate.How != vfs.Kept {
			d.w.Stats.UnsyncedHurt++
			d.w.Trace.Step("%s %s   loses %s of %s, %d bytes at %d (%d)", d.w.stamp(), d.id, u.Kind, u.Path, u.Len, u.Off, fate.How)
		}
		return fate
	}))
}

// files is what is on the disk, in the order of names. It is read from the device, not from a cache that a failed sync
// has left with bytes the device does not have; what was not synced yet is in it all the same.
func (d *disk) files() []File {
	infos, err := d.fs.List("/")
	if err != nil {
		panic("simulation: BUG: " + err.Error())
	}
	var files []File
	for _, info := range infos {
		b, err := d.find(info.Name)
		if err != nil {
			panic("simulation: BUG: " + err.Error())
		}
		files = append(files, File{info.Name, b})
	}
	return files
}

func (d *disk) find(name string) ([]byte, error) {
	f, err := d.fs.Open(name, false)
	if err != nil {
		return nil, err
	}
	if a, ok := f.(vfs.Advisor); ok {
		err = a.DropCache(0, 0)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return vfs.ReadFile(d.fs, name, maxFile)
}

// queueDisk has an operation done, and answered, when its turn comes.
func (w *World) queueDisk(n *node, f Disk) {
	o := w.options.Disk
	took := max(o.Least, 0)
	if took == 0 {
		took = 100 * time.Microsecond
	}
	if o.Jitter > 0 {
		took += o.Jitter * time.Duration(w.choices.Draw("disk "+string(n.id), 16)) / 16
	}
	name := f.File
	if f.Op == DiskSyncDir {
		name = "/"
	}
	done := max(w.now+took, n.disk.ready[name])
	n.disk.ready[name] = done
	w.whileAlive(n, done-w.now, func() {
		data, err := n.disk.do(f)
		if dead := n.disk.dying; dead != nil {
			w.crash(n, n.disk.kind, dead, "crash during disk operation "+strconv.FormatUint(f.ID, 10))
			return
		}
		w.step(n, DiskDone{ID: f.ID, Err: err, Data: data})
	})
}

// do carries out one operation.
func (d *disk) do(f Disk) ([]byte, error) {
	switch f.Op {
	case DiskSyncDir:
		return nil, d.fs.SyncDir("/")
	case DiskReplace:
		return nil, vfs.WriteFileAtomic(d.fs, f.File, f.Data)
	case DiskRemove:
		return nil, d.fs.Remove(f.File)
	case DiskRead:
		return vfs.ReadFile(d.fs, f.File, maxFile)
	}
	file, err := d.fs.Open(f.File, f.Op == DiskWrite)
	if err != nil {
		return nil, err
	}
	switch f.Op {
	case DiskWrite:
		_, err = file.WriteAt(f.Data, f.Off)
	case DiskTruncate:
		err = file.Truncate(f.Off)
	case DiskSync:
		err = file.Sync()
	default:
		panic("simulation: BUG: unknown disk operation")
	}
	return nil, errors.Join(err, file.Close())
}
