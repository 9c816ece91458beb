package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits for what must come.
const patience = 20 * time.Second

// site is a running server over a running broker, both gone at the end of the test.
type site struct {
	t      *testing.T
	server *Server
	broker *broker.Broker
	url    string
	client *http.Client
}

// serve starts a broker in memory and a server over it.
func serve(t *testing.T, change func(*Config, *broker.Config)) *site {
	t.Helper()
	fsys := vfs.NewMem()
	if err := fsys.MkdirAll("data"); err != nil {
		t.Fatal(err)
	}
	bcfg := broker.Config{Meta: meta.NewMemory(), FS: fsys, DataDir: "data", RetentionEvery: 10 * time.Millisecond}
	cfg := Config{Registry: prometheus.NewRegistry(), Version: "test"}
	if change != nil {
		change(&cfg, &bcfg)
	}
	b, err := broker.New(bcfg)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Broker == nil {
		cfg.Broker = func() *broker.Broker { return b }
	}
	s := New(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	run := task.NewGroup(context.Background())
	run.Go("broker", b.Run)
	run.Go("http", func(context.Context) error { return s.Serve(ln) })
	transport := &http.Transport{}
	si := &site{t: t, server: s, broker: b, url: "http://" + ln.Addr().String(), client: &http.Client{Transport: transport}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		transport.CloseIdleConnections()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		b.Drain(ctx)
		run.Stop()
		if err := run.Wait(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	until(t, "the broker is ready", func() bool { return b.Ready() == nil })
	return si
}

// until waits for a condition that nothing signals.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s in vain until %s", patience, what)
		}
	}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	text   string
}

// json reads the answer into v.
func (a answer) json(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.text), v); err != nil {
		t.Fatalf("%d %q: %v", a.status, a.text, err)
	}
}

// fault returns the kind of error that came back.
func (a answer) fault(t *testing.T) errorJSON {
	t.Helper()
	var e struct{ Error errorJSON }
	a.json(t, &e)
	return e.Error
}

// do sends a request; header names and values alternate.
func (si *site) do(method, target, body string, headers ...string) answer {
	si.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, si.url+target, bytes.NewBufferString(body))
	if err != nil {
		si.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := si.client.Do(req)
	if err != nil {
		si.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		si.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// want does a request that must succeed.
func (si *site) want(status int, method, target, body string, headers ...string) answer {
	si.t.Helper()
	a := si.do(method, target, body, headers...)
	if a.status != status {
		si.t.Fatalf("%s %s: %d, want %d: %s", method, target, a.status, status, a.text)
	}
	return a
}

func (si *site) topic(name, body string) string {
	si.t.Helper()
	target := path.Join("/v1/topics", name)
	si.want(201, "PUT", target, body)
	return target
}

const (
	asText  = "text/plain"
	asJSON  = "application/json"
	asLines = "application/x-ndjson"
)

// brokerSlot is a broker that appears later.
type brokerSlot struct{ atomic.Pointer[broker.Broker] }
