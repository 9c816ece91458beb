package buffer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// tiers is where segments go besides.
func tiers(t *testing.T) map[string]string {
	t.Helper()
	root := filepath.Join(proc.Dir(t), "objects")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"LEVEE_STORAGE_MODE": "shared_fs", "LEVEE_STORAGE_ROOT": root}
}

// TestDiskGone kills a broker that publishers are busy with, takes its whole directory away, and starts one with nothing in its
// place: everything that was acknowledged is there, at its offset, and publishers go on. Where there are objects, too, most of it
// comes from them.
func TestDiskGone(t *testing.T) {
	for name, env := range map[string]func(*testing.T) map[string]string{
		"buffer alone":       func(*testing.T) map[string]string { return nil },
		"buffer and objects": tiers,
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t, env(t))
			n := faults.Amount(3, 1, 100)
			for i := range n {
				hit := r.load.After(20 + r.Rng.Int64N(1000))
				r.Resume()
				faults.Await(t, hit, "acknowledgements")
				r.replace()
				r.Check(fmt.Sprintf("after directory %d was gone", i))
				r.History.Heal()
				hit = r.load.After(30)
				faults.Await(t, hit, "acknowledgements by the next broker")
				r.Pause()
			}
			r.load.Finish()
			r.Check("at the end")
			r.Report(n)
		})
	}
}
