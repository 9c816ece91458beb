package server

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// onBoot is this machine after another boot.
func onBoot(id string) machine {
	m := thisMachine()
	m.bootID = func() (string, error) { return id, nil }
	return m
}

// copyOf returns a copy of a data directory as it is now: what a kill of its process would leave.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestWhatACrashCosts(t *testing.T) {
	dir := t.TempDir()
	r := upOn(t, settings(t, dir, nil), vfs.OS{}, onBoot("first"))
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		createTopic(t, r.broker.Load(), mode, mode)
		publish(t, r.broker.Load(), mode, "kept")
	}
	id := r.claim.identity

	t.Run("process", func(t *testing.T) {
		dir := copyOf(t, dir)
		next := upOn(t, settings(t, dir, nil), vfs.OS{}, onBoot("first"))
		if next.claim.verdict.crash != seglog.ProcessCrash || next.claim.identity != id {
			t.Fatalf("%+v", next.claim)
		}
		for _, mode := range []string{"on_commit", "periodic", "none"} {
			if values, lost := read(t, next.broker.Load(), mode); len(values) != 1 || len(lost) > 0 {
				t.Errorf("%s: %q, lost %v", mode, values, lost)
			}
		}
	})
	t.Run("machine", func(t *testing.T) {
		dir := copyOf(t, dir)
		next := upOn(t, settings(t, dir, nil), vfs.OS{}, onBoot("second"))
		if next.claim.verdict.crash != seglog.MachineCrash || next.claim.identity.Storage != id.Storage || next.claim.identity.Volatile == id.Volatile {
			t.Fatalf("%+v", next.claim)
		}
		if values, lost := read(t, next.broker.Load(), "on_commit"); len(values) != 1 || len(lost) > 0 {
			t.Errorf("on_commit: %q, lost %v", values, lost)
		}
		for _, mode := range []string{"periodic", "none"} {
			values, lost := read(t, next.broker.Load(), mode)
			if len(values) != 1 || len(lost) != 1 || lost[0].From != 1 {
				t.Errorf("%s: %q, lost %v", mode, values, lost)
			} else if offset := publish(t, next.broker.Load(), mode, "new"); offset != lost[0].To+1 {
				t.Errorf("%s: offset %d after lost %v", mode, offset, lost)
			}
		}
		if err := next.end(); err != nil {
			t.Fatal(err)
		}
		if got := runFile(t, dir); got.State != runClean || got.Unsettled != "" {
			t.Fatalf("%+v", got)
		}
	})
}

func TestFailedFlushIsWrittenDownAtOnce(t *testing.T) {
	dir := t.TempDir()
	var failing atomic.Bool
	disk := vfs.Inject(vfs.OS{}, func(op vfs.Op) error {
		if failing.Load() && op.Kind == vfs.OpSync && strings.Contains(op.Path, "/topics/") {
			return vfs.ErrIO
		}
		return nil
	})
	r := upOn(t, settings(t, dir, nil), disk, onBoot("b"))
	createTopic(t, r.broker.Load(), "orders", "on_commit")
	publish(t, r.broker.Load(), "orders", "kept")
	failing.Store(true)
	if _, _, err := r.broker.Load().Publish(t.Context(), "orders", 0, []record.Record{{Value: []byte("x")}}); err == nil {
		t.Fatal("acknowledged without a flush")
	}
	failing.Store(false)
	awaitRun(t, dir, runFailed)
	if _, h := readyz(t, r); !strings.Contains(strings.Join(h.Problems, "\n"), "flush") {
		t.Errorf("%+v", h)
	}
	if err := r.end(); fault.KindOf(err) != fault.Stopped || !strings.Contains(err.Error(), "orders") {
		t.Fatalf("the stop: %v", err)
	}
	if got := runFile(t, dir); got.State != runFailed {
		t.Fatalf("%+v", got)
	}
	next := upOn(t, settings(t, dir, nil), vfs.OS{}, onBoot("b"))
	if next.claim.verdict.crash != seglog.MachineCrash {
		t.Fatalf("%+v", next.claim.verdict)
	}
	if values, _ := read(t, next.broker.Load(), "orders"); len(values) < 1 || values[0] != "kept" {
		t.Fatalf("%q", values) // "x", which was never acknowledged, may be there or not
	}
}

// awaitRun waits until the run file says state.
func awaitRun(t *testing.T, dir, state string) {
	t.Helper()
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for runFile(t, dir).State != state {
		select {
		case <-tick.C:
		case <-patience.C:
			t.Fatalf("the run file says %+v, want %s", runFile(t, dir), state)
		}
	}
}

// flip changes one byte in the middle of the first file below dir that ends in suffix, and returns the file.
func flip(t *testing.T, dir, suffix string, at int64) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && found == "" && strings.HasSuffix(path, suffix) {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatal(found, err)
	}
	f, err := os.OpenFile(found, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, rerr := f.ReadAt(b, at)
	b[0] ^= 0xff
	_, werr := f.WriteAt(b, at)
	if err := errors.Join(rerr, werr, f.Close()); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDamagedMetadataStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	r := up(t, settings(t, dir, nil))
	for _, name := range []string{"a", "b", "c"} {
		createTopic(t, r.broker.Load(), name, "on_commit")
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	file := flip(t, filepath.Join(dir, logDir), ".log", 200)
	for range 2 {
		next, _ := launch(t, settings(t, dir, nil), vfs.OS{}, thisMachine())
		<-next.done
		if fault.KindOf(next.err) != fault.Corrupt || !strings.Contains(next.err.Error(), file) {
			t.Fatalf("got %v", next.err)
		}
	}
	if flip(t, filepath.Join(dir, logDir), ".log", 200) != file {
		t.Fatal("another file")
	}
	if next := up(t, settings(t, dir, nil)); next.claim.verdict.crash != seglog.CleanStop {
		t.Fatalf("starts that were refused changed how the last run ended: %+v", next.claim.verdict)
	}
}

func TestOlderMetadataStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := up(t, settings(t, dir, nil)).end(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, metadataDir)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a start that is accepted ends then
	defer cancel()
	err := Run(ctx, settings(t, dir, nil), Options{OnReady: cancel})
	if fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), filepath.Join(dir, metadataDir)) {
		t.Fatalf("got %v", err)
	}
}

func TestDamagedIdentityStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := up(t, settings(t, dir, nil)).end(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "identity")
	if err := os.WriteFile(file, []byte("levee-identity"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := Run(ctx, settings(t, dir, nil), Options{OnReady: cancel})
	var damaged *DamagedError
	if !errors.As(err, &damaged) || damaged.Path != file {
		t.Fatalf("got %v", err)
	}
}

func TestDamagedPartition(t *testing.T) {
	dir := t.TempDir()
	r := up(t, settings(t, dir, nil))
	for _, topic := range []string{"bad", "good"} {
		createTopic(t, r.broker.Load(), topic, "on_commit")
		for range 3 {
			publish(t, r.broker.Load(), topic, "value")
		}
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	file := flip(t, filepath.Join(dir, topicsDir, "default", "bad@1"), ".log", 120)

	strict, _ := launch(t, settings(t, dir, map[string]string{"storage.strict_start": "true"}), vfs.OS{}, thisMachine())
	<-strict.done
	if fault.KindOf(strict.err) != fault.Corrupt || !strings.Contains(strict.err.Error(), file) {
		t.Fatalf("strict: %v", strict.err)
	}
	next := up(t, settings(t, dir, nil))
	if next.claim.verdict.crash != seglog.CleanStop {
		t.Errorf("a strict start that was refused changed how the last run ended: %+v", next.claim.verdict)
	}
	if code, h := readyz(t, next); code != http.StatusOK || !strings.Contains(strings.Join(h.Problems, "\n"), "bad") {
		t.Fatalf("%d %+v", code, h)
	}
	if values, _ := read(t, next.broker.Load(), "good"); len(values) != 3 {
		t.Fatalf("%q", values)
	}
	if _, err := next.broker.Load().Subscribe(t.Context(), broker.SubscribeSpec{Topic: "bad"}); fault.KindOf(err) != fault.Corrupt {
		t.Fatalf("got %v", err)
	}
	if err := next.end(); err != nil {
		t.Fatal(err)
	}
}

// A log that cannot be read yet cannot reckon with the crash either; until it can, no stop may make the next start
// forget that there was one.
func TestCrashIsRememberedForWhatDidNotOpen(t *testing.T) {
	dir := t.TempDir()
	r := upOn(t, settings(t, dir, nil), vfs.OS{}, onBoot("first"))
	createTopic(t, r.broker.Load(), "orders", "periodic")
	publish(t, r.broker.Load(), "orders", "value")
	crashed := copyOf(t, dir)
	broken := vfs.Inject(vfs.OS{}, func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && strings.Contains(op.Path, "/topics/") {
			return vfs.ErrIO
		}
		return nil
	})
	for range 2 {
		next := upOn(t, settings(t, crashed, nil), broken, onBoot("second"))
		if len(next.broker.Load().Problems()) == 0 {
			t.Fatal("the log was opened")
		}
		if err := next.end(); err != nil {
			t.Fatal(err)
		}
	}
	next := upOn(t, settings(t, crashed, nil), vfs.OS{}, onBoot("second"))
	if values, lost := read(t, next.broker.Load(), "orders"); len(values) != 1 || len(lost) != 1 || lost[0].From != 1 {
		t.Fatalf("%q, lost %v", values, lost)
	}
}

func TestHealthTellsHowFarTheStartIs(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	disk := vfs.Inject(vfs.OS{}, func(op vfs.Op) error {
		if op.Kind.Changes() && strings.Contains(op.Path, "/"+logDir) && once.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
		return nil
	})
	r, ready := launch(t, settings(t, t.TempDir(), nil), disk, thisMachine())
	<-reached
	if code, h := readyz(t, r); code != http.StatusServiceUnavailable || h.State != "starting" || !strings.Contains(h.Detail, "metadata") {
		t.Errorf("%d %+v", code, h)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if code, body := get(t, client, "http://"+r.listening.HTTP+"/healthz"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get(t, client, "http://"+r.listening.HTTP+"/metrics"); code != http.StatusOK || !strings.Contains(body, "levee_build_info") {
		t.Errorf("%d %s", code, body)
	}
	close(release)
	<-ready
	if code, h := readyz(t, r); code != http.StatusOK || h.State != "ready" {
		t.Errorf("%d %+v", code, h)
	}
}
