package metatier

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
)

// TestAnotherStore: a store without the record, for metadata that has objects, is likely to be another one than they are in:
// that is said, and goes on being said.
func TestAnotherStore(t *testing.T) {
	for _, exported := range []bool{false, true} {
		b := founded(t, objstore.NewMem(), "one")
		topic, err := b.View().Topic(meta.Name{Namespace: "default", Topic: "t"})
		if err != nil {
			b.create("t")
			if topic, err = b.View().Topic(meta.Name{Namespace: "default", Topic: "t"}); err != nil {
				t.Fatal(err)
			}
		}
		if exported {
			if _, err := b.state.Propose(t.Context(), meta.ExportObject{Name: topic.Name, ID: topic.ID, Generation: topic.Partitions[0].Generation, Object: meta.ExportedObject{
				Next: 5, BaseSeq: 1, NextSeq: 6, Generation: 1, SegmentBytes: 100, Size: 100,
			}}); err != nil {
				t.Fatal(err)
			}
		}
		var lines bytes.Buffer
		place := b.place
		place.Store = objstore.NewMem()
		k := NewKeeper(KeeperConfig{Place: place, Self: b.self(), Claim: b.claim.ID, Source: b, NewID: b.newID, Now: time.Now, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		for range 2 {
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if told := strings.Contains(k.Problem(), "some/prefix/c/metadata/owner"); told != exported || strings.Count(lines.String(), "level=ERROR") > 1 {
				t.Errorf("%v: %q, %s", exported, k.Problem(), lines.String())
			}
		}
	}
}
