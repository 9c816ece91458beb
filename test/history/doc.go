// Package history owns the one record of what clients saw of a system under test, and the checks of it. Tests write down
// what they asked for, what they were answered and what they read; the checks say which promise that breaks. It talks to
// no broker and never judges by anything but the events themselves, so that a history saved by one machine is judged the
// same by another. Invariant: an event that is not certain (a publish without an answer, an outcome of unknown) is never
// held against the system, and one that is certain is never overlooked: what could not be judged is counted.
//
// # Recording
//
// A test makes one History, tells it what its topics and producers are like, and calls Begin before and End after each
// publish. What it reads goes into a Reading, one for each reading of one partition from one source, or into a
// Subscriber. Check may be called as often as wanted while the history grows.
//
// The strictest rules hold where nothing else was said: a topic that is not described syncs each record before it
// answers and removes nothing, a fault that does not say what it may cost costs nothing.
//
// # Checks
//
//  1. No acknowledged record is lost: each later reading has it, from every source.
//  2. An offset has one value for ever, in all readings, deliveries and answers.
//  3. A value stands twice only where a fault fell between its publish and its answer, once for each fault, and never
//     when its producer is idempotent.
//  4. A producer's records keep their order in a partition, and first deliveries of a subscription never go back.
//  5. No silent hole: a reader sees or is told of each offset, from where it asked to begin.
//  6. Liveness: after a heal, publishes succeed and waiting records are delivered within a limit.
//  7. Metadata is linearizable for each topic name; local reads are monotonic and show the client's own writes.
//  8. Nothing is invented: each value was published, to that partition, and did not certainly fail.
//
// # File format
//
// JSON, one event a line, in the order in which they became known; see Event for the fields and Ops for the kinds. Times
// are nanoseconds since the history began. A history that is
// streamed has a line when a publish or a metadata operation begins and another, with the same value or call, when it
// ends: the later one counts. Ranges (from, to) include both ends. A read line
// without a value and with "same" stands for a whole range of offsets at each of which the reading saw the value that the
// history already has there: re-reading a partition costs one line. Fields that are not known are ignored, an operation
// that is not known is an error, and so is a line that does not parse unless it is the last and was cut off.
package history
