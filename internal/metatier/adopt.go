package metatier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/writebuf"
)

// State says how far a data directory is with its claim.
type State string

// The states.
const (
	Taking State = "taking" // it takes the data over, or founds the cluster: no metadata in the directory counts yet
	Held   State = "held"   // its metadata is that of the cluster, unless the record says otherwise
)

// Claim is what a data directory remembers of its hold on the cluster's data. It is written before the record is, so that
// a start after a crash knows its own doing.
type Claim struct {
	ID    ID
	State State
	// What the record said when the taking began; zero: there was none.
	From      ID
	FromEpoch uint64
	// Epoch is that of the record when it was last seen to name the claim; 0: it never was.
	Epoch uint64
}

// Notes is where a directory keeps its claim. A claim is durable when Note returns nil; after an error either the old or
// the new one is.
type Notes interface {
	Claim() (c Claim, there bool, err error)
	Note(c Claim) error
}

// Self says who takes over.
type Self struct {
	Run    ID // of this process
	Broker string
	Who    string // machine and directory, for people
	Dir    string
}

// Taker takes the data of a cluster over for a directory without metadata. It is used by one goroutine.
type Taker struct {
	Place // its Store is nil where there is none
	Self
	Buffers *Buffers // nil: there is no write buffer
	Notes   Notes
	// Install makes a snapshot the only metadata in the directory, whatever is left there of an attempt before. It may be
	// repeated after an error or a crash.
	Install func(snapshot []byte) error
	NewID   func() ID
	Now     func() time.Time
	Waiting func(what string, err error) // told each time that something has to be waited for; nil: nobody is
	Logger  *slog.Logger
}

// Taken says what became of it.
type Taken struct {
	Epoch  uint64
	Before *Owner // whose data it was; nil: the cluster is a new one
	Found  bool   // there was metadata to go on with
	Holes  bool   // the write buffer has lost changes: those behind them are lost too
	// Missing, with Holes, are the entries that were not applied: the first of them is lost, the last is the newest that the
	// write buffer has.
	Missing writebuf.Range
	Topics  int
}

// Take makes the directory the owner of the cluster's data, with the metadata that the record names: or founds the
// cluster, where there is no record. It waits for the store as long as it must. It goes on where a crash ended it.
func (t *Taker) Take(ctx context.Context) (Taken, error) {
	claim, there, err := t.Notes.Claim()
	if err != nil {
		return Taken{}, err
	}
	if t.Buffers != nil { // before anybody is fenced
		if err := t.insist(ctx, func() error { return buffered(t.Buffers.ours(ctx)) }); err != nil {
			return Taken{}, err
		}
	}
	var taken Taken
	if !there || claim.State != Taking {
		if claim, err = t.begin(ctx); err != nil {
			return Taken{}, err
		}
	}
	if t.Store != nil {
		if err := t.own(ctx, &claim, &taken); err != nil {
			return Taken{}, err
		}
	}
	var b []byte
	if err := t.insist(ctx, func() (err error) {
		b, err = t.restore(ctx, claim, &taken)
		return err
	}); err != nil {
		return Taken{}, err
	}
	if b != nil {
		if err := t.Install(b); err != nil {
			return Taken{}, err
		}
	}
	claim.State, claim.Epoch = Held, taken.Epoch
	return taken, t.Notes.Note(claim)
}

// own makes the record name the claim.
func (t *Taker) own(ctx context.Context, claim *Claim, taken *Taken) error {
	return t.insist(ctx, func() error {
		own, before, err := t.take(ctx, *claim)
		var fenced *FencedError
		if errors.As(err, &fenced) && claim.From == (ID{}) {
			// There is a record after all, or since. Nothing was taken yet: so it is taken over as if it had been seen at once.
			*claim, err = t.begin(ctx)
			return cmp.Or(err, error(fault.New(fault.Conflict, "somebody else has founded cluster %q: it is taken over", t.Cluster)))
		}
		if err != nil {
			return err
		}
		taken.Epoch, taken.Before = own.Epoch, before
		return nil
	})
}

// begin notes that a taking begins, and from whom. A copy that cannot be read is found out before anybody is fenced.
func (t *Taker) begin(ctx context.Context) (Claim, error) {
	claim := Claim{ID: t.NewID(), State: Taking}
	if t.Store == nil {
		return claim, t.Notes.Note(claim)
	}
	err := t.insist(ctx, func() error {
		o, _, err := t.read(ctx)
		if err != nil || o == nil {
			claim.From, claim.FromEpoch = ID{}, 0
			return err
		}
		claim.From, claim.FromEpoch = o.Claim, o.Epoch
		_, err = t.open(ctx, o.Snapshot)
		return err
	})
	if err != nil {
		return Claim{}, err
	}
	return claim, t.Notes.Note(claim)
}

// take makes the record name the claim. before is whose it was, where that is still to be seen.
func (t *Taker) take(ctx context.Context, c Claim) (own, before *Owner, err error) {
	o, version, err := t.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	now := t.Now().UnixMilli()
	next := Owner{Claim: c.ID, Run: t.Run, Write: t.NewID(), Broker: t.Broker, Who: t.Who, Epoch: 1, TakenMs: now, TimeMs: now}
	switch {
	case o == nil && c.From == (ID{}):
	case o == nil:
		return nil, nil, fault.New(fault.Conflict, "object %s is gone, which said whose the data of cluster %q is, while it was being taken over: put it back; or, if all of the cluster's objects were removed on purpose, begin with an empty data directory instead of %s", t.Key(), t.Cluster, t.Dir)
	case o.Claim == c.ID && o.Run == t.Run:
		return o, nil, nil
	case o.Claim == c.ID: // an earlier start of this directory came so far
		next.Epoch, next.TakenMs, next.Before, next.Snapshot = o.Epoch, o.TakenMs, o.Before, o.Snapshot
	case o.Claim == c.From && o.Epoch == c.FromEpoch:
		before, next.Epoch, next.Before, next.Snapshot = o, o.Epoch+1, o.String(), o.Snapshot
	default:
		return nil, nil, &FencedError{Owner: *o, Key: t.Key(), Cluster: t.Cluster, Dir: t.Dir}
	}
	if _, err := t.put(ctx, version, &next); err != nil {
		return nil, nil, err // reading again tells what became of it
	}
	return &next, before, nil
}

// opened is a state on its way from one epoch to the next. Seq and Term are those of the last command in it.
type opened struct {
	raft.Copy
	data  []byte // encoded; as it was opened, or as raise made it
	state *meta.State
}

func (o *opened) bytes() []byte {
	if o == nil {
		return nil
	}
	return o.data
}

// open reads a snapshot, where there is one.
func (t *Taker) open(ctx context.Context, s Snapshot) (*opened, error) {
	if s == (Snapshot{}) {
		return nil, nil
	}
	b, err := t.fetch(ctx, s)
	if err != nil {
		return nil, err
	}
	o, err := openBytes(b)
	if err == nil && (o.Seq != s.Index || o.Term != s.Term) {
		err = fault.New(fault.Corrupt, "it holds entry %d of term %d", o.Seq, o.Term)
	}
	if err != nil {
		return nil, fmt.Errorf("object %s%s: %w", t.dir(), s.Name, err)
	}
	return o, nil
}

func openBytes(b []byte) (o *opened, err error) {
	o = &opened{data: b, state: meta.NewState()}
	if o.Copy, err = raft.ParseCopy(b); err != nil {
		return nil, err
	}
	return o, o.state.Restore(o.Payload)
}

// apply adds a command.
func (o *opened) apply(c meta.Command) error {
	o.Seq++
	res, err := o.state.Apply(o.Seq, c)
	if err != nil {
		return err
	}
	if res.Refused != nil {
		return fmt.Errorf("take over: %s: %w", c.Op(), res.Refused)
	}
	return nil
}

// restore returns the metadata to go on with, after seeing to it that it is of this epoch: with generations that nobody
// before has used. It is nil where there is none.
func (t *Taker) restore(ctx context.Context, c Claim, taken *Taken) ([]byte, error) {
	if t.Store == nil {
		next, err := t.raise(ctx, &Owner{Broker: t.Broker, Who: t.Who}, taken)
		return next.bytes(), err
	}
	o, version, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	if o == nil || o.Claim != c.ID {
		return nil, t.lost(o)
	}
	if o.Snapshot != (Snapshot{}) && o.Snapshot.Epoch == o.Epoch { // an earlier start of this directory came so far
		s, err := t.open(ctx, o.Snapshot)
		if err != nil {
			return nil, err
		}
		taken.Found, taken.Topics = true, s.state.View().TopicCount()
		return s.data, nil
	}
	next, err := t.raise(ctx, o, taken)
	if err != nil || next == nil {
		return nil, err
	}
	changed := *o
	changed.Snapshot, changed.Write, changed.TimeMs = describe(next.data, next.Seq, next.Term, o.Epoch), t.NewID(), t.Now().UnixMilli()
	if err := t.keep(ctx, next.data, changed.Snapshot); err != nil {
		return nil, err
	}
	if _, err := t.put(ctx, version, &changed); err != nil {
		return nil, err
	}
	return next.data, nil
}

func (t *Taker) lost(o *Owner) error {
	if o == nil {
		return fault.New(fault.Conflict, "object %s is gone, which said whose the data of cluster %q is", t.Key(), t.Cluster)
	}
	return &FencedError{Owner: *o, Key: t.Key(), Cluster: t.Cluster, Dir: t.Dir}
}

// raise makes the metadata of this epoch of what there is of the one before; nil where there is nothing. Whoever had the
// write buffer is shut out of it first, so that what is read there is all that they will ever have had confirmed.
func (t *Taker) raise(ctx context.Context, o *Owner, taken *Taken) (*opened, error) {
	was, err := t.open(ctx, o.Snapshot)
	if err != nil {
		return nil, err
	}
	var generation uint32
	if t.Buffers != nil {
		if generation, err = t.shutOut(ctx); err != nil {
			return nil, err
		}
		if was, err = t.newer(ctx, was, taken); err != nil {
			return nil, buffered(err)
		}
	}
	taken.Found = was != nil
	switch {
	case was == nil && generation == 1: // so that no other cluster takes it for an empty one
		_, err := t.Buffers.shelve(ctx, generation, nil, 0, 0)
		return nil, buffered(err)
	case was == nil && generation == 0:
		return nil, nil
	case was == nil: // somebody was here, and has left nothing
		was = &opened{state: meta.NewState()}
	}
	taken.Topics = was.state.View().TopicCount()
	if err := t.findObjects(ctx, was); err != nil {
		return nil, err
	}
	from := cmp.Or(o.Before, "a broker that is known by its write buffer alone")
	if err := was.apply(meta.TakeOver{AtMs: t.Now().UnixMilli(), From: from, By: o.String()}); err != nil {
		return nil, err
	}
	was.Term = max(was.Term+1, generation)
	if was.Payload, err = was.state.Snapshot(); err != nil {
		return nil, err
	}
	was.data = was.Encode()
	if t.Buffers != nil {
		if _, err := t.Buffers.shelve(ctx, was.Term, was.data, was.Seq, was.Term); err != nil {
			return nil, buffered(err)
		}
	}
	return was, nil
}

// shutOut records a generation above every one that the write buffer has seen of the metadata. That of another cluster is
// left alone.
func (t *Taker) shutOut(ctx context.Context) (uint32, error) {
	if err := t.Buffers.ours(ctx); err != nil {
		return 0, buffered(err)
	}
	parts := []writebuf.Buffer{t.Buffers.Log, t.Buffers.Snapshots}
	var there [2]writebuf.State
	var generation uint32
	for i, buf := range parts {
		var err error
		if there[i], err = buf.Bounds(ctx); err != nil {
			return 0, buffered(err)
		}
		generation = max(generation, there[i].Generation)
	}
	if generation >= math.MaxInt32 {
		return 0, fault.New(fault.Exhausted, "the generation of the metadata in the write buffer is %d, the highest there may be", generation)
	}
	generation++
	for i, buf := range parts {
		before, err := buf.Fence(ctx, generation)
		if err != nil && !errors.Is(err, writebuf.ErrFenced) {
			return 0, buffered(err)
		}
		if err != nil || before.Known != there[i].Known || before.Generation != there[i].Generation {
			return 0, fault.New(fault.Fenced, "another broker is taking over what the write buffer holds of the metadata at this moment: one of the two does; start this one again if it is to be this one")
		}
	}
	return generation, nil
}

// newer returns the newest state of all: of what is given, or of the write buffer's snapshot, each with what the log has
// behind it. Where the log lacks something right behind it, taken says so.
func (t *Taker) newer(ctx context.Context, was *opened, taken *Taken) (best *opened, err error) {
	holes := false
	on := func(o *opened) error {
		whole, err := follow(ctx, t.Buffers.Log, o)
		if err == nil && (best == nil || cmp.Or(cmp.Compare(o.Term, best.Term), cmp.Compare(o.Seq, best.Seq)) > 0) {
			best, holes = o, !whole
		}
		return err
	}
	b, err := newest(ctx, t.Buffers.Snapshots)
	if err != nil {
		return nil, err
	}
	if b != nil {
		o, err := openBytes(b)
		if err != nil {
			return nil, err
		}
		if err := on(o); err != nil {
			return nil, err
		}
	}
	if was == nil && b == nil {
		was = &opened{state: meta.NewState()} // the log may begin with its first entry
	}
	if was != nil {
		if err := on(was); err != nil {
			return nil, err
		}
	}
	taken.Holes, taken.Missing = holes, writebuf.Range{}
	if holes {
		there, err := t.Buffers.Log.Bounds(ctx)
		if err != nil {
			return nil, err
		}
		taken.Missing = writebuf.Range{First: best.Seq + 1, Last: max(there.Last, best.Seq+1)}
		t.Logger.Error("the write buffer has lost changes of the metadata: those behind them are lost, too", "first", taken.Missing.First, "last", taken.Missing.Last)
	}
	if best.Seq == 0 {
		best = nil
	}
	return best, nil
}

// bufferError is one of the write buffer.
type bufferError struct{ error }

// Unwrap returns what it is.
func (e bufferError) Unwrap() error { return e.error }

func buffered(err error) error {
	if err == nil {
		return nil
	}
	return bufferError{err}
}

// describe names a snapshot.
func describe(b []byte, index uint64, term uint32, epoch uint64) Snapshot {
	s := Snapshot{Index: index, Term: term, Size: int64(len(b)), CRC: crc32.Checksum(b, castagnoli), Epoch: epoch}
	s.Name = snapshotName(s.Index, s.Term, s.CRC)
	return s
}

// findObjects adds what was exported and noted in metadata that was not copied any more.
func (t *Taker) findObjects(ctx context.Context, r *opened) error {
	if t.Store == nil {
		return nil
	}
	for topic := range r.state.View().Topics("") {
		if topic.Dispatch != meta.Reliable {
			continue
		}
		for i := range topic.Partitions {
			if err := t.findObjectsOf(ctx, r, topic, int32(i)); err != nil { //nolint:gosec // bounded
				return err
			}
		}
	}
	return nil
}

func (t *Taker) findObjectsOf(ctx context.Context, r *opened, topic *meta.Topic, partition int32) error {
	var known []tier.Object
	if e := r.state.View().Export(topic.ID, partition); e != nil {
		last := e.Objects[len(e.Objects)-1]
		known = []tier.Object{tier.Object(last)}
	}
	place := tier.Place{Prefix: t.Prefix, Cluster: t.Cluster, TopicID: topic.ID, Partition: partition}
	found, skipped, err := tier.Above(ctx, t.Store, place, known)
	if err != nil {
		return err
	}
	if skipped > 0 {
		t.Logger.Warn("objects of a partition that is taken over do not go on with what is known of it, or are damaged, and do not count", "topic", topic.Name, "partition", partition, "objects", skipped)
	}
	p := topic.Partitions[partition]
	for _, o := range found {
		if o.Generation > p.Generation {
			c := meta.NewGeneration{Name: topic.Name, ID: topic.ID, Partition: partition, From: p.Generation, To: o.Generation}
			if err := r.apply(c); err != nil {
				return err
			}
			p.Generation = o.Generation
		}
		if p.Reserved > 0 && p.Reserved < o.Next {
			c := meta.ReserveOffsets{Name: topic.Name, ID: topic.ID, Partition: partition, Generation: p.Generation, Through: o.Next}
			if err := r.apply(c); err != nil {
				return err
			}
			p.Reserved = o.Next
		}
		frontier := r.state.View().Export(topic.ID, partition).Frontier()
		c := meta.ExportObject{Name: topic.Name, ID: topic.ID, Partition: partition, Generation: p.Generation, Frontier: frontier, Object: meta.ExportedObject(o)}
		if err := r.apply(c); err != nil {
			return err
		}
	}
	if len(found) > 0 {
		t.Logger.Info("objects found that the copy of the metadata did not know", "topic", topic.Name, "partition", partition, "objects", len(found), "below", found[len(found)-1].Next)
	}
	return nil
}

// Bounds of the waits between attempts, and how often damage is looked at again before it counts: it may be the way to here.
const (
	firstWait   = 100 * time.Millisecond
	longWait    = 10 * time.Second
	damageTries = 5
)

// insist does fn until it succeeds, or fails in a way that waiting does not mend.
func (t *Taker) insist(ctx context.Context, fn func() error) error {
	wait, damage := firstWait, 0
	for {
		err := fn()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch fault.KindOf(err) {
		case fault.Corrupt, fault.NotFound: // a snapshot that is gone may be one that was replaced just now
			if damage++; damage == damageTries {
				return fmt.Errorf("the copy of the metadata of cluster %q cannot be read, and without it a start with an empty data directory would begin with nothing: put the object back from a backup, or start with the data directory that it was made from: %w", t.Cluster, err)
			}
		case fault.Fenced, fault.Unsupported, fault.Internal, fault.Exhausted:
			return err
		default:
			damage = 0
		}
		if t.Waiting != nil {
			what := "the object store"
			if b := (bufferError{}); errors.As(err, &b) {
				what = "the write buffer"
			}
			t.Waiting(what, err)
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, longWait)
	}
}

// sleep waits about d, and reports false where ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
