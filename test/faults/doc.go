// Package faults owns the tests that break a real broker and look at what is left, from outside: processes are killed,
// stopped and started again while clients publish, and everything that the clients saw is kept as one history, which is
// then compared with what the log holds. Its driver (Campaign, Load) serves the packages below it, which break other
// things. It never reaches into internal packages for a verdict. Invariant: a test here prints the seed of what it draws
// (LEVEE_SEED repeats it), works on directories and ports of its own, keeps all data when it fails, and leaves no process
// behind. LEVEE_FAULTS=full runs every test at full length.
package faults
