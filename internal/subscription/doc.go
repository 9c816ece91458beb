// Package subscription runs one subscription of one partition while it has consumers: it feeds the dispatcher, which
// decides who gets which record, with what the log holds and what consumers say, and carries out what it decides. It
// decides nothing itself, knows no topic but by name, and keeps nothing on the disk: positions are saved through
// cursor.Saver, dead letters through a function it is given.
//
// How it moves: a consumer asks (Consumer.Next) and is given records at once where some are ready; otherwise the feed, a
// goroutine that exists while there are consumers, reads on and hands out what comes to those who asked. Nothing is
// queued for a consumer that does not ask, so one that stops reading holds up nobody and no memory.
//
// Invariant: everything a dispatcher is told and everything it wants happens under one mutex, in one order; memory of a
// read is used again only once nobody can look at it any more.
package subscription
