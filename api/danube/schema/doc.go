// Package danubeschema owns the messages and the service by which Danube's clients use the schema registry: what
// tools/gen.sh generates from schema.proto, and nothing written by hand but this comment. It never talks to a network or
// knows the broker. Its one invariant: numbers, names and types are those of Danube's wire.
package danubeschema
