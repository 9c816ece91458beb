//go:build invariants

package seglog

// selfCheck turns on checks that cost too much for a broker: see noteWritten and publish.
const selfCheck = true
