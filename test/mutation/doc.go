// Package mutation owns deliberate bugs in the product, each with the test that must notice it. It changes no file of
// the product and asks nothing of it: a bug is a piece of text that another takes the place of, in a copy that only the
// compiler sees. Invariant: a bug counts as noticed only when the test named for it fails, and for no other reason that
// a run can end badly. `go test -tags mutation -timeout 30m ./test/mutation` runs them all.
package mutation
