// Package danube owns the messages and services by which Danube's clients publish and consume: what tools/gen.sh
// generates from danube.proto, and nothing written by hand but this comment. It never talks to a network or knows the
// broker. Its one invariant: numbers, names and types are those of Danube's wire, so that its clients work unchanged.
package danube
