// Package seglog owns one partition's log: appending with group commit, reading, sealing, recovering, truncating and
// retaining. It never decides who may write, never talks to a tier or a client, and never deletes a byte that was
// acknowledged except on an explicit word (retention, truncation, reset). Invariant: a reader sees an offset, and an
// append is answered, only once the bar of the log's fsync mode is passed; frames are contiguous from the first to the
// last, on disk and in memory.
//
// One goroutine at a time, the committer, owns the tail: the active segment, the next offset, the index being built,
// the producers. It is whoever found the log idle, or a goroutine started when more is queued than the finder should
// do. Everything that changes the log, also retention and truncation, is a step of that one queue. Readers load an
// immutable view that the committer swaps.
//
// size: the steps of one queue that owns the tail, and the plan that recovery makes of the same rules
package seglog
