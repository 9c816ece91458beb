package server

import (
	"errors"
	"testing"

	"github.com/leveemq/levee/internal/seglog"
)

func TestDecide(t *testing.T) {
	known := &identity{Broker: "1", Storage: id{1}, Volatile: id{2}}
	ran := func(state, boot string) *run { return &run{State: state, BootID: boot} }
	unsettled := func(r *run, crash string) *run { r.Unsettled = crash; return r }
	const clean, process, power = seglog.CleanStop, seglog.ProcessCrash, seglog.MachineCrash
	keep, volatileOnly, both := [2]bool{}, [2]bool{false, true}, [2]bool{true, true}
	for _, c := range []struct {
		name  string
		f     found
		ids   [2]bool // storage, volatile: new
		sync  bool
		crash seglog.Crash
	}{
		{"nothing there", found{empty: true, boot: "b"}, both, false, clean},
		{"no identity beside data", found{boot: "b", run: ran(runClean, "b")}, both, false, power},
		{"no identity beats a restored volume", found{peers: 5, registration: 1, boot: "b", empty: true}, both, false, clean},
		{"restored volume", found{identity: known, peers: 5, registration: 4, boot: "b", run: ran(runClean, "b")}, both, false, power},
		{"restored volume without a number", found{identity: known, peers: 1, boot: "b", run: ran(runClean, "b")}, both, false, power},
		{"peers know no more", found{identity: known, peers: 5, registration: 5, boot: "b", run: ran(runClean, "b")}, keep, false, clean},
		{"clean stop, same boot", found{identity: known, boot: "b", run: ran(runClean, "b")}, keep, false, clean},
		{"clean stop, another boot", found{identity: known, boot: "c", run: ran(runClean, "b")}, keep, false, clean},
		{"clean stop, boot unreadable", found{identity: known, run: ran(runClean, "")}, keep, false, clean},
		{"process crash", found{identity: known, boot: "b", run: ran(runOpen, "b")}, keep, true, process},
		{"machine crash", found{identity: known, boot: "c", run: ran(runOpen, "b")}, volatileOnly, false, power},
		{"boot unreadable now", found{identity: known, run: ran(runOpen, "b")}, volatileOnly, false, power},
		{"boot unreadable then", found{identity: known, boot: "b", run: ran(runOpen, "")}, volatileOnly, false, power},
		{"boot never readable", found{identity: known, run: ran(runOpen, "")}, volatileOnly, false, power},
		{"failed flush, same boot", found{identity: known, boot: "b", run: ran(runFailed, "b")}, volatileOnly, false, power},
		{"failed flush, another boot", found{identity: known, boot: "c", run: ran(runFailed, "b")}, volatileOnly, false, power},
		{"no run", found{identity: known, boot: "b"}, volatileOnly, false, power},
		{"process crash before a machine crash was got over", found{identity: known, boot: "b", run: unsettled(ran(runOpen, "b"), "machine")}, keep, true, power},
		{"clean stop before a machine crash was got over", found{identity: known, boot: "b", run: unsettled(ran(runClean, "b"), "machine")}, keep, false, power},
		{"clean stop before a process crash was got over", found{identity: known, boot: "b", run: unsettled(ran(runClean, "b"), "process")}, keep, false, process},
		{"machine crash before a process crash was got over", found{identity: known, boot: "c", run: unsettled(ran(runOpen, "b"), "process")}, volatileOnly, false, power},
	} {
		v := decide(c.f)
		if got := [2]bool{v.newStorage, v.newVolatile}; got != c.ids || v.sync != c.sync || v.crash != c.crash || v.because == "" {
			t.Errorf("%s: %+v", c.name, v)
		}
		ok, bad := v.flushed(nil), v.flushed(errors.New("EIO"))
		if ok.sync || bad.sync {
			t.Errorf("%s: still asks to sync", c.name)
		}
		if ok.crash != v.crash || ok.newVolatile != v.newVolatile || ok.because != v.because {
			t.Errorf("%s: a sync that succeeds changes the verdict: %+v", c.name, ok)
		}
		if bad.crash != power || !bad.newVolatile || bad.newStorage != v.newStorage {
			t.Errorf("%s: a sync that fails: %+v", c.name, bad)
		}
	}
}
