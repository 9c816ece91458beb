// Package dispatch owns who gets which record next: the decisions of one subscription for one partition, as a
// functional core. It is told what happens (Step), and says what is to be done; it never reads a clock, a log or a
// socket, never holds a payload, and never waits. Invariant: a record is with at most one consumer at a time, and it
// leaves only by being settled in the cursor.
//
// What is handed out is a run of offsets wherever consumers take runs, so that the cost is one per batch. Every record
// that was handed out and is not settled lies in one ordered index (index.go) as part of a node (node.go); records that
// were read and not handed out yet are in the look-ahead (ahead.go), those that must wait in heaps (due.go), those far
// from due are known by their block only (far.go).
package dispatch
