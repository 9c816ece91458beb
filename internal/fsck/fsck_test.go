package fsck

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is what a broker left: one topic of one partition, of which objects were made.
type site struct {
	t       *testing.T
	fs      *vfs.Mem
	meta    *meta.Memory
	store   *objstore.Mem
	topic   *meta.Topic
	objects []tier.Object // of its sealed segments
	first   int64         // oldest offset of the log
	end     int64
	now     time.Time
}

const logDir = "/data/topics/default/t@1/0"

func (s *site) place() tier.Place {
	return tier.Place{Prefix: "levee", Cluster: "main", TopicID: s.topic.ID}
}

func (s *site) propose(c meta.Command) meta.Result {
	s.t.Helper()
	r, err := s.meta.Propose(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// newSite makes one whose log holds everything; record says how many of the objects the metadata knows, and trim how many
// segments the log has let go of.
func newSite(t *testing.T, record, trim int) *site {
	t.Helper()
	s := &site{t: t, fs: vfs.NewMem(), meta: meta.NewMemory(), store: objstore.NewMem(), now: time.Now()}
	s.topic = s.propose(meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1, Dispatch: meta.Reliable}).Topic
	log, _, err := seglog.Open(seglog.Config{FS: s.fs, Dir: logDir, Topic: "default/t", TopicID: s.topic.ID, SegmentBytes: 8 << 10, Generation: s.topic.Partitions[0].Generation})
	if err != nil {
		t.Fatal(err)
	}
	for ; s.end < 400; s.end++ {
		if _, err := log.Append(t.Context(), oneRecord(t, fmt.Sprint(s.end, strings.Repeat("x", 100)))); err != nil {
			t.Fatal(err)
		}
	}
	for at := int64(0); ; {
		seg, ok := log.SealedAt(at)
		if !ok {
			break
		}
		f, err := log.OpenSealed(seg)
		if err != nil {
			t.Fatal(err)
		}
		o, err := tier.Upload(t.Context(), s.store, s.place(), tier.Segment{
			Name: f.Path(), Reader: f, Size: seg.Size, Base: seg.Base, Next: seg.Next, BaseSeq: seg.BaseSeq, NextSeq: seg.NextSeq, Generation: seg.Generation,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		s.objects = append(s.objects, o)
		at = o.Next
	}
	if len(s.objects) < 5 {
		t.Fatalf("only %d objects", len(s.objects))
	}
	for i := range record {
		s.record(s.objects[i])
	}
	if trim > 0 {
		if err := log.TrimBefore(t.Context(), s.objects[trim-1].NextSeq); err != nil {
			t.Fatal(err)
		}
	}
	s.first = log.Bounds().First
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) record(o tier.Object) {
	s.t.Helper()
	s.propose(meta.ExportObject{
		Name: s.topic.Name, ID: s.topic.ID, Generation: s.topic.Partitions[0].Generation,
		Frontier: s.meta.View().Export(s.topic.ID, 0).Frontier(), Object: meta.ExportedObject(o),
	})
}

func oneRecord(t *testing.T, value string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	if err := b.Append(record.Record{Value: []byte(value), Timestamp: 1000}); err != nil {
		t.Fatal(err)
	}
	out, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// subscribe makes a subscription with its cursor at an offset.
func (s *site) subscribe(name string, at int64) {
	s.t.Helper()
	s.propose(meta.CreateSubscription{Topic: s.topic.Name, ID: s.topic.ID, Name: name, Type: meta.Exclusive, TimeMs: 1, Starts: []int64{at}})
}

func (s *site) input(repair bool) Input {
	return Input{
		FS: s.fs, View: s.meta.View(), LogDir: func(*meta.Topic, int32) string { return logDir }, Change: func(fn func(meta.Store) error) error { return fn(s.meta) },
		Store: s.store, Prefix: "levee", Cluster: "main", Grace: time.Hour, Repair: repair, Now: func() time.Time { return s.now },
	}
}

// check runs one and returns what it found, a line a finding: level, area, kind; those put right begin with "done".
func (s *site) check(repair bool) (lines []string, all []Finding, totals Totals) {
	s.t.Helper()
	in := s.input(repair)
	in.Progress = &Progress{}
	in.Found = func(f Finding) {
		level := f.Level.String()
		if f.Repaired {
			level = "done"
		}
		lines, all = append(lines, level+" "+f.Area+" "+f.Kind), append(all, f)
		if f.Where == "" || f.Why == "" {
			s.t.Errorf("it says nothing: %+v", f)
		}
	}
	totals, err := Run(s.t.Context(), in)
	if err != nil {
		s.t.Fatal(err)
	}
	return lines, all, totals
}

func (s *site) want(repair bool, want ...string) Totals {
	s.t.Helper()
	got, all, totals := s.check(repair)
	want = slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("found\n%s\nexpected\n%s\n%+v", strings.Join(got, "\n"), strings.Join(want, "\n"), all)
	}
	return totals
}

func TestWhatIsWell(t *testing.T) {
	for _, trim := range []int{0, 3} {
		s := newSite(t, 5, trim)
		s.subscribe("s", s.end)
		s.subscribe("old", 0)
		for len(s.objects) > 5 { // those that the metadata does not know are still to be exported
			last := s.objects[len(s.objects)-1]
			if err := s.store.Delete(t.Context(), last.Key(s.place())); err != nil {
				t.Fatal(err)
			}
			s.objects = s.objects[:len(s.objects)-1]
		}
		totals := s.want(false)
		if totals.Logs != 1 || totals.Objects != 5 || totals.Verified != 5 || totals.Cursors != 2 || totals.LogBytes == 0 {
			t.Errorf("%+v", totals)
		}
		p := Progress{}
		in := s.input(false)
		in.Found, in.Progress = func(Finding) {}, &p
		if _, err := Run(t.Context(), in); err != nil || p.Done.Load() != p.Total.Load() || p.Total.Load() == 0 {
			t.Errorf("%d of %d bytes are done, %v", p.Done.Load(), p.Total.Load(), err)
		}
	}
}

func TestCursors(t *testing.T) {
	s := newSite(t, 0, 3)
	s.Drop()
	s.subscribe("beyond", s.end+1)
	s.subscribe("below", s.first-1)
	s.subscribe("at", s.first)
	got, all, _ := s.check(false)
	slices.Sort(got)
	if !slices.Equal(got, []string{"lost cursor beyond_end", "note cursor below_oldest"}) {
		t.Errorf("%v", all)
	}
}

// Drop empties the store.
func (s *site) Drop() {
	s.t.Helper()
	for _, o := range s.objects {
		if err := s.store.Delete(s.t.Context(), o.Key(s.place())); err != nil {
			s.t.Fatal(err)
		}
	}
}

// What the bucket proves is recorded, and nothing else: not what the log has as well, nor what does not go on where the
// recorded objects end, nor what is of another generation.
func TestDescriptors(t *testing.T) {
	s := newSite(t, 2, 4)
	n := len(s.objects)
	var inLog []string
	for range n - 4 {
		inLog = append(inLog, "note descriptor unrecorded")
	}
	s.want(false, slices.Concat(inLog, []string{"repair descriptor unrecorded", "repair descriptor unrecorded"})...)
	if e := s.meta.View().Export(s.topic.ID, 0); len(e.Objects) != 2 {
		t.Fatal("a check changed the metadata")
	}
	totals := s.want(true, slices.Concat(inLog, []string{"done descriptor unrecorded", "done descriptor unrecorded"})...)
	if e := s.meta.View().Export(s.topic.ID, 0); totals.Added != 2 || len(e.Objects) != 4 || e.Frontier() != s.first {
		t.Fatalf("%+v, %+v", totals, e)
	}
	s.want(true, inLog...)

	// From nothing, with a hole before the log.
	s = newSite(t, 0, 4)
	if err := s.store.Delete(t.Context(), s.objects[2].Key(s.place())); err != nil {
		t.Fatal(err)
	}
	got, _, _ := s.check(true)
	if !slices.Contains(got, "lost log missing") {
		t.Errorf("a hole is not told: %v", got)
	}
	if e := s.meta.View().Export(s.topic.ID, 0); e.Frontier() != s.objects[1].Next {
		t.Errorf("recorded up to %d, what is whole ends at %d", e.Frontier(), s.objects[1].Next)
	}

	// Of an older generation: others may have been given these offsets.
	s = newSite(t, 2, 4)
	s.propose(meta.NewGeneration{Name: s.topic.Name, ID: s.topic.ID, From: s.topic.Partitions[0].Generation, To: s.topic.Partitions[0].Generation + 1})
	got, _, _ = s.check(true)
	if e := s.meta.View().Export(s.topic.ID, 0); len(e.Objects) != 2 || !slices.Contains(got, "lost log missing") {
		t.Errorf("objects of an older generation were recorded: %+v; %v", e, got)
	}

	// Damaged ones prove nothing.
	s = newSite(t, 2, 4)
	s.rot(s.objects[3])
	got, _, _ = s.check(true)
	if e := s.meta.View().Export(s.topic.ID, 0); len(e.Objects) != 3 || !slices.Contains(got, "lost log missing") {
		t.Errorf("%d are recorded; %v", len(e.Objects), got)
	}
}

// rot changes a byte of a record in an object.
func (s *site) rot(o tier.Object) {
	s.t.Helper()
	body, err := s.store.Get(s.t.Context(), o.Key(s.place()), 0, -1)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := io.ReadAll(body)
	if err != nil {
		s.t.Fatal(err)
	}
	b[200] ^= 1
	if _, err := s.store.PutIfMatch(s.t.Context(), o.Key(s.place()), body.Info.Version, objstore.Bytes(b)); err != nil {
		s.t.Fatal(err)
	}
}

func TestObjects(t *testing.T) {
	s := newSite(t, 5, 5)
	s.objects = s.objects[:5]
	s.propose(meta.DropObjects{Name: s.topic.Name, ID: s.topic.ID, Below: s.objects[0].Next}) // and the broker died
	s.rot(s.objects[1])
	if err := s.store.Delete(t.Context(), s.objects[2].Key(s.place())); err != nil {
		t.Fatal(err)
	}
	put := func(key string) {
		if _, err := s.store.PutIfAbsent(t.Context(), key, objstore.Bytes([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	put("levee/main/notes")
	put("levee/other/notes")
	stranger := s.place()
	stranger.TopicID[0] = 9
	put(s.objects[0].Key(stranger))
	gone := s.propose(meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "gone"}, ID: meta.TopicID{2}, Partitions: 1, Dispatch: meta.NonReliable}).Topic
	s.propose(meta.DeleteTopic{Name: gone.Name, ID: gone.ID})
	deleted := s.place()
	deleted.TopicID = gone.ID
	put(s.objects[0].Key(deleted))
	var inLog []string
	for range s.above() {
		inLog = append(inLog, "note descriptor unrecorded")
	}
	with := func(more ...string) []string {
		return append(append([]string{"lost object corrupt", "lost object missing", "note object foreign", "note object unknown"}, more...), inLog...)
	}
	totals := s.want(false, with("repair object orphan", "repair object orphan")...)
	if totals.Losses != 2 || totals.ToRepair != 2 || totals.Foreign != 2 || totals.Removed != 0 {
		t.Errorf("%+v", totals)
	}
	s.want(true, with("repair object orphan", "repair object orphan")...) // they are young
	s.now = s.now.Add(2 * time.Hour)
	if totals = s.want(true, with("done object orphan", "done object orphan")...); totals.Removed != 2 || totals.Repaired != 2 {
		t.Errorf("%+v", totals)
	}
	s.want(true, with()...)
}

// above counts the objects in the store that the metadata does not know yet.
func (s *site) above() (keys []string) {
	frontier := s.meta.View().Export(s.topic.ID, 0).Frontier()
	for info, err := range s.store.List(s.t.Context(), "levee/main/", "") {
		if err != nil {
			s.t.Fatal(err)
		}
		if p, n, ok := tier.ParseKey(info.Key); ok && p == s.place() && n.Base >= frontier {
			keys = append(keys, info.Key)
		}
	}
	return keys
}

func (s *site) file(suffix string) string {
	infos, err := s.fs.List(logDir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, suffix) {
			return logDir + "/" + info.Name
		}
	}
	s.t.Fatalf("there is no %s", suffix)
	return ""
}

func TestLogs(t *testing.T) {
	fresh := func() *site {
		s := newSite(t, 0, 0)
		s.Drop()
		return s
	}
	s := fresh()
	s.want(false)
	index := s.file(".index")
	was, err := vfs.ReadFile(s.fs, index, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.fs.Remove(index); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(s.fs, logDir+"/notes", []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.want(false, "repair index stale", "note directory foreign")
	if totals := s.want(true, "done index stale", "note directory foreign"); totals.Rebuilt != 1 || totals.Foreign != 1 {
		t.Errorf("%+v", totals)
	}
	if is, err := vfs.ReadFile(s.fs, index, 1<<20); err != nil || !bytes.Equal(is, was) {
		t.Errorf("the index is another: %v", err)
	}
	s.want(false, "note directory foreign")

	s = fresh() // a record in a sealed segment
	f, err := s.fs.Open(s.file(".log"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("!"), 500); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.subscribe("s", s.end+10) // of what cannot be read nothing is said
	s.want(true, "lost log corrupt")

	s = newSite(t, 3, 3) // the log is gone, and what was exported is not
	if err := vfs.RemoveAll(s.fs, logDir); err != nil {
		t.Fatal(err)
	}
	s.subscribe("s", s.end)
	got, _, _ := s.check(false)
	if !slices.Contains(got, "lost log missing") && !slices.Contains(got, "repair descriptor unrecorded") {
		t.Errorf("%v", got)
	}

	s = newSite(t, 5, 0) // metadata and objects of a later time than the log
	later := s.objects[4]
	later.Base, later.Next, later.BaseSeq, later.NextSeq = later.Next, s.end+50, later.NextSeq, uint64(s.end+51)
	later.SegmentBytes, later.Size = later.SegmentBytes*100, later.Size+later.SegmentBytes*99
	s.record(later)
	got, _, _ = s.check(false)
	if !slices.Contains(got, "lost log behind") || !slices.Contains(got, "lost object missing") {
		t.Errorf("%v", got)
	}
}

// Against a metadata of an earlier time a log is newer.
func TestOldMetadata(t *testing.T) {
	s := newSite(t, 0, 0)
	s.Drop()
	log, _, err := seglog.Open(seglog.Config{FS: s.fs, Dir: logDir, Topic: "default/t", TopicID: s.topic.ID, Generation: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.StartGeneration(context.Background(), 3, nil); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	s.want(false, "lost log newer")
}

func TestBucket(t *testing.T) {
	s := newSite(t, 0, 0)
	run := func() (held []Held, lines []string, totals Totals) {
		t.Helper()
		totals, err := Bucket(t.Context(), BucketInput{
			Store: s.store, Prefix: "levee", Cluster: "main", Held: func(h Held) { held = append(held, h) }, Progress: &Progress{},
			Found: func(f Finding) { lines = append(lines, f.Level.String()+" "+f.Area+" "+f.Kind) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return held, lines, totals
	}
	n := int64(len(s.objects))
	held, lines, totals := run()
	want := Held{TopicID: s.topic.ID, Next: s.objects[n-1].Next, Generation: s.objects[n-1].Generation, Objects: n, Bytes: totals.ObjectBytes}
	if len(held) != 1 || held[0] != want || len(lines) != 0 || totals.Verified != n {
		t.Errorf("%+v, %v, %+v", held, lines, totals)
	}
	s.rot(s.objects[0])
	if err := s.store.Delete(t.Context(), s.objects[2].Key(s.place())); err != nil {
		t.Fatal(err)
	}
	held, lines, totals = run()
	if len(held) != 1 || held[0].Objects != n-1 || !slices.Equal(lines, []string{"lost object missing", "lost object corrupt"}) || totals.Losses != 2 {
		t.Errorf("%+v, %v, %+v", held, lines, totals)
	}
}

// What a manifest describes counts like any other; where the manifest is gone, nothing that it may describe is removed.
func TestManifest(t *testing.T) {
	s := newSite(t, 5, 5)
	for _, o := range s.objects[5:] {
		if err := s.store.Delete(t.Context(), o.Key(s.place())); err != nil {
			t.Fatal(err)
		}
	}
	r, err := tier.PutManifest(t.Context(), s.store, s.place(), s.objects[:3])
	if err != nil {
		t.Fatal(err)
	}
	s.propose(meta.FoldObjects{
		Name: s.topic.Name, ID: s.topic.ID, Generation: s.topic.Partitions[0].Generation, Base: 0, Objects: 3, Through: s.objects[2].Next,
		Manifest: meta.Manifest{Base: r.Base, Next: r.Next, Count: r.Count, CRC: r.CRC},
	})
	s.subscribe("s", 0)
	if totals := s.want(true); totals.Verified != 5 || totals.Objects != 5 {
		t.Errorf("%+v", totals)
	}
	if err := s.store.Delete(t.Context(), r.Key(s.place())); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(48 * time.Hour)
	if totals := s.want(true, "lost object missing", "note object unknown"); totals.Removed != 0 || totals.Objects != 5 {
		t.Errorf("%+v", totals)
	}
}

// TestSomebodyElses: a directory that was taken over goes on being checked, and what it says of the bucket has no say there
// any more: the new owner's objects do not count by its metadata, and stay.
func TestSomebodyElses(t *testing.T) {
	s := newSite(t, 5, 0)
	mine, theirs := metatier.ID{1}, metatier.ID{2}
	claimed := func(claim metatier.ID) {
		t.Helper()
		o := metatier.Owner{Claim: claim, Run: metatier.ID{3}, Write: claim, Broker: "1", Who: "b:/data", Epoch: 2, Before: "broker 1 at a:/data"}
		b, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.store.Delete(t.Context(), "levee/main/metadata/owner"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.PutIfAbsent(t.Context(), "levee/main/metadata/owner", objstore.Bytes(b)); err != nil {
			t.Fatal(err)
		}
	}
	// Another one has exported the same offsets, in its own generation.
	o := s.objects[1]
	o.Generation++
	if _, err := s.store.PutIfAbsent(t.Context(), o.Key(s.place()), objstore.Bytes([]byte("the new owner's"))); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(48 * time.Hour)
	claimed(theirs)
	in, lines := s.input(true), []string(nil)
	in.Claim, in.Found = mine, func(f Finding) { lines = append(lines, f.Kind) }
	totals, err := Run(t.Context(), in)
	if err != nil || totals.Removed != 0 || !slices.Contains(lines, "taken_over") {
		t.Errorf("%+v, %v, %v", totals, lines, err)
	}

	// It may be taken over while it is looked at.
	claimed(mine)
	in.Progress = &Progress{}
	is := known(in.View)
	_, err = tier.Scrub(t.Context(), s.store, "levee", "main", func(p tier.Partition) tier.Known {
		claimed(theirs)
		return is(p)
	}, tier.ScrubOptions{Remove: true, Grace: time.Hour, Now: in.Now, May: (&check{Input: in}).ours})
	if fault.KindOf(err) != fault.Fenced {
		t.Error(err)
	}

	// Its own it removes.
	claimed(mine)
	if totals, err := Run(t.Context(), in); err != nil || totals.Removed != 1 {
		t.Errorf("%+v, %v", totals, err)
	}
}

// A copy of the metadata that is of a later time than what is here says that somebody else went on.
func TestCopyOfALaterTime(t *testing.T) {
	s := newSite(t, 0, 0)
	later := meta.NewMemory()
	for range 20 {
		if _, err := later.Propose(t.Context(), meta.ReserveProducerIDs{Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var all []Finding
	c := &check{Input: s.input(false)}
	c.Found = func(f Finding) { all = append(all, f) }
	is := &metatier.Copied{Owner: metatier.Owner{Snapshot: metatier.Snapshot{Name: "x"}}, View: later.View()}
	c.compare(is)
	if len(all) != 1 || all[0].Level != Lost || all[0].Kind != "newer" {
		t.Errorf("%+v", all)
	}
	is.View = s.meta.View()
	c.compare(is)
	c.compare(nil)
	c.compare(&metatier.Copied{})
	if len(all) != 1 {
		t.Errorf("%+v", all)
	}
}
