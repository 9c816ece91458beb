package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a server under test.
type running struct {
	*server
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
	lines  *lockedBuffer
}

// lockedBuffer is where a server under test logs to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// settings returns a configuration on free loopback ports, with changes by key.
func settings(t *testing.T, dir string, changes map[string]string) *config.Config {
	t.Helper()
	flags := map[string]string{"data_dir": dir, "listen.grpc": "127.0.0.1:0", "listen.http": "127.0.0.1:0", "drain_timeout": "5s"}
	for k, v := range changes {
		flags[k] = v
	}
	c, err := config.Load(config.LoadOptions{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// launch runs a server in the background. It is stopped at the end of the test at the latest.
func launch(t *testing.T, cfg *config.Config, fs vfs.FS, m machine) (r *running, ready <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	isReady := make(chan struct{})
	r = &running{cancel: cancel, done: make(chan struct{}), lines: &lockedBuffer{}}
	o := Options{Version: "test", Logger: slog.New(slog.NewTextHandler(r.lines, nil)), OnReady: func() { close(isReady) }}
	r.server = newServer(cfg, o, fs, m)
	go func() {
		defer close(r.done)
		r.err = r.run(ctx)
	}()
	t.Cleanup(func() {
		_ = r.end()
		if t.Failed() {
			t.Logf("log:\n%s", r.lines)
		}
	})
	return r, isReady
}

// up launches a server and waits until it is ready.
func up(t *testing.T, cfg *config.Config) *running {
	t.Helper()
	return upOn(t, cfg, vfs.OS{}, thisMachine())
}

func upOn(t *testing.T, cfg *config.Config, fs vfs.FS, m machine) *running {
	t.Helper()
	r, ready := launch(t, cfg, fs, m)
	select {
	case <-ready:
	case <-r.done:
		t.Fatalf("the server ended: %v", r.err)
	}
	return r
}

// end asks the server to stop and returns what Run returned.
func (r *running) end() error {
	r.cancel()
	<-r.done
	return r.err
}

func runFile(t *testing.T, dir string) run {
	t.Helper()
	var r run
	if there, err := readStamp(vfs.OS{}, dir, &r); err != nil || !there {
		t.Fatal(there, err)
	}
	return r
}

func createTopic(t *testing.T, b *broker.Broker, name, fsync string) {
	t.Helper()
	if _, err := b.CreateTopic(t.Context(), broker.TopicSpec{Name: name, Settings: broker.Settings{Fsync: &fsync}}); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, b *broker.Broker, topic, value string) int64 {
	t.Helper()
	_, res, err := b.Publish(t.Context(), topic, 0, []record.Record{{Value: []byte(value)}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Offset
}

// read returns the values of topic from its beginning to its end, and the offsets that were declared lost.
func read(t *testing.T, b *broker.Broker, topic string) (values []string, lost []broker.Range) {
	t.Helper()
	sub, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: topic, Start: broker.Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for {
		e, err := sub.Next(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case broker.EventAtEnd:
			return values, lost
		case broker.EventLost:
			lost = append(lost, e.Lost)
		case broker.EventData:
			values = append(values, decode(t, e.Batches)...)
		}
	}
}

func decode(t *testing.T, batches []byte) (values []string) {
	t.Helper()
	for len(batches) > 0 {
		batch, rest, err := record.Next(batches)
		if err != nil {
			t.Fatal(err)
		}
		if err := record.Each(batch, func(r record.Record) error {
			values = append(values, string(r.Value))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		batches = rest
	}
	return values
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

type health struct {
	State    string
	Detail   string
	Problems []string
}

func readyz(t *testing.T, r *running) (int, health) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	code, body := get(t, client, "http://"+r.listening.HTTP+"/readyz")
	var h health
	if err := json.Unmarshal([]byte(body), &h); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return code, h
}
