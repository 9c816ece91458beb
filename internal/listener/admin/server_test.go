package admin

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
)

func TestHealth(t *testing.T) {
	var slot brokerSlot
	detail := "opening 3 of 7 partitions"
	si := serve(t, func(c *Config, _ *broker.Config) {
		c.Broker = slot.Load
		c.State = func() State {
			b := slot.Load()
			if b == nil {
				return State{Phase: Starting, Detail: detail}
			}
			return State{Phase: b.State(), Problems: []string{"default/x/0 is unavailable: corrupt"}}
		}
	})
	ready := func(status int) readyJSON {
		t.Helper()
		var r readyJSON
		si.want(status, "GET", "/readyz", "").json(t, &r)
		return r
	}
	si.want(200, "GET", "/healthz", "")
	if r := ready(503); r.State != Starting || r.Detail != detail {
		t.Errorf("starting: %+v", r)
	}
	if e := si.want(503, "GET", "/v1/topics", "").fault(t); e.Kind != "unavailable" || !e.Retriable {
		t.Errorf("without a broker: %+v", e)
	}
	slot.Store(si.broker)
	si.topic("default/x", "")
	if r := ready(200); r.State != Ready || r.Topics != 1 || len(r.Problems) != 1 {
		t.Errorf("ready: %+v", r)
	}
	if text := si.want(200, "GET", "/", "").text; !strings.Contains(text, "corrupt") || !strings.Contains(text, recordsPath) {
		t.Errorf("start page: %s", text)
	}
	if text := si.want(200, "GET", "/metrics", "").text; !strings.Contains(text, `levee_http_requests_total{code="503",route="/readyz"} 1`) {
		t.Errorf("metrics do not count requests:\n%s", text)
	}
	si.broker.Drain(context.Background())
	if r := ready(503); r.State != Draining {
		t.Errorf("draining: %+v", r)
	}
	if e := si.do("POST", "/v1/topics/default/x/records", "v", "Content-Type", asText).fault(t); e.Kind != "unavailable" {
		t.Errorf("publish while draining: %+v", e)
	}
	si.want(200, "GET", "/healthz", "")
}

func TestReadyNeedsTheBroker(t *testing.T) {
	// What the composition root says does not count where the broker itself is not ready.
	s := New(Config{Broker: func() *broker.Broker { return nil }, State: func() State { return State{Phase: Ready} }})
	if st := s.state(); st.Phase != Starting {
		t.Errorf("state %+v", st)
	}
}

func TestProfilesStayOnLoopback(t *testing.T) {
	si := serve(t, nil)
	si.want(200, "GET", "/debug/pprof/", "")
	si.want(200, "GET", "/debug/pprof/goroutine?debug=1", "")
	si.want(400, "GET", "/debug/pprof/profile?seconds=1000000", "")

	// The same handler, when nothing says that its listener is loopback.
	for _, allowed := range []bool{false, true} {
		s := New(Config{Broker: si.server.cfg.Broker, Pprof: allowed})
		rec := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(rec, httptest.NewRequest("GET", "/debug/pprof/", nil))
		if want := map[bool]int{false: 404, true: 200}[allowed]; rec.Code != want {
			t.Errorf("pprof %v: %d", allowed, rec.Code)
		}
	}
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "0.0.0.0:1": false, "10.0.0.1:1": false, "[::]:1": false} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil || loopback(a) != want {
			t.Errorf("loopback(%s) = %v, %v", addr, !want, err)
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.Connections = 2 })
	addr := strings.TrimPrefix(si.url, "http://")
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, err := c.Read(make([]byte, 1))
		return err != nil && !strings.Contains(err.Error(), "timeout")
	}
	first, _ := dial(), dial()
	if !closed(dial()) {
		t.Fatal("a third connection was served")
	}
	_ = first.Close()
	until(t, "a slot is free again", func() bool {
		res, err := http.Get(si.url + "/healthz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return true
	})
	http.DefaultClient.CloseIdleConnections()
}

func TestSlowHeaderIsCutOff(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.HeaderTimeout = 20 * time.Millisecond })
	c, err := net.Dial("tcp", strings.TrimPrefix(si.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	for buf := make([]byte, 512); err == nil; {
		_, err = c.Read(buf)
	}
	if strings.Contains(err.Error(), "timeout") {
		t.Fatal("a request that never ends keeps its connection")
	}
}

func TestErrorsHaveOneShape(t *testing.T) {
	si := serve(t, func(c *Config, b *broker.Config) {
		c.Limits.BodyBytes = 1000
		b.Limits.RecordBytes = 600
	})
	si.topic("default/a", "")
	si.topic("default/two", `{"partitions":2}`)
	const records = "/v1/topics/default/a/records"
	for _, c := range []struct {
		method, target, contentType, body string
		status                            int
		kind, says                        string
	}{
		{"GET", "/nothing", "", "", 404, "not_found", "/nothing"},
		{"POST", "/healthz", "", "", 405, "invalid_argument", "GET"},
		{"DELETE", records, "", "", 405, "invalid_argument", "GET, HEAD, POST"},
		{"GET", "/v1/topics/default/gone", "", "", 404, "not_found", "gone"},
		{"GET", "/v1/topics/default/gone/records", "", "", 404, "not_found", "gone"},
		{"POST", "/v1/topics/default/gone/records", asText, "x", 404, "not_found", "gone"},
		{"DELETE", "/v1/topics/default/gone", "", "", 404, "not_found", "gone"},
		{"PUT", "/v1/topics/default/a", asJSON, "", 409, "already_exists", "default/a"},
		{"PUT", "/v1/topics/default/a%2Fb", asJSON, "", 400, "invalid_argument", "a/b"},
		{"PUT", "/v1/topics/default/c", asJSON, `{"partition":3}`, 400, "invalid_argument", "partition"},
		{"PUT", "/v1/topics/default/c", asJSON, `{} {}`, 400, "invalid_argument", "behind"},
		{"PUT", "/v1/topics/default/c", asJSON, `{"settings":{"fsync":"often"}}`, 400, "invalid_argument", "often"},
		{"PUT", "/v1/topics/default/c", asJSON, `{"settings":{"retention_age_ms":9223372036854775807}}`, 400, "invalid_argument", ""},
		{"PATCH", "/v1/topics/default/a", asJSON, `{"unset":["nothing"]}`, 400, "invalid_argument", "nothing"},
		{"POST", records, "application/x-www-form-urlencoded", "x", 400, "invalid_argument", "curl"},
		{"POST", records, "text/plain; x", "x", 400, "invalid_argument", "Content-Type"},
		{"POST", records, asJSON, "{}", 400, "invalid_argument", "no records"},
		{"POST", records, asJSON, `{"records":[{}]}`, 400, "invalid_argument", "records[0]"},
		{"POST", records, asJSON, `{"records":[{"value":"\ud800"}]}`, 400, "invalid_argument", "surrogate"},
		{"POST", records, asJSON, "{\"records\":[{\"value\":\"\xff\"}]}", 400, "invalid_argument", "UTF-8"},
		{"POST", records, asJSON, `{"records":[{"value":1,"value_base64":"eA=="}]}`, 400, "invalid_argument", "both"},
		{"POST", records, asJSON, `{"records":[{"value":1}],"partition":-1}`, 400, "invalid_argument", "partition"},
		{"POST", records + "?key=k", asJSON, `{"records":[{"value":1}]}`, 400, "invalid_argument", "own key"},
		{"POST", records + "?partition=1", asText, "x", 404, "not_found", "partition"},
		{"POST", records + "?partitoin=0", asText, "x", 400, "invalid_argument", "partitoin"},
		{"POST", records + "?lines=maybe", asText, "x", 400, "invalid_argument", "lines"},
		{"POST", records, asLines, "", 400, "invalid_argument", "no line"},
		{"POST", records, asText, strings.Repeat("x", 1001), 413, "too_large", "1000"},
		{"POST", records, asText, strings.Repeat("x", 700), 413, "too_large", "600"},
		{"GET", records + "?from=yesterday", "", "", 400, "invalid_argument", "yesterday"},
		{"GET", records + "?from=@yesterday", "", "", 400, "invalid_argument", "yesterday"},
		{"GET", records + "?from=7", "", "", 416, "out_of_range", "7"},
		{"GET", records + "?limit=0", "", "", 400, "invalid_argument", "limit"},
		{"GET", records + "?wait=1h", "", "", 400, "invalid_argument", "wait"},
		{"GET", records + "?partition=1", "", "", 404, "not_found", "partition"},
		{"GET", "/v1/topics/default/two/records", "", "", 400, "invalid_argument", "2 partitions"},
		{"GET", "/v1/topics?name=x", "", "", 400, "invalid_argument", "name"},
		{"DELETE", "/v1/namespaces/default", "", "", 400, "invalid_argument", "default"},
	} {
		a := si.do(c.method, c.target, c.body, "Content-Type", c.contentType)
		e := a.fault(t)
		if a.status != c.status || (c.kind != "" && e.Kind != c.kind) || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s %s %s: %d %+v, want %d %s: …%s…", c.method, c.target, c.body, a.status, e, c.status, c.kind, c.says)
		}
	}
}

func TestOtherSitesMayNotWrite(t *testing.T) {
	si := serve(t, nil)
	si.topic("default/a", "")
	a := si.do("POST", "/v1/topics/default/a/records", "x", "Content-Type", asText, "Origin", "https://evil.test", "Sec-Fetch-Site", "cross-site")
	if a.status != 403 || a.fault(t).Kind != "invalid_argument" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestBodiesInFlightAreBounded(t *testing.T) {
	si := serve(t, func(c *Config, _ *broker.Config) { c.Limits.InFlightBytes = 100 })
	si.topic("default/a", "")
	const target = "/v1/topics/default/a/records"
	a := si.do("POST", target, strings.Repeat("x", 101), "Content-Type", asText)
	if a.status != 429 || a.fault(t).Kind != "exhausted" || a.header.Get("Retry-After") == "" {
		t.Fatalf("%d %s", a.status, a.text)
	}
	for range 3 { // what is answered is given back
		si.want(200, "POST", target, strings.Repeat("x", 90), "Content-Type", asText)
	}
}

func TestTopicsAndNamespaces(t *testing.T) {
	si := serve(t, nil)
	si.want(201, "PUT", "/v1/namespaces/shop", "")
	si.topic("shop/orders", `{"partitions":2,"settings":{"fsync":"periodic","fsync_interval_ms":50,"retention_bytes":1000000}}`)
	si.topic("default/x", "")

	var list struct{ Topics []topicJSON }
	si.want(200, "GET", "/v1/topics", "").json(t, &list)
	if len(list.Topics) != 2 {
		t.Fatalf("topics: %+v", list)
	}
	si.want(200, "GET", "/v1/topics?namespace=shop", "").json(t, &list)
	if len(list.Topics) != 1 || list.Topics[0].Name != "shop/orders" {
		t.Fatalf("topics of shop: %+v", list)
	}
	var namespaces struct {
		Namespaces []struct {
			Name   string
			Topics int
		}
	}
	si.want(200, "GET", "/v1/namespaces", "").json(t, &namespaces)
	if len(namespaces.Namespaces) != 2 {
		t.Errorf("namespaces: %+v", namespaces)
	}

	var d descriptionJSON
	si.want(200, "GET", "/v1/topics/shop/orders", "").json(t, &d)
	if d.Partitions != 2 || len(d.Parts) != 2 || len(d.Exposures) == 0 || *d.Settings.FsyncIntervalMs != 50 || d.Settings.SegmentBytes != nil ||
		*d.Effective.SegmentBytes != 256<<20 || d.ID == "" || d.Created == "" {
		t.Errorf("describe: %+v", d)
	}
	var changed topicJSON
	si.want(200, "PATCH", "/v1/topics/shop/orders", `{"settings":{"retention_age_ms":60000,"object_retention_age_ms":70000,"object_retention_bytes":5},"unset":["retention_bytes"]}`).json(t, &changed)
	if s := changed.Settings; *s.ObjectRetentionAgeMs != 70000 || *s.ObjectRetentionBytes != 5 {
		t.Errorf("changed: %+v", changed)
	}
	if *changed.Settings.RetentionAgeMs != 60000 || changed.Settings.RetentionBytes != nil || *changed.Effective.RetentionBytes != 0 {
		t.Errorf("changed: %+v", changed)
	}
	si.want(200, "DELETE", "/v1/topics/shop/orders", "")
	si.want(200, "DELETE", "/v1/namespaces/shop", "")
	si.want(404, "GET", "/v1/topics/shop/orders", "")
}

func TestTLS(t *testing.T) {
	lender := httptest.NewTLSServer(nil) // for its certificate, and a client that trusts it
	defer lender.Close()
	si := serve(t, func(c *Config, _ *broker.Config) { c.TLS = &tls.Config{Certificates: lender.TLS.Certificates} })
	si.client = lender.Client()
	si.url = strings.Replace(si.url, "http:", "https:", 1)
	target := si.topic("default/a", "") + "/records"
	si.want(200, "POST", target, "x", "Content-Type", asText)
	s := si.follow(target + "?follow=1")
	s.want("record 0", "caught-up")
	s.close()
	si.client.CloseIdleConnections()
}
