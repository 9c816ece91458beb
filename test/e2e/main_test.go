package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// rig is one broker and a way in through each of its doors.
type rig struct {
	*proc.Broker
	t      *testing.T
	client *client.Client
	raw    *proc.Raw
	ctx    context.Context
}

func newRig(t *testing.T, env map[string]string) *rig {
	t.Helper()
	b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{Env: env})
	r := &rig{Broker: b, t: t, client: b.Dial(), raw: b.Raw()}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), proc.Patience)
	t.Cleanup(cancel)
	return r
}

// on returns the rig for a subtest.
func (r *rig) on(t *testing.T) *rig {
	t.Helper()
	sub := *r
	sub.t = t
	var cancel context.CancelFunc
	sub.ctx, cancel = context.WithTimeout(context.Background(), proc.Patience)
	t.Cleanup(cancel)
	return &sub
}

func (r *rig) create(name string, settings client.Settings) {
	r.t.Helper()
	if _, err := r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: name, Settings: settings}); err != nil {
		r.t.Fatal(err)
	}
}

// bounds returns the oldest offset of a topic's only partition, and the next one.
func (r *rig) bounds(topic string) (first, end int64) {
	r.t.Helper()
	d, err := r.client.Admin().DescribeTopic(r.ctx, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return d.PartitionStates[0].First, d.PartitionStates[0].End
}

// levee runs the command line against the broker.
func (r *rig) levee(stdin []byte, args ...string) proc.Result {
	r.t.Helper()
	return proc.Run(r.t, stdin, append([]string{"--addr", r.GRPC}, args...)...)
}

// kindOf returns the kind of an error that a call of the raw API ended with.
func kindOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "levee" {
			return info.GetReason()
		}
	}
	return client.KindOf(err)
}

// answer is what the HTTP port said.
type answer struct {
	status  int
	body    []byte
	kind    string // of an error
	message string
	details map[string]string
	where   string // of a redirection
}

// http sends a request; contentType is left out where it is empty.
func (r *rig) http(method, path, contentType string, body []byte) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, method, "http://"+r.HTTP+path, strings.NewReader(string(body)))
	if err != nil {
		r.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := proc.HTTP.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return readAnswer(r.t, res)
}

// stream opens a stream of events, which the caller closes.
func (r *rig) stream(path string) io.ReadCloser {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, "http://"+r.HTTP+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := proc.HTTP.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %+v", path, readAnswer(r.t, res))
	}
	return res.Body
}

func readAnswer(t *testing.T, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: res.StatusCode, body: text, where: res.Header.Get("Location")}
	var failure struct {
		Error struct {
			Kind, Message string
			Details       map[string]string
		}
	}
	if json.Unmarshal(text, &failure) == nil {
		a.kind, a.message, a.details = failure.Error.Kind, failure.Error.Message, failure.Error.Details
	}
	return a
}

// wantKind fails the test unless err is of that kind and says something.
func wantKind(t *testing.T, what string, err error, kind string) {
	t.Helper()
	if got := kindOf(err); got != kind {
		t.Errorf("%s: got %q (%v), want %s", what, got, err, kind)
	}
	if err != nil && (len(status.Convert(err).Message()) < 10 || len(err.Error()) > 4<<10) {
		t.Errorf("%s: %d bytes are no message for people: %.200q", what, len(err.Error()), err.Error())
	}
}

// refused fails the test unless the HTTP port refused a request with that status and kind.
func refused(t *testing.T, what string, a answer, status int, kind string) {
	t.Helper()
	if a.status != status || a.kind != kind || len(a.message) < 10 {
		t.Errorf("%s: got %d %q %.300s, want %d %s", what, a.status, a.kind, a.body, status, kind)
	}
}

// publishing is a raw publish stream that is open.
type publishing struct {
	t  *testing.T
	st leveev1.Stream_PublishClient
	id uint64
}

func (r *rig) publishing(topic string) *publishing {
	r.t.Helper()
	st, err := r.raw.Publish(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := st.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: topic}}); err != nil {
		r.t.Fatal(err)
	}
	first, err := st.Recv()
	if err != nil || first.GetOpened() == nil {
		r.t.Fatalf("open %s: %v, %v", topic, first, err)
	}
	return &publishing{t: r.t, st: st}
}

// send sends batches to partition 0 in one message.
func (p *publishing) send(batches ...[]byte) {
	p.t.Helper()
	req := &leveev1.PublishRequest{}
	for _, b := range batches {
		p.id++
		req.Batches = append(req.Batches, &leveev1.Batch{Id: p.id, Data: b})
	}
	if err := p.st.Send(req); err != nil && !errors.Is(err, io.EOF) { // the reason comes with recv
		p.t.Fatal(err)
	}
}

// acks receives n answers.
func (p *publishing) acks(n int) ([]*leveev1.Ack, error) {
	var acks []*leveev1.Ack
	for len(acks) < n {
		resp, err := p.st.Recv()
		if err != nil {
			return acks, err
		}
		acks = append(acks, resp.GetAcks()...)
	}
	return acks, nil
}

// records reads a topic's only partition from its beginning to its present end.
func (r *rig) records(topic string) []client.Message {
	r.t.Helper()
	_, end := r.bounds(topic)
	consumer, err := r.client.Consume(r.ctx, topic, client.ConsumerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer consumer.Close()
	var all []client.Message
	for int64(len(all)) < end {
		batch, err := consumer.NextBatch(r.ctx)
		if err != nil {
			r.t.Fatalf("read %s: %v", topic, err)
		}
		all = append(all, batch...)
	}
	return all
}

func value(text string) record.Record { return record.Record{Value: []byte(text)} }

// show describes a record for a failure.
func show(r record.Record) string {
	text := func(b []byte) string {
		if b == nil {
			return "nil"
		}
		return fmt.Sprintf("%d bytes %.60q", len(b), b)
	}
	s := "key " + text(r.Key) + ", value " + text(r.Value)
	for _, h := range r.Headers {
		s += fmt.Sprintf(", header %q: %s", h.Key, text(h.Value))
	}
	return s
}
