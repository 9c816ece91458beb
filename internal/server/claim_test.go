package server

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

const dataDir = "/data"

var silent = slog.New(slog.DiscardHandler)

// computer is a machine whose boots and ids a test chooses.
type computer struct {
	boot    string
	bootErr error
	syncErr error
	synced  int
	ids     byte
}

func (c *computer) machine() machine {
	return machine{
		bootID: func() (string, error) { return c.boot, c.bootErr },
		sync:   func(string) error { c.synced++; return c.syncErr },
		newID:  func() id { c.ids++; return id{c.ids} },
		now:    func() time.Time { return time.UnixMilli(1700000000000) },
		uptime: func() time.Duration { return 0 },
	}
}

func newDisk(t *testing.T) *vfs.Mem {
	t.Helper()
	fs := vfs.NewMem()
	if err := vfs.MkdirSync(fs, dataDir); err != nil {
		t.Fatal(err)
	}
	return fs
}

func mustClaim(t *testing.T, fs vfs.FS, c *computer) *claim {
	t.Helper()
	cl, err := claimDir(fs, dataDir, c.machine(), silent)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func TestLifeOfAClaim(t *testing.T) {
	fs, c := newDisk(t), &computer{boot: "b1"}
	first := mustClaim(t, fs, c)
	if first.verdict.crash != seglog.CleanStop || first.identity.Broker != firstBroker || first.number != 0 {
		t.Fatalf("first: %+v", first.verdict)
	}
	if err := first.registered(7); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll(dataDir + "/" + metadataDir); err != nil {
		t.Fatal(err)
	}
	if clean, err := first.stopped(seglog.CleanStop); !clean || err != nil {
		t.Fatalf("stop: %v, %v", clean, err)
	}

	again := mustClaim(t, fs, c)
	if again.verdict.crash != seglog.CleanStop || again.identity != first.identity || again.number != 7 || c.synced != 0 {
		t.Fatalf("after a clean stop: %+v", again)
	}
	// The process dies.
	killed := mustClaim(t, fs, c)
	if killed.verdict.crash != seglog.ProcessCrash || killed.identity != first.identity || c.synced != 1 {
		t.Fatalf("after a kill: %+v", killed.verdict)
	}
	if crash, because, err := LastRun(fs, dataDir); crash != seglog.MachineCrash || because == "" || err != nil {
		t.Fatalf("seen from another machine: %v %q %v", crash, because, err)
	}
	// The machine dies before all logs were opened, and then the process does.
	c.boot = "b2"
	power := mustClaim(t, fs, c)
	if power.verdict.crash != seglog.MachineCrash || power.identity.Storage != first.identity.Storage || power.identity.Volatile == first.identity.Volatile {
		t.Fatalf("after a power loss: %+v", power)
	}
	still := mustClaim(t, fs, c)
	if still.verdict.crash != seglog.MachineCrash || still.identity != power.identity {
		t.Fatalf("killed before it was settled: %+v", still.verdict)
	}
	if clean, err := still.stopped(still.verdict.crash); !clean || err != nil {
		t.Fatal(clean, err)
	}
	still = mustClaim(t, fs, c)
	if still.verdict.crash != seglog.MachineCrash {
		t.Fatalf("stopped before it was settled: %+v", still.verdict)
	}
	if err := errors.Join(still.settled(), still.settled()); err != nil {
		t.Fatal(err)
	}
	if over := mustClaim(t, fs, c); over.verdict.crash != seglog.ProcessCrash || over.identity != power.identity {
		t.Fatalf("killed after it was settled: %+v", over.verdict)
	}
}

func TestFailedFlushIsRemembered(t *testing.T) {
	fs, c := newDisk(t), &computer{boot: "b1"}
	cl := mustClaim(t, fs, c)
	if err := cl.flushFailed(); err != nil {
		t.Fatal(err)
	}
	if clean, err := cl.stopped(seglog.CleanStop); clean || err != nil {
		t.Fatalf("a run with a failed flush was called clean: %v, %v", clean, err)
	}
	next := mustClaim(t, fs, c)
	if next.verdict.crash != seglog.MachineCrash || c.synced != 0 || next.identity.Volatile == cl.identity.Volatile || next.identity.Storage != cl.identity.Storage {
		t.Fatalf("%+v", next)
	}

	// The disk that failed the flush does not take the note either; at the stop it does.
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return vfs.ErrIO
		}
		return nil
	})
	if err := next.flushFailed(); fault.KindOf(err) != fault.IO {
		t.Fatalf("got %v", err)
	}
	fs.SetHook(nil)
	if clean, err := next.stopped(seglog.CleanStop); clean || err != nil {
		t.Fatal(clean, err)
	}
	if v := mustClaim(t, fs, c).verdict; v.crash != seglog.MachineCrash {
		t.Fatalf("%+v", v)
	}
}

func TestSyncThatFailsRotates(t *testing.T) {
	fs, c := newDisk(t), &computer{boot: "b1"}
	first := mustClaim(t, fs, c)
	c.syncErr = vfs.ErrIO
	if next := mustClaim(t, fs, c); next.verdict.crash != seglog.MachineCrash || next.identity.Volatile == first.identity.Volatile {
		t.Fatalf("%+v", next)
	}
}

func TestUnreadableBootIsNoError(t *testing.T) {
	fs, c := newDisk(t), &computer{bootErr: errors.New("no /proc")}
	first := mustClaim(t, fs, c)
	if next := mustClaim(t, fs, c); next.verdict.crash != seglog.MachineCrash || next.identity.Volatile == first.identity.Volatile {
		t.Fatalf("%+v", next)
	}
}

func TestDamageRefusesTheClaimAndChangesNothing(t *testing.T) {
	fs, c := newDisk(t), &computer{boot: "b1"}
	cl := mustClaim(t, fs, c)
	if err := cl.registered(1); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"identity", "run", "registration"} {
		if err := vfs.WriteFileAtomic(fs, dataDir+"/"+name, []byte("rot")); err != nil {
			t.Fatal(err)
		}
	}
	before := fs.Ops()
	_, err := claimDir(fs, dataDir, c.machine(), silent)
	if fault.KindOf(err) != fault.Corrupt {
		t.Fatalf("got %v", err)
	}
	for _, name := range []string{"identity", "run", "registration"} {
		if !strings.Contains(err.Error(), dataDir+"/"+name+" is damaged") {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	if _, _, err := LastRun(fs, dataDir); fault.KindOf(err) != fault.Corrupt {
		t.Errorf("LastRun: %v", err)
	}
	if fs.Ops() != before {
		t.Error("something was changed")
	}
}

// act is one thing a run does with its claim. The states say what the directory may be found in afterwards.
type act struct {
	name string
	do   func(c *claim) error
}

// story is a run from its claim to its end.
type story struct {
	name  string
	steps []act
}

func stories() []story {
	registered := act{"registered", func(c *claim) error { return c.registered(c.number + 1) }}
	settled := act{"settled", (*claim).settled}
	failed := act{"failed", (*claim).flushFailed}
	stop := func(c *claim, open seglog.Crash) error { _, err := c.stopped(open); return err }
	stopped := act{"stopped", func(c *claim) error { return stop(c, seglog.CleanStop) }}
	early := act{"stopped", func(c *claim) error { return stop(c, c.verdict.crash) }}
	return []story{
		{"orderly", []act{registered, settled, stopped}},
		{"failing", []act{registered, settled, failed, stopped}},
		{"short", []act{registered, early}},
	}
}

// told is what had been promised when the crash came.
type told struct {
	claimed  *claim // the last claim that was made
	begun    string // the step that was under way or done last
	finished bool   // it was done
	failed   bool   // a flush had failed, and that was recorded
	settled  bool   // settled was at least begun
}

// The whole life of a directory, cut at every operation of the file system, by a kill or by a power loss of every mood.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, s := range stories() {
		for n := 1; ; n++ {
			fs := newDisk(t)
			// An earlier run that crashed with its machine: the directory has a history to forget or not to.
			mustClaim(t, fs, &computer{boot: "b0", ids: 100})
			c := &computer{boot: "b1"}
			ops := 0
			fs.SetHook(func(op vfs.Op) error {
				if !op.Kind.Changes() {
					return nil
				}
				if ops++; ops >= n {
					return fmt.Errorf("cut at %v", op)
				}
				return nil
			})
			last := play(fs, c, s)
			fs.SetHook(nil)
			for seed := range uint64(12) {
				name := fmt.Sprintf("%s, operation %d, seed %d", s.name, n, seed)
				power := fs.Crash(vfs.Random(seed))
				afterPowerLoss(t, name, power, last)
			}
			afterPowerLoss(t, s.name+", nothing kept", fs.Crash(vfs.KeepNothing), last)
			afterKill(t, fmt.Sprintf("%s, operation %d, kill", s.name, n), fs.Crash(vfs.KeepAll), last)
			if ops < n {
				break // the story ended before the cut
			}
		}
	}
}

func play(fs vfs.FS, c *computer, s story) told {
	var last told
	cl, err := claimDir(fs, dataDir, c.machine(), silent)
	if err != nil {
		return last
	}
	last.claimed = cl
	for _, st := range s.steps {
		last.begun, last.finished = st.name, false
		last.settled = last.settled || st.name == "settled"
		if st.do(cl) != nil {
			return last
		}
		last.finished = true
		last.failed = last.failed || st.name == "failed"
	}
	return last
}

func (l told) cleanly() bool    { return l.begun == "stopped" && l.finished && !l.failed }
func (l told) maybeClean() bool { return l.begun == "stopped" && !l.failed }

func afterPowerLoss(t *testing.T, name string, fs vfs.FS, l told) {
	t.Helper()
	next, err := claimDir(fs, dataDir, (&computer{boot: "b2", ids: 200}).machine(), silent)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if l.claimed == nil { // still the crash before
		if next.verdict.crash != seglog.MachineCrash || next.identity.Storage != (id{101}) || next.identity.Volatile[0] != 201 {
			t.Errorf("%s: %+v", name, next)
		}
		return
	}
	if next.identity.Storage != l.claimed.identity.Storage {
		t.Errorf("%s: the storage id changed", name)
	}
	switch kept := next.identity.Volatile == l.claimed.identity.Volatile; {
	case l.cleanly() && !kept:
		t.Errorf("%s: a clean stop was forgotten: %+v", name, next.verdict)
	case !l.maybeClean() && (kept || next.verdict.crash != seglog.MachineCrash):
		t.Errorf("%s: a power loss was taken for less: %+v", name, next.verdict)
	case !kept && next.verdict.crash != seglog.MachineCrash:
		t.Errorf("%s: a new id without a reason: %+v", name, next.verdict)
	case l.cleanly() && !l.settled && next.verdict.crash != seglog.MachineCrash:
		t.Errorf("%s: the crash before was forgotten: %+v", name, next.verdict)
	case l.cleanly() && l.settled && next.verdict.crash != seglog.CleanStop:
		t.Errorf("%s: %+v", name, next.verdict)
	}
}

func afterKill(t *testing.T, name string, fs vfs.FS, l told) {
	t.Helper()
	next, err := claimDir(fs, dataDir, (&computer{boot: "b1", ids: 200}).machine(), silent)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if l.claimed == nil {
		// Whether the claim got as far as its run file or not: the machine's crash before it still counts.
		if next.verdict.crash != seglog.MachineCrash || next.identity.Volatile == (id{102}) {
			t.Errorf("%s: %+v", name, next)
		}
		return
	}
	want := seglog.ProcessCrash
	switch {
	case l.failed || !l.settled:
		want = seglog.MachineCrash
	case l.cleanly():
		want = seglog.CleanStop
	case l.begun == "settled" || l.begun == "failed" || l.maybeClean():
		return // under way: either is right, and the power loss above tells the dangerous ones apart
	}
	if next.verdict.crash != want {
		t.Errorf("%s: %+v after %+v, want crash %d", name, next.verdict, l, want)
	}
	if l.failed == (next.identity.Volatile == l.claimed.identity.Volatile) {
		t.Errorf("%s: volatile id kept after a failed flush, or changed without one: %+v", name, next.verdict)
	}
}
