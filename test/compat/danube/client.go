package danube

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/leveemq/levee/api/danube"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// How Danube's clients try again.
const (
	mostTries = 5
	retryBase = 200 * time.Millisecond
	retryMost = 5 * time.Second
)

// Client is a Danube client.
type Client struct {
	Seed string // host:port that it was configured with
	// HealthEvery is the time between health checks; 0: five seconds, as all of Danube's clients have it.
	HealthEvery time.Duration

	requests atomic.Uint64
	mu       sync.Mutex
	conns    map[string]*grpc.ClientConn
	checks   sync.WaitGroup
}

// Close closes its connections. Producers and consumers must be closed before.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Conn returns the one connection to an address, which may be a URL.
func (c *Client) Conn(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr = strings.TrimPrefix(addr, "http://")
	if conn := c.conns[addr]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials())) // 4 MiB may be received
	if err != nil {
		return nil, err
	}
	if c.conns == nil {
		c.conns = map[string]*grpc.ClientConn{}
	}
	c.conns[addr] = conn
	return conn, nil
}

// lookup returns where a topic is; addr where the answer is an error, which clients pass over.
func (c *Client) lookup(ctx context.Context, addr, topic string) string {
	conn, err := c.Conn(addr)
	if err != nil {
		return addr
	}
	resp, err := api.NewDiscoveryClient(conn).TopicLookup(ctx, &api.TopicLookupRequest{RequestId: c.requests.Add(1), Topic: topic})
	if err != nil || resp.ResponseType == api.TopicLookupResponse_Failed {
		return addr
	}
	return resp.ConnectUrl
}

// retriable reports whether clients try again by themselves.
func retriable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return true
	}
	return false
}

// backoff waits before the try after n failed ones.
func backoff(ctx context.Context, n int) {
	most := min(retryBase*time.Duration(n), retryMost)
	timer := time.NewTimer(most/2 + rand.N(most/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// announce runs try until it succeeds, fails for good, or has failed too often, with a lookup in between.
func (c *Client) announce(ctx context.Context, addr *string, topic string, try func(conn *grpc.ClientConn) error) error {
	*addr = c.lookup(ctx, *addr, topic)
	for n := 1; ; n++ {
		conn, err := c.Conn(*addr)
		if err == nil {
			err = try(conn)
		}
		if err == nil || !retriable(err) || n > mostTries || ctx.Err() != nil {
			return err
		}
		*addr = c.lookup(ctx, *addr, topic)
		backoff(ctx, n)
	}
}

// check runs health checks until ctx ends, the broker says CLOSE, which calls closed, or one fails: after that nobody asks
// any more.
func (c *Client) check(ctx context.Context, conn *grpc.ClientConn, kind api.HealthCheckRequest_ClientType, id uint64, closed func()) {
	every := c.HealthEvery
	if every == 0 {
		every = 5 * time.Second
	}
	c.checks.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			resp, err := api.NewHealthCheckClient(conn).HealthCheck(ctx, &api.HealthCheckRequest{RequestId: c.requests.Add(1), Client: kind, Id: id})
			if err != nil {
				return
			}
			if resp.Status == api.HealthCheckResponse_CLOSE {
				closed()
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}
