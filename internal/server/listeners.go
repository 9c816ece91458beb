package server

import (
	"context"
	"net"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/listener/admin"
	"github.com/leveemq/levee/internal/listener/danube"
	"github.com/leveemq/levee/internal/listener/grpc"
	"github.com/leveemq/levee/internal/listener/registry"
)

func (s *server) loadCertificates(context.Context) (err error) {
	s.certificates, err = loadCertificates(s.cfg.TLS, s.log)
	return err
}

func (s *server) listenHTTP(ctx context.Context) error {
	ln, err := s.listen(ctx, "listen.http", s.cfg.Listen.HTTP)
	if err != nil {
		return err
	}
	s.listening.HTTP = ln.Addr().String()
	s.http = admin.New(admin.Config{
		Broker: s.broker.Load, Schemas: registry.New(s.schemas), SchemaPaths: registry.Paths(), State: s.state, Registry: s.registry, Pprof: s.cfg.Listen.Profiles, TLS: s.certificates.listener("h2", "http/1.1"),
		Version: s.options.Version, Limits: admin.Limits{Connections: s.cfg.Limits.Connections}, Logger: s.log, Now: s.machine.now,
	})
	s.serve("http", s.http.Serve, ln)
	return nil
}

// schemas returns the schema registry, nil while there is no broker.
func (s *server) schemas() *broker.Schemas {
	if b := s.broker.Load(); b != nil {
		return b.Schemas()
	}
	return nil
}

func (s *server) listenGRPC(ctx context.Context) error {
	ln, err := s.listen(ctx, "listen.grpc", s.cfg.Listen.GRPC)
	if err != nil {
		return err
	}
	s.listening.GRPC = ln.Addr().String()
	info := grpc.ServerInfo{Version: s.options.Version, BrokerID: s.claim.identity.Broker, Started: s.machine.now()}
	tls := s.certificates.listener("h2")
	forDanube := danube.New(danube.Config{
		Broker: s.broker.Load(), Advertise: s.cfg.Danube.Advertise, TLS: tls != nil, BrokerID: info.BrokerID, Admin: s.listening.HTTP,
		RequireTopics: !s.cfg.Danube.AutoCreate, Logger: s.log, Registerer: s.registry, Now: s.machine.now,
	})
	s.grpc = grpc.New(grpc.Config{
		Broker: s.broker.Load(), ServerInfo: func() grpc.ServerInfo { return info }, TLS: tls, Services: []grpc.Registering{forDanube.Register},
		Limits: grpc.Limits{Connections: s.cfg.Limits.Connections}, Logger: s.log, Registerer: s.registry,
	})
	s.serve("grpc", s.grpc.Serve, ln)
	return nil
}

func (s *server) listen(ctx context.Context, key, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "%s = %q: %w; allowed: an address of this machine with a free port, or port 0 for any", key, addr, err).With("key", key)
	}
	return ln, nil
}

// serve runs a listener until it is shut down.
func (s *server) serve(name string, serve func(net.Listener) error, ln net.Listener) {
	s.tasks.Go(name, func(context.Context) error {
		err := serve(ln)
		if s.status.ending() {
			return nil // it was told to
		}
		return err
	})
}
