// Package danubeadmin owns the messages and services by which Danube's operators look after topics: what tools/gen.sh
// generates from admin.proto, and nothing written by hand but this comment. It never talks to a network or knows the
// broker. Its one invariant: numbers, names and types are those of Danube's wire.
package danubeadmin
