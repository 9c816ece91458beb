package meta

import (
	"fmt"
	"math"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// Custody is what the metadata knows of where a partition's newest records are, beyond its log: what its write buffer may
// lack, and that its log is to be made again because a broker was lost with its disk. It never changes: each command makes
// another.
type Custody struct {
	// Uncovered, where not nil, is the first offset that the write buffer may lack: the operator chose to go on without it.
	Uncovered *int64 `json:"uncovered,omitempty"`
	// Pending, where not nil, says that the partition's log is gone and to be made again from what the tiers hold.
	Pending *Takeover `json:"pending,omitempty"`
	// Report tells how that ended the last time.
	Report *TakeoverReport `json:"report,omitempty"`
}

// Takeover is the loss of a broker's directory, as one of its partitions sees it.
type Takeover struct {
	AtMs       int64  `json:"at_ms"`              // since the epoch
	From       string `json:"from"`               // who had the partition
	Generation uint32 `json:"generation"`         // the partition's, then
	Accepted   bool   `json:"accepted,omitempty"` // the operator accepts the loss of what the tiers do not hold
}

// TakeoverReport tells where a partition's records were found when its log was made again.
type TakeoverReport struct {
	AtMs     int64        `json:"at_ms"`
	From     string       `json:"from"`
	Objects  int64        `json:"objects"`  // offsets below it are in objects
	Replayed int64        `json:"replayed"` // offsets from Objects on and below it were in the write buffer, but for Returned
	Lost     *OffsetRange `json:"lost,omitempty"`
	// Directory, where not empty, is the lost broker's, which came back; Returned is what it alone had, nil: nothing.
	Directory string       `json:"directory,omitempty"`
	Returned  *OffsetRange `json:"returned,omitempty"`
}

// OffsetRange is a closed range of offsets.
type OffsetRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// TakeOver says that a broker is lost with its directory and another one goes on in its place: every partition's generation
// is raised, so that whatever the first one still does is refused, and the logs of reliable topics are to be made again. Producer
// ids that it may have given out are not given out again. Refused with exhausted where a generation cannot be raised.
type TakeOver struct {
	AtMs int64  `json:"at_ms"`
	From string `json:"from"` // the broker that is lost, in words for people
	By   string `json:"by"`   // who goes on
}

// SettleTakeover says that a partition's log was made again. It may be repeated. Refused with fenced where the generation
// moved, and with conflict where nothing was pending.
type SettleTakeover struct {
	Name       Name           `json:"name"`
	ID         TopicID        `json:"id"`
	Partition  int32          `json:"partition"`
	Generation uint32         `json:"generation"`
	Report     TakeoverReport `json:"report"`
}

// AcceptLoss says that what the tiers do not hold of a partition is given up, so that it can be used again. Refused with
// conflict where nothing is pending.
type AcceptLoss struct {
	Name      Name    `json:"name"`
	ID        TopicID `json:"id"`
	Partition int32   `json:"partition"`
}

// SetUncovered notes the first offset that the write buffer may lack, or, with -1, that it has everything again. One that is
// noted already stays where the new one is above it. Refused with fenced where the generation moved.
type SetUncovered struct {
	Name       Name    `json:"name"`
	ID         TopicID `json:"id"`
	Partition  int32   `json:"partition"`
	Generation uint32  `json:"generation"`
	From       int64   `json:"from"`
}

// Op returns the command's stored name.
func (TakeOver) Op() string { return "takeover.begin" }

// Op returns the command's stored name.
func (SettleTakeover) Op() string { return "takeover.settle" }

// Op returns the command's stored name.
func (AcceptLoss) Op() string { return "takeover.accept" }

// Op returns the command's stored name.
func (SetUncovered) Op() string { return "buffer.uncovered" }

// Validate refuses times and names that cannot be.
func (c TakeOver) Validate() error {
	return firstError(checkTime(c.AtMs), checkWho("from", c.From), checkWho("by", c.By))
}

// Validate refuses names and numbers that cannot be.
func (c SettleTakeover) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), c.Report.validate())
}

// Validate refuses names and numbers that cannot be.
func (c AcceptLoss) Validate() error {
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition))
}

// Validate refuses names and numbers that cannot be.
func (c SetUncovered) Validate() error {
	if c.From == -1 {
		c.From = 0
	}
	return firstError(checkTopic(c.Name, c.ID), checkPartition(c.Partition), checkOffset("from", c.From))
}

func checkWho(what, who string) error {
	if who == "" || len(who) > 200 || strings.ContainsAny(who, "\r\n") {
		return fault.New(fault.InvalidArgument, "%s: %q names nobody in one line of up to 200 bytes", what, who)
	}
	return nil
}

func (r *TakeoverReport) validate() error {
	if err := firstError(checkTime(r.AtMs), checkWho("from", r.From), checkOffset("objects", r.Objects)); err != nil {
		return err
	}
	if r.Replayed < r.Objects || r.Lost != nil && (r.Lost.From < r.Replayed || r.Lost.To < r.Lost.From) {
		return fault.New(fault.InvalidArgument, "a report of objects below %d, replayed below %d and lost %v contradicts itself", r.Objects, r.Replayed, r.Lost)
	}
	if len(r.Directory) > 4096 || strings.ContainsAny(r.Directory, "\r\n") {
		return fault.New(fault.InvalidArgument, "directory: %q is not a path in one line of up to 4096 bytes", r.Directory)
	}
	if b := r.Returned; b != nil && (r.Directory == "" || b.From < r.Objects || b.To < b.From || b.To >= r.Replayed) {
		return fault.New(fault.InvalidArgument, "a report of objects below %d, replayed below %d and returned %v from %q contradicts itself", r.Objects, r.Replayed, b, r.Directory)
	}
	return nil
}

// unknownProducers is how many producer ids a take-over passes over: more than can have been given out since the copy of the
// metadata that it goes on with. Their records may be in objects, and who got an id again would have what it sends taken for
// something sent before: acknowledged, and not stored.
const unknownProducers = 1 << 32

func (c TakeOver) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	if v.nextProducerID > math.MaxInt64-unknownProducers {
		return Result{}, fault.New(fault.Exhausted, "all producer ids were given out")
	}
	for _, t := range v.topics.all() {
		for i := range t.Partitions {
			if t.Partitions[i].Generation >= maxGeneration {
				return Result{}, fault.New(fault.Exhausted, "%s/%d: its generation is %d, the highest there may be", t.Name, i, t.Partitions[i].Generation)
			}
		}
	}
	for _, t := range v.topics.all() {
		if t.Dispatch != Reliable {
			continue
		}
		changed := *t
		changed.Partitions = append([]Partition(nil), t.Partitions...)
		for i := range changed.Partitions {
			p, key := &changed.Partitions[i], exportKey(t.ID, int32(i)) //nolint:gosec // bounded
			old, _ := v.custody.get(key)
			next := Custody{}
			if old != nil {
				next = *old
			}
			pending := Takeover{AtMs: c.AtMs, From: c.From, Generation: p.Generation}
			if next.Pending != nil { // as far as is known, nobody has used the partition since
				pending = *next.Pending
				pending.Accepted = false // what may be lost now is not what was accepted then
			}
			next.Pending = &pending
			p.Generation++
			v.custody = v.custody.set(key, &next)
		}
		v.topics = v.topics.set(t.Name.String(), &changed)
	}
	v.nextProducerID += unknownProducers
	return Result{}, nil
}

func (c SettleTakeover) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, old, refused := v.keeping(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	if old.Pending == nil && old.Report != nil && old.Report.equal(&c.Report) {
		return Result{Topic: t}, nil // said before
	}
	if old.Pending == nil {
		return Result{}, fault.New(fault.Conflict, "%s/%d: its log was not lost: there is nothing to be made again", c.Name, c.Partition)
	}
	old.Pending, old.Uncovered, old.Report = nil, nil, &c.Report
	v.keep(c.ID, c.Partition, old)
	return Result{Topic: t}, nil
}

func (c AcceptLoss) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Name, c.ID)
	if refused == nil && int(c.Partition) >= len(t.Partitions) {
		refused = fault.New(fault.NotFound, "%s has no partition %d", c.Name, c.Partition)
	}
	if refused != nil {
		return Result{}, refused
	}
	old := v.Custody(c.ID, c.Partition)
	if old == nil || old.Pending == nil {
		return Result{}, fault.New(fault.Conflict, "%s/%d: its log is not lost: there is no loss to accept", c.Name, c.Partition)
	}
	next, pending := *old, *old.Pending
	pending.Accepted, next.Pending = true, &pending
	v.keep(c.ID, c.Partition, next)
	return Result{Topic: t}, nil
}

func (c SetUncovered) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, old, refused := v.keeping(c.Name, c.ID, c.Partition, c.Generation)
	if refused != nil {
		return Result{}, refused
	}
	switch {
	case c.From < 0:
		old.Uncovered = nil
	case old.Uncovered == nil || *old.Uncovered > c.From:
		old.Uncovered = &c.From
	}
	v.keep(c.ID, c.Partition, old)
	return Result{Topic: t}, nil
}

// keeping returns a copy of a partition's custody, where that generation is the partition's.
func (v *View) keeping(n Name, id TopicID, partition int32, generation uint32) (*Topic, Custody, *fault.Error) {
	t, refused := v.partition(n, id, partition, generation)
	if refused != nil {
		return nil, Custody{}, refused
	}
	if c := v.Custody(id, partition); c != nil {
		return t, *c, nil
	}
	return t, Custody{}, nil
}

// keep makes c the partition's custody.
func (v *View) keep(id TopicID, partition int32, c Custody) {
	key := exportKey(id, partition)
	if c == (Custody{}) {
		v.custody = v.custody.remove(key)
		return
	}
	v.custody = v.custody.set(key, &c)
}

func (r *TakeoverReport) equal(o *TakeoverReport) bool {
	a, b := *r, *o
	a.Lost, b.Lost, a.Returned, b.Returned = nil, nil, nil, nil
	return a == b && r.Lost.equal(o.Lost) && r.Returned.equal(o.Returned)
}

func (r *OffsetRange) equal(o *OffsetRange) bool {
	return r == o || r != nil && o != nil && *r == *o
}

// Custody returns what is known of a partition's newest records beyond its log; nil where there is nothing to know.
func (v *View) Custody(id TopicID, partition int32) *Custody {
	c, _ := v.custody.get(exportKey(id, partition))
	return c
}

// Uncovered returns how many partitions have records of which the write buffer may lack some.
func (v *View) Uncovered() (n int) {
	for _, c := range v.custody.all() {
		if c.Uncovered != nil {
			n++
		}
	}
	return n
}

type snapshotCustody struct {
	ID        TopicID `json:"id"` // of the topic
	Partition int32   `json:"partition"`
	Custody
}

func (w *snapshotWriter) writeCustody(v *View) {
	for key, c := range v.custody.all() {
		id, partition := splitExportKey(key)
		w.write(snapshotLine{Custody: &snapshotCustody{id, partition, *c}})
	}
}

func (r *snapshotReader) takeCustody(c *snapshotCustody) error {
	v, key := r.v, exportKey(c.ID, c.Partition)
	if t, ok := v.TopicByID(c.ID); !ok || c.Partition < 0 || int(c.Partition) >= len(t.Partitions) {
		return fmt.Errorf("the custody of %s/%d has no partition", c.ID, c.Partition)
	}
	if err := r.order(sectionCustody, key); err != nil {
		return err
	}
	if c.Custody == (Custody{}) || c.Uncovered != nil && *c.Uncovered < 0 {
		return fmt.Errorf("the custody of %s/%d is out of range", c.ID, c.Partition)
	}
	if p := c.Pending; p != nil {
		if err := firstError(checkTime(p.AtMs), checkWho("from", p.From)); err != nil || p.Generation == 0 || p.Generation >= maxGeneration {
			return fmt.Errorf("what is pending of %s/%d is out of range: %w", c.ID, c.Partition, err)
		}
	}
	if c.Report != nil {
		if err := c.Report.validate(); err != nil {
			return err
		}
	}
	kept := c.Custody
	v.custody = v.custody.set(key, &kept)
	return nil
}
