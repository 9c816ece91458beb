// Package cursor owns what is settled of one partition for one subscription: a position below which everything is, and
// the settled offsets above it, in blocks of 4,096. It never decides who gets a record, and it knows no log and no
// clock. Invariant: what was settled stays settled, and the position never goes back, until Reset.
package cursor
