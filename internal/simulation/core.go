package simulation

import (
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// NodeID names a node of a world. Names sort; the order of anything that visits all nodes is that of their creation.
type NodeID string

// Core is a functional core, or a few of them, as one node of a world runs it. Step takes one event and returns what is
// to be done, in order. It reads no clock, file or socket, draws nothing at random, starts no goroutine, and does not
// range over a map where the order could be seen. It owns the slices of the event; the world owns those of the effects.
//
// A core lives from one Boot to the next crash: the world makes a new one with the node's constructor, so that nothing
// but the disk outlives a crash.
type Core interface {
	Step(now Now, e Event) []Effect
}

// Now is what the node's own clocks say.
type Now struct {
	Mono   time.Duration // since this life of the node began; never goes back; runs a little fast or slow
	WallMs int64         // since the epoch; skewed, and may jump either way
}

// Event is one of Boot, Receive, Request, Response, Timer, DiskDone.
type Event interface{ event() }

// Effect is one of Send, Call, Reply, SetTimer, StopTimer, Disk, Halt.
type Effect interface{ effect() }

// Boot is the first event of every life: what the disk holds, in the order of names.
type Boot struct {
	Files []File
	Crash Crash // how the life before it ended
}

// File is a file as a node finds it when it boots.
type File struct {
	Name string
	Data []byte
}

// Crash says how a life ended.
type Crash uint8

// The ends of a life.
const (
	Fresh        Crash = iota // there was none before
	ProcessCrash              // the page cache outlived it
	MachineCrash              // what was not synced may be gone, torn or out of order
)

// Receive is a message of another node.
type Receive struct {
	From NodeID
	Body []byte
}

// Request is a call that wants a Reply with its ID. The network may deliver it twice.
type Request struct {
	From NodeID
	ID   uint64
	Body []byte
}

// Response is the answer to the call with this ID. It may come twice, or after the caller gave up.
type Response struct {
	From NodeID
	ID   uint64
	Body []byte
}

// Timer is a timer that went off.
type Timer struct{ Name string }

// DiskDone says that the Disk effect with this ID is done, or why it is not.
type DiskDone struct {
	ID   uint64
	Err  error
	Data []byte // of DiskRead
}

// Send sends a message. It may arrive late, twice, out of order, or never.
type Send struct {
	To   NodeID
	Body []byte
}

// Call sends a request. The world keeps the first Call and the first Response of an ID as an operation of its history;
// calling again with the ID is a retry. IDs are the caller's own.
type Call struct {
	To   NodeID
	ID   uint64
	Body []byte
}

// Reply answers a request.
type Reply struct {
	To   NodeID
	ID   uint64
	Body []byte
}

// SetTimer has Timer come after that long by the node's own clock. It replaces one of the same name.
type SetTimer struct {
	Name  string
	After time.Duration
}

// StopTimer forgets a timer; it is no error where there is none.
type StopTimer struct{ Name string }

// Disk is one operation on the node's disk, answered by DiskDone with the same ID. Operations on one file are done in
// the order in which they were asked for, all others in any order: wait for what you depend on.
type Disk struct {
	ID   uint64
	Op   DiskOp
	File string // no slashes; not used by DiskSyncDir
	Off  int64  // of DiskWrite; the new size of DiskTruncate
	Data []byte // of DiskWrite and DiskReplace
}

// DiskOp is what a Disk effect does.
type DiskOp uint8

// The operations of a disk. Only DiskSync, DiskSyncDir and DiskReplace make anything durable.
const (
	DiskWrite    DiskOp = iota // creates the file where there is none
	DiskTruncate               // sets the length
	DiskSync                   // makes content and length durable, not the name
	DiskSyncDir                // makes names durable, as they are now
	DiskReplace                // writes the whole file so that a crash leaves the old or the new one; durable when done
	DiskRemove
	DiskRead
)

var diskOps = [...]string{"write", "truncate", "sync", "sync dir", "replace", "remove", "read"}

// String returns the name that traces show.
func (o DiskOp) String() string { return diskOps[o] }

// Halt ends this life as a crash of the process does, at the core's own wish: after a failed sync, say. Effects behind
// it are not carried out.
type Halt struct{ Reason string }

func (Boot) event()     {}
func (Receive) event()  {}
func (Request) event()  {}
func (Response) event() {}
func (Timer) event()    {}
func (DiskDone) event() {}

func (Send) effect()      {}
func (Call) effect()      {}
func (Reply) effect()     {}
func (SetTimer) effect()  {}
func (StopTimer) effect() {}
func (Disk) effect()      {}
func (Halt) effect()      {}

// Losses is a chooser of what a power loss keeps that draws from a stream of the choices. Zeros keep everything.
func Losses(c *Choices, stream string) vfs.Chooser {
	// The mood first: fates that are all alike find other bugs than fates that differ from write to write.
	mood := c.Pick(stream, 1, 3, 4)
	return vfs.ChooserFunc(func(u vfs.Unsynced) vfs.Fate {
		switch {
		case mood == 0:
			return vfs.Fate{How: vfs.Kept}
		case mood == 1:
			return vfs.Fate{How: vfs.Lost}
		case u.Kind != vfs.OpWrite:
			return vfs.Fate{How: []vfs.How{vfs.Kept, vfs.Lost}[c.Draw(stream, 2)]}
		}
		fate := vfs.Fate{How: []vfs.How{vfs.Kept, vfs.Lost, vfs.Torn, vfs.SizeOnly, vfs.Sectors, vfs.Bytes, vfs.Garbage}[c.Pick(stream, 6, 5, 3, 2, 1, 2, 2)]}
		switch fate.How {
		case vfs.Torn:
			fate.N = c.Draw(stream, int(u.Len))
		case vfs.Garbage:
			fate.N = c.Draw(stream, 1<<16)
		case vfs.Sectors, vfs.Bytes:
			pattern := uint64(c.Draw(stream, 1<<16)) // one decision, not one for each byte
			fate.Pick = func(i int) bool { return pattern>>(i*7%16)&1 == 0 }
		}
		return fate
	})
}
