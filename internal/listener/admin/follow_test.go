package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	dto "github.com/prometheus/client_model/go"
)

// sse is one event as a browser would hand it on; comments have the name ":".
type sse struct{ id, name, data string }

// stream is an open stream of events.
type stream struct {
	t      *testing.T
	cancel context.CancelFunc
	res    *http.Response
	lines  *bufio.Scanner
}

func (si *site) follow(target string, headers ...string) *stream {
	si.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET", si.url+target, nil)
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
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		si.t.Fatalf("follow: %d %s", res.StatusCode, ct)
	}
	s := &stream{si.t, cancel, res, bufio.NewScanner(res.Body)}
	si.t.Cleanup(s.close)
	return s
}

func (s *stream) close() {
	s.cancel()
	_ = s.res.Body.Close()
}

// next returns the next event, or false at the end of the stream.
func (s *stream) next() (sse, bool) {
	var e sse
	for s.lines.Scan() {
		line := s.lines.Text()
		switch {
		case line == "" && e != (sse{}):
			return e, true
		case strings.HasPrefix(line, ":"):
			e.name, e.data = ":", strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		}
	}
	return e, false
}

// want reads events past comments and demands the names and ids given, "name id" each.
func (s *stream) want(events ...string) {
	s.t.Helper()
	for _, want := range events {
		e, ok := s.next()
		for ok && e.name == ":" {
			e, ok = s.next()
		}
		if got := strings.TrimSpace(e.name + " " + e.id); !ok || got != want {
			s.t.Fatalf("event %q %s (ok %v), want %q", got, e.data, ok, want)
		}
	}
}

func TestFollow(t *testing.T) {
	si := serve(t, nil)
	topic := si.topic("default/a", "")
	target := topic + "/records"
	si.want(200, "POST", target, "a\nb\nc\n", "Content-Type", asLines)
	s := si.follow(target + "?follow=1&from=1")
	s.want("record 1", "record 2", "caught-up")
	si.want(200, "POST", target, "d", "Content-Type", asText)
	s.want("record 3", "caught-up")
	s.close()

	s = si.follow(target, "Accept", "text/event-stream", "Last-Event-ID", "2")
	s.want("record 3", "caught-up")
	si.want(200, "DELETE", topic, "")
	s.want("deleted")
	if e, ok := s.next(); ok {
		t.Errorf("the stream went on with %+v", e)
	}
}

func TestFollowEndsWithTheServer(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.Heartbeat = 5 * time.Millisecond })
	target := si.topic("default/a", "") + "/records?follow=1"
	s := si.follow(target)
	s.want("caught-up")
	if e, ok := s.next(); !ok || e.name != ":" || e.data != "heartbeat" {
		t.Errorf("quiet stream says %+v", e)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- si.server.Shutdown(ctx) }()
	s.want("ended")
	if err := <-ended; err != nil {
		t.Errorf("shutdown waited for a stream: %v", err)
	}
}

func TestFollowTellsWhatIsTrimmed(t *testing.T) {
	si := serve(t, nil)
	topic := si.topic("default/a", `{"settings":{"segment_bytes":65536,"retention_bytes":65536}}`)
	target := topic + "/records"
	var first int64
	for i := 0; first == 0; i++ {
		if i > 100 {
			t.Fatal("retention removed nothing")
		}
		si.want(200, "POST", target, strings.Repeat("x", 30_000), "Content-Type", asText)
		if i > 6 {
			until(t, "retention ran", func() bool {
				var d descriptionJSON
				si.want(200, "GET", topic, "").json(t, &d)
				first = d.Parts[0].First
				return first > 0
			})
		}
	}
	a := si.do("GET", target+"?from=0", "")
	if e := a.fault(t); a.status != 410 || e.Kind != "trimmed" || e.Details["requested"] != "0" || e.Details["oldest"] == "" {
		t.Errorf("a read below the first offset: %d %s", a.status, a.text)
	}
	s := si.follow(target+"?follow=1", "Last-Event-ID", "0")
	e, _ := s.next()
	for e.name == ":" {
		e, _ = s.next()
	}
	var told errorJSON
	if err := json.Unmarshal([]byte(e.data), &told); err != nil || e.name != "trimmed" || told.Details["requested"] != "1" {
		t.Fatalf("%+v: %v", e, err)
	}
	oldest := told.Details["oldest"]
	if next, _ := s.next(); next.name != "record" || next.id < oldest {
		t.Errorf("after trimmed at %s: %s %s", oldest, next.name, next.id)
	}
}

func TestSlowFollowerIsCutOff(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.WriteTimeout = 50 * time.Millisecond })
	target := si.topic("default/a", `{"settings":{"fsync":"none"}}`) + "/records"
	c, err := net.Dial("tcp", strings.TrimPrefix(si.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET %s?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	open := func() float64 {
		var m dto.Metric
		if err := si.server.metrics.streams.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetGauge().GetValue()
	}
	until(t, "the stream is open", func() bool { return open() == 1 })
	// The client reads nothing: once the sockets are full, the write deadline passes.
	until(t, "the stream is cut", func() bool {
		si.want(200, "POST", target, strings.Repeat("x", 1<<20), "Content-Type", asText)
		return open() == 0
	})
}

func TestStreamsAreBounded(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.Streams = 1 })
	target := si.topic("default/a", "") + "/records?follow=1"
	s := si.follow(target)
	s.want("caught-up")
	if e := si.want(429, "GET", target, "").fault(t); e.Kind != "exhausted" {
		t.Errorf("%+v", e)
	}
	s.close()
	until(t, "the slot is free", func() bool { return si.server.streams.used.Load() == 0 })
	si.follow(target).want("caught-up")
}

func TestFollowNonReliable(t *testing.T) {
	si := serve(t, nil)
	target := si.topic("default/a", `{"dispatch":"non_reliable"}`) + "/records"
	si.want(200, "POST", target, "before", "Content-Type", asText)
	s := si.follow(target + "?follow=1")
	si.want(200, "POST", target, "after", "Content-Type", asText)
	for e, ok := s.next(); ; e, ok = s.next() {
		if !ok {
			t.Fatal("the stream ended")
		}
		if e.name == "record" {
			if !strings.Contains(e.data, `"after"`) {
				t.Errorf("got %s", e.data)
			}
			return
		}
	}
}

func TestReadersAreToldWhatIsLost(t *testing.T) {
	fsys, store := vfs.NewMem(), meta.NewMemory()
	if err := fsys.MkdirAll("data"); err != nil {
		t.Fatal(err)
	}
	if err := fsys.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	before := serve(t, func(_ *Config, b *broker.Config) { b.FS, b.Meta = fsys, store })
	target := before.topic("default/a", `{"settings":{"fsync":"periodic","fsync_interval_ms":3600000}}`) + "/records"
	before.want(200, "POST", target, "a\nb\n", "Content-Type", asLines)

	// The machine loses power; what was acknowledged before its flush is gone.
	after := serve(t, func(_ *Config, b *broker.Config) {
		b.FS, b.Meta, b.Crash = fsys.Crash(vfs.KeepNothing), store, seglog.MachineCrash
	})
	var p published
	after.want(200, "POST", target, "c", "Content-Type", asText).json(t, &p)
	if p.Offset < 2 {
		t.Fatalf("offset %d was given out twice", p.Offset)
	}
	var got page
	after.want(200, "GET", target, "").json(t, &got)
	if want := (rangeJSON{0, p.Offset - 1}); len(got.Lost) != 1 || got.Lost[0] != want || len(got.Records) > 1 {
		t.Errorf("page %+v, want %+v lost", got, want)
	}
	s := after.follow(target + "?follow=1")
	s.want(fmt.Sprintf("lost %d", p.Offset-1), fmt.Sprintf("record %d", p.Offset), "caught-up")
}
