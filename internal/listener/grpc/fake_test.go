package grpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBroker is a broker whose every answer the test decides.
type fakeBroker struct {
	draining chan struct{}
	pub      *fakePublisher
	sub      *fakeSubscriber
	cons     *fakeConsumer
	admin    fakeSubscriptions

	mu      sync.Mutex
	down    error // Ready; guarded by mu
	openErr error // OpenPublisher and Subscribe; guarded by mu
	spec    broker.SubscribeSpec
	joined  broker.ConsumerSpec
	topic   string
	id      []byte
	records []record.Record
	batch   []byte
	result  broker.PublishResult
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{
		draining: make(chan struct{}),
		pub:      &fakePublisher{},
		sub:      &fakeSubscriber{events: make(chan any, 100)},
		cons:     newFakeConsumer(),
	}
}

func (b *fakeBroker) setDown(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = err
}

func (b *fakeBroker) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.down
}

func (b *fakeBroker) Draining() <-chan struct{} { return b.draining }

func (b *fakeBroker) InitProducer(context.Context) (int64, int16, error) { return 77, 3, nil }

func (b *fakeBroker) Publish(_ context.Context, topic string, partition int32, records []record.Record) (int32, broker.PublishResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topic, b.records = topic, records
	return max(partition, 0), b.result, b.openErr
}

func (b *fakeBroker) PublishBatch(_ context.Context, topic string, _ int32, batch []byte) (broker.PublishResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topic, b.batch = topic, batch
	return b.result, b.openErr
}

func (b *fakeBroker) OpenPublisher(_ context.Context, topic string, id []byte) (publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topic, b.id = topic, id
	if b.openErr != nil {
		return nil, b.openErr
	}
	return b.pub, nil
}

func (b *fakeBroker) Subscribe(_ context.Context, spec broker.SubscribeSpec) (subscriber, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec = spec
	if b.openErr != nil {
		return nil, b.openErr
	}
	return b.sub, nil
}

type submission struct {
	partition int32
	batch     []byte
	done      func(broker.PublishResult)
}

// fakePublisher keeps what was submitted until the test answers it.
type fakePublisher struct {
	mu        sync.Mutex
	submitted []submission
	refuse    error // Submit's answer; guarded by mu
	closed    int
}

func (p *fakePublisher) Info() broker.TopicInfo {
	return broker.TopicInfo{Name: "default/t", ID: [16]byte{1, 2}, Partitions: 4, Dispatch: broker.Reliable}
}

func (p *fakePublisher) Submit(_ context.Context, partition int32, batch []byte, done func(broker.PublishResult)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return p.refuse
	}
	p.submitted = append(p.submitted, submission{partition, batch, done})
	return nil
}

func (p *fakePublisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
}

func (p *fakePublisher) all() []submission {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.submitted)
}

// fakeSubscriber gives out what the test puts into events: a broker.Event, an error, or a func of maxBytes.
type fakeSubscriber struct {
	events chan any

	mu     sync.Mutex
	asked  []int // maxBytes of each Next; guarded by mu
	closed int   // guarded by mu
}

func (s *fakeSubscriber) Info() broker.SubscriberInfo {
	return broker.SubscriberInfo{TopicID: [16]byte{1, 2}, Start: 5, End: 9, Partitions: 4, Reliable: true}
}

func (s *fakeSubscriber) Next(ctx context.Context, maxBytes int) (broker.Event, error) {
	s.mu.Lock()
	s.asked = append(s.asked, maxBytes)
	s.mu.Unlock()
	select {
	case e := <-s.events:
		switch e := e.(type) {
		case error:
			return broker.Event{}, e
		case broker.Event:
			return e, nil
		}
		return broker.Event{}, errors.New("fake: neither an event nor an error")
	case <-ctx.Done():
		return broker.Event{}, ctx.Err()
	}
}

func (s *fakeSubscriber) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
}

func (s *fakeSubscriber) calls() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func data(n int, next int64) broker.Event {
	return broker.Event{Kind: broker.EventData, Batches: make([]byte, n), Next: next}
}

// fixture is a server over a fake broker, and a connection to it.
type fixture struct {
	*fakeBroker
	server *Server
	conn   *rpc.ClientConn
	client leveev1.StreamClient
	bounds broker.Limits
}

// bubble runs test with a server in a synctest bubble, and ends both.
func bubble(t *testing.T, limits Limits, test func(t *testing.T, f *fixture)) {
	t.Helper()
	bubbleFrom(t, limits, nil, test)
}

// bubbleFrom is bubble with a broker that is down from the start: a server looks only until it has seen it ready once.
func bubbleFrom(t *testing.T, limits Limits, down error, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{fakeBroker: newFakeBroker(), bounds: broker.Limits{RecordBytes: 10 << 20, BatchBytes: 16 << 20}}
		f.setDown(down)
		f.server = newServer(Config{Limits: limits}, f.fakeBroker, &adminService{subscriptions: &f.fakeBroker.admin, deadLetters: &f.fakeBroker.admin}, f.fakeBroker, f.bounds)
		ln := bufconn.Listen(1 << 20)
		served := make(chan error, 1)
		go func() { served <- f.server.Serve(ln) }()
		f.conn = dial(t, ln)
		f.client = leveev1.NewStreamClient(f.conn)

		defer func() { // also after a failure: a bubble with goroutines left in it panics
			_ = f.conn.Close()
			f.server.Drain(context.Background())
			if err := <-served; err != nil {
				t.Errorf("Serve: %v", err)
			}
		}()
		test(t, f)
	})
}

func dial(t *testing.T, ln *bufconn.Listener) *rpc.ClientConn {
	t.Helper()
	conn, err := rpc.NewClient("passthrough:///bufconn",
		rpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		rpc.WithTransportCredentials(insecure.NewCredentials()),
		rpc.WithDefaultCallOptions(rpc.ForceCodecV2(codec.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wantKind checks that err is a status of the kind, with its code and ErrorInfo, and returns the metadata.
func wantKind(t *testing.T, err error, kind fault.Kind) map[string]string {
	t.Helper()
	st, ok := status.FromError(err)
	if err == nil || !ok {
		t.Fatalf("got %v, want a status of kind %s", err, kind)
	}
	if st.Code() != codes.Code(kind.Row().GRPC) {
		t.Errorf("got code %s (%v), want that of kind %s", st.Code(), err, kind)
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.Domain != "levee" || info.Reason != kind.String() {
				t.Errorf("got domain %q, reason %q; want levee, %s (%v)", info.Domain, info.Reason, kind, err)
			}
			return info.Metadata
		}
	}
	t.Fatalf("%v carries no ErrorInfo", err)
	return nil
}

// value returns what a counter or gauge stands at.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}
