package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

// TestChangesWaitForTheWriteBuffer: a change that the write buffer does not confirm in time is of unknown outcome and not
// seen; later ones are refused without a trace; once it is back, what was written takes effect, in order, and a stop
// meanwhile leaves it to the next start.
func TestChangesWaitForTheWriteBuffer(t *testing.T) {
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs, mem := vfs.NewMem(), writebuf.NewMem()
			var away atomic.Bool
			mem.Fail = func(string, writebuf.ID) (bool, error) {
				if away.Load() {
					return false, writebuf.ErrUnavailable
				}
				return false, nil
			}
			log, err := openTestLog(fs, seglog.CleanStop)
			if err != nil {
				t.Fatal(err)
			}
			var held atomic.Pointer[metatier.Confirmer]
			state := meta.NewState()
			g, err := raft.Open(raft.Config{Log: metaLog{log, &held}, FS: fs, SnapshotDir: "data/raft/snapshot", Machine: newMetaMachine(state)})
			if err != nil {
				t.Fatal(err)
			}
			store := metaStore{state: state, group: g, confirmer: &held}
			of := func(n uint32) writebuf.Buffer { return mem.Buffer(writebuf.ID{Topic: metadataID(), Partition: n}) }
			c := metatier.NewConfirmer(metatier.ConfirmerConfig{
				Buffers: metatier.Buffers{Log: of(0), Snapshots: of(1)}, Dir: "data", Log: metaFrames{log}, Source: copySource{store, g},
			})
			c.Start()
			c.Enable()
			held.Store(c)
			script := metaScript(8)
			for _, cmd := range script[:3] {
				if _, err := store.Propose(t.Context(), cmd); err != nil {
					t.Fatal(err)
				}
			}
			away.Store(true)
			if _, err := store.Propose(t.Context(), script[3]); fault.KindOf(err) != fault.OutcomeUnknown {
				t.Errorf("it was answered: %v", err)
			}
			synctest.Wait() // it is known to be away by now
			if _, err := store.Propose(t.Context(), script[4]); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("it was begun: %v", err)
			}
			if n := state.View().Index(); n != 3 || log.Bounds().NextSeq != 5 {
				t.Errorf("%d are seen, the next in the log is %d", n, log.Bounds().NextSeq)
			}
			want := uint64(4)
			if !stops {
				away.Store(false)
				time.Sleep(10 * time.Second)
				if _, err := store.Propose(t.Context(), script[4]); err != nil || state.View().Index() != 5 {
					t.Errorf("%v, %d", err, state.View().Index())
				}
				want = 5
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := log.Close(); err != nil {
				t.Error(err)
			}
			again, err := startMeta(fs, seglog.ProcessCrash)
			if err != nil {
				t.Fatal(err)
			}
			if n := again.View().Index(); n != want {
				t.Errorf("%d after a restart", n)
			}
			again.close(t)
		})
	}
}
