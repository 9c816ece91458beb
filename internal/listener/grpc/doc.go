// Package grpc owns the listener of the native gRPC API: connections and their limits, the two services Stream and
// Admin, health and reflection, and how an error becomes a status. It turns bytes into calls of the broker and back; it
// never decides about data, and never reads, writes or keeps a record beyond the call it came with.
//
// Its one invariant: what one client can make the broker hold is bounded. A publish stream that has too much unanswered
// is not read; a subscription has at most one delivery on its way beyond what gRPC's flow control let through; both
// wait for the client and for nothing else.
package grpc
