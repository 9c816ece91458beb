package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// TestUnknownTopic asks every door for what does not exist.
func TestUnknownTopic(t *testing.T) {
	r := newRig(t, nil)
	r.create("known", client.Settings{})
	for _, name := range []string{"nowhere", "nowhere/known"} {
		admin := r.client.Admin()
		_, describe := admin.DescribeTopic(r.ctx, name)
		_, set := admin.SetTopic(r.ctx, name, client.Settings{RetentionBytes: new(int64(1))})
		_, publish := r.client.NewProducer(r.ctx, name, client.ProducerConfig{})
		_, consume := r.client.Consume(r.ctx, name, client.ConsumerConfig{})
		_, once := r.raw.PublishOnce(r.ctx, &leveev1.PublishOnceRequest{Topic: name, Records: onceRecords(value("x"))})
		for what, err := range map[string]error{
			"describe": describe, "set": set, "publish": publish, "consume": consume, "once": once,
			"delete": admin.DeleteTopic(r.ctx, name), "unload": admin.UnloadTopic(r.ctx, name),
		} {
			wantKind(t, what+" "+name, err, client.KindNotFound)
		}
		full := name
		if !strings.Contains(name, "/") {
			full = "default/" + name
		}
		for _, rq := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"GET", "/records"}, {"GET", "/records?follow=1"}, {"POST", "/records"}} {
			refused(t, rq[0]+rq[1], r.http(rq[0], "/v1/topics/"+full+rq[1], "text/plain", []byte("x")), 404, client.KindNotFound)
		}
		for _, args := range [][]string{{"publish", name}, {"consume", name}, {"topic", "describe", name}, {"topic", "delete", name}} {
			res := r.levee([]byte("x\n"), args...)
			if res.Code != 1 || !strings.Contains(res.Stderr, "does not exist") || !strings.Contains(res.Stderr, "try: ") {
				t.Errorf("levee %q: exit code %d, %s", args, res.Code, res.Stderr)
			}
		}
	}
	if _, err := r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: "nowhere/new"}); kindOf(err) != client.KindNotFound {
		t.Errorf("a topic in a namespace that does not exist: %v", err)
	}
	_, err := r.client.Consume(r.ctx, "known", client.ConsumerConfig{Partitions: []int32{5}})
	wantKind(t, "a partition that does not exist", err, client.KindNotFound)
	p := r.publishing("known")
	if err := p.st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Partition: 5, Data: proc.Batch(t, record.None, value("x"))}, {Id: 2, Partition: -1, Data: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	acks, err := p.acks(2)
	if err != nil || acks[0].GetError().GetKind() != client.KindNotFound || acks[1].GetError() == nil {
		t.Errorf("publishing to partitions that do not exist: %v, %v", acks, err)
	}
	r.Healthy()
}

// TestOffsetsThatAreNotThere reads beyond the end and below what retention has left, on every door.
func TestOffsetsThatAreNotThere(t *testing.T) {
	r := newRig(t, map[string]string{"LEVEE_STORAGE_RETENTION_CHECK": "100ms"})
	r.create("t", client.Settings{SegmentBytes: new(int64(64 << 10))})
	p, err := r.client.NewProducer(r.ctx, "t", client.ProducerConfig{BatchBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		p.Publish(r.ctx, record.Record{Value: bytes.Repeat([]byte("x"), 100)}, nil)
	}
	if err := p.Close(r.ctx); err != nil {
		t.Fatal(err)
	}
	set := func(settings client.Settings, unset ...string) {
		t.Helper()
		if _, err := r.client.Admin().SetTopic(r.ctx, "t", settings, unset...); err != nil {
			t.Fatal(err)
		}
	}
	set(client.Settings{RetentionBytes: new(int64(100 << 10))})
	r.Await("rid of old segments", func() bool { return strings.Contains(r.Printed(), "retention removed segments") }) // all of them
	set(client.Settings{}, "retention_bytes")                                                                          // what is left stays
	first, end := r.bounds("t")
	if end != 3000 || first < 1000 {
		t.Fatalf("the topic has offsets %d to %d", first, end)
	}
	consume := func(at int64) error {
		c, err := r.client.Consume(r.ctx, "t", client.ConsumerConfig{From: client.Offset(at)})
		if err != nil {
			return err
		}
		defer c.Close()
		m, err := c.Next(r.ctx)
		if err == nil && m.Offset != at {
			t.Errorf("offset %d came for %d", m.Offset, at)
		}
		return err
	}
	for _, at := range []int64{0, first - 1} {
		err := consume(at)
		wantKind(t, fmt.Sprint("consume at ", at), err, client.KindTrimmed)
		var e *client.Error
		if !errors.As(err, &e) || e.Details["requested"] != fmt.Sprint(at) {
			t.Errorf("details are %v", e.Details)
		}
		oldest, perr := strconv.ParseInt(e.Details["oldest"], 10, 64)
		if now, _ := r.bounds("t"); perr != nil || oldest < first || oldest > now {
			t.Errorf("oldest is %q, want %d", e.Details["oldest"], first)
		}
		a := r.http("GET", fmt.Sprintf("/v1/topics/default/t/records?from=%d", at), "", nil)
		refused(t, "a page", a, 410, client.KindTrimmed)
		if a.details["requested"] != fmt.Sprint(at) || a.details["oldest"] == "" {
			t.Errorf("details are %v", a.details)
		}
		res := r.levee(nil, "consume", "t", "--from", fmt.Sprint(at), "--count", "1")
		if res.Code != 3 || !strings.Contains(res.Stderr, "--from "+a.details["oldest"]) {
			t.Errorf("exit code %d: %s", res.Code, res.Stderr)
		}
	}
	for _, at := range []int64{end + 1, 1 << 40, 1<<63 - 1} {
		wantKind(t, fmt.Sprint("consume at ", at), consume(at), client.KindOutOfRange)
		refused(t, "a page", r.http("GET", fmt.Sprintf("/v1/topics/default/t/records?from=%d", at), "", nil), 416, client.KindOutOfRange)
		refused(t, "a stream", r.http("GET", fmt.Sprintf("/v1/topics/default/t/records?follow=1&from=%d", at), "", nil), 416, client.KindOutOfRange)
		res := r.levee(nil, "consume", "t", "--from", fmt.Sprint(at), "--count", "1")
		if res.Code != 3 || !strings.Contains(res.Stderr, "--from latest") {
			t.Errorf("exit code %d: %s", res.Code, res.Stderr)
		}
	}
	if err := consume(-1); kindOf(err) != client.KindInvalidArgument && kindOf(err) != client.KindOutOfRange {
		t.Errorf("a negative offset: %v", err)
	}
	for _, from := range []string{"-1", "x", "1.5", "99999999999999999999", "@yesterday", "@", "EARLIEST", "0x10", "%00"} {
		refused(t, from, r.http("GET", "/v1/topics/default/t/records?from="+from, "", nil), 400, client.KindInvalidArgument)
		if from != "%00" {
			if res := r.levee(nil, "consume", "t", "--from", from); res.Code != 2 {
				t.Errorf("--from %s: exit code %d: %s", from, res.Code, res.Stderr)
			}
		}
	}
	r.atTheEnd(end)
	r.followTrimmed(first)
	r.Healthy()
}

// atTheEnd wants that the very end is a place to wait at, not an error.
func (r *rig) atTheEnd(end int64) {
	r.t.Helper()
	a := r.http("GET", fmt.Sprintf("/v1/topics/default/t/records?from=%d&wait=50ms", end), "", nil)
	if a.status != 200 || !strings.Contains(string(a.body), `"records":[]`) {
		r.t.Errorf("a page at the end: %d %s", a.status, a.body)
	}
	res := r.levee(nil, "consume", "t", "--from", fmt.Sprint(end), "--timeout", "50ms")
	if res.Code != 0 || res.Stdout != "" {
		r.t.Errorf("consuming at the end: exit code %d, %q, %s", res.Code, res.Stdout, res.Stderr)
	}
}

// followTrimmed wants that a stream of events tells what is gone and goes on behind it.
func (r *rig) followTrimmed(first int64) {
	r.t.Helper()
	a := r.http("GET", "/v1/topics/default/t/records?from=0", "", nil)
	body := r.stream("/v1/topics/default/t/records?follow=1&from=0")
	defer body.Close()
	in := newEvents(body)
	trimmed, err := in.next()
	if err != nil || trimmed.name != "trimmed" || !strings.Contains(trimmed.data, `"requested":"0"`) {
		r.t.Fatalf("the first event is %v, %v; a page says %s", trimmed, err, a.body)
	}
	next, err := in.next()
	var o outRecord
	if err != nil || next.name != "record" || json.Unmarshal([]byte(next.data), &o) != nil || o.Offset < first {
		r.t.Errorf("the second event is %v, %v; the oldest offset is %d", next, err, first)
	}
}

// TestHalfClosedPublish closes its side at once after the last batch: every batch is answered all the same.
func TestHalfClosedPublish(t *testing.T) {
	r := newRig(t, nil)
	for _, fsync := range []string{"on_commit", "periodic", "none"} {
		r.create(fsync, client.Settings{Fsync: new(fsync)})
		p := r.publishing(fsync)
		const messages, each = 50, 20
		for range messages {
			var batches [][]byte
			for range each {
				batches = append(batches, proc.Batch(t, record.None, value(fmt.Sprint(len(batches))), value("")))
			}
			p.send(batches...)
		}
		if err := p.st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		acks, err := p.acks(messages * each)
		if err != nil {
			t.Fatalf("%s: %d batches answered: %v", fsync, len(acks), err)
		}
		for i, a := range acks {
			if a.GetError() != nil || a.GetId() != uint64(i+1) || a.GetOffset() != int64(2*i) || a.GetLastOffset() != int64(2*i+1) {
				t.Fatalf("%s: answer %d is %v", fsync, i, a)
			}
		}
		if _, err := p.st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream ended with %v", fsync, err)
		}
		if got := len(r.records(fsync)); got != 2*messages*each {
			t.Errorf("%s: %d records", fsync, got)
		}
	}
	r.Terminate()
	if code := r.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// TestNonsenseOnStreams breaks the rules of the native streams. Each is an error with a kind, on that stream alone.
func TestNonsenseOnStreams(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", client.Settings{})
	good := proc.Batch(t, record.None, value("x"))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	negative := bytes.Clone(good)
	copy(negative[57:61], "\xff\xff\xff\xff") // the number of records
	p := r.publishing("t")
	bad := map[string][]byte{
		"nothing": {}, "a byte": {1}, "zeros": make([]byte, 100), "cut": good[:len(good)-1], "more": append(bytes.Clone(good), 0),
		"two": append(bytes.Clone(good), good...), "a flipped bit": flipped, "a negative count": negative, "text": []byte(strings.Repeat("text", 100)),
	}
	for name, b := range bad {
		p.send(b)
		acks, err := p.acks(1)
		if err != nil {
			t.Fatalf("%s ended the stream: %v", name, err)
		}
		if kind := acks[0].GetError().GetKind(); kind != client.KindInvalidArgument && kind != client.KindCorrupt {
			t.Errorf("%s is answered %v", name, acks[0])
		}
	}
	p.send(good)
	if acks, err := p.acks(1); err != nil || acks[0].GetError() != nil || acks[0].GetOffset() != 0 {
		t.Errorf("the good batch is answered %v, %v", acks, err)
	}
	for name, reqs := range map[string][]*leveev1.SubscribeRequest{
		"no open":         {{Credit: &leveev1.Credit{Bytes: 1}}},
		"negative credit": {{Open: &leveev1.OpenSubscribe{Topic: "t"}, Credit: &leveev1.Credit{Bytes: -1}}},
		"negative size":   {{Open: &leveev1.OpenSubscribe{Topic: "t", MaxBytes: -1}}},
		"open twice":      {{Open: &leveev1.OpenSubscribe{Topic: "t"}}, {Open: &leveev1.OpenSubscribe{Topic: "t"}}},
		"too much credit": {{Open: &leveev1.OpenSubscribe{Topic: "t"}, Credit: &leveev1.Credit{Bytes: 1<<63 - 1}}, {Credit: &leveev1.Credit{Bytes: 1<<63 - 1}}},
		"short id":        {{Open: &leveev1.OpenSubscribe{Topic: "t", TopicId: []byte("x")}}},
	} {
		st, err := r.raw.Subscribe(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range reqs {
			_ = st.Send(req) // where the stream has ended, Recv says why
		}
		if name != "too much credit" {
			for err == nil {
				_, err = st.Recv()
			}
			wantKind(t, name, err, client.KindInvalidArgument)
			continue
		}
		// More than a number can hold is as good as endless.
		timer := time.AfterFunc(proc.Patience, func() { _ = st.CloseSend() })
		for err == nil {
			var resp *leveev1.SubscribeResponse
			if resp, err = st.Recv(); err == nil && resp.GetAtEnd() {
				break
			}
		}
		timer.Stop()
		if err != nil && kindOf(err) != client.KindInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		_ = st.CloseSend()
	}
	r.Healthy()
}
