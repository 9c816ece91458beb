// Package valkey owns the write buffer on a Valkey or Redis server: one stream for each partition, changed by scripts that
// refuse stale generations and holes, or by a transaction between two of them, and confirmed with WAIT on the connection that
// carried the change. It is the only importer of the client library. It never sends a change again by itself once it may have
// arrived, and never takes what a second connection says for a confirmation. Invariant: nil means that the server answered OK
// for this very change and, where replicas are configured, that enough of them answered the WAIT right behind it on the same
// connection.
package valkey

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

// questions is how many reads go to one node at a time.
const questions = 8

// lookAround is how often sentinels are asked for the primary, besides what they tell by themselves: news can be missed.
const lookAround = 3 * time.Second

// Store implements writebuf.Store.
type Store struct {
	cfg     Config
	metrics *Metrics
	group   *task.Group
	slots   slotTable
	large   int                   // what appends carry on average for a trip to have them in transactions
	unfit   atomic.Pointer[error] // why the server cannot be a write buffer, as the last Check found; nil: it can, or is not known

	mu     sync.Mutex
	nodes  map[string]*node // guarded by mu; by address, "" where there is only one
	closed bool             // guarded by mu
}

// node is one server, or the primary that sentinels name.
type node struct {
	address string
	turn    task.Turn     // who has it may set client
	client  valkey.Client // nil until one connected; guarded by turn
	lanes   []*lane
	asking  chan struct{} // holds one for each question under way
}

// Open returns a store that counts into m, nil for nothing. It does not connect: a broker starts while its write buffer is
// away.
func Open(cfg Config, m *Metrics) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open write buffer: %w: %w", writebuf.ErrInvalid, err)
	}
	if m == nil {
		m = NewMetrics(nil)
	}
	return &Store{cfg: cfg, metrics: m, group: task.NewGroup(context.Background()), large: transactionFrom, nodes: map[string]*node{}}, nil
}

// Close implements writebuf.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	nodes := s.nodes
	s.nodes = map[string]*node{}
	s.mu.Unlock()
	s.group.Stop()
	err := s.group.Wait()
	for _, n := range nodes {
		n.turn.Take(nil)
		if n.client != nil {
			n.client.Close()
			n.client = nil
		}
		n.turn.Give()
	}
	return err
}

// node returns the node of an address and starts its lanes when it is new.
func (s *Store) node(address string) (*node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, writebuf.ErrClosed
	}
	n := s.nodes[address]
	if n != nil {
		return n, nil
	}
	n = &node{address: address, asking: make(chan struct{}, questions)}
	for range s.cfg.Connections {
		l := newLane(s, n)
		n.lanes = append(n.lanes, l)
		s.group.Go("valkey lane", l.run)
	}
	s.nodes[address] = n
	return n, nil
}

// connect returns the node's client, made at the first use. done ends the waiting for another caller that makes it.
func (s *Store) connect(ctx context.Context, n *node) (valkey.Client, error) {
	if !n.turn.Take(ctx.Done()) {
		return nil, ctx.Err()
	}
	defer n.turn.Give()
	if n.client != nil {
		return n.client, nil
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, writebuf.ErrClosed
	}
	client, err := valkey.NewClient(s.options(n.address))
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, err
	}
	n.client = client
	return client, nil
}

func (s *Store) options(address string) valkey.ClientOption {
	o := valkey.ClientOption{
		InitAddress: s.cfg.Addresses, TLSConfig: s.cfg.TLS, Username: s.cfg.Username, Password: s.cfg.Password,
		SelectDB: s.cfg.Database, ClientName: "levee", DialCtxFn: s.cfg.Dial,
		DisableRetry: true, DisableCache: true, // what is sent again, and when, is decided above
		ConnWriteTimeout: 2 * s.cfg.Timeout,
		// One user for each connection at a time, and no pings between: then the library writes and reads in the caller's
		// goroutine, under the caller's deadline, closes what missed it, and holds no argument when it returns.
		DisableAutoPipelining: true, BlockingPoolSize: s.cfg.Connections + questions,
	}
	o.Dialer.Timeout, o.Dialer.KeepAlive = s.cfg.DialTimeout, -1
	o.Dialer.KeepAliveConfig = net.KeepAliveConfig{Enable: true} // the system's, which finds out about peers that are gone while nobody asks
	if s.cfg.Mode == Sentinel {
		o.Sentinel = valkey.SentinelOption{
			MasterSet: s.cfg.MasterSet, Username: s.cfg.SentinelUsername, Password: s.cfg.SentinelPassword,
			TLSConfig: s.cfg.TLS, Dialer: o.Dialer, TopologyRefreshInterval: lookAround,
		}
		return o
	}
	if address != "" {
		o.InitAddress = []string{address}
	}
	o.ForceSingleClient = true // a cluster's nodes are told apart here, so that one connection carries many partitions
	return o
}

// Buffer implements writebuf.Store.
func (s *Store) Buffer(id writebuf.ID) writebuf.Buffer {
	base := fmt.Sprintf("%s:{%x/%d}", s.cfg.Prefix, id.Topic, id.Partition)
	h := fnv.New32a()
	h.Write([]byte(base))
	return &buffer{s: s, id: id, keys: [2]string{base + ":s", base + ":g"}, hash: h.Sum32(), slot: slotOf(base)}
}

// route returns the node that owns a slot.
func (s *Store) route(ctx context.Context, slot uint16) (*node, error) {
	if s.cfg.Mode != Cluster {
		return s.node("")
	}
	address, err := s.slots.owner(ctx, s, slot)
	if err != nil {
		return nil, err
	}
	return s.node(address)
}

// ask sends one command that changes nothing, on a connection that no change queues behind. Once more where that turned out
// to be of no use: one that the server closed while it was idle says so only then, and so does one that leads to a server
// that is not the primary any more.
func (s *Store) ask(ctx context.Context, n *node, args ...string) (valkey.ValkeyMessage, error) {
	client, err := s.connect(ctx, n)
	if err != nil {
		if ctx.Err() != nil {
			return valkey.ValkeyMessage{}, err
		}
		return valkey.ValkeyMessage{}, fmt.Errorf("%w: %w", s.reason(err, writebuf.ErrUnavailable), err)
	}
	select { // before the time runs
	case n.asking <- struct{}{}:
		defer func() { <-n.asking }()
	case <-ctx.Done():
		return valkey.ValkeyMessage{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.Timeout)
	defer cancel()
	for try := 1; ; try++ {
		msg, err := askOnce(ctx, client, args)
		switch {
		case err == nil:
			return msg, nil
		case errors.Is(ctx.Err(), context.Canceled):
			return msg, ctx.Err()
		case leaves(err) && !isDial(err) && try <= questions && ctx.Err() == nil: // as many as there may be idle
			continue
		}
		return msg, fmt.Errorf("%w: %w", s.reason(err, writebuf.ErrUnavailable), err)
	}
}

// askOnce uses one connection, and gives it back if it is still good.
func askOnce(ctx context.Context, client valkey.Client, args []string) (valkey.ValkeyMessage, error) {
	conn, release := client.Dedicate()
	defer release()
	msg, err := conn.Do(ctx, conn.B().Arbitrary(args...).Build()).ToMessage()
	if err != nil && leaves(err) {
		conn.Close()
	}
	return msg, err
}

// askScript runs a script that changes nothing, which may be sent as often as it takes.
func (s *Store) askScript(ctx context.Context, n *node, sc script, keys [2]string, args ...string) (valkey.ValkeyMessage, error) {
	msg, err := s.ask(ctx, n, append([]string{"EVALSHA", sc.sha, "2", keys[0], keys[1]}, args...)...)
	if err != nil && isNoScript(err) {
		msg, err = s.ask(ctx, n, append([]string{"EVAL", sc.text, "2", keys[0], keys[1]}, args...)...)
	}
	return msg, err
}

// reason is sentinelOf; it also forgets the slot table where that was wrong, or may be: a node that does not answer may have
// been replaced.
func (s *Store) reason(err error, unanswered error) error {
	if _, answered := asAnswer(err); !answered || isMoved(err) || begins(err, "CLUSTERDOWN ") {
		s.slots.forget()
	}
	return sentinelOf(err, unanswered)
}

// since observes how long a call took.
func since(h interface{ Observe(float64) }, start time.Time) { h.Observe(time.Since(start).Seconds()) }

var _ writebuf.Store = (*Store)(nil)

// count counts a call that failed.
func (s *Store) count(op string, err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.metrics.failures.WithLabelValues(op, outcome(err)).Inc()
	}
	return err
}
