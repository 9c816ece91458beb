package danube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/api/codec"
	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	schema "github.com/leveemq/levee/api/danube/schema"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBroker is a broker in memory: topics, and subscriptions whose every consumer is handed everything. Tests make its
// calls fail.
type fakeBroker struct {
	mu         sync.Mutex
	made       byte // incarnations; guarded by mu, as all below
	topics     map[string]*fakeTopic
	spaces     map[string]bool
	fails      map[string]error // by method
	opened     []broker.ConsumerSpec
	publishers int
	unloaded   []string
	fakeSchemas
}

type fakeTopic struct {
	info  broker.TopicInfo
	parts [][]byte // every batch, back to back
	ends  []int64
	grown chan struct{} // closed when there is more
	gone  bool
	subs  map[string]*fakeSub
}

type fakeSub struct {
	info      broker.SubscriptionInfo
	starts    []int64
	consumers map[string]*fakeConsumer
	settled   []broker.Settlement
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{
		topics: map[string]*fakeTopic{}, spaces: map[string]bool{"default": true}, fails: map[string]error{},
		fakeSchemas: fakeSchemas{subjects: map[string][]schemaVersion{}, modes: map[string]string{}, follows: map[string]topicSchema{}},
	}
}

// fail makes a method fail; nil ends that.
func (b *fakeBroker) fail(method string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails[method] = err
}

func (b *fakeBroker) find(name string) (*fakeTopic, error) {
	t := b.topics[name]
	if t == nil {
		return nil, fault.New(fault.NotFound, "topic %s does not exist", name)
	}
	return t, nil
}

func (b *fakeBroker) Topic(name string) (broker.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(name)
	if err == nil {
		err = b.fails["Topic"]
	}
	if err != nil {
		return broker.TopicInfo{}, err
	}
	return t.info, nil
}

func (b *fakeBroker) Topics(namespace string) ([]broker.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if namespace != "" && !b.spaces[namespace] {
		return nil, fault.New(fault.NotFound, "namespace %s does not exist", namespace)
	}
	var list []broker.TopicInfo
	for _, name := range slices.Sorted(maps.Keys(b.topics)) {
		if namespace == "" || strings.HasPrefix(name, namespace+"/") {
			list = append(list, b.topics[name].info)
		}
	}
	return list, nil
}

func (b *fakeBroker) CreateTopic(_ context.Context, spec broker.TopicSpec) (broker.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fails["CreateTopic"]; err != nil {
		return broker.TopicInfo{}, err
	}
	namespace, _, _ := strings.Cut(spec.Name, "/")
	if !b.spaces[namespace] {
		return broker.TopicInfo{}, fault.New(fault.NotFound, "namespace %s does not exist", namespace)
	}
	base, _, isPart := splitPart(spec.Name)
	if b.topics[spec.Name] != nil || isPart && b.topics[base] != nil {
		return broker.TopicInfo{}, fault.New(fault.AlreadyExists, "topic %s cannot be made", spec.Name)
	}
	b.made++
	t := &fakeTopic{
		info:  broker.TopicInfo{Name: spec.Name, ID: [16]byte{b.made}, Partitions: spec.Partitions, Dispatch: spec.Dispatch},
		parts: make([][]byte, spec.Partitions), ends: make([]int64, spec.Partitions), grown: make(chan struct{}), subs: map[string]*fakeSub{},
	}
	b.topics[spec.Name] = t
	return t.info, nil
}

func (b *fakeBroker) DeleteTopic(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(name)
	if err != nil {
		return err
	}
	delete(b.topics, name)
	t.gone = true
	close(t.grown)
	return nil
}

func (b *fakeBroker) UnloadTopic(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unloaded = append(b.unloaded, name)
	return b.fails["UnloadTopic"]
}

func (b *fakeBroker) Namespaces() (list []broker.NamespaceInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(b.spaces)) {
		info := broker.NamespaceInfo{Name: n}
		for t := range b.topics {
			if strings.HasPrefix(t, n+"/") {
				info.Topics++
			}
		}
		list = append(list, info)
	}
	return list
}

func (b *fakeBroker) CreateNamespace(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spaces[name] {
		return fault.New(fault.AlreadyExists, "namespace %s exists", name)
	}
	b.spaces[name] = true
	return nil
}

func (b *fakeBroker) DeleteNamespace(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for t := range b.topics {
		if strings.HasPrefix(t, name+"/") {
			return fault.New(fault.Conflict, "namespace %s has topics", name)
		}
	}
	if !b.spaces[name] {
		return fault.New(fault.NotFound, "namespace %s does not exist", name)
	}
	delete(b.spaces, name)
	return nil
}

func (b *fakeBroker) OpenPublisher(_ context.Context, topic string, id []byte) (publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(topic)
	if err == nil && len(id) > 0 && t.info.ID != [16]byte(id) {
		err = fault.New(fault.Deleted, "topic %s was deleted", topic)
	}
	if err == nil {
		err = b.fails["OpenPublisher"]
	}
	if err != nil {
		return nil, err
	}
	b.publishers++
	return &fakePublisher{b: b, t: t}, nil
}

type fakePublisher struct {
	b *fakeBroker
	t *fakeTopic
}

func (p *fakePublisher) Info() broker.TopicInfo { return p.t.info }

func (p *fakePublisher) Close() {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.b.publishers--
}

func (p *fakePublisher) Submit(_ context.Context, partition int32, batch []byte, done func(broker.PublishResult)) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.t.gone {
		return fault.New(fault.Deleted, "topic %s was deleted", p.t.info.Name)
	}
	if err := p.b.fails["Submit"]; err != nil {
		return err
	}
	if err := p.b.fails["done"]; err != nil {
		done(broker.PublishResult{Err: err})
		return nil
	}
	if p.b.fails["silent"] != nil {
		return nil
	}
	info, err := record.Verify(batch, record.Limits{})
	if err != nil {
		return err
	}
	p.t.append(partition, batch, int64(info.Count))
	done(broker.PublishResult{})
	return nil
}

// append takes a batch in. The caller holds the broker's mu.
func (t *fakeTopic) append(partition int32, batch []byte, count int64) {
	b := slices.Clone(batch)
	record.SetPlacement(b, t.ends[partition], 0)
	t.parts[partition] = append(t.parts[partition], b...)
	t.ends[partition] += count
	close(t.grown)
	t.grown = make(chan struct{})
}

// records returns what a partition holds.
func (b *fakeBroker) records(t *testing.T, topic string, partition int) (list []record.Record) {
	t.Helper()
	b.mu.Lock()
	rest := slices.Clone(b.topics[topic].parts[partition])
	b.mu.Unlock()
	for len(rest) > 0 {
		batch, next, err := record.Next(rest)
		if err != nil {
			t.Fatal(err)
		}
		some, err := record.Records(batch)
		if err != nil {
			t.Fatal(err)
		}
		list, rest = append(list, some...), next
	}
	return list
}

// sub finds a subscription, and makes it where spec allows. The caller holds mu.
func (t *fakeTopic) sub(spec *broker.ConsumerSpec) (*fakeSub, error) {
	s := t.subs[spec.Subscription]
	if s == nil {
		if !spec.Create {
			return nil, fault.New(fault.NotFound, "subscription %s does not exist", spec.Subscription)
		}
		s = &fakeSub{
			info:   broker.SubscriptionInfo{Topic: t.info.Name, Name: spec.Subscription, Type: spec.Type},
			starts: make([]int64, len(t.ends)), consumers: map[string]*fakeConsumer{},
		}
		if spec.Start.Kind == broker.AtLatest {
			copy(s.starts, t.ends)
		}
		t.subs[spec.Subscription] = s
	}
	if s.info.Type != spec.Type {
		return nil, fault.New(fault.Conflict, "subscription %s is %s", s.info.Name, s.info.Type).With("type", s.info.Type)
	}
	return s, nil
}

func (b *fakeBroker) OpenConsumer(_ context.Context, spec broker.ConsumerSpec) (consumer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(spec.Topic)
	if err != nil {
		return nil, err
	}
	if len(spec.ID) > 0 && t.info.ID != [16]byte(spec.ID) {
		return nil, fault.New(fault.Deleted, "topic %s was deleted", spec.Topic)
	}
	if err := b.fails["OpenConsumer"]; err != nil {
		return nil, err
	}
	b.opened = append(b.opened, spec)
	s, err := t.sub(&spec)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprint(spec.Partition, "/", spec.Name)
	if old := s.consumers[key]; old != nil {
		old.end(fault.New(fault.Fenced, "consumer %s was taken over", spec.Name))
	}
	for _, c := range s.consumers {
		if s.info.Type == broker.Exclusive && c.spec.Partition == spec.Partition {
			return nil, fault.New(fault.Conflict, "subscription %s has a consumer", spec.Subscription).With("consumer", c.spec.Name)
		}
	}
	c := &fakeConsumer{b: b, t: t, s: s, key: key, spec: spec, next: s.starts[spec.Partition], ended: make(chan struct{})}
	s.consumers[key] = c
	return c, nil
}

type fakeConsumer struct {
	b     *fakeBroker
	t     *fakeTopic
	s     *fakeSub
	key   string
	spec  broker.ConsumerSpec
	next  int64
	once  sync.Once
	why   error
	ended chan struct{}
}

// end ends it. The caller holds mu.
func (c *fakeConsumer) end(why error) {
	c.once.Do(func() {
		c.why = why
		if c.s.consumers[c.key] == c {
			delete(c.s.consumers, c.key)
		}
		close(c.ended)
	})
}

func (c *fakeConsumer) Info() broker.ConsumerInfo {
	return broker.ConsumerInfo{Topic: c.t.info.Name, Name: c.spec.Name}
}

func (c *fakeConsumer) Settle(s broker.Settlement) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.s.settled = append(c.s.settled, s)
	return nil
}

func (c *fakeConsumer) Close() {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.end(fault.New(fault.Canceled, "the consumer was closed"))
}

func (c *fakeConsumer) Next(ctx context.Context, _ int) (broker.ConsumerEvent, error) {
	for {
		c.b.mu.Lock()
		grown, end, p := c.t.grown, c.t.ends[c.spec.Partition], c.spec.Partition
		all := slices.Clone(c.t.parts[p])
		gone, failed := c.t.gone, c.b.fails["Next"]
		c.b.mu.Unlock()
		switch {
		case gone:
			return broker.ConsumerEvent{}, fault.New(fault.Deleted, "topic %s was deleted", c.spec.Topic)
		case failed != nil:
			return broker.ConsumerEvent{}, failed
		}
		select {
		case <-c.ended:
			return broker.ConsumerEvent{}, c.why
		default:
		}
		if c.next < end {
			from := c.next
			c.next = end
			return broker.ConsumerEvent{
				Kind: broker.ConsumerData, Batches: all, Offsets: []broker.Range{{From: from, To: end - 1}}, Records: int(end - from),
			}, nil
		}
		select {
		case <-grown:
		case <-c.ended:
		case <-ctx.Done():
			return broker.ConsumerEvent{}, ctx.Err()
		}
	}
}

func (b *fakeBroker) SettleFor(topic string, partition int32, subscription string, s broker.Settlement) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(topic)
	if err != nil {
		return err
	}
	if err := b.fails["SettleFor"]; err != nil {
		return err
	}
	sub := t.subs[subscription]
	if sub == nil || int(partition) >= len(t.ends) {
		return fault.New(fault.NotFound, "subscription %s does not exist", subscription)
	}
	sub.settled = append(sub.settled, s)
	return nil
}

// settled returns what a subscription was told.
func (b *fakeBroker) settled(topic, subscription string) []broker.Settlement {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.topics[topic].subs[subscription].settled)
}

func (b *fakeBroker) Subscriptions(_ context.Context, topic string) (list []broker.SubscriptionInfo, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(topic)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(t.subs)) {
		list = append(list, t.subs[name].info)
	}
	return list, b.fails["Subscriptions"]
}

func (b *fakeBroker) DescribeSubscription(_ context.Context, topic, name string) (broker.SubscriptionInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.find(topic)
	if err != nil {
		return broker.SubscriptionInfo{}, err
	}
	if t.subs[name] == nil {
		return broker.SubscriptionInfo{}, fault.New(fault.NotFound, "subscription %s does not exist", name)
	}
	return t.subs[name].info, nil
}

func (b *fakeBroker) SetSubscription(ctx context.Context, topic, name string, set broker.SubscriptionSettings, _ []string) (broker.SubscriptionInfo, error) {
	if _, err := b.DescribeSubscription(ctx, topic, name); err != nil {
		return broker.SubscriptionInfo{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.topics[topic].subs[name]
	s.info.Settings, s.info.Effective = set, set
	return s.info, nil
}

func (b *fakeBroker) DeleteSubscription(ctx context.Context, topic, name string) error {
	if _, err := b.DescribeSubscription(ctx, topic, name); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.topics[topic].subs[name].consumers {
		c.end(fault.New(fault.Deleted, "subscription %s was deleted", name))
	}
	delete(b.topics[topic].subs, name)
	return nil
}

// fixture is the services over a fake broker, and clients of them.
type fixture struct {
	*fakeBroker
	t       *testing.T
	service *Service
	cfg     Config

	ctx       context.Context
	producer  api.ProducerServiceClient
	consumer  api.ConsumerServiceClient
	discovery api.DiscoveryClient
	health    api.HealthCheckClient
	topic     admin.TopicAdminClient
	namespace admin.NamespaceAdminClient
	brokers   admin.BrokerAdminClient
	schema    schema.SchemaRegistryClient
	conn      *rpc.ClientConn
	stop      func()
}

// bubble runs test with the services in a synctest bubble, and ends both.
func bubble(t *testing.T, cfg Config, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{fakeBroker: newFakeBroker(), t: t, cfg: cfg, ctx: t.Context()}
		f.start()
		defer func() { f.stop() }() // also after a failure: a bubble with goroutines left in it panics
		test(f)
	})
}

// start serves in a new process, so to speak: what the services remember is gone, what the broker has is not.
func (f *fixture) start() {
	f.t.Helper()
	f.service = newService(f.cfg, f.fakeBroker)
	server := rpc.NewServer(rpc.ForceServerCodecV2(codec.Codec{}), rpc.WaitForHandlers(true))
	f.service.Register(server)
	ln := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	conn, err := rpc.NewClient("passthrough:///levee:6650", rpc.WithTransportCredentials(insecure.NewCredentials()),
		rpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		f.t.Fatal(err)
	}
	f.conn = conn
	f.producer, f.consumer = api.NewProducerServiceClient(conn), api.NewConsumerServiceClient(conn)
	f.discovery, f.health = api.NewDiscoveryClient(conn), api.NewHealthCheckClient(conn)
	f.topic, f.namespace = admin.NewTopicAdminClient(conn), admin.NewNamespaceAdminClient(conn)
	f.brokers, f.schema = admin.NewBrokerAdminClient(conn), schema.NewSchemaRegistryClient(conn)
	f.stop = func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			f.t.Errorf("Serve: %v", err)
		}
	}
}

// restart is a new process: consumers of the old one are gone.
func (f *fixture) restart() {
	f.stop()
	f.mu.Lock()
	for _, t := range f.topics {
		for _, s := range t.subs {
			for _, c := range s.consumers {
				c.end(fault.New(fault.Unavailable, "the broker stops"))
			}
		}
	}
	f.mu.Unlock()
	f.start()
}

// create makes a topic.
func (f *fixture) create(name string, partitions int32, dispatch broker.Dispatch) {
	f.t.Helper()
	if _, err := f.CreateTopic(f.ctx, broker.TopicSpec{Name: name, Partitions: partitions, Dispatch: dispatch}); err != nil {
		f.t.Fatal(err)
	}
}

// newProducer announces a producer of a reliable topic.
func (f *fixture) newProducer(topic, name string) uint64 {
	f.t.Helper()
	resp, err := f.producer.CreateProducer(f.ctx, &api.ProducerRequest{
		RequestId: 1, ProducerName: name, TopicName: topic, DispatchStrategy: api.DispatchStrategy_Reliable,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.ProducerId
}

func message(id uint64, topic, producer, payload string) *api.StreamMessage {
	return &api.StreamMessage{
		RequestId: 7, MsgId: &api.MsgID{ProducerId: id, TopicName: topic}, Payload: []byte(payload), PublishTime: 1000, ProducerName: producer,
	}
}

func (f *fixture) send(m *api.StreamMessage) {
	f.t.Helper()
	if resp, err := f.producer.SendMessage(f.ctx, m); err != nil || resp.RequestId != m.RequestId {
		f.t.Fatalf("SendMessage: %v, %v", resp, err)
	}
}

func (f *fixture) newConsumer(topic, name string, kind api.ConsumerRequest_SubscriptionType, filters ...string) uint64 {
	f.t.Helper()
	resp, err := f.consumer.Subscribe(f.ctx, &api.ConsumerRequest{
		RequestId: 2, TopicName: topic, ConsumerName: name, Subscription: "sub", SubscriptionType: kind, KeyFilters: filters,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if resp.RequestId != 2 || resp.ConsumerName != name || resp.ConsumerId == 0 || resp.ConsumerId>>63 != 0 {
		f.t.Errorf("Subscribe answered %v", resp)
	}
	return resp.ConsumerId
}

type receiving = rpc.ServerStreamingClient[api.StreamMessage]

func (f *fixture) receive(id uint64) (receiving, context.CancelFunc) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	f.t.Cleanup(cancel)
	stream, err := f.consumer.ReceiveMessages(ctx, &api.ReceiveRequest{RequestId: 3, ConsumerId: id})
	if err != nil {
		f.t.Fatal(err)
	}
	return stream, cancel
}

func (f *fixture) next(stream receiving) *api.StreamMessage {
	f.t.Helper()
	m, err := stream.Recv()
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func (f *fixture) healthy(client api.HealthCheckRequest_ClientType, id uint64) bool {
	f.t.Helper()
	resp, err := f.health.HealthCheck(f.ctx, &api.HealthCheckRequest{Client: client, Id: id})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.Status == api.HealthCheckResponse_OK
}

// wantCode checks the status of err.
func wantCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Errorf("got %s (%v), want %s", got, err, code)
	}
}

var errPlain = errors.New("an error that nobody classified")

// pass lets time pass, which is the bubble's: it passes at once.
func (f *fixture) pass(d time.Duration) { <-time.After(d) }
