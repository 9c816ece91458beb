package grpc

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/obs"
)

// connections counts the open connections of all listeners and closes those above the limit as they come: a client
// sees its attempt fail at once and tries again later, where one left waiting would look like a broker that hangs.
type connections struct {
	max     int64
	open    atomic.Int64
	metrics *metrics
	logger  *slog.Logger
	refused obs.Throttle
}

func newConnections(most int, m *metrics, logger *slog.Logger) *connections {
	return &connections{max: int64(most), metrics: m, logger: logger, refused: obs.Throttle{Every: 10 * time.Second}}
}

// limit returns ln with its connections counted.
func (c *connections) limit(ln net.Listener) net.Listener { return &listener{ln, c} }

// enter reports whether one more connection may be open. Who was let in must leave.
func (c *connections) enter() bool {
	if c.open.Add(1) > c.max {
		c.open.Add(-1)
		return false
	}
	c.metrics.connections.Inc()
	return true
}

func (c *connections) leave() {
	c.open.Add(-1)
	c.metrics.connections.Dec()
}

func (c *connections) refuse(conn net.Conn) {
	_ = conn.Close() // nothing was sent or promised on it
	c.metrics.refused.Inc()
	if held, ok := c.refused.Allow("", time.Now()); ok {
		c.logger.Warn("grpc: connection refused: as many as allowed are open; raise the limit or find out who opens them",
			"limit", c.max, "remote", conn.RemoteAddr().String(), "unreported", held)
	}
}

type listener struct {
	net.Listener
	conns *connections
}

// Accept returns the next connection that is let in.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.conns.enter() {
			return &conn{Conn: c, conns: l.conns}, nil
		}
		l.conns.refuse(c)
	}
}

// conn is a connection that counts its bytes and gives its place back when it is closed.
type conn struct {
	net.Conn
	conns  *connections
	closed atomic.Bool
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.conns.metrics.received.Add(float64(n))
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.conns.metrics.sent.Add(float64(n))
	return n, err
}

// Close closes the connection. It may be called more than once, and is: by gRPC's reader and its writer.
func (c *conn) Close() error {
	err := c.Conn.Close()
	if !c.closed.Swap(true) {
		c.conns.leave()
	}
	return err
}
