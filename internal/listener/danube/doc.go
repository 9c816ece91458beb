// Package danube owns the Danube API of the broker: its services on the gRPC port, how Danube's names, ids and messages
// are the broker's, and which status a Danube client needs to see to do the right thing. It turns calls into calls of the
// broker and back; it owns no port, stores nothing, and starts no goroutine.
//
// Its one invariant: an id says who it belongs to. Producers' and consumers' ids are made from names alone, so that a
// client that kept one across a restart of the broker, and will not ask for another, can go on.
package danube
