// Package admin owns the HTTP port: health, metrics and profiles for operators, and topics and records as JSON for
// whoever has curl. It turns requests into calls of the broker and its answers into JSON; it never reaches past the
// broker and keeps no record longer than a request needs it. Invariant: a request holds a bounded amount of memory
// whatever its sender does, and every failure is answered with the one JSON shape and the status that the table of
// package fault gives its kind.
package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// The phases of a broker's life, as State.Phase spells them.
const (
	Starting = "starting"
	Ready    = "ready"
	Draining = "draining"
)

// State is what health checks report.
type State struct {
	Phase    string   // Starting, Ready or Draining
	Detail   string   // progress in words, e.g. "12 of 40 partitions are open"; may be empty
	Problems []string // what is not as it should be, in words; a ready broker may have some
}

// Config is what the listener needs.
type Config struct {
	// Broker returns the broker, or nil while there is none yet: health is served from the first moment, everything
	// else answers unavailable until then. It is called with every request and must be cheap.
	Broker func() *broker.Broker
	// State says where the broker stands. nil: the broker's own words alone.
	State func() State
	// Registry is served at /metrics, and this listener's own metrics are registered with it. nil: /metrics is empty.
	Registry *prometheus.Registry
	// Schemas answers at SchemaPaths and below; nil: there is nothing.
	Schemas     http.Handler
	SchemaPaths []string
	// Pprof serves profiles beyond loopback, too. On loopback they are always served.
	Pprof   bool
	TLS     *tls.Config // nil: plain text
	Version string      // shown on the start page
	Limits  Limits
	Logger  *slog.Logger     // nil: silent
	Now     func() time.Time // for deadlines that clients see; nil: time.Now
}

// Limits bound what clients can make the listener hold. A zero field means its default.
type Limits struct {
	Connections   int           // open at once; more are closed at once; default 10,000
	BodyBytes     int64         // of one request; default 32 MiB
	InFlightBytes int64         // bodies and answers held at once, whole listener; default 256 MiB
	Streams       int           // followers at once, of all topics; default 1,000
	HeaderTimeout time.Duration // to send the head of a request; default 10 s
	BodyTimeout   time.Duration // to send all of it, and again for a publish to be acknowledged; default 60 s
	WriteTimeout  time.Duration // to take one answer, or one piece of a stream; default 30 s
	Heartbeat     time.Duration // between comments on a quiet stream; default 15 s
}

func (l Limits) withDefaults() Limits {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if l.Connections <= 0 {
		l.Connections = 10_000
	}
	if l.BodyBytes <= 0 {
		l.BodyBytes = 32 << 20
	}
	if l.InFlightBytes <= 0 {
		l.InFlightBytes = 256 << 20
	}
	if l.Streams <= 0 {
		l.Streams = 1000
	}
	def(&l.HeaderTimeout, 10*time.Second)
	def(&l.BodyTimeout, 60*time.Second)
	def(&l.WriteTimeout, 30*time.Second)
	def(&l.Heartbeat, 15*time.Second)
	return l
}

// Server serves HTTP on one listener. It is made by New, run by Serve and ended by Shutdown.
type Server struct {
	cfg     Config
	limits  Limits
	log     *slog.Logger
	metrics *metrics
	http    *http.Server
	held    budget
	streams budget

	ending context.Context // done when Shutdown begins: whoever waits then answers with what there is
	end    context.CancelFunc

	mu struct {
		sync.Mutex
		profiles bool // the listener is loopback, or Config.Pprof
	}
}

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	limits := cfg.Limits.withDefaults()
	s := &Server{
		cfg: cfg, limits: limits, log: obs.Logger(cfg.Logger),
		held: budget{limit: limits.InFlightBytes}, streams: budget{limit: int64(limits.Streams)},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.mu.profiles = cfg.Pprof
	var reg prometheus.Registerer
	if cfg.Registry != nil {
		reg = cfg.Registry
	}
	s.metrics = newMetrics(reg)
	s.http = &http.Server{
		Handler:           s.handler(),
		TLSConfig:         cfg.TLS,
		ReadHeaderTimeout: limits.HeaderTimeout,
		ReadTimeout:       limits.BodyTimeout,
		WriteTimeout:      limits.BodyTimeout + limits.WriteTimeout, // from the head of the request; handlers move it
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers requests on ln until Shutdown, then returns nil; any other end is an error. It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	if loopback(ln.Addr()) {
		s.mu.Lock()
		s.mu.profiles = true
		s.mu.Unlock()
	}
	ln = &limitedListener{Listener: ln, slots: budget{limit: int64(s.limits.Connections)}, refused: s.metrics.refused}
	var err error
	if s.cfg.TLS != nil {
		err = s.http.ServeTLS(ln, "", "")
	} else {
		err = s.http.Serve(ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown takes no new request, ends streams and waits, and returns once every request is answered; when ctx is done
// first, it cuts the connections that are left and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close() // the error that matters is the one we have
	}
	return err
}

func (s *Server) profiles() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.profiles
}

// loopback reports whether only this machine can reach addr.
func loopback(addr net.Addr) bool {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
