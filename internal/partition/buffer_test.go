package partition

import (
	"testing"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/writebuf"
)

// TestDeletionIsRepeated: a deletion that ended between two partitions, or before it was noted, comes to its end.
func TestDeletionIsRepeated(t *testing.T) {
	store := writebuf.NewMem()
	away := true
	store.Fail = func(_ string, id writebuf.ID) (bool, error) {
		if away && id.Partition == 1 {
			return false, writebuf.ErrUnavailable
		}
		return false, nil
	}
	b := &Buffer{Store: store}
	if err := b.DeleteTopic(t.Context(), meta.TopicID{1}, 3); err == nil {
		t.Fatal("it was deleted")
	}
	away = false
	for range 2 {
		if err := b.DeleteTopic(t.Context(), meta.TopicID{1}, 3); err != nil {
			t.Fatal(err)
		}
	}
}
