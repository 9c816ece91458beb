// Package client owns the Go side of a Levee broker's native API: a Client is one connection, and Producers,
// Consumers, Subscriptions and Admin work over it. It never imports anything of the broker's and keeps no state on disk:
// the position of a Consumer is the caller's to store, that of a Subscription the broker keeps. Errors that a broker or the way to it caused are of type *Error.
//
// Invariant: every record handed to a Producer is answered exactly once, in the order of its partition, and every
// record a Consumer hands out has a higher offset than the one before it from the same partition. What a Subscription has
// acknowledged, and the broker has got, it does not hand out again.
//
// size: what a program does over one connection is one import
package client
