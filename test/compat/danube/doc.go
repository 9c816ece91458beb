// Package danube owns the proof that Danube's clients work against the broker: a client that follows their protocol step
// by step, in the way of the least forgiving ones, and runs of the published Python client, both against broker
// processes. The client was written from the wire's facts and knows nothing of the broker. Its one invariant: what a
// Danube client would stop at, it stops at.
package danube
