package raft

import (
	"fmt"

	"github.com/leveemq/levee/internal/vfs"
)

// DamagedSnapshots reads every snapshot in a directory and returns what is wrong with those that are not whole. A start does
// without them where an older one and the log tell everything.
func DamagedSnapshots(fsys vfs.FS, dir string) (damaged []error, err error) {
	files, err := listSnapshots(fsys, dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if _, err := readSnapshot(fsys, f); err != nil {
			damaged = append(damaged, fmt.Errorf("snapshot %s: %w", f.path, err))
		}
	}
	return damaged, nil
}
