// Package invariants owns the switch for self-checks: code that checks its own invariants where that costs too much in a
// broker does so only under the build tag invariants, which the race run sets. It does nothing itself. Its one invariant:
// Enabled is a constant, so a broker carries no such check.
package invariants
