package objstoretest

import (
	"testing"

	"github.com/leveemq/levee/internal/objstore"
)

// Clone returns a store in memory with the same objects.
func Clone(t testing.TB, from objstore.Store) *objstore.Mem {
	t.Helper()
	to := objstore.NewMem()
	for info, err := range from.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		data, _, err := objstore.Read(t.Context(), from, info.Key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.PutIfAbsent(t.Context(), info.Key, objstore.Bytes(data)); err != nil {
			t.Fatal(err)
		}
	}
	return to
}
