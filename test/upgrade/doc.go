// Package upgrade owns the tests that data of every earlier version opens in this one: testdata/upgrade holds a small
// data directory of each, as the broker of that version left it, and a list of what is in it. It never changes those:
// tests work on copies. Invariant: what a version wrote is written once, by that version, and kept for ever.
//
// A new version adds its own, built from its own tree:
//
//	go test ./test/upgrade -run TestPresentVersion -write v0.2
package upgrade
