package valkey

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

func TestConformance(t *testing.T) {
	inBothManners(t, func(t *testing.T, srv *server) {
		writebuftest.Run(t, func(t *testing.T) writebuf.Store {
			return srv.openFor(t)
		})
	})
}

func TestConformanceWithReplica(t *testing.T) {
	srv := start(t)
	srv.replica()
	writebuftest.Run(t, func(t *testing.T) writebuf.Store {
		return openAt(t, srv.addr, replicas(1), func(c *Config) { c.Connections = 1 })
	})
}

func TestConformanceMini(t *testing.T) {
	mini := miniredis.RunT(t)
	writebuftest.Run(t, func(t *testing.T) writebuf.Store {
		return openAt(t, mini.Addr(), func(c *Config) { c.Timeout = 10 * time.Second }) // its scripts are slow under the race detector
	})
}

// TestNoAppendAfterAFlush: FLUSHALL takes the fence, too. No append of whoever had it before makes another.
func TestNoAppendAfterAFlush(t *testing.T) {
	srv := start(t)
	writebuftest.Forgets(t, openAt(t, srv.addr), writebuftest.ID(), func() { srv.do("FLUSHALL") })
}
