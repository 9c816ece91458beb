// Package datadir owns where things are in a broker's data directory: the directories of topics, of what recovery cut off,
// and of what is being deleted. It says what lies there that nobody accounts for, and never changes anything. Invariant:
// what it names is one incarnation's, and no other's.
package datadir

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
)

// Directories below the data directory that are the broker's.
const (
	topicsDir  = "topics"   // <namespace>/<name>@<incarnation>/<partition>/
	DeletedDir = ".deleted" // <topic id>/: what is being removed
	salvageDir = "salvage"  // laid out as topics: bytes that recovery cut off
)

// KeptDirs is how many levels below the data directory stay once they are there: topicsDir and the namespaces' in it.
const KeptDirs = 2

// incarnationDir returns where one incarnation's data is below topicsDir. "@" is in no name, and both parts together are
// shorter than the 255 bytes that a file name may have.
func incarnationDir(n meta.Name, incarnation uint64) string {
	return path.Join(n.Namespace, n.Topic+"@"+strconv.FormatUint(incarnation, 10))
}

// Layout is where things are in a data directory.
type Layout struct {
	FS   vfs.FS
	Root string
}

// Topic returns where one incarnation's partitions are.
func (l Layout) Topic(n meta.Name, incarnation uint64) string {
	return path.Join(l.Root, topicsDir, incarnationDir(n, incarnation))
}

// Partition returns where one partition's data is, and what recovery cuts off it.
func (l Layout) Partition(name meta.Name, incarnation uint64, n int32) (data, salvage string) {
	part := strconv.Itoa(int(n))
	return path.Join(l.Topic(name, incarnation), part), path.Join(l.salvage(name, incarnation), part)
}

// Deleted returns where deleted incarnations are while they are being removed.
func (l Layout) Deleted() string { return path.Join(l.Root, DeletedDir) }

// Aside returns where one of them is.
func (l Layout) Aside(id meta.TopicID) string { return path.Join(l.Deleted(), id.String()) }

// salvage returns where recovery keeps what it cuts off one incarnation's logs.
func (l Layout) salvage(n meta.Name, incarnation uint64) string {
	return path.Join(l.Root, salvageDir, incarnationDir(n, incarnation))
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

// LogDir returns where a partition's log is below a data directory.
func LogDir(dataDir string, t *meta.Topic, n int32) string {
	data, _ := Layout{Root: dataDir}.Partition(t.Name, t.Incarnation, n)
	return data
}

// Unaccounted returns, in words, the data below a data directory that the metadata does not account for. It changes nothing.
func Unaccounted(fs vfs.FS, dataDir string, v *meta.View) ([]string, error) {
	found, _, err := Layout{fs, dataDir}.Inspect(func() *meta.View { return v })
	return found, err
}

// Inspect looks for data that the metadata does not account for and returns what it finds, in words; refused is how much
// of it is of another incarnation than its topic's. It touches nothing: what nobody deleted may be all that is left of
// something. It must not run beside a remover, and it lists before it looks at the metadata: then whatever is listed is
// known there, or unknown for good.
func (l Layout) Inspect(view func() *meta.View) (found []string, refused int, err error) {
	root := path.Join(l.Root, topicsDir)
	namespaces, err := l.List(root)
	if err != nil {
		return nil, 0, err
	}
	entries := map[string][]vfs.Info{}
	for _, ns := range namespaces {
		if !ns.Dir || meta.ValidateNamespace(ns.Name) != nil {
			found = append(found, path.Join(root, ns.Name)+": not a namespace's directory: left alone")
			continue
		}
		if entries[ns.Name], err = l.List(path.Join(root, ns.Name)); err != nil {
			return nil, 0, err
		}
	}
	deleted, err := l.List(l.Deleted())
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
			found = append(found, path.Join(l.Deleted(), e.Name)+": no deletion of it is under way: left alone")
		}
	}
	return found, refused, nil
}

// Unclaimed refuses to put a new incarnation where data lies that nobody accounts for: it must not be taken for the
// topic's, nor removed, and the topic could not be served beside it.
func (l Layout) Unclaimed(n meta.Name, incarnation uint64) error {
	dir := l.Topic(n, incarnation)
	there, err := vfs.Exists(l.FS, dir)
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

// List returns the entries of dir; none where it does not exist.
func (l Layout) List(dir string) ([]vfs.Info, error) {
	entries, err := l.FS.List(dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
