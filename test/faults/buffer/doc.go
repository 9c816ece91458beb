// Package buffer owns the faults of the write buffer: real brokers that copy what they acknowledge to a real Valkey or Redis
// server, under load, while that server or the way to it fails, and the broker's directory goes. It never looks into a broker.
// Invariant: what it calls held was read back through a client from a broker that said it was ready.
package buffer
