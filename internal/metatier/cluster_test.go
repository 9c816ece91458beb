package metatier

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/writebuf"
)

// refusedFor says that an error is that of a broker of one cluster that found another's metadata, and says what to do.
func refusedFor(err error, there, here string) bool {
	var other *OtherClusterError
	return errors.As(err, &other) && other.There == there && other.Cluster == here && fault.KindOf(err) == fault.Fenced &&
		strings.Contains(err.Error(), `"`+there+`"`) && strings.Contains(err.Error(), `"`+here+`"`) && strings.Contains(err.Error(), "valkey.prefix")
}

// Two clusters that share a write buffer by mistake: the second one is refused, on an empty directory and on one with
// metadata, from the first moment of the first one on, and nothing of that one's is touched.
func TestAnotherClustersWriteBuffer(t *testing.T) {
	for _, topics := range []int{-1, 0, 1, 30} { // -1: it was founded, and nothing ran since
		synctest.Test(t, func(t *testing.T) {
			mem := writebuf.NewMem()
			a := newBroker(t, "A", nil)
			a.bufs = metadataIn(mem)
			if _, err := a.take(t.Context()); err != nil {
				t.Fatal(err)
			}
			var c *Confirmer
			if topics >= 0 {
				c = a.confirming(false)
				defer stopped(t, c)
				synctest.Wait()
			}
			for n := range max(topics, 0) {
				if err := a.propose(c, topicOf(fmt.Sprint("t", n))); err != nil {
					t.Fatal(err)
				}
			}
			bounds := func() (all [2]writebuf.State) {
				for n := range all {
					st, err := mem.Buffer(idOf(uint32(n))).Bounds(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					all[n] = st
				}
				return all
			}
			synctest.Wait()
			was := bounds()

			store := objstore.NewMem()
			earlier := founded(t, store, "x")
			before := earlier.owner()
			b := newBroker(t, "B", store)
			b.bufs = metadataIn(mem)
			b.bufs.Cluster = "other"
			if _, err := b.take(t.Context()); !refusedFor(err, "c", "other") {
				t.Fatalf("%d topics: an empty directory: %v", topics, err)
			}
			if earlier.owner() != before || b.claim != nil {
				t.Errorf("%d topics: the owner in the object store was fenced", topics)
			}

			b = newBroker(t, "B", store)
			if _, err := b.take(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.bufs = metadataIn(mem)
			b.bufs.Cluster = "other"
			d := NewConfirmer(ConfirmerConfig{Buffers: *b.bufs, Dir: "/B", Log: b.log, Source: b})
			if err := d.Check(t.Context()); !refusedFor(err, "c", "other") {
				t.Fatalf("%d topics: a directory with metadata: %v", topics, err)
			}
			d = NewConfirmer(ConfirmerConfig{Buffers: *b.bufs, Dir: "/B", Log: b.log, Source: b})
			d.Start() // the server did not answer Check
			<-d.Fenced()
			if err := d.Err(); !refusedFor(err, "c", "other") {
				t.Errorf("%d topics: found out later: %v", topics, err)
			}
			stopped(t, d)
			if got := bounds(); got[0].Generation != was[0].Generation || got[1].Last != was[1].Last || got[0].Last != was[0].Last {
				t.Errorf("%d topics: %+v, it was %+v", topics, got, was)
			}
			if c != nil {
				if err := a.propose(c, topicOf("later")); err != nil {
					t.Errorf("%d topics: %v", topics, err)
				}
			}
		})
	}
}
