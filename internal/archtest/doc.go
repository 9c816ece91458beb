// Package archtest owns the rules of this repository that can be checked by reading it: who may import whom, how large
// things may grow, where goroutines start, that the documents name tests and symbols which exist. It holds tests only
// and never changes a file. Invariant: every rule here is shown to fail on a small tree that breaks it.
package archtest
