// Package leveev1 owns the messages and services of the native gRPC API, version 1: what tools/gen.sh generates from
// levee.proto, and nothing written by hand but this comment. It never talks to a network or knows the broker. Its one
// invariant: a field's number and meaning never change; what a version 1 client sends stays understood.
package leveev1
