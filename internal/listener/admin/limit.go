package admin

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// budget counts what is held against a limit. It never waits: what does not fit is refused, so that a flood of
// requests is answered rather than queued.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take reserves n, or nothing.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// limitedListener closes connections beyond its slots as soon as they are accepted.
type limitedListener struct {
	net.Listener
	slots   budget
	refused prometheus.Counter
}

// Accept returns the next connection that has a slot.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.slots.take(1) {
			return &limitedConn{Conn: c, slots: &l.slots}, nil
		}
		l.refused.Inc()
		_ = c.Close()
	}
}

type limitedConn struct {
	net.Conn
	slots *budget
	once  sync.Once
}

// Close gives the slot back.
func (c *limitedConn) Close() error {
	c.once.Do(func() { c.slots.give(1) })
	return c.Conn.Close()
}
