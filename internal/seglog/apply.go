package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// apply carries out the plan's repairs in order. A crash at any step leaves a state whose plan is what remains to do.
func (p *Plan) apply(salvageDir string, log *slog.Logger, m *Metrics) (salvaged []string, err error) {
	for _, r := range p.Repairs {
		level := slog.LevelInfo
		switch r.Op {
		case "salvage":
			level = slog.LevelWarn
			var name string
			if name, err = p.salvage(r, salvageDir); err == nil {
				salvaged = append(salvaged, name)
			}
		case "lower-mark":
			level = slog.LevelWarn
			m, _, perr := segfmt.ParseMark(r.data)
			err = errors.Join(perr, putMark(p.fs, p.Dir, m))
		case "truncate":
			level = slog.LevelWarn
			err = truncateFile(p.fs, r.Path, r.Position)
		case "give-back":
			err = truncateFile(p.fs, r.Path, r.Position)
		case "remove":
			if err = p.fs.Remove(r.Path); err == nil {
				err = p.fs.SyncDir(p.Dir)
			}
		case "write":
			err = writeWhole(p.fs, r.Path, r.data)
		case "snapshot":
			err = vfs.WriteFileAtomic(p.fs, r.Path, r.data)
		default:
			panic("seglog: BUG: unknown repair " + r.Op)
		}
		if errors.Is(err, vfs.ErrNoSpace) && r.dispensable() {
			if r.Op == "snapshot" {
				p.snapshot = p.readFrom // retention waits for the next one
			}
			log.Warn("recovery: the disk is full, going on without", "file", r.Path, "error", err)
			continue
		}
		if err != nil {
			return salvaged, p.ioError(r.Op, r.Path, err)
		}
		m.repaired(r)
		log.Log(nil, level, "recovery: "+r.Op, "file", r.Path, "position", r.Position, "bytes", r.Bytes, "reason", r.Reason) //nolint:staticcheck // no context here
	}
	return salvaged, nil
}

// dispensable reports whether the log serves without what a repair writes: a full disk must not keep anybody from reading.
// Without an index a search reads the segment from its start; without a snapshot of the producers retention waits.
func (r *Repair) dispensable() bool { return r.Op == "write" || r.Op == "snapshot" }

func truncateFile(fs vfs.FS, name string, size int64) error {
	f, err := fs.Open(name, false)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// salvage copies the bytes that will be cut off to a file of their own.
func (p *Plan) salvage(r Repair, dir string) (string, error) {
	if dir == "" {
		dir = path.Join(p.Dir, "salvage")
	}
	b, err := vfs.ReadPart(p.fs, r.Path, r.Position, r.Bytes)
	if err != nil {
		return "", err
	}
	if err := vfs.MkdirSync(p.fs, dir); err != nil {
		return "", err
	}
	stem := path.Join(dir, fmt.Sprintf("%s-at-%d", path.Base(r.Path), r.Position))
	for i := 0; ; i++ {
		name := stem
		if i > 0 {
			name = fmt.Sprintf("%s-%d", stem, i)
		}
		got, err := vfs.ReadFile(p.fs, name, int64(len(b)))
		if err == nil && bytes.Equal(got, b) {
			return name, nil // a crash came between keeping and cutting
		}
		if errors.Is(err, vfs.ErrNotExist) {
			return name, vfs.WriteFileAtomic(p.fs, name, b)
		}
	}
}
