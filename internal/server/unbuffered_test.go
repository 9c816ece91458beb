package server

import (
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// TestWriteBufferSwitchedOff: a run without the write buffer that earlier ones had has the metadata note for each partition
// what that lacks; where there never was one, nothing is noted.
func TestWriteBufferSwitchedOff(t *testing.T) {
	away := map[string]string{"valkey.mode": "single", "valkey.addresses": "127.0.0.1:1", "valkey.on_failure": "degrade", "valkey.confirm_timeout": "1s"}
	for name, earlier := range map[string]map[string]string{"had one": away, "never had one": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for n, changes := range []map[string]string{nil, earlier, nil} { // an empty directory waits for the write buffer
				r, ready := launch(t, settings(t, dir, changes), vfs.OS{}, thisMachine())
				<-ready
				if n == 2 {
					b := r.broker.Load()
					if _, err := b.CreateTopic(t.Context(), broker.TopicSpec{Name: "a"}); err != nil {
						t.Fatal(err)
					}
					if _, _, err := b.Publish(t.Context(), "a", 0, []record.Record{{Value: []byte("x")}}); err != nil {
						t.Fatal(err)
					}
					topic, err := r.view().Topic(meta.Name{Namespace: "default", Topic: "a"})
					if err != nil {
						t.Fatal(err)
					}
					c := r.view().Custody(topic.ID, 0)
					if noted := c != nil && c.Uncovered != nil && *c.Uncovered == 0; noted != (earlier != nil) {
						t.Errorf("the metadata has %+v", c)
					}
				}
				r.cancel()
				if <-r.done; r.err != nil {
					t.Fatal(r.err)
				}
			}
		})
	}
}
