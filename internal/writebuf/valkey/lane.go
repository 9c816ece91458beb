package valkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

// What one trip carries at most, and how many calls wait for the next ones. A call that finds the queue full waits.
const (
	tripCalls = 512
	tripBytes = 4 << 20
	laneQueue = 1024
)

// call is one script that changes a partition, on its way.
type call struct {
	script script
	keys   [2]string
	args   []string
	frames []string // of an append: the rest of its arguments
	size   int
	wait   bool // whether replicas must confirm it
	first  uint64

	taken atomic.Bool   // by the lane, which then answers; or by the caller, who gave up before it was sent
	then  func()        // called after what follows is set; or nil, and
	done  chan struct{} // is closed
	word  string
	rest  answer
	err   error

	refused bool // as a transaction, by an error; owned by run
}

func newCall(sc script, wait bool, args ...string) *call {
	return &call{script: sc, wait: wait, args: args, size: 256, done: make(chan struct{})}
}

func (c *call) finish(err error) {
	c.err = err
	if c.then != nil {
		c.then()
		return
	}
	close(c.done)
}

// lane carries the calls of many partitions over one connection: all that wait go in one trip, with one WAIT behind them.
// The calls of one partition stay in order.
type lane struct {
	s     *Store
	n     *node
	queue chan *call
	ended chan struct{}

	// Owned by run:
	conn    valkey.DedicatedClient // nil: none
	release func()
	loaded  bool            // the server was told the scripts, and has not forgotten them since, as far as is known
	barred  bool            // the server, or what stands before it, allows no transactions
	rest    int             // how many trips go without transactions
	multi   valkey.Commands // reused
}

func newLane(s *Store, n *node) *lane {
	return &lane{s: s, n: n, queue: make(chan *call, laneQueue), ended: make(chan struct{})}
}

// do waits for c. The context counts until c is on its way.
func (l *lane) do(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case l.queue <- c:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return writebuf.ErrClosed
	}
	var why error
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		why = ctx.Err()
	case <-l.ended:
		why = writebuf.ErrClosed
	}
	if c.taken.CompareAndSwap(false, true) {
		return why
	}
	<-c.done
	return c.err
}

// put queues a call that somebody is told of. The context counts until it is in the queue.
func (l *lane) put(ctx context.Context, c *call) {
	select {
	case l.queue <- c:
		select {
		case <-l.ended:
			l.refuse() // run may have looked before c was there
		default:
		}
	case <-ctx.Done():
		c.finish(ctx.Err())
	case <-l.ended:
		c.finish(writebuf.ErrClosed)
	}
}

// refuse answers what is left in the queue of a lane that has ended.
func (l *lane) refuse() {
	for {
		select {
		case c := <-l.queue:
			if c.taken.CompareAndSwap(false, true) {
				c.finish(writebuf.ErrClosed)
			}
		default:
			return
		}
	}
}

func (l *lane) run(ctx context.Context) error {
	defer func() {
		l.drop()
		close(l.ended)
		l.refuse()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-l.queue:
			if trip := l.collect(c); len(trip) > 0 {
				l.s.metrics.batch.Observe(float64(len(trip)))
				l.send(ctx, trip)
			}
		}
	}
}

// collect takes what waits.
func (l *lane) collect(c *call) []*call {
	var trip []*call
	for size := 0; ; {
		if c.taken.CompareAndSwap(false, true) {
			trip = append(trip, c)
			size += c.size
		}
		if len(trip) == tripCalls || size >= tripBytes {
			return trip
		}
		select {
		case c = <-l.queue:
		default:
			return trip
		}
	}
}

// send makes one trip. Every call is answered when it returns.
func (l *lane) send(ctx context.Context, trip []*call) {
	if err := l.ready(ctx); err != nil {
		for _, c := range trip {
			c.finish(err)
		}
		return
	}
	for how := l.manner(trip); len(trip) > 0 && how <= byText; how++ {
		trip = l.exchange(trip, how)
	}
}

// ready sees to a connection that has answered. It fails before anything of a call was sent.
func (l *lane) ready(ctx context.Context) error {
	if l.conn != nil && l.loaded {
		return nil
	}
	fresh := l.conn == nil
	err := l.connect(ctx)
	if err == nil {
		err = l.load()
	}
	switch {
	case errors.Is(err, errBarred):
		l.barred = true
		l.drop()
		return l.ready(ctx)
	case err != nil:
		l.drop()
		l.s.metrics.connects.WithLabelValues("failed").Inc()
		return fmt.Errorf("%w: %w", l.s.reason(err, writebuf.ErrUnavailable), err)
	case fresh:
		l.s.metrics.connects.WithLabelValues("ok").Inc()
	}
	return nil
}

func (l *lane) connect(ctx context.Context) error {
	if l.conn != nil {
		return nil
	}
	client, err := l.s.connect(ctx, l.n)
	if err == nil {
		l.conn, l.release = client.Dedicate()
	}
	return err
}

var errBarred = errors.New("no transactions")

// load tells the server the scripts, and tries whether it takes transactions. After errBarred the connection may be in the
// middle of one.
func (l *lane) load() error {
	load := make(valkey.Commands, 0, len(scripts)+2)
	for _, sc := range scripts {
		load = append(load, l.conn.B().ScriptLoad().Script(sc.text).Build())
	}
	if !l.barred {
		load = append(load, l.conn.B().Arbitrary("MULTI").Build(), l.conn.B().Arbitrary("EXEC").Build())
	}
	deadline, cancel := context.WithTimeout(context.Background(), 2*l.s.cfg.Timeout)
	defer cancel()
	for i, r := range l.conn.DoMulti(deadline, load...) {
		if err := r.NonValkeyError(); err != nil {
			return err // an error answer is none here: who may not load scripts may run them, and the calls say what is wrong
		}
		if i >= len(scripts) && r.Error() != nil {
			return errBarred
		}
	}
	l.loaded = true
	return nil
}

// drop closes the connection. The next trip makes another one, to whichever server is the primary then.
func (l *lane) drop() {
	if l.conn != nil {
		l.conn.Close()
		l.release()
		l.conn, l.release, l.loaded = nil, nil, false
	}
}

// exchange sends calls with their WAIT in one piece and reads the answers. It returns the calls that the server did not
// run in this manner.
//
// Nothing here is sent twice over: the connection is this lane's own, the client library does not retry, and a connection
// that fails fails all that was on it, the WAIT included. So an answer of WAIT is always about these calls.
func (l *lane) exchange(trip []*call, how manner) (again []*call) {
	timeout := l.s.cfg.Timeout
	wait := false
	l.multi = l.multi[:0]
	for _, c := range trip {
		l.multi = c.commands(l.multi, l.conn.B(), how)
		wait = wait || c.wait
	}
	wait = wait && l.s.cfg.Replicas > 0
	if wait {
		l.multi = append(l.multi, l.conn.B().Wait().Numreplicas(int64(l.s.cfg.Replicas)).Timeout(timeout.Milliseconds()).Build())
	}
	// The library heeds the deadline alone, at the socket: when it returns, nothing of the calls is used any more.
	deadline, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	results := l.conn.DoMulti(deadline, l.multi...)
	clear(l.multi)

	var confirmed error
	last, leave := results[len(results)-1], false
	broken := last.NonValkeyError() != nil
	if wait {
		confirmed = l.replicas(last)
		leave = last.Error() != nil // a server that stops being the primary ends those who wait, and their connections
	}
	for _, c := range trip {
		own := results[:c.count(how)]
		results = results[len(own):]
		done, err := l.read(c, own, how)
		switch {
		case err != nil:
			leave = leave || leaves(err)
			err = fmt.Errorf("%w: %w", l.s.reason(err, writebuf.ErrOutcomeUnknown), err)
		case !done:
			again = append(again, c)
			continue
		case c.word == "OK" && c.wait:
			err = confirmed
		}
		c.finish(cmp.Or(err, c.err))
	}
	if !leave || how == asTransactions && !broken && len(again) > 0 { // then the scripts say what is wrong, and leave
		return again
	}
	l.fail(again)
	return nil
}

// read reads the answers to one call. Where it is not done and that is no error, nothing was done, and the call may be sent in
// the next manner.
func (l *lane) read(c *call, own []valkey.ValkeyResult, how manner) (done bool, err error) {
	if how == asTransactions && len(c.frames) > 0 {
		return l.transacted(c, own)
	}
	msg, err := own[0].ToMessage()
	if err != nil && isNoScript(err) && how != byText {
		l.loaded = false
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.word, c.rest, c.err = readAnswer(msg)
	if c.refused && c.word == "OK" {
		l.rest = transactionRest
	}
	return true, nil
}

// fail answers what cannot be sent again, and of which nothing was done, because the connection is no good.
func (l *lane) fail(calls []*call) {
	for _, c := range calls {
		c.finish(fmt.Errorf("%w: the connection failed", writebuf.ErrUnavailable))
	}
	l.drop()
}

// replicas reads the answer of WAIT.
func (l *lane) replicas(r valkey.ValkeyResult) error {
	n, err := r.AsInt64()
	if err != nil {
		return fmt.Errorf("%w: %w", writebuf.ErrUnconfirmed, err)
	}
	l.s.metrics.replicas.Observe(float64(n))
	if n < int64(l.s.cfg.Replicas) {
		return fmt.Errorf("%w: %d of %d", writebuf.ErrUnconfirmed, n, l.s.cfg.Replicas)
	}
	return nil
}

// leaves reports that the connection is of no more use: it failed, or leads to a server that is not the primary.
func leaves(err error) bool {
	if _, answered := asAnswer(err); !answered {
		return true
	}
	for _, p := range []string{"READONLY ", "MOVED ", "MASTERDOWN ", "CLUSTERDOWN ", "LOADING ", "NOAUTH ", "max number"} {
		if begins(err, p) {
			return true
		}
	}
	return false
}
