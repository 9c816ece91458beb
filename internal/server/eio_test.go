package server

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// durablePackages are searched for calls of the file system, below internal.
var durablePackages = []string{"seglog", "partition", "raft", "broker", "server"}

// portCalls are the calls that change a file system or make a change durable, and how many arguments they take.
var portCalls = map[string]int{"Sync": 0, "SyncDir": 1, "WriteAt": 2, "Truncate": 1, "Rename": 2, "Remove": 1, "Reserve": 2, "Open": 2, "MkdirAll": 1}

// callSites walks the source for every such call and names it by its function, its kind and, where there are several, its
// number. lines leads from file:line to the name.
func callSites(t *testing.T) (lines map[string]string) {
	t.Helper()
	lines = map[string]string{}
	for _, pkg := range durablePackages {
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			syntax, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					sitesOf(pkg, fn, fset, lines)
				}
			}
		}
	}
	return lines
}

// inMemory are functions that only write to a file system in memory.
var inMemory = []string{"server.copyTree"}

func sitesOf(pkg string, fn *ast.FuncDecl, fset *token.FileSet, lines map[string]string) {
	where := pkg + "." + fn.Name.Name
	if slices.Contains(inMemory, where) {
		return
	}
	if fn.Recv != nil {
		typ := fn.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		id, ok := typ.(*ast.Ident)
		if !ok || slices.Contains(passThrough, id.Name) {
			return
		}
		where = fmt.Sprintf("%s.(*%s).%s", pkg, id.Name, fn.Name.Name)
	}
	var calls []*ast.CallExpr
	total, seen := map[string]int{}, map[string]int{}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if name := durableCall(c); name != "" {
				calls = append(calls, c)
				total[name]++
			}
		}
		return true
	})
	slices.SortFunc(calls, func(a, b *ast.CallExpr) int { return int(a.Lparen - b.Lparen) })
	for _, c := range calls {
		name := durableCall(c)
		seen[name]++
		site := where + " " + name
		if total[name] > 1 {
			site += fmt.Sprintf("#%d", seen[name])
		}
		for line := fset.Position(c.Pos()).Line; line <= fset.Position(c.Rparen).Line; line++ {
			file := fset.Position(c.Pos()).Filename
			lines[fmt.Sprintf("%s/%s:%d", pkg, filepath.Base(file), line)] = site
		}
	}
}

// durableCall returns the name of a call that is of interest.
func durableCall(c *ast.CallExpr) string {
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	name := sel.Sel.Name
	if id, ok := sel.X.(*ast.Ident); ok && id.Name == "vfs" {
		if diskHelpers[name] {
			return name
		}
		return ""
	}
	if args, ok := portCalls[name]; !ok || args != len(c.Args) {
		return ""
	}
	if inner, ok := sel.X.(*ast.SelectorExpr); ok && inner.Sel.Name == "idle" {
		return "" // a list, not a file system
	}
	if name == "Open" {
		if _, settings := c.Args[0].(*ast.CompositeLit); settings {
			return "" // not a file
		}
		if id, ok := c.Args[1].(*ast.Ident); ok && id.Name == "false" {
			return "" // changes nothing
		}
	}
	return name
}

// What a failure of a site may lead to. "refused" is an operation that fails and can be repeated.
const (
	logStops     = "the log stops"
	startRefused = "the start is refused"
	refused      = "refused"
	unheard      = "nobody is told, it is logged"
)

// diskSites are all places that change the disk or make a change durable, by function and call, with the operations of
// those that go through a helper, and what may follow when they fail. More than one is possible where a place serves
// several: the metadata's log at a start and a topic's log later, or, where the disk is full, what the reserve pays for.
// Nowhere but at a stop of the log itself does a failure reach further than the operation that met it.
var diskSites = map[string][]string{
	"broker.(*Broker).openAll MkdirSync/mkdir":                 {unheard},
	"broker.(*Broker).openAll MkdirSync/sync dir":              {unheard},
	"broker.(*remover).remove SyncDir":                         {unheard},
	"broker.(*remover).setAside MkdirSync/mkdir":               {unheard, refused},
	"broker.(*remover).setAside MkdirSync/sync dir":            {unheard},
	"broker.(*remover).setAside RemoveAll/remove":              {unheard},
	"broker.(*remover).setAside RemoveAll/sync dir":            {unheard},
	"broker.(*remover).setAside Rename":                        {unheard},
	"broker.(*remover).setAside SyncDir#1":                     {unheard},
	"broker.(*remover).setAside SyncDir#2":                     {unheard},
	"broker.(*remover).remove Discard/truncate":                {unheard},
	"broker.(*remover).remove Discard/sync":                    {unheard},
	"broker.(*remover).remove Discard/remove":                  {unheard},
	"partition.(*Dirs).Make MkdirAll":                          {refused, unheard},
	"partition.(*Dirs).Make MkdirSync/sync dir":                {refused},
	"partition.(*Dirs).Make SyncDir":                           {refused},
	"partition.(*Dirs).flush SyncDir":                          {refused},
	"raft.(*Group).recover MkdirSync/mkdir":                    {startRefused, unheard},
	"raft.(*Group).recover MkdirSync/sync dir":                 {startRefused},
	"raft.(*Group).removeBelow RemoveAll/remove":               {unheard},
	"raft.(*Group).removeBelow RemoveAll/sync dir":             {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/create":       {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/rename":       {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/sync dir":     {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/sync":         {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/truncate":     {unheard},
	"raft.(*Group).writeSnapshot WriteFileAtomic/write":        {unheard},
	"raft.InstallCopy MkdirSync/mkdir":                         {startRefused},
	"raft.InstallCopy MkdirSync/sync dir":                      {startRefused},
	"raft.InstallCopy WriteFileAtomic/create":                  {startRefused},
	"raft.InstallCopy WriteFileAtomic/rename":                  {startRefused},
	"raft.InstallCopy WriteFileAtomic/sync dir":                {startRefused},
	"raft.InstallCopy WriteFileAtomic/sync":                    {startRefused},
	"raft.InstallCopy WriteFileAtomic/truncate":                {startRefused},
	"raft.InstallCopy WriteFileAtomic/write":                   {startRefused},
	"raft.removeUnfinished RemoveAll/remove":                   {startRefused},
	"raft.removeUnfinished RemoveAll/sync dir":                 {startRefused},
	"seglog.(*Files).acquire Open":                             {refused, startRefused, unheard, logStops},
	"seglog.(*Log).create Sync":                                {refused, startRefused, logStops},
	"seglog.(*Log).create SyncDir":                             {refused, startRefused, logStops},
	"seglog.(*Log).create WriteAt":                             {refused, startRefused, unheard, logStops},
	"seglog.(*Log).cutBack Sync":                               {logStops},
	"seglog.(*Log).cutBack Truncate":                           {logStops},
	"seglog.(*Log).cutAhead Truncate":                          {unheard},
	"seglog.(*Log).mkdir MkdirSync/mkdir":                      {refused, startRefused, unheard, logStops},
	"seglog.(*Log).mkdir MkdirSync/sync dir":                   {refused, startRefused, logStops},
	"seglog.(*Log).removeBehind Remove":                        {refused, logStops},
	"seglog.(*Log).removeBehind SyncDir":                       {refused, logStops},
	"seglog.(*Log).reserve Reserve":                            {unheard},
	"seglog.(*Log).snapshotProducers Remove":                   {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/create":   {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/rename":   {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/sync dir": {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/sync":     {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/truncate": {unheard},
	"seglog.(*Log).snapshotProducers WriteFileAtomic/write":    {unheard},
	"seglog.(*Files).flush Sync":                               {logStops, startRefused, refused, unheard},
	"seglog.(*Log).writeAhead WriteAt":                         {unheard},
	"seglog.(*Log).takeBack Remove":                            {refused, startRefused, logStops},
	"seglog.(*Log).takeBack SyncDir":                           {refused, startRefused, logStops},
	"seglog.(*Log).unlink Remove#1":                            {unheard, refused, logStops},
	"seglog.(*Log).unlink Remove#2":                            {unheard, refused, logStops},
	"seglog.(*Log).unlink SyncDir":                             {unheard, refused, logStops},
	"seglog.(*Log).write WriteAt":                              {refused, startRefused, unheard},
	"seglog.(*Plan).apply Remove":                              {refused, unheard, logStops},
	"seglog.(*Plan).apply SyncDir":                             {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/create":              {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/rename":              {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/sync dir":            {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/sync":                {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/truncate":            {refused, unheard, logStops},
	"seglog.(*Plan).apply WriteFileAtomic/write":               {refused, unheard, logStops},
	"seglog.(*Plan).salvage MkdirSync/mkdir":                   {refused, unheard, logStops},
	"seglog.(*Plan).salvage MkdirSync/sync dir":                {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/create":            {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/rename":            {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/sync dir":          {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/sync":              {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/truncate":          {refused, unheard, logStops},
	"seglog.(*Plan).salvage WriteFileAtomic/write":             {refused, unheard, logStops},
	"seglog.putMark Open":                                      {unheard, refused, logStops},
	"seglog.putMark Sync":                                      {unheard, refused, logStops},
	"seglog.putMark SyncDir":                                   {unheard, refused, logStops},
	"seglog.putMark WriteAt":                                   {unheard, refused, logStops},
	"seglog.settle SyncDir":                                    {refused, startRefused, unheard, logStops},
	"seglog.settleFile Sync":                                   {refused, startRefused, unheard, logStops},
	"seglog.truncateFile Sync":                                 {unheard, refused, logStops},
	"seglog.truncateFile Truncate":                             {unheard, refused, logStops},
	"seglog.writeWhole Open":                                   {refused, unheard, logStops},
	"seglog.writeWhole Truncate":                               {refused, unheard, logStops},
	"seglog.writeWhole WriteAt":                                {refused, unheard, logStops},
	"server.(*reserve).fill Open":                              {refused, unheard},
	"server.(*reserve).fill WriteAt":                           {refused, unheard},
	"server.(*reserve).hold Remove":                            {refused, unheard},
	"server.(*reserve).release Remove":                         {startRefused, unheard},
	"server.(*server).lockDataDir MkdirSync/sync dir":          {startRefused},
	"server.installMetadata RemoveAll/remove":                  {startRefused},
	"server.installMetadata RemoveAll/sync dir":                {startRefused},
	"server.writeStamp WriteFileAtomic/create":                 {startRefused, refused, unheard},
	"server.writeStamp WriteFileAtomic/rename":                 {startRefused, refused, unheard},
	"server.writeStamp WriteFileAtomic/sync dir":               {startRefused, refused, unheard},
	"server.writeStamp WriteFileAtomic/sync":                   {startRefused, refused, unheard},
	"server.writeStamp WriteFileAtomic/truncate":               {startRefused, refused, unheard},
	"server.writeStamp WriteFileAtomic/write":                  {startRefused, refused, unheard},
}

// outcome says what the operations of a run were told. That a stop is not clean after a flush has failed goes without
// saying.
func (w *diskWorld) outcome() []string {
	said := map[string]bool{}
	for _, a := range w.answers {
		switch {
		case a.what == "start":
			said[startRefused] = true
		case a.what == "stop" && a.kind == fault.Stopped:
		case a.kind == fault.Stopped, a.kind == fault.OutcomeUnknown: // the latter is told to whose flush it was
			said[logStops] = true
		default:
			said[refused] = true
		}
	}
	if len(said) == 0 {
		said[unheard] = true
	}
	return slices.Sorted(maps.Keys(said))
}

// aftermath looks at a run in which something failed, and at everything that may be left of it.
func (w *diskWorld) aftermath() (broken []string) {
	if w.running && w.s.broker.Load() != nil {
		where := w.faults[len(w.faults)-1].where
		if b := w.books["default/bystander"]; b != nil && !strings.HasPrefix(w.dir+"/"+topicsDir+"/default/bystander@1/0", where) {
			_, err := w.send("default/bystander", "serves", false)
			for range 10 { // the metadata may have had to take its reserve, which comes back by itself
				if fault.KindOf(err) == fault.NoSpace {
					pause(2 * reservePause)
					_, err = w.send("default/bystander", "serves", false)
				}
			}
			if err != nil {
				w.complain("another topic does not serve: %v", err)
			} else {
				b.kept[int64(len(b.kept))] = "serves"
			}
		}
		if w.flushFailed() && (len(w.s.problems(w.broker())) == 0 || !w.s.flushes.everRaised()) {
			w.complain("a flush failed, and health says %q", w.s.problems(w.broker()))
		}
	}
	type left struct {
		when   string
		mem    *vfs.Mem
		reboot bool
	}
	all := []left{{"after a kill", w.mem.Crash(vfs.KeepAll), false}, {"after a power loss that kept nothing", w.mem.Crash(vfs.KeepNothing), true}}
	if everything() {
		all = append(all, left{"after a power loss", w.mem.Crash(vfs.Random(1)), true}, left{"after another power loss", w.mem.Crash(vfs.Random(2)), true},
			left{"after a power loss, of the third kind", w.mem.Crash(vfs.Random(3)), true})
	}
	ran, err := w.running, w.told("stop", w.stop())
	if ran && w.flushFailed() && err == nil {
		w.complain("a flush failed, and the stop calls itself clean")
	}
	w.mem.SetHook(nil)
	all = append(all, left{"after a stop", w.mem.Clone(), false})
	broken = append(broken, w.broken...)
	for _, l := range all {
		broken = append(broken, w.on(l.mem, l.reboot).serves(l.when)...)
	}
	return broken
}

// everything reports whether tests run at full length.
func everything() bool { return os.Getenv("LEVEE_FAULTS") == "full" }

// metadataRig is the metadata alone, with small segments and snapshots after a few commands, and another log that is cut
// back and emptied as only the metadata's may be.
type metadataRig struct {
	log, other *seglog.Log
	group      *raft.Group
	store      metaStore
}

func openMetadataRig(w *diskWorld, mem *vfs.Mem, crash seglog.Crash) (r *metadataRig, err error) {
	r = &metadataRig{}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	open := func(dir string) (*seglog.Log, error) {
		l, _, err := seglog.Open(seglog.Config{
			FS: mem, Dir: w.dir + "/" + dir, Topic: dir, TopicID: metadataID(), Mode: seglog.OnCommit, SegmentBytes: 1 << 10,
			IndexInterval: 256, Crash: crash, VerifyAllOnOpen: true,
		})
		return l, err
	}
	if r.log, err = open(logDir); err != nil {
		return r, err
	}
	if r.other, err = open("raft/other"); err != nil {
		return r, err
	}
	state := meta.NewState()
	r.group, err = raft.Open(raft.Config{
		Log: newMetaLog(r.log), FS: mem, SnapshotDir: w.dir + "/" + snapshotDir, Machine: newMetaMachine(state), SnapshotEntries: 4,
	})
	r.store = newMetaStore(state, r.group)
	return r, err
}

func (r *metadataRig) close() error {
	var errs []error
	if r.group != nil {
		errs = append(errs, r.group.Close())
	}
	for _, l := range []*seglog.Log{r.log, r.other} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// namespaces are what the metadata was asked for.
type namespaces struct{ acked, refused map[string]bool }

func (n *namespaces) propose(w *diskWorld, r *metadataRig, name string) {
	_, err := r.store.Propose(w.t.Context(), meta.CreateNamespace{Name: name})
	switch kind := fault.KindOf(err); {
	case err == nil:
		n.acked[name] = true
	case kind == fault.IO || kind == fault.NoSpace:
		n.refused[name] = true
	}
	_ = w.told("propose "+name, err)
}

// check wants what was acknowledged to be there, and nothing that was refused.
func (n *namespaces) check(w *diskWorld, r *metadataRig, when string) {
	there := map[string]bool{}
	for ns := range r.store.View().Namespaces() {
		there[ns.Name] = true
		if n.refused[ns.Name] {
			w.complain("%s: namespace %s was refused, and is there", when, ns.Name)
		}
	}
	for name := range n.acked {
		if !there[name] {
			w.complain("%s: namespace %s was acknowledged, and is gone", when, name)
		}
	}
}

// metadataLife is the script for the metadata alone. Behind a fault it looks at what is left.
func metadataLife(w *diskWorld) {
	names := &namespaces{map[string]bool{}, map[string]bool{}}
	crash, count := seglog.CleanStop, 0
	for range 2 {
		r, err := openMetadataRig(w, w.mem, crash)
		if w.told("start", err) != nil {
			break
		}
		for range 30 {
			count++
			names.propose(w, r, fmt.Sprintf("ns-%d-%s", count, strings.Repeat("x", 150)))
		}
		w.cutBack(r.other)
		pause(2 * time.Second)
		names.check(w, r, "in the run itself")
		if w.flushFailed() && !w.fired() {
			w.complain("a flush failed without a fault")
		}
		_ = w.told("stop", r.close())
		if w.fired() {
			break
		}
		crash = seglog.MachineCrash
	}
	for when, mem := range map[string]*vfs.Mem{
		"as it is": w.mem.Crash(vfs.KeepAll), "with nothing kept": w.mem.Crash(vfs.KeepNothing), "with some kept": w.mem.Crash(vfs.Random(1)),
	} {
		r, err := openMetadataRig(w, mem, seglog.MachineCrash)
		if err != nil {
			w.complain("%s: the next start fails: %v", when, err)
			continue
		}
		names.check(w, r, when)
		_, err = r.store.Propose(w.t.Context(), meta.CreateNamespace{Name: "next"})
		if err = errors.Join(err, r.close()); err != nil {
			w.complain("%s: the metadata does not go on: %v", when, err)
		}
	}
}

// cutBack has a log roll, lose its end, go on and be emptied.
func (w *diskWorld) cutBack(l *seglog.Log) {
	add := func(n int) {
		for range n {
			w.next++
			builder := record.NewBuilder(record.None)
			if err := builder.Append(record.Record{Value: fmt.Appendf(nil, "%0400d", w.next)}); err != nil {
				w.t.Fatal(err)
			}
			batch, err := builder.Build(record.ProducerInfo{ID: int64(w.next)})
			if err != nil {
				w.t.Fatal(err)
			}
			_, err = l.Append(w.t.Context(), batch)
			_ = w.told("append", err)
		}
	}
	add(12)
	pause(2 * time.Second) // the mark
	first := l.Bounds().NextSeq
	_ = w.told("cut back", l.TruncateAfter(w.t.Context(), first-9))
	add(4)
	_ = w.told("empty", l.Reset(w.t.Context(), 1, 0, 0))
	add(4)
}

// takeOverLife is the script of a directory that takes a cluster's metadata over from its copy, and begins anew where that
// failed. Behind a fault it looks at what is left.
func takeOverLife(w *diskWorld) {
	c := &copyWorld{t: w.t, fs: w.mem, store: copied(w.t)}
	for range 2 {
		m, err := c.start(w.t.Context(), nil, seglog.MachineCrash)
		if w.told("start", err) != nil {
			continue
		}
		m.close(w.t)
		break
	}
	for when, mem := range map[string]*vfs.Mem{
		"as it is": w.mem.Crash(vfs.KeepAll), "with nothing kept": w.mem.Crash(vfs.KeepNothing), "with some kept": w.mem.Crash(vfs.Random(1)),
	} {
		left := &copyWorld{t: w.t, fs: mem, store: objstoretest.Clone(w.t, c.store), ids: c.ids}
		left.whole(when)
	}
}

// brokerLife is the script for a whole broker.
func brokerLife(w *diskWorld) {
	diskLives(w, w.fired)
	if w.fired() {
		w.broken = w.aftermath()
	}
}

// diskRun is one run of a script with faults.
func diskRun(t *testing.T, source map[string]string, script func(*diskWorld), faults ...*siteFault) (w *diskWorld) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = newDiskWorld(t, source)
		w.faults = faults
		script(w)
		w.mem.SetHook(nil)
	})
	return w
}

// diskTriggers are the sites that are only reached when another has failed, and which.
var diskTriggers = map[string]siteFault{
	"seglog.(*Log).takeBack Remove":              {site: "seglog.(*Log).create Sync", err: vfs.ErrIO, nth: 9},
	"seglog.(*Log).takeBack SyncDir":             {site: "seglog.(*Log).create Sync", err: vfs.ErrIO, nth: 9},
	"broker.(*remover).setAside MkdirSync/mkdir": {site: "broker.(*Broker).openAll MkdirSync/mkdir", err: vfs.ErrIO},
	"seglog.(*Log).cutBack Truncate":             {site: "seglog.(*Log).write WriteAt", err: vfs.ErrNoSpace, nth: 20},
	"seglog.(*Log).cutBack Sync":                 {site: "seglog.(*Log).write WriteAt", err: vfs.ErrNoSpace, nth: 20},
	"server.(*reserve).hold Remove":              {site: "server.(*reserve).fill WriteAt", err: vfs.ErrNoSpace},
	"server.(*reserve).release Remove":           {site: "seglog.(*Log).write WriteAt", err: vfs.ErrNoSpace},
}

// scripts are the lives in which sites are looked for.
var diskScripts = map[string]func(*diskWorld){"broker": brokerLife, "metadata": metadataLife, "take over": takeOverLife}

// TestEveryDiskSiteIsListed compares the source, what the scripts reach, and the table: whoever adds a call that changes
// the disk says in diskSites what happens when it fails, and has a script reach it.
func TestEveryDiskSiteIsListed(t *testing.T) {
	source := callSites(t)
	inSource, listed, reached := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, site := range source {
		inSource[site] = true
	}
	for row := range diskSites {
		site, _, _ := strings.Cut(row, "/")
		listed[site] = true
		if !inSource[site] {
			t.Errorf("diskSites has %q, and the source does not", row)
		}
	}
	for _, site := range slices.Sorted(maps.Keys(inSource)) {
		if !listed[site] {
			t.Errorf("%q is not in diskSites: say what must happen when it fails, and have a script reach it", site)
		}
	}
	for name, script := range diskScripts {
		w := diskRun(t, source, script)
		for site := range w.sites {
			reached[site] = true
		}
		for _, what := range append(w.broken, slices.Collect(maps.Keys(w.unknown))...) {
			t.Errorf("%s, without a fault: %s", name, what)
		}
		for _, a := range w.answers {
			t.Errorf("%s, without a fault: %s: %v", name, a.what, a.err)
		}
	}
	for row := range diskSites {
		if _, second := diskTriggers[row]; !reached[row] && !second {
			t.Errorf("no script reaches %q", row)
		}
	}
	for site := range reached {
		if diskSites[site] == nil {
			t.Errorf("%q is not in diskSites: say what must happen when it fails", site)
		}
	}
}

// takesSpace reports whether an operation of a site can find the disk full.
func takesSpace(site string) bool {
	for _, end := range []string{"WriteAt", "Open", "Reserve", "/write", "/create", "/mkdir"} {
		if strings.HasSuffix(site, end) {
			return true
		}
	}
	return false
}

// TestEveryDiskSiteFails makes each site fail, once and from then on, with EIO and, where it takes space, with a short
// write on a full disk: what follows is what diskSites allows, nothing is acknowledged that did not succeed, no flush is
// repeated, health tells, other topics serve, and the next start finds everything that was acknowledged, whatever the end
// of the run.
func TestEveryDiskSiteFails(t *testing.T) {
	source := callSites(t)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	runs := 0
	for _, name := range slices.Sorted(maps.Keys(diskScripts)) {
		reached := diskRun(t, source, diskScripts[name]).sites
		for _, site := range slices.Sorted(maps.Keys(diskSites)) {
			trigger, second := diskTriggers[site]
			if n := reached[site]; n > 0 || second && name == "broker" {
				t.Run(name+"/"+site, func(t *testing.T) {
					for _, f := range failures(site, n, rng) {
						runs++
						failAt(t, source, diskScripts[name], trigger, f)
					}
				})
			}
		}
	}
	t.Logf("%d runs", runs)
}

// failures draws in which ways a site that is reached n times is to fail.
func failures(site string, n int, rng *rand.Rand) (list []siteFault) {
	errs := []error{vfs.ErrIO}
	if takesSpace(site) {
		errs = append(errs, vfs.ErrNoSpace)
	}
	for i, stick := range []bool{false, true} {
		switch {
		case everything():
			for _, nth := range slices.Compact([]int{1, n/3 + 1, 2*n/3 + 1}) {
				for _, err := range errs {
					list = append(list, siteFault{site: site, nth: nth, stick: stick, err: err})
				}
			}
		case !testing.Short() || rng.IntN(10) == 0:
			f := siteFault{site: site, nth: 1, stick: stick, err: errs[i%len(errs)]}
			if rng.IntN(2) == 0 {
				f.nth += rng.IntN(max(n/2, 1))
			}
			list = append(list, f)
		}
	}
	return list
}

func failAt(t *testing.T, source map[string]string, script func(*diskWorld), trigger, f siteFault) {
	t.Helper()
	list := []*siteFault{&f}
	if trigger.site != "" {
		trigger.nth = max(trigger.nth, 1)
		list = append([]*siteFault{&trigger}, &f)
		f.nth = 1
	}
	where := fmt.Sprintf("%v, occurrence %d, from then on: %v", f.err, f.nth, f.stick)
	w := diskRun(t, source, script, list...)
	if !w.fired() {
		if f.nth == 1 {
			t.Errorf("%s: it never happened", where)
		}
		return // later ones depend on how goroutines run
	}
	for _, got := range w.outcome() {
		if !slices.Contains(diskSites[f.site], got) {
			t.Errorf("%s: %s; diskSites allows %q; answers: %+v", where, got, diskSites[f.site], w.answers)
		}
	}
	slices.Sort(w.broken)
	for _, what := range slices.Compact(w.broken) {
		t.Errorf("%s: %s", where, what)
	}
}
