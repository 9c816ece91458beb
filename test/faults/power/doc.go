// Package power owns the tests that cut the power of a real broker's disk: at any moment of a busy file system, and at
// every flush that a disk was ever given. What was acknowledged must be what its topic's fsync mode promises, everything
// that is missing must be declared, and the broker must go on. It never looks inside the broker for a verdict. Invariant:
// each test prints its seed (LEVEE_SEED repeats it), and works on devices that go away with it.
package power
