package proc

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/leveemq/levee/client"
)

// Place is where a broker is that comes back elsewhere: every start takes a free port, because one that was in use
// before may have been given to somebody meanwhile. Its zero value leads nowhere. It is safe for concurrent use.
type Place struct{ addr atomic.Pointer[string] }

// Set says where the broker is from now on; "" is nowhere.
func (p *Place) Set(addr string) { p.addr.Store(&addr) }

// Dial connects to where the broker is; the address it is given does not count. Where there is none, the connection is
// refused.
func (p *Place) Dial(ctx context.Context, _ string) (net.Conn, error) {
	addr := p.addr.Load()
	if addr == nil || *addr == "" {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", *addr)
}

// Client returns a client that follows the broker. The caller must Close it.
func (p *Place) Client(t testing.TB, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial("broker", append([]client.Option{client.WithDialer(p.Dial)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
