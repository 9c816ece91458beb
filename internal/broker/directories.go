package broker

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/vfs"
)

// Directories below the data directory that are the broker's.
const (
	topicsDir  = "topics"   // <namespace>/<name>@<incarnation>/<partition>/
	deletedDir = ".deleted" // <topic id>/: what is being removed
	salvageDir = "salvage"  // laid out as topics: bytes that recovery cut off
)

// keptDirs is how many levels below the data directory stay once they are there: topicsDir and the namespaces' in it.
const keptDirs = 2

// incarnationDir returns where one incarnation's data is below topicsDir. "@" is in no name, and both parts together are
// shorter than the 255 bytes that a file name may have.
func incarnationDir(n meta.Name, incarnation uint64) string {
	return path.Join(n.Namespace, n.Topic+"@"+strconv.FormatUint(incarnation, 10))
}

// layout is where things are in a data directory.
type layout struct {
	fs   vfs.FS
	root string
}

// topic returns where one incarnation's partitions are.
func (l layout) topic(n meta.Name, incarnation uint64) string {
	return path.Join(l.root, topicsDir, incarnationDir(n, incarnation))
}

// partition returns where one partition's data is, and what recovery cuts off it.
func (l layout) partition(t *partition.Topic, n int32) (data, salvage string) {
	part := strconv.Itoa(int(n))
	return path.Join(l.topic(t.Name, t.Incarnation), part), path.Join(l.salvage(t.Name, t.Incarnation), part)
}

// deleted returns where deleted incarnations are while they are being removed.
func (l layout) deleted() string { return path.Join(l.root, deletedDir) }

// aside returns where one of them is.
func (l layout) aside(id meta.TopicID) string { return path.Join(l.deleted(), id.String()) }

// salvage returns where recovery keeps what it cuts off one incarnation's logs.
func (l layout) salvage(n meta.Name, incarnation uint64) string {
	return path.Join(l.root, salvageDir, incarnationDir(n, incarnation))
}

// parseIncarnationDir is the inverse of incarnationDir.
func parseIncarnationDir(namespace, dir string) (n meta.Name, incarnation uint64, ok bool) {
	name, number, found := strings.Cut(dir, "@")
	n = meta.Name{Namespace: namespace, Topic: name}
	incarnation, err := strconv.ParseUint(number, 10, 64)
	ok = found && err == nil && n.Validate() == nil && path.Join(namespace, dir) == incarnationDir(n, incarnation)
	return n, incarnation, ok
}

// PartitionAt returns the partition, as namespace/name/number, that a file or directory below a data directory is of; ok
// is false where it is of none.
func PartitionAt(dataDir, file string) (partition string, ok bool) {
	below, ok := strings.CutPrefix(file, path.Join(dataDir, topicsDir)+"/")
	if parts := strings.Split(below, "/"); ok && len(parts) >= 3 {
		n, _, known := parseIncarnationDir(parts[0], parts[1])
		return n.String() + "/" + parts[2], known
	}
	return "", false
}

// inspect looks for data that the metadata does not account for and returns what it finds, in words; refused is how much
// of it is of another incarnation than its topic's. It touches nothing: what nobody deleted may be all that is left of
// something. It must not run beside a remover, and it lists before it looks at the metadata: then whatever is listed is
// known there, or unknown for good.
func (l layout) inspect(view func() *meta.View) (found []string, refused int, err error) {
	root := path.Join(l.root, topicsDir)
	namespaces, err := l.list(root)
	if err != nil {
		return nil, 0, err
	}
	entries := map[string][]vfs.Info{}
	for _, ns := range namespaces {
		if !ns.Dir || meta.ValidateNamespace(ns.Name) != nil {
			found = append(found, path.Join(root, ns.Name)+": not a namespace's directory: left alone")
			continue
		}
		if entries[ns.Name], err = l.list(path.Join(root, ns.Name)); err != nil {
			return nil, 0, err
		}
	}
	deleted, err := l.list(l.deleted())
	if err != nil {
		return nil, 0, err
	}
	v := view()
	pending := map[string]bool{}
	for d := range v.Deletions() {
		pending[incarnationDir(d.Name, d.Incarnation)] = true
		pending[d.ID.String()] = true
	}
	for _, ns := range namespaces {
		for _, e := range entries[ns.Name] {
			problem, stale := judge(v, ns.Name, e, pending)
			if problem != "" {
				found = append(found, path.Join(root, ns.Name, e.Name)+": "+problem+": left alone")
			}
			if stale {
				refused++
			}
		}
	}
	for _, e := range deleted {
		if !pending[e.Name] {
			found = append(found, path.Join(l.deleted(), e.Name)+": no deletion of it is under way: left alone")
		}
	}
	return found, refused, nil
}

// unclaimed refuses to put a new incarnation where data lies that nobody accounts for: it must not be taken for the
// topic's, nor removed, and the topic could not be served beside it.
func (l layout) unclaimed(n meta.Name, incarnation uint64) error {
	dir := l.topic(n, incarnation)
	there, err := vfs.Exists(l.fs, dir)
	switch {
	case err != nil:
		return fault.New(fault.IO, "look for %s: %w", dir, err).With("file", dir)
	case there:
		return fault.New(fault.Conflict, "%s exists, and the metadata does not account for it: move it away, or choose another name", dir).With("file", dir)
	}
	return nil
}

// judge says what is wrong with an entry of a namespace's directory, or "", and whether it is an incarnation refused.
func judge(v *meta.View, namespace string, e vfs.Info, pending map[string]bool) (problem string, refused bool) {
	n, incarnation, ok := parseIncarnationDir(namespace, e.Name)
	if !ok || !e.Dir {
		return "not a topic's directory", false
	}
	if pending[incarnationDir(n, incarnation)] {
		return "", false
	}
	t, err := v.Topic(n)
	switch {
	case err == nil && t.Incarnation == incarnation:
		return "", false
	case err == nil:
		return "the topic is at incarnation " + strconv.FormatUint(t.Incarnation, 10) + ", and no deletion of this one is recorded", true
	case incarnation <= v.DeletedThrough(n):
		return "this incarnation was deleted and its data had been removed", true
	}
	return "the metadata knows no such topic", true
}

// list returns the entries of dir; none where it does not exist.
func (l layout) list(dir string) ([]vfs.Info, error) {
	entries, err := l.fs.List(dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
