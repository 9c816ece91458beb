package client

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

const (
	// A delivery holds at least one batch, and batches have up to 64 MiB.
	maxMessageBytes = 80 << 20

	// HTTP/2 windows: room for several batches on the way. How much a slow reader buffers is the credit's business.
	streamWindow     = 1 << 20
	connectionWindow = 4 << 20

	// openTimeout bounds how long a stream may take to open, so that a broker that hangs is tried again.
	openTimeout = 15 * time.Second
)

// Client is a connection to a broker, made when it is needed and made again when it broke. It is safe for concurrent use.
type Client struct {
	conn   *grpc.ClientConn
	stream leveev1.StreamClient
	admin  *Admin
	logger *slog.Logger

	ctx    context.Context // ends with Close; the parent of what Producers and Consumers run on
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // every goroutine; grows under mu while not closed
}

// Dial returns a Client of the broker at addr, "host:port". It does not wait for a connection: a broker that cannot be
// reached shows as errors of kind unavailable from calls. It fails when the options contradict each other. The caller
// must Close the Client.
func Dial(addr string, opts ...Option) (*Client, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.validate(addr); err != nil {
		return nil, err
	}
	dial := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Codec{}), grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		experimental.WithBufferPool(codec.Pool),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // what may be sent twice is for Producer to decide
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: firstBackoff, Multiplier: 2, Jitter: 0.3, MaxDelay: longestBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		// A machine that vanished sends nothing; without a probe nobody would notice for a quarter of an hour.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if o.tls != nil {
		dial = append(dial, grpc.WithTransportCredentials(credentials.NewTLS(o.tls)))
	} else {
		dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if o.tokenFile != "" {
		dial = append(dial, grpc.WithPerRPCCredentials(tokenFile{path: o.tokenFile, secure: o.tls != nil}))
	}
	target := addr
	if o.dialer != nil {
		dial = append(dial, grpc.WithContextDialer(o.dialer))
		target = "passthrough:///" + addr // names are the dialer's to resolve
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, &Error{Kind: KindInvalidArgument, Message: fmt.Sprintf("dial %q: %v", addr, err), cause: err}
	}
	c := &Client{conn: conn, stream: leveev1.NewStreamClient(conn), logger: o.logger}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	c.admin = &Admin{rpc: leveev1.NewAdminClient(conn)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Admin returns the part of the API that says what exists, makes it and removes it.
func (c *Client) Admin() *Admin { return c.admin }

// Close ends every Producer and Consumer of c, waits for their goroutines, and closes the connection. Records that are
// not acknowledged by then are answered with an error; close Producers first to wait for them.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	if err := c.conn.Close(); status.Code(err) != codes.Canceled && err != nil { // canceled: a second Close
		return asError(err)
	}
	return nil
}

// spawn runs each fn in a goroutine that both wg and Close wait for. It starts none, and says so, once c is closed.
func (c *Client) spawn(wg *sync.WaitGroup, fns ...func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	for _, fn := range fns {
		wg.Add(1)
		c.wg.Go(func() {
			defer wg.Done()
			fn()
		})
	}
	return true
}

var errClientClosed = &Error{Kind: KindCanceled, Message: "the client is closed"}
