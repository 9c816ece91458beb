package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// awkward are values that a careless hand changes.
func awkward() [][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	large := make([]byte, 100_000)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range large {
		large[i] = byte(rng.Uint32())
	}
	values := [][]byte{{}, {0}, every, []byte("\xff\xfe"), large, bytes.Repeat([]byte{0}, 5000)}
	for _, text := range []string{
		"text", " ", "\t", "null", "\"quoted\"", `{"json":1}`, `\u0000`, `\`, "a\r", "\r\n", "\n", "line\nline\n", "\ufeffmark", "\u2028\u2029",
		"\ufffd", "é", "日本語", "😀", "<script>&amp;</script>", "%v %o %%", "data: x\n\nevent: y", "\xc3\x28", "e\xcc\x81", "a:b", "\x1b[31m",
	} {
		values = append(values, []byte(text))
	}
	return values
}

// writer publishes what it can carry, and returns it.
type writer struct {
	name  string
	write func(r *rig, topic string) []record.Record
}

// full are records with all that a record can have, or not have.
func full() (records []record.Record) {
	for i, v := range awkward() {
		r := record.Record{Value: v}
		switch i % 4 {
		case 1:
			r.Key = []byte{}
		case 2:
			r.Key = v
		case 3:
			r.Key = []byte("key")
			r.Headers = []record.Header{{Key: "a", Value: v}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte("x")}}
		}
		records = append(records, r)
	}
	return records
}

// tombstones are records without a value, which only some doors can carry.
func tombstones() []record.Record {
	return []record.Record{{}, {Key: []byte("k")}, {Key: []byte("k"), Headers: []record.Header{{Key: "none"}}}}
}

func byClient(codec record.Codec, idempotent bool) func(r *rig, topic string) []record.Record {
	return func(r *rig, topic string) []record.Record {
		p, err := r.client.NewProducer(r.ctx, topic, client.ProducerConfig{Compression: codec, Idempotent: idempotent})
		if err != nil {
			r.t.Fatal(err)
		}
		records := append(full(), tombstones()...)
		for _, rec := range records {
			p.Publish(r.ctx, rec, func(_ client.Ack, err error) {
				if err != nil {
					r.t.Errorf("%s: %v", show(rec), err)
				}
			})
		}
		if err := p.Close(r.ctx); err != nil {
			r.t.Fatal(err)
		}
		return records
	}
}

func byOnce(r *rig, topic string) []record.Record {
	records := full()
	req := &leveev1.PublishOnceRequest{Topic: topic}
	for _, rec := range records {
		out := &leveev1.Record{Key: rec.Key, HasKey: rec.Key != nil, Value: rec.Value}
		for _, h := range rec.Headers {
			out.Headers = append(out.Headers, &leveev1.Header{Key: h.Key, Value: h.Value})
		}
		req.Records = append(req.Records, out)
	}
	if _, err := r.raw.PublishOnce(r.ctx, req); err != nil {
		r.t.Fatal(err)
	}
	return records
}

func byBatch(r *rig, topic string) []record.Record {
	records := append(full(), tombstones()...)
	if _, err := r.raw.PublishOnce(r.ctx, &leveev1.PublishOnceRequest{Topic: topic, Batch: proc.Batch(r.t, record.Snappy, records...)}); err != nil {
		r.t.Fatal(err)
	}
	return records
}

func byBytes(r *rig, topic string) (records []record.Record) {
	for i, v := range awkward() {
		path, rec := "/v1/topics/default/"+topic+"/records", record.Record{Value: v}
		if i%2 == 1 {
			rec.Key = v[:min(len(v), 500)] // a URL is only so long
			path += "?key=" + url.QueryEscape(string(rec.Key))
		}
		contentType := []string{"application/octet-stream", "text/plain", ""}[i%3]
		if a := r.http("POST", path, contentType, v); a.status != http.StatusOK {
			r.t.Fatalf("%s: %d %s", show(rec), a.status, a.body)
		}
		records = append(records, rec)
	}
	return records
}

func byLines(r *rig, topic string) (records []record.Record) {
	var body []byte
	for _, v := range awkward() {
		if bytes.Contains(v, []byte("\n")) || bytes.HasSuffix(v, []byte("\r")) {
			continue
		}
		records = append(records, record.Record{Value: v, Key: []byte("all")})
		body = append(append(body, v...), '\n')
	}
	if a := r.http("POST", "/v1/topics/default/"+topic+"/records?key=all", "application/x-ndjson", body); a.status != http.StatusOK {
		r.t.Fatalf("%d %s", a.status, a.body)
	}
	return records
}

func byJSON(r *rig, topic string) []record.Record {
	type header struct {
		Key   string `json:"key"`
		Value []byte `json:"value_base64"`
	}
	var body struct {
		Records []map[string]any `json:"records"`
	}
	records := append(full(), record.Record{}, record.Record{Key: []byte("gone")})
	for i, rec := range records {
		out := map[string]any{}
		switch {
		case rec.Value == nil:
			out["value"] = nil
		case i%2 == 0 && utf8.Valid(rec.Value):
			out["value"] = string(rec.Value)
		default:
			out["value_base64"] = rec.Value
		}
		if rec.Key != nil {
			out["key_base64"] = rec.Key
		}
		var headers []header
		for _, h := range rec.Headers {
			headers = append(headers, header{h.Key, h.Value})
		}
		if headers != nil {
			out["headers"] = headers
		}
		body.Records = append(body.Records, out)
	}
	text, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	if a := r.http("POST", "/v1/topics/default/"+topic+"/records", "application/json", text); a.status != http.StatusOK {
		r.t.Fatalf("%d %.500s", a.status, a.body)
	}
	return records
}

func byCommand(r *rig, topic string) (records []record.Record) {
	var in []byte
	for i, v := range awkward() {
		if bytes.ContainsAny(v, "\n\x01") {
			continue
		}
		rec := record.Record{Value: v, Headers: []record.Header{{Key: "h", Value: []byte("é=")}}}
		if i%2 == 1 {
			rec.Key = v[:min(len(v), 100)]
			in = append(append(in, rec.Key...), "\x01"...)
		}
		in = append(append(in, v...), '\n')
		records = append(records, rec)
	}
	res := r.levee(in, "publish", topic, "--key-separator", "\x01", "--header", "h=é=")
	if res.Code != 0 {
		r.t.Fatalf("exit code %d: %s", res.Code, res.Stderr)
	}
	return records
}

// reader returns what it gets of a topic that holds want.
type reader struct {
	name string
	read func(r *rig, topic string, want []record.Record) []record.Record
}

func withClient(r *rig, topic string, _ []record.Record) (got []record.Record) {
	for _, m := range r.records(topic) {
		got = append(got, m.Record)
	}
	return got
}

// outRecord is a record as HTTP and the command line give it.
type outRecord struct {
	Offset      int64
	Key         *string
	KeyBase64   *[]byte `json:"key_base64"`
	Value       *string
	ValueBase64 *[]byte `json:"value_base64"`
	Headers     []struct {
		Key         string
		Value       *string
		ValueBase64 *[]byte `json:"value_base64"`
	}
}

func either(text *string, encoded *[]byte) []byte {
	switch {
	case text != nil:
		return append([]byte{}, *text...)
	case encoded != nil:
		return *encoded
	}
	return nil
}

func (o *outRecord) record() record.Record {
	r := record.Record{Offset: o.Offset, Key: either(o.Key, o.KeyBase64), Value: either(o.Value, o.ValueBase64)}
	for _, h := range o.Headers {
		r.Headers = append(r.Headers, record.Header{Key: h.Key, Value: either(h.Value, h.ValueBase64)})
	}
	return r
}

func withPages(r *rig, topic string, _ []record.Record) (got []record.Record) {
	for next, end := int64(0), int64(1); next < end; {
		a := r.http("GET", fmt.Sprintf("/v1/topics/default/%s/records?from=%d&limit=7", topic, next), "", nil)
		var page struct {
			Records   []outRecord
			Next, End int64
		}
		if err := json.Unmarshal(a.body, &page); err != nil || a.status != http.StatusOK || page.Next <= next {
			r.t.Fatalf("%d %v %.500s", a.status, err, a.body)
		}
		for i := range page.Records {
			got = append(got, page.Records[i].record())
		}
		next, end = page.Next, page.End
	}
	return got
}

func withEvents(r *rig, topic string, want []record.Record) (got []record.Record) {
	body := r.stream("/v1/topics/default/" + topic + "/records?follow=1")
	defer body.Close()
	events := newEvents(body)
	for len(got) < len(want) {
		e, err := events.next()
		if err != nil {
			r.t.Fatalf("after %d records: %v", len(got), err)
		}
		if e.name != "record" {
			continue
		}
		var o outRecord
		if err := json.Unmarshal([]byte(e.data), &o); err != nil {
			r.t.Fatal(err)
		}
		got = append(got, o.record())
	}
	return got
}

func withCommand(r *rig, topic string, want []record.Record) (got []record.Record) {
	res := r.levee(nil, "consume", topic, "--count", fmt.Sprint(len(want)), "--output", "json")
	if res.Code != 0 {
		r.t.Fatalf("exit code %d: %s", res.Code, res.Stderr)
	}
	for _, line := range strings.Split(strings.TrimSuffix(res.Stdout, "\n"), "\n") {
		var o outRecord
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			r.t.Fatalf("%v in %.200s", err, line)
		}
		got = append(got, o.record())
	}
	return got
}

// withTemplate reads keys and values as the command line prints them: byte for byte.
func withTemplate(r *rig, topic string, want []record.Record) []record.Record {
	res := r.levee(nil, "consume", topic, "--count", fmt.Sprint(len(want)), "--format", `%o:%k\0%v;`)
	var text strings.Builder
	for i, w := range want {
		fmt.Fprintf(&text, "%d:%s\x00%s;", i, w.Key, w.Value)
	}
	if res.Code != 0 || res.Stdout != text.String() {
		r.t.Errorf("exit code %d, %d bytes, want %d: %s", res.Code, len(res.Stdout), text.Len(), res.Stderr)
	}
	return nil
}

// TestBytesComeBackAsTheyWent writes awkward records through every door and reads each topic through every other.
func TestBytesComeBackAsTheyWent(t *testing.T) {
	writers := []writer{
		{"client-none", byClient(record.None, false)}, {"client-gzip", byClient(record.Gzip, false)},
		{"client-snappy", byClient(record.Snappy, true)}, {"client-lz4", byClient(record.LZ4, true)},
		{"client-zstd", byClient(record.Zstd, true)}, {"once", byOnce}, {"batch", byBatch}, {"http-bytes", byBytes},
		{"http-lines", byLines}, {"http-json", byJSON}, {"command", byCommand},
	}
	readers := []reader{
		{"client", withClient}, {"http-pages", withPages}, {"http-events", withEvents}, {"command", withCommand}, {"command-template", withTemplate},
	}
	all := newRig(t, nil)
	for _, w := range writers {
		t.Run(w.name, func(t *testing.T) {
			r := all.on(t)
			topic := "from-" + w.name
			r.create(topic, client.Settings{})
			want := w.write(r, topic)
			for _, rd := range readers {
				t.Run(rd.name, func(t *testing.T) {
					got := rd.read(all.on(t), topic, want)
					if rd.name != "command-template" {
						compare(t, got, want)
					}
				})
			}
		})
	}
	all.Terminate()
	if code := all.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// compare wants the same records in the same order; what is absent differs from what is empty.
func compare(t *testing.T, got, want []record.Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d records came back of %d", len(got), len(want))
		return
	}
	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	for i, w := range want {
		g := got[i]
		headers := slices.EqualFunc(g.Headers, w.Headers, func(a, b record.Header) bool { return a.Key == b.Key && same(a.Value, b.Value) })
		if g.Offset != int64(i) || !same(g.Key, w.Key) || !same(g.Value, w.Value) || !headers {
			t.Errorf("record %d came back at offset %d as %s\nand was %s", i, g.Offset, show(g), show(w))
		}
	}
}

// TestJSONThatCannotBeKept sends JSON that would be stored as something else: it is refused.
func TestJSONThatCannotBeKept(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", client.Settings{})
	for name, body := range map[string]string{
		"half a pair":    `{"records":[{"value":"\ud800"}]}`,
		"not UTF-8":      "{\"records\":[{\"value\":\"\xff\"}]}",
		"bad base64":     `{"records":[{"value_base64":"!"}]}`,
		"two values":     `{"records":[{"value":"a","value_base64":"YQ=="}]}`,
		"two keys":       `{"records":[{"value":"a","key":"a","key_base64":"YQ=="}]}`,
		"no value":       `{"records":[{"key":"a"}]}`,
		"unknown field":  `{"records":[{"value":"a","ttl":1}]}`,
		"something more": `{"records":[{"value":"a"}]} x`,
		"no records":     `{"records":[]}`,
		"nothing":        ``,
		"a list":         `[1,2]`,
		"cut short":      `{"records":[{"value":"a"}`,
		"bad partition":  `{"records":[{"value":"a"}],"partition":-1}`,
		"huge partition": `{"records":[{"value":"a"}],"partition":99999999999}`,
		"bad timestamp":  `{"records":[{"value":"a","timestamp":"yesterday"}]}`,
		"deep":           `{"records":[{"value":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}]}`,
		"bad header":     `{"records":[{"value":"a","headers":{"h":1}}]}`,
		"no JSON":        "records",
	} {
		refused(t, name, r.http("POST", "/v1/topics/default/t/records", "application/json", []byte(body)), 400, client.KindInvalidArgument)
	}
	refused(t, "no such partition", r.http("POST", "/v1/topics/default/t/records?partition=7", "text/plain", []byte("x")), 404, client.KindNotFound)
	refused(t, "a form", r.http("POST", "/v1/topics/default/t/records", "application/x-www-form-urlencoded", []byte("a=b")), 400, client.KindInvalidArgument)
	refused(t, "unknown parameter", r.http("POST", "/v1/topics/default/t/records?ttl=1", "text/plain", []byte("x")), 400, client.KindInvalidArgument)
	if first, end := r.bounds("t"); first != 0 || end != 0 {
		t.Errorf("the topic holds offsets %d to %d", first, end)
	}
	r.Healthy()
}
