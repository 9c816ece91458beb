package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(device.Main(func() int { return proc.Main(m) })) }

// on returns a directory whose "data" is on the file system at fs: what a broker prints goes elsewhere, so it is not
// lost when that is full.
func on(t *testing.T, fs string) string {
	t.Helper()
	dir := proc.Dir(t)
	if err := os.Mkdir(filepath.Join(fs, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(fs, "data"), filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// site is a broker on a directory, and what a test asks it.
type site struct {
	t   *testing.T
	dir string // the data directory
	b   *proc.Broker
	raw *proc.Raw
	o   proc.Options
}

func open(t *testing.T, dir string, o proc.Options) *site {
	t.Helper()
	proc.Binary(t) // not on this test's clock
	s := &site{t: t, dir: dir, o: o}
	s.start()
	return s
}

// start starts the broker and waits until it is ready.
func (s *site) start() {
	s.t.Helper()
	s.b = proc.Start(s.t, s.dir, s.o)
	s.raw = s.b.Raw()
}

func (s *site) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	s.t.Cleanup(cancel)
	return ctx
}

// create makes a topic. Empty fsync: the broker's default.
func (s *site) create(name, fsync string) error {
	set := &leveev1.TopicSettings{SegmentBytes: new(int64(64 << 10))}
	if fsync != "" {
		set.Fsync = &fsync
	}
	_, err := s.raw.CreateTopic(s.context(), &leveev1.CreateTopicRequest{Name: name, Settings: set})
	return err
}

func (s *site) mustCreate(name, fsync string) {
	s.t.Helper()
	if err := s.create(name, fsync); err != nil {
		s.t.Fatal(err)
	}
}

// publish publishes one record and returns the broker's answer, without a client that would try again.
func (s *site) publish(topic, value string) (int64, error) {
	return s.publishWithin(proc.Patience, topic, value)
}

func (s *site) publishWithin(d time.Duration, topic, value string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	r, err := s.raw.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: topic, Records: []*leveev1.Record{{Value: []byte(value)}}})
	return r.GetOffset(), err
}

// mustPublish publishes values and returns them.
func (s *site) mustPublish(topic string, values ...string) []string {
	s.t.Helper()
	for _, v := range values {
		if _, err := s.publish(topic, v); err != nil {
			s.t.Fatalf("publish to %s: %v", topic, err)
		}
	}
	return values
}

// read returns what a topic of one partition holds, from its beginning to its end, or why it cannot be read.
func (s *site) read(topic string) (values []string, err error) {
	s.t.Helper()
	c, err := client.Dial(s.b.GRPC)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	end := false
	consumer, err := c.Consume(ctx, topic, client.ConsumerConfig{
		From:       client.Offset(0),
		OnCaughtUp: func(int32, int64) { end = true; cancel() },
		OnLost:     func(_ int32, from, to int64) { s.t.Errorf("%s: offsets %d to %d were declared lost", topic, from, to) },
	})
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil && end {
			return values, nil
		}
		if err != nil {
			return values, err
		}
		for i := range batch {
			if batch[i].Offset != int64(len(values)) {
				s.t.Errorf("%s: record number %d has offset %d", topic, len(values), batch[i].Offset)
			}
			values = append(values, string(batch[i].Value))
		}
	}
}

// holds fails the test unless the topic holds exactly these values.
func (s *site) holds(when, topic string, want []string) {
	s.t.Helper()
	got, err := s.read(topic)
	if err != nil {
		s.t.Errorf("%s: read %s: %v", when, topic, err)
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("%s: %s holds %d records %.200q, want %d %.200q", when, topic, len(got), got, len(want), want)
	}
}

// kindOf returns the kind of an error of the raw API, and whether it says that a repetition may help.
func kindOf(err error) (kind string, retriable bool) {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "levee" {
			retriable, _ = strconv.ParseBool(info.GetMetadata()["retriable"])
			return info.GetReason(), retriable
		}
	}
	return client.KindOf(err), false
}

// want fails the test unless err has the kind.
func (s *site) want(what string, err error, kind string) {
	s.t.Helper()
	if got, _ := kindOf(err); got != kind {
		s.t.Errorf("%s: %v (kind %q), want kind %s", what, err, got, kind)
	}
}

// get returns the answer of a page of the HTTP port, however that ends.
func (s *site) get(path string) (code int, text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.b.HTTP+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := proc.HTTP.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// problems returns what the broker says is wrong.
func (s *site) problems() string {
	s.t.Helper()
	_, text := s.get("/readyz")
	var ready struct{ Problems []string }
	if err := json.Unmarshal([]byte(text), &ready); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	return strings.Join(ready.Problems, "\n")
}

// metric returns the value of a metric without labels.
func (s *site) metric(name string) float64 {
	s.t.Helper()
	_, text := s.get("/metrics")
	for _, line := range strings.Split(text, "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.t.Fatalf("%s: %v", line, err)
			}
			return n
		}
	}
	s.t.Fatalf("no metric %s", name)
	return 0
}

// segments returns the segment files of a topic's first partition, oldest first, as the system knows them.
func (s *site) segments(topic string) []string {
	s.t.Helper()
	dir, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := filepath.Glob(filepath.Join(dir, "topics/default", topic+"@*", "0", "*.log"))
	if err != nil || len(list) == 0 {
		s.t.Fatalf("no segment of %s: %v", topic, err)
	}
	return list
}

// stop stops the broker in good order and wants it to end with a code.
func (s *site) stop(code int) {
	s.t.Helper()
	_ = s.raw.Conn.Close()
	s.b.Terminate()
	if got := s.b.Wait(); got != code {
		s.t.Errorf("the stop ended with exit code %d, want %d", got, code)
	}
}

// await polls a condition, which the test's machine may take long to reach.
func (s *site) await(what string, holds func() bool) {
	s.t.Helper()
	s.b.Await(what, holds)
}

// values returns n different values of some size.
func values(prefix string, n, size int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d-", prefix, i)
		list[i] += strings.Repeat("x", max(0, size-len(list[i])))
	}
	return list
}

// readOnce reads a topic's first partition as far as it goes, without a client that would try again.
func (s *site) readOnce(topic string) (values []string, err error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	st, err := s.raw.Subscribe(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range []*leveev1.SubscribeRequest{
		{Open: &leveev1.OpenSubscribe{Topic: topic, Start: &leveev1.OpenSubscribe_Earliest{Earliest: true}}},
		{Credit: &leveev1.Credit{Bytes: 1 << 30}},
	} {
		if err := st.Send(m); err != nil {
			return nil, err
		}
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return values, err
		}
		if e := m.GetEnded(); e != nil {
			return values, &client.Error{Kind: e.GetKind(), Message: e.GetMessage(), Retriable: e.GetRetriable()}
		}
		if m.GetAtEnd() {
			return values, nil
		}
		for rest := m.GetDelivery().GetBatches(); len(rest) > 0; {
			batch, more, err := record.Next(rest)
			if err != nil {
				return values, err
			}
			if err := record.Each(batch, func(r record.Record) error {
				values = append(values, string(r.Value))
				return nil
			}); err != nil {
				return values, err
			}
			rest = more
		}
	}
}
