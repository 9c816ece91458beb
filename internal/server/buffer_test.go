package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/test/servers"
)

// usedDir returns a data directory with metadata: one without has to ask a write buffer whether it holds the cluster's.
func usedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := up(t, settings(t, dir, nil)).end(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// oneFrame appends a frame to a buffer of its own.
func oneFrame(t *testing.T, store writebuf.Store) error {
	t.Helper()
	return store.Buffer(writebuf.ID{Topic: [16]byte{1}}).Append(t.Context(), writebuf.Batch{
		Generation: 1, Floor: 1, Entries: []writebuf.Entry{{Seq: 1, Frame: []byte("frame")}},
	})
}

// TestBufferAway: a broker starts without its write buffer, says so, and takes it back when it comes.
func TestBufferAway(t *testing.T) {
	addr := servers.FreePort(t)
	r := up(t, settings(t, usedDir(t), map[string]string{"valkey.mode": "single", "valkey.addresses": addr, "valkey.timeout": "5s"})) // its scripts are slow under the race detector; where nobody listens is told at once
	if r.buffer == nil || r.buffer.Timeout != 5*time.Second || r.buffer.Degrade {
		t.Errorf("%+v", r.buffer)
	}
	told := func(part string) bool {
		_, h := readyz(t, r)
		return slices.ContainsFunc(h.Problems, func(p string) bool { return strings.Contains(p, part) })
	}
	if !until(func() bool { return told("the write buffer does not answer, and nothing is acknowledged") }) {
		t.Error("readyz does not say that the write buffer is away")
	}
	if !until(func() bool { return strings.Contains(r.lines.String(), "the write buffer does not answer") }) { // after readyz
		t.Error("the log does not say that the write buffer is away")
	}
	if err := oneFrame(t, r.buffer.Store); !errors.Is(err, writebuf.ErrUnavailable) {
		t.Errorf("append: %v", err)
	}
	mini := miniredis.NewMiniRedis()
	if err := mini.StartAddr(addr); err != nil {
		t.Fatal(err)
	}
	defer mini.Close()
	if !until(func() bool { return told("write buffer: unchecked: ") && !told("does not answer") }) {
		t.Errorf("readyz does not say that the write buffer is back")
	}
	if err := oneFrame(t, r.buffer.Store); err != nil {
		t.Error(err)
	}
	if !slices.Contains(mini.Keys(), "levee:{01000000000000000000000000000000/0}:s") {
		t.Errorf("keys %q", mini.Keys())
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if err := oneFrame(t, r.buffer.Store); !errors.Is(err, writebuf.ErrClosed) {
		t.Errorf("append after the end: %v", err)
	}
}

// TestBufferHangs: a server that takes connections and answers nothing holds up neither a start nor a stop.
func TestBufferHangs(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // what is not accepted is connected all the same
	r := up(t, settings(t, usedDir(t), map[string]string{"valkey.mode": "single", "valkey.addresses": ln.Addr().String(), "valkey.timeout": "200ms"}))
	if err := oneFrame(t, r.buffer.Store); !errors.Is(err, writebuf.ErrUnavailable) {
		t.Errorf("append: %v", err)
	}
	began := time.Now()
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("the stop took %v", took)
	}
}

// TestBufferSettings: each setting gets where it belongs.
func TestBufferSettings(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	cert, key := ca.leaf(t, dir, "server", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	mini := miniredis.NewMiniRedis()
	mini.RequireUserAuth("levee", "hush")
	shown := make(chan string, 100)
	err = mini.StartTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, VerifyConnection: func(s tls.ConnectionState) error {
		shown <- s.PeerCertificates[0].Subject.CommonName
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer mini.Close()
	mine, mineKey := ca.leaf(t, dir, "broker", time.Now().Add(time.Hour))
	with := func(changes map[string]string) map[string]string {
		m := map[string]string{
			"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.tls": "true", "valkey.ca_file": filepath.Join(dir, "ca.pem"), "valkey.cert_file": mine, "valkey.key_file": mineKey,
			"valkey.username": "levee", "valkey.password": "hush", "valkey.prefix": "mine", "valkey.database": "3", "valkey.on_failure": "degrade",
			"valkey.confirm_timeout": "7s", "valkey.keep_segments": "9", "valkey.timeout": "5s",
		}
		for k, v := range changes {
			m[k] = v
		}
		return m
	}
	r := up(t, settings(t, usedDir(t), with(nil)))
	if r.buffer.Timeout != 7*time.Second || !r.buffer.Degrade || r.buffer.KeepSegments != 9 {
		t.Errorf("%+v", r.buffer)
	}
	if err := oneFrame(t, r.buffer.Store); err != nil {
		t.Fatal(err)
	}
	if keys := mini.DB(3).Keys(); !slices.Contains(keys, "mine:{01000000000000000000000000000000/0}:s") {
		t.Errorf("keys %q", keys)
	}
	if name := <-shown; name != "broker" {
		t.Errorf("the certificate of %s was shown", name)
	}
	if strings.Contains(r.lines.String(), "hush") {
		t.Error("the log has the password")
	}
	wrong := up(t, settings(t, usedDir(t), with(map[string]string{"valkey.password": "other"})))
	if err := oneFrame(t, wrong.buffer.Store); !errors.Is(err, writebuf.ErrDenied) {
		t.Errorf("append with a wrong password: %v", err)
	}
	for _, c := range []struct{ key, value string }{{"valkey.ca_file", filepath.Join(dir, "none.pem")}, {"valkey.ca_file", key}, {"valkey.cert_file", key}} {
		err := newServer(settings(t, t.TempDir(), with(map[string]string{c.key: c.value})), Options{}, vfs.OS{}, thisMachine()).run(t.Context())
		if fault.KindOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s = %s: %v", c.key, c.value, err)
		}
	}
}

// TestBufferBesideCopiesOnTheSameDisk: copies in the data directory would empty the write buffer and be lost with the disk.
func TestBufferBesideCopiesOnTheSameDisk(t *testing.T) {
	dir := t.TempDir()
	for root, refused := range map[string]bool{"": true, dir + "/copies": true, t.TempDir(): false} {
		cfg := settings(t, dir, map[string]string{"valkey.mode": "single", "valkey.addresses": servers.FreePort(t), "storage.mode": "local", "storage.root": root})
		ctx, stop := context.WithCancel(t.Context())
		waits := slog.New(slog.NewTextHandler(&stopsAt{"waiting for", stop, t.Output()}, nil)) // for the server, which is not there
		err := newServer(cfg, Options{Logger: waits}, vfs.OS{}, thisMachine()).run(ctx)
		stop()
		if refused != (fault.KindOf(err) == fault.InvalidArgument && strings.Contains(err.Error(), "storage.root")) || !refused && err != nil {
			t.Errorf("storage.root = %q: %v", root, err)
		}
	}
}

// stopsAt writes a log on, and stops what it is of when it says something.
type stopsAt struct {
	text string
	stop func()
	out  io.Writer
}

func (s *stopsAt) Write(line []byte) (int, error) {
	if strings.Contains(string(line), s.text) {
		s.stop()
	}
	return s.out.Write(line)
}

// checked is a store whose checks go as told.
type checked struct {
	writebuf.Store
	answers []checkup // the last one for ever
	asked   []time.Duration
	began   time.Time
}

type checkup struct {
	warnings []writebuf.Warning
	err      error
}

func (c *checked) Check(context.Context) ([]writebuf.Warning, error) {
	c.asked = append(c.asked, time.Since(c.began))
	a := c.answers[min(len(c.asked), len(c.answers))-1]
	return a.warnings, a.err
}

// TestBufferWatch: what is wrong is told once, for as long as it is, and asked for more often while it is bad.
func TestBufferWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evicts := writebuf.Warning{Code: "eviction", Text: "it evicts"}
		away, old := checkup{err: fmt.Errorf("dial: %w", writebuf.ErrUnavailable)}, checkup{err: fmt.Errorf("check: %w: version 5", writebuf.ErrUnsupported)}
		c := &checked{began: time.Now(), answers: []checkup{away, away, away, old, {warnings: []writebuf.Warning{evicts}}, {warnings: []writebuf.Warning{evicts}}, {}, away, {}}}
		lines := &lockedBuffer{}
		h := &bufferHealth{store: c, log: slog.New(slog.NewTextHandler(io.MultiWriter(lines, t.Output()), nil)), first: time.Second, every: time.Minute}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.watch(ctx) }()
		at := func(d time.Duration, want string) {
			t.Helper()
			<-time.After(d - time.Since(c.began))
			synctest.Wait()
			if got := strings.Join(h.problems(), ";"); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("after %v: %q, want %q", d, got, want)
			}
		}
		at(time.Millisecond, "does not answer, and nothing is acknowledged (valkey.on_failure is reject) until it does: dial")
		at(7500*time.Millisecond, "takes nothing, and nothing is acknowledged")
		at(16*time.Second, "write buffer: eviction: it evicts")
		at(137*time.Second, "")
		at(195500*time.Millisecond, "does not answer")
		at(202*time.Second, "")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []float64{0, 1, 3, 7, 15, 75, 135, 195, 196}
		for i, w := range want {
			if len(c.asked) <= i || c.asked[i].Seconds() != w {
				t.Fatalf("asked after %v, want %v", c.asked, want)
			}
		}
		text := lines.String()
		for part, n := range map[string]int{"does not answer": 2, "level=ERROR": 1, "it evicts": 1, "as it should be": 2} {
			if got := strings.Count(text, part); got != n {
				t.Errorf("%q is logged %d times, want %d", part, got, n)
			}
		}
	})
}

// TestBufferModes: the mode gets to the store.
func TestBufferModes(t *testing.T) {
	for mode, more := range map[string]map[string]string{"sentinel": {"valkey.master_set": "m", "valkey.sentinel_password": "x"}, "cluster": nil} {
		addr := servers.FreePort(t)
		changes := map[string]string{"valkey.mode": mode, "valkey.addresses": addr, "valkey.timeout": "50ms"}
		for k, v := range more {
			changes[k] = v
		}
		r := up(t, settings(t, usedDir(t), changes))
		if err := oneFrame(t, r.buffer.Store); !errors.Is(err, writebuf.ErrUnavailable) || mode == "cluster" != strings.Contains(err.Error(), "owner of slot") {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if up(t, settings(t, usedDir(t), nil)).buffer != nil {
		t.Error("a write buffer without a server")
	}
	if config.Default().Valkey.Mode != config.ValkeyNone {
		t.Error("a write buffer by default")
	}
}
