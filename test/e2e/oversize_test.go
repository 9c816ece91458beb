package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	mostRecord = 256 << 10
	mostBatch  = 1 << 20
)

// TestOversizeIsRefused sends what is above a limit through every door. It is refused with a kind that says so, nothing
// of it is stored, and what comes after it on the same stream or connection is.
func TestOversizeIsRefused(t *testing.T) {
	all := newRig(t, map[string]string{
		"LEVEE_LIMITS_RECORD_BYTES": "256KiB", "LEVEE_LIMITS_BATCH_BYTES": "1MiB", "LEVEE_LIMITS_DECOMPRESSED_BYTES": "4MiB",
	})
	large := record.Record{Value: bytes.Repeat([]byte("x"), mostRecord)} // with its key and lengths above the limit
	var many []record.Record                                             // each small enough, together too many
	for range 26 {
		many = append(many, record.Record{Value: bytes.Repeat([]byte("y"), 100<<10)})
	}
	bomb := proc.Batch(t, record.Zstd, zeros(t, 40)...)
	if len(bomb) > 64<<10 {
		t.Fatalf("the compressed batch has %d bytes", len(bomb))
	}
	single := func(b []byte) [][]byte { return [][]byte{b} }
	for name, c := range map[string]struct {
		refuse func(r *rig, topic string)
	}{
		"client": {func(r *rig, topic string) {
			p, err := r.client.NewProducer(r.ctx, topic, client.ProducerConfig{})
			if err != nil {
				r.t.Fatal(err)
			}
			_, err = p.PublishSync(r.ctx, large)
			wantKind(r.t, "a record", err, client.KindTooLarge)
			if _, err := p.PublishSync(r.ctx, value("good")); err != nil {
				r.t.Error(err)
			}
		}},
		"stream, record":    {refusedBatch(single(proc.Batch(t, record.None, large)))},
		"stream, batch":     {refusedBatch(single(proc.Batch(t, record.None, many[:11]...)))},
		"stream, bomb":      {refusedBatch(single(bomb))},
		"stream, message":   {refusedMessage(single(proc.Batch(t, record.None, many...)), true)},
		"stream, messages":  {refusedMessage(slicesOf(proc.Batch(t, record.None, many[:5]...), 6), true)},
		"stream, gRPC's":    {refusedMessage(single(make([]byte, 6<<20)), false)},
		"once, record":      {refusedOnce(&leveev1.PublishOnceRequest{Records: onceRecords(large)}, true)},
		"once, records":     {refusedOnce(&leveev1.PublishOnceRequest{Records: onceRecords(many[:11]...)}, true)},
		"once, batch":       {refusedOnce(&leveev1.PublishOnceRequest{Batch: proc.Batch(t, record.None, large)}, true)},
		"once, large batch": {refusedOnce(&leveev1.PublishOnceRequest{Batch: proc.Batch(t, record.None, many[:11]...)}, true)},
		"once, bomb":        {refusedOnce(&leveev1.PublishOnceRequest{Batch: bomb}, true)},
		"once, message":     {refusedOnce(&leveev1.PublishOnceRequest{Records: onceRecords(many...)}, true)},
		"once, gRPC's":      {refusedOnce(&leveev1.PublishOnceRequest{Batch: make([]byte, 6<<20)}, false)},
		"HTTP, bytes":       {refusedPost("application/octet-stream", large.Value)},
		"HTTP, text":        {refusedPost("text/plain", large.Value)},
		"HTTP, lines":       {refusedPost("application/x-ndjson", append([]byte("good\n"), large.Value...))},
		"HTTP, JSON":        {refusedPost("application/json", fmt.Appendf(nil, `{"records":[{"value":"%s"}]}`, large.Value))},
		"HTTP, base64":      {refusedPost("application/json", fmt.Appendf(nil, `{"records":[{"value_base64":"%s"}]}`, base64.StdEncoding.EncodeToString(large.Value)))},
		"HTTP, batch":       {refusedPost("application/x-ndjson", []byte(strings.Repeat(strings.Repeat("z", 100<<10)+"\n", 11)))},
		"HTTP, body":        {refusedBody(false)},
		"HTTP, stream":      {refusedBody(true)},
	} {
		t.Run(name, func(t *testing.T) {
			r := all.on(t)
			topic := "t" + strings.Map(letters, name)
			r.create(topic, client.Settings{})
			c.refuse(r, topic)
			got := r.records(topic)
			if len(got) != 1 || string(got[0].Value) != "good" {
				t.Errorf("the topic has %d records, want the good one only", len(got))
			}
		})
	}
	t.Run("command line", func(t *testing.T) { longLine(all.on(t)) })
	all.Terminate()
	if code := all.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// letters is for strings.Map: it keeps letters only.
func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

// zeros returns records of 120 KiB each that compress to next to nothing.
func zeros(t *testing.T, n int) (records []record.Record) {
	t.Helper()
	for range n {
		records = append(records, record.Record{Value: make([]byte, 120<<10)})
	}
	return records
}

func slicesOf(b []byte, n int) (list [][]byte) {
	for range n {
		list = append(list, b)
	}
	return list
}

func onceRecords(records ...record.Record) (out []*leveev1.Record) {
	for _, r := range records {
		out = append(out, &leveev1.Record{Value: r.Value})
	}
	return out
}

// refusedBatch sends batches that are refused one by one; the stream goes on.
func refusedBatch(bad [][]byte) func(r *rig, topic string) {
	return func(r *rig, topic string) {
		p := r.publishing(topic)
		p.send(bad...)
		p.send(proc.Batch(r.t, record.None, value("good")))
		acks, err := p.acks(len(bad) + 1)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, a := range acks[:len(bad)] {
			if e := a.GetError(); e.GetKind() != client.KindTooLarge || e.GetRetriable() || len(e.GetMessage()) < 10 {
				r.t.Errorf("answered %v, want too_large", a)
			}
		}
		if a := acks[len(bad)]; a.GetError() != nil || a.GetOffset() != 0 {
			r.t.Errorf("the batch after it is answered %v", a)
		}
	}
}

// refusedMessage sends a message that is too large as a whole: what came before it is answered, and the stream ends.
func refusedMessage(bad [][]byte, ours bool) func(r *rig, topic string) {
	return func(r *rig, topic string) {
		p := r.publishing(topic)
		p.send(proc.Batch(r.t, record.None, value("good")))
		if acks, err := p.acks(1); err != nil || acks[0].GetError() != nil {
			r.t.Fatal(acks, err)
		}
		p.send(bad...)
		acks, err := p.acks(1)
		if len(acks) > 0 {
			r.t.Errorf("got the answer %v", acks)
		}
		wantTooLarge(r.t, err, ours)
	}
}

// wantTooLarge wants an error of that kind; from gRPC itself, whose limit is the wider one, its code.
func wantTooLarge(t *testing.T, err error, ours bool) {
	t.Helper()
	if ours {
		wantKind(t, "a message", err, client.KindTooLarge)
	} else if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED", err)
	}
}

func refusedOnce(req *leveev1.PublishOnceRequest, ours bool) func(r *rig, topic string) {
	return func(r *rig, topic string) {
		bad := &leveev1.PublishOnceRequest{Topic: topic, Records: req.GetRecords(), Batch: req.GetBatch()}
		_, err := r.raw.PublishOnce(r.ctx, bad)
		wantTooLarge(r.t, err, ours)
		good := &leveev1.PublishOnceRequest{Topic: topic, Records: onceRecords(value("good"))}
		if _, err := r.raw.PublishOnce(r.ctx, good); err != nil {
			r.t.Error(err)
		}
	}
}

func refusedPost(contentType string, body []byte) func(r *rig, topic string) {
	return func(r *rig, topic string) {
		path := "/v1/topics/default/" + topic + "/records"
		refused(r.t, contentType, r.http("POST", path, contentType, body), 413, client.KindTooLarge)
		if a := r.http("POST", path, "text/plain", []byte("good")); a.status != 200 {
			r.t.Errorf("the request after it: %d %s", a.status, a.body)
		}
	}
}

// refusedBody sends a body above what the HTTP port takes. Where its length is told first, the broker refuses it before
// it comes.
func refusedBody(chunked bool) func(r *rig, topic string) {
	return func(r *rig, topic string) {
		url := "http://" + r.HTTP + "/v1/topics/default/" + topic + "/records"
		body := bytes.Repeat([]byte("0123456789abcde\n"), (32<<20)/16+1)
		req, err := http.NewRequestWithContext(r.ctx, "POST", url, bytes.NewReader(body))
		if err != nil {
			r.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		if chunked {
			req.ContentLength, req.GetBody = -1, nil
		} else {
			req.Header.Set("Expect", "100-continue")
		}
		transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: proc.Patience}
		res, err := transport.RoundTrip(req)
		if err != nil {
			r.t.Fatal(err)
		}
		refused(r.t, "the body", readAnswer(r.t, res), 413, client.KindTooLarge)
		if a := r.http("POST", "/v1/topics/default/"+topic+"/records", "text/plain", []byte("good")); a.status != 200 {
			r.t.Errorf("the request after it: %d %s", a.status, a.body)
		}
	}
}

// longLine publishes a file whose fourth line is too long: the error says which, and what stands before it is stored.
func longLine(r *rig) {
	r.t.Helper()
	r.create("lines", client.Settings{})
	file := filepath.Join(filepath.Dir(r.Dir), "lines.txt")
	text := "one\n\nthree\n" + strings.Repeat("x", mostRecord+1) + "\nfive\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	res := r.levee(nil, "publish", "lines", "--file", file)
	if res.Code != 1 || !strings.Contains(res.Stderr, "line 4 ") || !strings.Contains(res.Stderr, "256KiB") {
		r.t.Errorf("exit code %d, and it says:\n%s", res.Code, res.Stderr)
	}
	if !strings.Contains(res.Stdout, "acknowledged 3 records at offsets 0 to 2") {
		r.t.Errorf("it prints %q", res.Stdout)
	}
	got := r.records("lines")
	if len(got) != 3 || string(got[0].Value) != "one" || string(got[1].Value) != "" || string(got[2].Value) != "three" {
		r.t.Errorf("the topic has %d records", len(got))
	}
}
