package danube

import (
	"sync"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

const (
	// waitingFor is how long a consumer that subscribed and does not receive keeps its place in the subscription without
	// a health check, of which clients make one every five seconds.
	waitingFor   = 20 * time.Second
	consumerIdle = 30 * time.Minute // after which one that does not receive is forgotten
)

// session is one consumer of one topic, between Subscribe and the end of its client. It outlives its streams: a client
// whose stream broke receives again with the same id.
type session struct {
	id      uint64
	wire    string // the topic, as on the wire
	spec    broker.ConsumerSpec
	resumed bool // made from its id alone; its client should subscribe again

	mu struct {
		sync.Mutex
		waiting  consumer // opened by Subscribe; the next stream takes it
		current  consumer // of the stream that runs
		streams  int
		seen     time.Time
		ended    bool   // nothing is opened for it any more
		requests uint64 // request ids given out, by streams that ended
	}
}

func (c *session) touch(now time.Time) {
	c.mu.Lock()
	c.mu.seen = now
	c.mu.Unlock()
}

// take returns the consumer that Subscribe opened, if no stream has had it yet.
func (c *session) take() consumer {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.mu.waiting
	c.mu.waiting = nil
	return w
}

// begin notes that a stream runs with con, and returns the request ids given out so far; false: the session has ended.
func (c *session) begin(con consumer) (requests uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return 0, false
	}
	c.mu.current = con
	c.mu.streams++
	return c.mu.requests, true
}

// finish notes that a stream has ended.
func (c *session) finish(con consumer, requests uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.current == con {
		c.mu.current = nil
	}
	c.mu.streams--
	c.mu.seen = now
	c.mu.requests = max(c.mu.requests, requests)
}

// end closes what the session holds, for good.
func (c *session) end() {
	c.mu.Lock()
	held := [...]consumer{c.mu.waiting, c.mu.current}
	c.mu.waiting, c.mu.current, c.mu.ended = nil, nil, true
	c.mu.Unlock()
	for _, con := range held {
		if con != nil {
			con.Close()
		}
	}
}

// idle reports how long nothing was heard of a session without a stream; 0: it has one.
func (c *session) idle(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.streams > 0 {
		return 0
	}
	return now.Sub(c.mu.seen)
}

// consumers are the sessions known in this process.
type consumers struct {
	most    int
	metrics *metrics

	mu     sync.Mutex
	byID   map[uint64]*session // guarded by mu
	swept  time.Time           // guarded by mu
	groups map[group]bool      // guarded by mu; see group
}

// group is a subscription of a non-reliable topic, which is kept nowhere, that consumers of an earlier process go on
// with: they do not say its name. In this process it goes by a name made of its hash.
type group struct {
	topic string
	hash  uint32
}

func newConsumers(most int, m *metrics) consumers {
	return consumers{most: most, metrics: m, byID: map[uint64]*session{}, groups: map[group]bool{}}
}

func (cs *consumers) get(id uint64, now time.Time) *session {
	cs.mu.Lock()
	c := cs.byID[id]
	cs.mu.Unlock()
	if c != nil {
		c.touch(now)
	}
	return c
}

// idFor returns the id of a consumer: the first one, of those made from its name, that is its own or free.
func (cs *consumers) idFor(wire, name string, id consumerID, subscription string) uint64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for try := 0; ; try++ {
		id.name = nameHash(name, try)
		n := id.number()
		if n == 0 {
			continue
		}
		c := cs.byID[n]
		if c == nil || c.resumed || c.wire == wire && c.spec.Name == name && c.spec.Subscription == subscription {
			return n
		}
	}
}

// add takes c in, and returns the session that had its id. It fails, with kind exhausted, where there are too many.
func (cs *consumers) add(c *session, now time.Time) (replaced *session, err error) {
	c.touch(now)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	replaced = cs.byID[c.id]
	if replaced == nil && len(cs.byID) >= cs.most {
		return nil, fault.New(fault.Exhausted, "there are %d consumers, as many as there may be: those that are not heard of for %s are forgotten", cs.most, consumerIdle)
	}
	cs.byID[c.id] = c
	cs.metrics.consumers.Set(float64(len(cs.byID)))
	return replaced, nil
}

// drop forgets c, unless another one has its id by now, and ends it.
func (cs *consumers) drop(c *session) {
	cs.mu.Lock()
	if cs.byID[c.id] == c {
		delete(cs.byID, c.id)
		cs.metrics.consumers.Set(float64(len(cs.byID)))
	}
	cs.mu.Unlock()
	c.end()
}

// sweep lets go of what sessions hold that were not heard of, every few seconds or now.
func (cs *consumers) sweep(now time.Time, force bool) {
	var release []consumer
	cs.mu.Lock()
	if !force && now.Sub(cs.swept) < sweepEvery/2 {
		cs.mu.Unlock()
		return
	}
	cs.swept = now
	for id, c := range cs.byID {
		idle := c.idle(now)
		if idle > waitingFor {
			if w := c.take(); w != nil {
				release = append(release, w)
			}
		}
		if idle > consumerIdle {
			delete(cs.byID, id)
		}
	}
	cs.metrics.consumers.Set(float64(len(cs.byID)))
	cs.mu.Unlock()
	for _, w := range release {
		w.Close()
	}
}

const mostGroups = 1 << 12

// nameless notes that a group's name is not known in this process.
func (cs *consumers) nameless(g group) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.groups) >= mostGroups {
		clear(cs.groups)
	}
	cs.groups[g] = true
}

func (cs *consumers) isNameless(g group) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.groups[g]
}
