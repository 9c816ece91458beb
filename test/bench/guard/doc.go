// Package guard holds what must not get slower unnoticed, as figures that do not depend on the machine or its load:
// records a flush, allocations, and the CPU time of the whole path by that of bare grpc-go in the same run. It owns no
// goal: those are judged by goals.py on a quiet machine. It never asserts a rate or a time. Invariant: a bound is about
// twice what was measured when it was set, so that noise does not reach it and a lost optimisation does.
package guard
