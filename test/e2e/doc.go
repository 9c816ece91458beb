// Package e2e owns tests that use Levee as its users do: the binary, its command line, curl, the README. They never
// reach into internal packages. Invariant: a test here works on ports and directories of its own and leaves no process
// behind.
package e2e
