//go:build !invariants

package proc

const selfChecks = false
