package danube

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	schema "github.com/leveemq/levee/api/danube/schema"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
	rpc "google.golang.org/grpc"
)

// Config is what the services need. Broker is required; the zero value of any other field means its default.
type Config struct {
	Broker *broker.Broker
	// Advertise is the address that clients are told to connect to: host:port, or a URL. Empty: the one that each client
	// has used itself, which it can reach.
	Advertise string
	TLS       bool   // the port speaks TLS: addresses begin with https
	BrokerID  string // names this broker in lists of brokers
	Admin     string // address of the HTTP port, for lists of brokers
	// RequireTopics refuses producers of topics that do not exist, instead of making the topic.
	RequireTopics bool
	Limits        Limits
	Logger        *slog.Logger          // nil: silent
	Registerer    prometheus.Registerer // nil: no metrics
	Now           func() time.Time      // nil: time.Now
}

// Limits bound what clients can make the services remember. Zero means the default.
type Limits struct {
	Producers int // known at once; default 100,000
	Consumers int // the same; default 100,000
}

func (c Config) withDefaults() Config {
	if c.Limits.Producers <= 0 {
		c.Limits.Producers = 100_000
	}
	if c.Limits.Consumers <= 0 {
		c.Limits.Consumers = 100_000
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = obs.Logger(c.Logger)
	return c
}

// Service answers the Danube API. It is safe for concurrent use.
type Service struct {
	cfg       Config
	broker    calls
	metrics   *metrics
	bugs      obs.Throttle
	producers producers
	consumers consumers
	sendings  sync.Pool
	resuming  chan struct{} // who holds its one slot may look for whom an unknown consumer id belongs to
	nodeID    uint64        // what stands for BrokerID where a number is wanted

	places     sync.Map // wire name of a topic to its place, for acks
	placesKept atomic.Int64
}

// New returns services that nobody is served by yet: see Service.Register.
func New(cfg Config) *Service { return newService(cfg, brokerCalls{cfg.Broker}) }

func newService(cfg Config, broker calls) *Service {
	cfg = cfg.withDefaults()
	m := newMetrics(cfg.Registerer)
	return &Service{
		cfg: cfg, broker: broker, metrics: m, bugs: obs.Throttle{Every: 10 * time.Second},
		producers: newProducers(cfg.Limits.Producers, m), consumers: newConsumers(cfg.Limits.Consumers, m),
		resuming: make(chan struct{}, 1), nodeID: bits63("broker", cfg.BrokerID),
	}
}

// Register adds the services to a gRPC server.
func (s *Service) Register(to rpc.ServiceRegistrar) {
	api.RegisterProducerServiceServer(to, &producerService{Service: s})
	api.RegisterConsumerServiceServer(to, &consumerService{Service: s})
	api.RegisterDiscoveryServer(to, &discovery{Service: s})
	api.RegisterHealthCheckServer(to, &healthCheck{Service: s})
	api.RegisterStorageServiceServer(to, &storage{})
	admin.RegisterTopicAdminServer(to, &topicAdmin{Service: s})
	admin.RegisterNamespaceAdminServer(to, &namespaceAdmin{Service: s})
	admin.RegisterBrokerAdminServer(to, &brokerAdmin{Service: s})
	admin.RegisterClusterAdminServer(to, &clusterAdmin{Service: s})
	admin.RegisterSecurityAdminServer(to, &admin.UnimplementedSecurityAdminServer{})
	schema.RegisterSchemaRegistryServer(to, &schemaRegistry{Service: s})
}
