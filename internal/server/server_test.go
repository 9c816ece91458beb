package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestStartStopRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "data")
	cfg := settings(t, dir, nil)
	first := up(t, cfg)
	if code, h := readyz(t, first); code != http.StatusOK || h.State != "ready" || len(h.Problems) > 0 {
		t.Fatalf("%d %+v", code, h)
	}
	if got := runFile(t, dir); got.State != runOpen {
		t.Fatalf("while it runs: %+v", got)
	}
	b := first.broker.Load()
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		createTopic(t, b, mode, mode)
		publish(t, b, mode, "one of "+mode)
	}
	id := first.claim.identity
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	if got := runFile(t, dir); got.State != runClean || got.Unsettled != "" {
		t.Fatalf("after the stop: %+v", got)
	}

	second := up(t, cfg)
	if second.claim.verdict.crash != seglog.CleanStop || second.claim.identity != id {
		t.Fatalf("%+v", second.claim)
	}
	var reg registration
	if _, err := readStamp(vfs.OS{}, dir, &reg); err != nil || reg.Number != 2 {
		t.Fatalf("registration %+v, %v", reg, err)
	}
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		if values, lost := read(t, second.broker.Load(), mode); len(values) != 1 || values[0] != "one of "+mode || len(lost) > 0 {
			t.Errorf("%s: %q, lost %v", mode, values, lost)
		}
		if offset := publish(t, second.broker.Load(), mode, "two"); offset != 1 {
			t.Errorf("%s: offset %d", mode, offset)
		}
	}
	if err := second.end(); err != nil {
		t.Fatal(err)
	}
}

func TestSecondServerOnOneDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	up(t, settings(t, dir, nil))
	second, accepted := launch(t, settings(t, dir, nil), vfs.OS{}, thisMachine())
	select {
	case <-second.done:
	case <-accepted:
		t.Fatal("a second server serves the directory of the first")
	}
	if err := second.err; fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("got %v", err)
	}
	if got := runFile(t, dir); got.State != runOpen {
		t.Fatalf("the second server touched the run file: %+v", got)
	}
}

func TestTwoServersInOneProcess(t *testing.T) {
	a, b := up(t, settings(t, t.TempDir(), nil)), up(t, settings(t, t.TempDir(), nil))
	createTopic(t, a.broker.Load(), "only-a", "on_commit")
	if n, _ := b.broker.Load().Counts(); n != 0 {
		t.Fatalf("the other has %d topics", n)
	}
	if a.claim.identity.Storage == b.claim.identity.Storage || a.listening == b.listening {
		t.Fatal("they are one")
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, key := range []string{"listen.grpc", "listen.http"} {
		dir := t.TempDir()
		s, _ := launch(t, settings(t, dir, map[string]string{key: ln.Addr().String()}), vfs.OS{}, thisMachine())
		<-s.done
		if fault.KindOf(s.err) != fault.Unavailable || !strings.Contains(s.err.Error(), key) {
			t.Errorf("%s: %v", key, s.err)
		}
		if key == "listen.grpc" && runFile(t, dir).State != runClean {
			t.Errorf("a start that failed after all was opened was not stopped cleanly")
		}
	}
}

func TestUnusableDataDirIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), settings(t, file, nil), Options{})
	if fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "data_dir") || !strings.Contains(err.Error(), file) {
		t.Fatalf("got %v", err)
	}
}

func TestStopBeforeTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Run(ctx, settings(t, t.TempDir(), nil), Options{}); err != nil {
		t.Fatal(err)
	}
}

// A stop that is asked for in the middle of a start is no failure, and leaves a clean directory.
func TestStopWhileStarting(t *testing.T) {
	dir := t.TempDir()
	var stop context.CancelFunc
	var once sync.Once
	begun := make(chan struct{})
	disk := vfs.Inject(vfs.OS{}, func(op vfs.Op) error {
		if strings.Contains(op.Path, "/"+snapshotDir) {
			once.Do(func() { <-begun; stop() })
		}
		return nil
	})
	r, _ := launch(t, settings(t, dir, nil), disk, thisMachine())
	stop = r.cancel
	close(begun)
	<-r.done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if got := runFile(t, dir); got.State != runClean {
		t.Fatalf("%+v", got)
	}
	if values, _ := read(t, topicOn(t, up(t, settings(t, dir, nil))), "orders"); len(values) != 0 {
		t.Fatalf("%q", values)
	}
}

func topicOn(t *testing.T, r *running) *broker.Broker {
	t.Helper()
	createTopic(t, r.broker.Load(), "orders", "on_commit")
	return r.broker.Load()
}

// What was acknowledged while the stop was under way is there afterwards, under every mode, and the subscriber that
// waits is told to come back.
func TestDrainLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	r := up(t, settings(t, dir, nil))
	b := r.broker.Load()
	modes := []string{"on_commit", "periodic", "none"}
	acked := map[string]map[string]bool{}
	var publishers sync.WaitGroup
	for _, mode := range modes {
		createTopic(t, b, mode, mode)
		mine := map[string]bool{}
		acked[mode] = mine
		first := make(chan struct{})
		publishers.Go(func() {
			for i := 0; ; i++ {
				value := fmt.Sprint(i)
				_, _, err := b.Publish(t.Context(), mode, 0, []record.Record{{Value: []byte(value)}})
				if err != nil {
					if fault.KindOf(err) != fault.Unavailable {
						t.Errorf("%s: the drain ended a publisher with %v", mode, err)
					}
					return
				}
				mine[value] = true
				if i == 0 {
					close(first)
				}
			}
		})
		<-first
	}
	sub, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: "none", Start: broker.Latest()})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	told := make(chan error, 1)
	publishers.Go(func() {
		for {
			if _, err := sub.Next(t.Context(), 0); err != nil {
				told <- err
				return
			}
		}
	})
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	publishers.Wait()
	if err := <-told; fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the subscriber was told %v", err)
	}
	if got := runFile(t, dir); got.State != runClean {
		t.Fatalf("%+v", got)
	}
	next := up(t, settings(t, dir, nil))
	for _, mode := range modes {
		values, lost := read(t, next.broker.Load(), mode)
		for _, v := range values {
			delete(acked[mode], v)
		}
		if len(acked[mode]) > 0 || len(lost) > 0 {
			t.Errorf("%s: %d acknowledged records are gone, lost %v", mode, len(acked[mode]), lost)
		}
	}
}

func TestOnListeningGetsTheRealAddresses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got Addresses
	err := Run(ctx, settings(t, t.TempDir(), nil), Options{OnListening: func(a Addresses) {
		got = a
		for _, addr := range []string{a.GRPC, a.HTTP} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = conn.Close()
		}
		cancel()
	}})
	if err != nil || got.GRPC == got.HTTP || strings.HasSuffix(got.GRPC, ":0") {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestWarnings(t *testing.T) {
	cfg, err := config.Load(config.LoadOptions{Flags: map[string]string{"storage.open_files": "1000", "limits.connections": "100"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		limit int64
		known bool
		want  bool
	}{{1455, true, true}, {1456, true, false}, {0, false, false}} {
		lines := &lockedBuffer{}
		warn(cfg, slog.New(slog.NewTextHandler(lines, nil)), c.limit, c.known)
		if got := strings.Contains(lines.String(), "ulimit"); got != c.want {
			t.Errorf("%+v: %s", c, lines)
		}
	}
	if n, ok := maxDescriptors(); ok && n < 16 {
		t.Errorf("limit %d", n)
	}
}
