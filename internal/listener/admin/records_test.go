package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestPublishAndRead(t *testing.T) {
	si := serve(t, nil)
	target := si.topic("default/a", "") + "/records"
	publish := func(contentType, query, body string) published {
		t.Helper()
		var p published
		si.want(200, "POST", target+query, body, "Content-Type", contentType).json(t, &p)
		return p
	}
	p := publish(asJSON, "", `{"partition":0,"records":[
		{"key":"k1","value":"text","headers":{"b":"2","a":"1"},"timestamp":"2026-01-02T03:04:05Z"},
		{"value":{"n": [1, 2]},"timestamp":1000},
		{"key_base64":"/w==","value_base64":"AP8=","headers":[{"key":"x","value":"y"},{"key":"x","value_base64":"/w=="}]},
		{"key":"","value":null}]}`)
	if p != (published{"default/a", 0, 0, 3, 4}) {
		t.Errorf("JSON: %+v", p)
	}
	if p := publish(asText, "?key=k2", "line 1\nline 2\n"); p.Offset != 4 || p.Records != 1 {
		t.Errorf("text: %+v", p)
	}
	if p := publish(asLines, "", "{\"a\":1}\r\n\n\"last\""); p.Offset != 5 || p.LastOffset != 7 {
		t.Errorf("lines: %+v", p)
	}
	if p := publish(asText, "?lines=1&key=k3", "x\n"); p.Offset != 8 || p.LastOffset != 8 {
		t.Errorf("?lines=1: %+v", p)
	}
	if p := publish("application/octet-stream", "", ""); p.Offset != 9 {
		t.Errorf("empty body: %+v", p)
	}

	var got page
	si.want(200, "GET", target, "").json(t, &got)
	if got.Next != 10 || got.End != 10 || len(got.Records) != 10 {
		t.Fatalf("page: %+v", got)
	}
	show := func(r recordOut) string {
		text := func(s *string, b64 string) string {
			switch {
			case b64 != "":
				return "base64 " + b64
			case s == nil:
				return "null"
			}
			return fmt.Sprintf("%q", *s)
		}
		line := fmt.Sprintf("%d %s=%s", r.Offset, text(r.Key, r.KeyBytes), text(r.Value, r.ValBytes))
		for _, h := range r.Headers {
			b64 := ""
			if h.ValueBase64 != nil {
				b64 = base64.StdEncoding.EncodeToString(*h.ValueBase64)
			}
			line += fmt.Sprintf(" %s:%s", h.Key, text(h.Value, b64))
		}
		return line
	}
	want := []string{
		`0 "k1"="text" a:"1" b:"2"`, `1 null="{\"n\":[1,2]}"`, `2 base64 /w===base64 AP8= x:"y" x:base64 /w==`, `3 ""=null`,
		`4 "k2"="line 1\nline 2\n"`, `5 null="{\"a\":1}"`, `6 null=""`, `7 null="\"last\""`, `8 "k3"="x"`, `9 null=""`,
	}
	for i, r := range got.Records {
		if show(r) != want[i] {
			t.Errorf("record %d: %s, want %s", i, show(r), want[i])
		}
	}
	if got.Records[0].Timestamp != "2026-01-02T03:04:05.000Z" || got.Records[1].Timestamp != "1970-01-01T00:00:01.000Z" {
		t.Errorf("timestamps %s, %s", got.Records[0].Timestamp, got.Records[1].Timestamp)
	}
}

func TestPagesJoin(t *testing.T) {
	si := serve(t, nil)
	target := si.topic("default/a", "") + "/records"
	for i := range 5 { // five batches of three
		si.want(200, "POST", target, strings.Repeat(fmt.Sprintf("%d\n", i), 3), "Content-Type", asLines)
	}
	var seen []int64
	for next, pages := int64(0), 0; next < 15; pages++ {
		if pages > 10 {
			t.Fatal("pages do not come to the end")
		}
		var p page
		si.want(200, "GET", fmt.Sprintf("%s?from=%d&limit=2", target, next), "").json(t, &p)
		for _, r := range p.Records {
			seen = append(seen, r.Offset)
		}
		next = p.Next
	}
	for i, offset := range seen {
		if offset != int64(i) {
			t.Fatalf("offsets %v", seen)
		}
	}
	if len(seen) != 15 {
		t.Fatalf("%d records", len(seen))
	}
	var p page
	si.want(200, "GET", target+"?from=latest", "").json(t, &p)
	if len(p.Records) != 0 || p.Next != 15 || p.End != 15 {
		t.Errorf("at the end: %+v", p)
	}
	si.want(200, "GET", target+"?from=@2000-01-01T00:00:00Z&limit=1", "").json(t, &p)
	if len(p.Records) != 1 || p.Records[0].Offset != 0 {
		t.Errorf("from a time: %+v", p)
	}
}

func TestReadWaits(t *testing.T) {
	for _, dispatch := range []broker.Dispatch{broker.Reliable, broker.NonReliable} {
		t.Run(string(dispatch), func(t *testing.T) {
			si := serve(t, nil)
			topic := si.topic("default/a", fmt.Sprintf(`{"dispatch":%q}`, dispatch))
			target := topic + "/records"
			came := make(chan answer, 1)
			go func() { came <- si.do("GET", target+"?from=latest&wait=20s", "") }()
			until(t, "the reader is there", func() bool {
				var d descriptionJSON
				si.want(200, "GET", topic, "").json(t, &d)
				return d.Parts[0].Subscribers == 1
			})
			start := time.Now()
			var a answer
			posted := int64(0)
			for a.status == 0 && time.Since(start) < patience {
				// A reader is counted before its position is found: the first record may come too early for it.
				si.want(200, "POST", target, "x", "Content-Type", asText)
				posted++
				select {
				case a = <-came:
				case <-time.After(3 * time.Second):
				}
			}
			var p page
			a.json(t, &p)
			if len(p.Records) != 1 || *p.Records[0].Value != "x" || time.Since(start) > 10*time.Second {
				t.Errorf("after %s: %+v", time.Since(start), p)
			}
			si.want(200, "GET", target+"?from=latest&wait=10ms", "").json(t, &p)
			if len(p.Records) != 0 || p.Next != posted {
				t.Errorf("nothing came: %+v", p)
			}
		})
	}
}

func TestKeysChooseThePartition(t *testing.T) {
	si := serve(t, nil)
	target := si.topic("default/a", `{"partitions":8}`) + "/records"
	for _, key := range []string{"a", "b", "c"} {
		var first, again published
		si.want(200, "POST", target+"?key="+key, "x", "Content-Type", asText).json(t, &first)
		si.want(200, "POST", target+"?key="+key, "y", "Content-Type", asText).json(t, &again)
		if first.Partition != again.Partition || again.Offset <= first.Offset {
			t.Errorf("key %s: %+v then %+v", key, first, again)
		}
	}
	var p published
	si.want(200, "POST", target+"?partition=7", "x", "Content-Type", asText).json(t, &p)
	if p.Partition != 7 {
		t.Errorf("%+v", p)
	}
}

// FuzzJSONRecords: whatever a body holds, it is refused or comes back as it was sent.
func FuzzJSONRecords(f *testing.F) {
	f.Add([]byte(`{"records":[{"key":"k","value":{"a":[1,null]},"headers":{"h":"v"},"timestamp":5}]}`))
	f.Add([]byte(`{"records":[{"value":"\ufffd\ud800"},{"value":null,"key_base64":"AA=="}],"partition":3}`))
	f.Add([]byte(`{"records":[{"value":1,"headers":[{"key":"a","value_base64":"/w=="}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		records, _, err := jsonRecords(body, 1)
		if err != nil {
			return
		}
		for _, r := range records {
			out, err := json.Marshal(map[string]any{"records": []map[string]any{back(toRecordOut(0, r))}})
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := jsonRecords(out, 1)
			if err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			same(t, again[0], r)
		}
	})
}

// back turns an answer's record into a request's.
func back(r recordOut) map[string]any {
	in := map[string]any{"headers": r.Headers}
	if r.KeyBytes != "" {
		in["key_base64"] = r.KeyBytes
	} else {
		in["key"] = r.Key
	}
	if r.ValBytes != "" {
		in["value_base64"] = r.ValBytes
	} else {
		in["value"] = r.Value
	}
	return in
}

func same(t *testing.T, a, b record.Record) {
	t.Helper()
	equal := func(x, y []byte) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) }
	if !equal(a.Key, b.Key) || !equal(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		t.Fatalf("%+v became %+v", b, a)
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !equal(a.Headers[i].Value, b.Headers[i].Value) {
			t.Fatalf("header %q became %q", b.Headers[i], a.Headers[i])
		}
	}
}

func TestPublishThatNobodyAnswers(t *testing.T) {
	fsys := vfs.NewMem()
	release := make(chan struct{})
	si := serve(t, func(c *Config, b *broker.Config) {
		c.Limits.BodyTimeout = 50 * time.Millisecond
		if err := fsys.MkdirAll("data"); err != nil {
			t.Fatal(err)
		}
		b.FS = fsys
	})
	// Not by way of the server, whose patience a slow machine may use up.
	if _, err := si.broker.CreateTopic(t.Context(), broker.TopicSpec{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	const target = "/v1/topics/default/a/records"
	fsys.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			<-release // a disk that hangs
		}
		return nil
	})
	defer func() {
		close(release)
		fsys.SetHook(nil)
	}()
	a := si.do("POST", target, "y", "Content-Type", asText)
	if e := a.fault(t); a.status != 504 || e.Kind != "outcome_unknown" {
		t.Errorf("%d %+v", a.status, e)
	}
}
