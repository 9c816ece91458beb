package grpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
	"github.com/prometheus/client_golang/prometheus"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Config is what the listener needs. Broker is required; the zero value of any other field means its default.
type Config struct {
	Broker     *broker.Broker
	ServerInfo func() ServerInfo     // who answers Admin.ServerInfo; nil: nothing to say
	TLS        *tls.Config           // nil: plain text
	Limits     Limits                // what clients may make the listener hold
	Services   []Registering         // other APIs served on the same port
	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
}

// Registering adds the services of another API to a server. Their errors become statuses as the native API's do, unless
// they are statuses already, and so does what is wrong with their requests.
type Registering func(to rpc.ServiceRegistrar)

// ServerInfo is what Admin.ServerInfo says beyond what the broker knows about itself.
type ServerInfo struct {
	Version  string
	BrokerID string
	Started  time.Time
}

// Limits bound what clients can make the listener hold. Zero means the default.
type Limits struct {
	Connections          int   // open at once; more are closed as they come; default 10,000
	StreamsPerConnection int   // calls open at once on one connection; more wait in the client; default 1,000
	MessageBytes         int   // one received message; not less than the broker's largest batch; default: 1 MiB more than that
	UnansweredBytes      int64 // batches of one publish stream; beyond it the stream is not read; default 16 MiB
	UnansweredBatches    int   // as UnansweredBytes, in batches; default 4,096
}

func (l Limits) withDefaults(batchBytes int) Limits {
	orDefault(&l.Connections, 10_000)
	orDefault(&l.StreamsPerConnection, 1000)
	orDefault(&l.MessageBytes, batchBytes+1<<20)
	orDefault(&l.UnansweredBytes, 16<<20)
	orDefault(&l.UnansweredBatches, 4096)
	return l
}

func orDefault[N int | int64](n *N, or N) {
	if *n <= 0 {
		*n = or
	}
}

const (
	streamWindow     = 1 << 20 // flow control: what a client may send on one call before the broker reads
	connWindow       = 4 << 20 // the same for one connection
	headerBytes      = 64 << 10
	handshakeTimeout = 10 * time.Second
	readyInterval    = 100 * time.Millisecond
)

// A connection that says nothing for a minute is asked whether it still lives; a client may ask every ten seconds.
var (
	keepaliveAsk   = keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}
	keepaliveLimit = keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}
)

// Server is the listener. Its methods are safe for concurrent use.
type Server struct {
	rpc     *rpc.Server
	conns   *connections
	life    lifecycle
	tasks   *task.Group   // its context is done once draining has begun
	ready   chan struct{} // closed once the broker was seen ready
	watched sync.Once     // starts watch
}

// lifecycle is what the listener must know of the broker's life.
type lifecycle interface {
	Ready() error              // nil: calls can succeed
	Draining() <-chan struct{} // closed when the broker begins to drain
}

// New returns a server that serves nothing yet. It opens nothing and starts no goroutine.
func New(cfg Config) *Server {
	b := cfg.Broker
	return newServer(cfg, brokerStreams{b}, &adminService{broker: b, subscriptions: b, deadLetters: b, info: cfg.ServerInfo}, b, b.Limits())
}

func newServer(cfg Config, streams streams, admin leveev1.AdminServer, life lifecycle, broker broker.Limits) *Server {
	limits := cfg.Limits.withDefaults(broker.BatchBytes)
	m := newMetrics(cfg.Registerer)
	logger := obs.Logger(cfg.Logger)
	s := &Server{
		conns: newConnections(limits.Connections, m, logger),
		life:  life,
		tasks: task.NewGroup(context.Background()),
		ready: make(chan struct{}),
	}
	options := []rpc.ServerOption{
		experimental.BufferPool(codec.Pool),
		rpc.ForceServerCodecV2(requestCodec{most: limits.MessageBytes}),
		rpc.MaxRecvMsgSize(2 * limits.MessageBytes), // see requestCodec
		rpc.MaxConcurrentStreams(uint32(min(limits.StreamsPerConnection, 1<<30))),
		rpc.InitialWindowSize(streamWindow),
		rpc.InitialConnWindowSize(connWindow),
		rpc.MaxHeaderListSize(headerBytes),
		rpc.ConnectionTimeout(handshakeTimeout),
		rpc.KeepaliveParams(keepaliveAsk),
		rpc.KeepaliveEnforcementPolicy(keepaliveLimit),
		rpc.WaitForHandlers(true), // after Stop no call touches the broker
	}
	if cfg.TLS != nil {
		options = append(options, rpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.rpc = rpc.NewServer(options...)

	calls := newCalls(m, logger)
	s.rpc.RegisterService(calls.wrap(leveev1.Stream_ServiceDesc), &streamService{
		broker: streams, tasks: s.tasks, limits: limits, bounds: broker, metrics: m,
	})
	s.rpc.RegisterService(calls.wrap(leveev1.Admin_ServiceDesc), admin)
	for _, register := range cfg.Services {
		register(registrar{s.rpc, calls, s.tasks.Context()})
	}
	healthpb.RegisterHealthServer(s.rpc, &healthService{life: life, ready: s.ready, draining: s.tasks.Context().Done()})
	reflection.RegisterV1(s.rpc)
	return s
}

// Serve accepts connections from ln until Drain, and then returns nil once all of them are closed. It closes ln. It may
// be called for several listeners; their connections are counted together.
func (s *Server) Serve(ln net.Listener) error {
	s.watched.Do(func() { s.tasks.Go("grpc readiness", s.watch) })
	return s.rpc.Serve(s.conns.limit(ln))
}

// watch learns when the broker is ready, and begins to drain when it does.
func (s *Server) watch(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	ready := s.ready
	for {
		if ready != nil && s.life.Ready() == nil {
			close(ready)
			ready = nil
			tick.Stop()
		}
		select {
		case <-tick.C:
		case <-s.life.Draining():
			s.tasks.Stop()
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Drain stops the listener: it takes no new connections and calls, health says NOT_SERVING, subscriptions end and
// publishers are told. It waits until the calls have ended; those that have not when ctx is done are cut off. When it
// returns, no call is running and every connection is closed.
func (s *Server) Drain(ctx context.Context) {
	s.tasks.Stop()
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		s.rpc.Stop()
	})
	s.rpc.GracefulStop()
	if !stop() {
		<-cut
	}
	_ = s.tasks.Wait() // none of them fails
}
