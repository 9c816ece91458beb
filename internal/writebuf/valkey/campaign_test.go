package valkey

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

// owner appends a log to a buffer as who owns a partition does: in order, several batches on their way, again whatever is in
// doubt, and from where it is told after a loss. What it meets that nothing explains fails the test.
type owner struct {
	t     *testing.T
	b     writebuf.Buffer
	gen   uint32
	rnd   *rand.Rand
	floor uint64
	next  uint64 // the first that is to be sent
	told  uint64 // all through there was confirmed, as far as the owner was told

	gate   sync.Mutex // held while a round is under way: who takes it sees the server with nothing on its way
	losing bool       // guarded by gate; entries were taken away: an append has to say so before another one succeeds
	losses int        // guarded by gate; how often it was told so
	most   atomic.Uint64
}

// frameOf returns what a generation's log has at a seq.
func frameOf(gen uint32, seq uint64) []byte {
	return fmt.Appendf(nil, "%d %d %s", gen, seq, strings.Repeat(string(rune('a'+seq%26)), int(seq*7919%900)))
}

func (o *owner) batch(from, to uint64) writebuf.Batch {
	b := writebuf.Batch{Generation: o.gen, Floor: o.floor}
	for s := from; s <= to; s++ {
		b.Entries = append(b.Entries, writebuf.Entry{Seq: s, Frame: frameOf(o.gen, s)})
	}
	return b
}

// round sends a few batches and takes in their answers. It returns false once the owner is fenced.
func (o *owner) round(ctx context.Context) bool {
	o.gate.Lock()
	defer o.gate.Unlock()
	n := 1 + o.rnd.IntN(4)
	lasts, errs := make([]uint64, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		from := o.next
		o.next += 1 + o.rnd.Uint64N(6)
		lasts[i] = o.next - 1
		all.Add(1)
		o.b.Submit(ctx, o.batch(from, lasts[i]), func(err error) { errs[i] = err; all.Done() })
	}
	all.Wait()
	for i, err := range errs {
		if err == nil {
			if o.losing {
				o.t.Errorf("seq %d was confirmed although entries below were lost", lasts[i])
			}
			o.told = lasts[i]
			o.most.Store(max(o.most.Load(), o.told))
			continue
		}
		o.next = o.told + 1
		var lost *writebuf.LostError
		switch {
		case errors.As(err, &lost):
			return o.refill(ctx, lost)
		case errors.Is(err, writebuf.ErrFenced):
			return false
		case !passes(err):
			o.t.Errorf("append: %v", err)
			return false
		}
		return true
	}
	return true
}

// passes reports whether an error is one of those after which the same call is made again.
func passes(err error) bool {
	for _, e := range []error{writebuf.ErrOutcomeUnknown, writebuf.ErrUnavailable, writebuf.ErrUnconfirmed, writebuf.ErrFull, writebuf.ErrReadOnly} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (o *owner) refill(ctx context.Context, lost *writebuf.LostError) bool {
	if lost.Next <= o.told || lost.Reset {
		if !o.losing {
			o.t.Errorf("nothing was taken away, and: %v (confirmed through %d)", lost, o.told)
			return false
		}
		o.losing = false
		o.losses++
	}
	for lost.Reset {
		err := o.b.Reset(ctx, o.gen)
		if err == nil {
			break
		}
		if !passes(err) {
			o.t.Errorf("reset: %v", err)
			return false
		}
	}
	o.next, o.told = lost.Next, lost.Next-1
	return true
}

// run appends until stop is called, which returns once the owner has done so.
func (o *owner) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && o.round(context.Background()) {
		}
	}()
	return func() { cancel(); <-done }
}

// past waits until the owner has confirmed so many more.
func (o *owner) past(n uint64) {
	o.t.Helper()
	goal := o.most.Load() + n
	await(o.t, fmt.Sprintf("seq %d to be confirmed", goal), func() bool { return o.most.Load() >= goal || o.t.Failed() })
}

// take takes entries away, with nothing on its way.
func (o *owner) take(away func()) {
	o.gate.Lock()
	defer o.gate.Unlock()
	away()
	o.losing = true
}

// whole reads what a server has and compares it with the log. It returns how far the server has it, and why not further.
func (o *owner) whole(b writebuf.Buffer) (through uint64, err error) {
	for next := o.floor; ; {
		got, err := b.Read(o.t.Context(), next, writebuf.Limit{Entries: 1 + o.rnd.IntN(200)})
		if err != nil || len(got) == 0 {
			return next - 1, err
		}
		for _, e := range got {
			if e.Seq != next || !bytes.Equal(e.Frame, frameOf(o.gen, e.Seq)) {
				o.t.Fatalf("seq %d is %.30q where seq %d was expected", e.Seq, e.Frame, next)
			}
			next++
		}
	}
}

// complete fails the test unless the server has everything that was confirmed.
func (o *owner) complete(b writebuf.Buffer) {
	o.t.Helper()
	through, err := o.whole(b)
	if err != nil || through < o.told {
		o.t.Errorf("read through %d of %d that were confirmed: %v", through, o.told, err)
	}
	if s, err := b.Bounds(o.t.Context()); err != nil || !s.Whole() || s.Last != through {
		o.t.Errorf("bounds: %+v, %v, and %d were read", s, err, through)
	}
}

// holed fails the test where a server that lost entries looks as if it had not, to somebody who has written nothing there.
func (o *owner) holed(b writebuf.Buffer) {
	o.t.Helper()
	through, err := o.whole(b)
	s, boundsErr := b.Bounds(o.t.Context())
	if boundsErr != nil {
		o.t.Fatal(boundsErr)
	}
	if err == nil && through >= o.told && s.Known && s.Whole() {
		o.t.Errorf("read through %d of %d, %v, bounds %+v: the loss does not show", through, o.told, err, s)
	}
}

// campaign is one case.
type campaign struct {
	t    *testing.T
	srv  *server
	rnd  *rand.Rand
	cfgs []func(*Config)
}

// owner makes one of a partition of its own.
func (c *campaign) owner() *owner {
	return c.ownerOf(c.srv.open(c.cfgs...).Buffer(writebuftest.ID()), 1)
}

func (c *campaign) ownerOf(b writebuf.Buffer, gen uint32) *owner {
	return &owner{t: c.t, b: b, gen: gen, rnd: rand.New(rand.NewPCG(c.rnd.Uint64(), 1)), floor: 1, next: 1}
}

// again returns the buffer of o for somebody who has written nothing.
func (c *campaign) again(o *owner) writebuf.Buffer { return c.srv.open().Buffer(o.b.(*buffer).id) }

// TestCampaign: everything of a server that can go wrong, while an owner appends. Nothing that was confirmed is lost while
// the server keeps it; what the server loses is told before the next append is confirmed, and shows to whoever reads; no entry
// is there twice, or under another number.
func TestCampaign(t *testing.T) {
	rounds := 2 // one in transactions, one in scripts
	if os.Getenv("LEVEE_FAULTS") == "full" {
		rounds = 20
	}
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("LEVEE_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("LEVEE_SEED=%d", seed)
	for i, c := range []struct {
		name string
		args []string
		run  func(*campaign)
	}{
		{"killed", []string{"--appendonly", "yes", "--appendfsync", "always"}, killed},
		{"stopped", nil, stopped},
		{"late answers", nil, lateAnswers},
		{"full", []string{"--maxmemory", "12mb", "--maxmemory-policy", "noeviction"}, full},
		{"evicted", []string{"--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"}, evicted},
		{"flushed", nil, flushed},
		{"stale replica", nil, staleReplica},
		{"trimmed too far", nil, trimmedTooFar},
		{"missing in the middle", nil, missingInTheMiddle},
		{"stale owner", nil, staleOwner},
		{"cut before the answer", nil, cutBeforeTheAnswer},
		{"primary dies", nil, primaryDies},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := start(t, c.args...)
			for round := range rounds {
				if t.Failed() {
					return
				}
				srv.scripted = round%2 == 1
				c.run(&campaign{t: t, srv: srv, rnd: rand.New(rand.NewPCG(seed, uint64(i*1000+round)))})
			}
		})
	}
}

// kept: the server keeps everything, whatever fault does.
func (c *campaign) kept(fault func(o *owner)) {
	o := c.owner()
	stop := o.run()
	o.past(20 + c.rnd.Uint64N(200))
	fault(o)
	o.past(50)
	stop()
	o.complete(c.again(o))
}

// loses: fault takes entries away, which shows; then the owner fills the buffer again.
func (c *campaign) loses(fault func(o *owner)) {
	o := c.owner()
	stop := o.run()
	for range 2 {
		o.past(20 + c.rnd.Uint64N(200))
		o.take(func() { fault(o); o.holed(c.again(o)) })
		await(c.t, "the loss to be told", func() bool { o.gate.Lock(); defer o.gate.Unlock(); return !o.losing || c.t.Failed() })
	}
	o.past(50)
	stop()
	if o.losses != 2 {
		c.t.Errorf("%d losses were told of 2", o.losses)
	}
	o.complete(c.again(o))
}

func (o *owner) keys() (stream, record string) { k := o.b.(*buffer).keys; return k[0], k[1] }

func killed(c *campaign) {
	c.kept(func(*owner) { c.srv.kill(); c.srv.run() })
}

func stopped(c *campaign) {
	c.cfgs = append(c.cfgs, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	c.kept(func(*owner) {
		c.srv.cmd.Process.Signal(syscall.SIGSTOP)
		<-time.After(time.Duration(20+c.rnd.IntN(200)) * time.Millisecond)
		c.srv.cmd.Process.Signal(syscall.SIGCONT)
	})
}

// tardy is a connection whose answers are late at times, so that they arrive when nobody waits for them any more.
type tardy struct {
	net.Conn
	by *atomic.Int64
}

func (c tardy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if by := c.by.Load(); by > 0 {
		<-time.After(time.Duration(by))
	}
	return n, err
}

func lateAnswers(c *campaign) {
	by := &atomic.Int64{}
	c.cfgs = append(c.cfgs, func(c *Config) {
		c.Timeout = 40 * time.Millisecond
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return tardy{conn, by}, err
		}
	})
	c.kept(func(o *owner) {
		for range 5 {
			by.Store(int64(60+c.rnd.IntN(60)) * int64(time.Millisecond)) // the time an answer may take is 80 ms
			<-time.After(150 * time.Millisecond)
			by.Store(0)
			o.past(5)
		}
	})
}

func full(c *campaign) {
	c.kept(func(o *owner) {
		used := 0
		for ; used < 1000; used++ {
			if _, err := c.srv.try("SET", "filler-"+strconv.Itoa(used), strings.Repeat("x", 100_000)); err != nil {
				break
			}
		}
		if used == 1000 {
			c.t.Error("the server is not full")
		}
		before := o.most.Load()
		await(c.t, "an append to be refused or the room to do", func() bool {
			err := o.b.Append(c.t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: []writebuf.Entry{{Seq: 1, Frame: frameOf(1, 1)}}})
			return err == nil || errors.Is(err, writebuf.ErrFull)
		})
		o.gate.Lock()
		told := o.told
		o.gate.Unlock()
		c.t.Logf("full after %d fillers, %d confirmed meanwhile", used, told-min(told, before))
		for i := range used {
			c.srv.do("DEL", "filler-"+strconv.Itoa(i))
		}
	})
	c.srv.do("FLUSHALL") // room for the next round
}

func evicted(c *campaign) {
	c.loses(func(o *owner) {
		stream, record := o.keys()
		for i := 0; c.srv.do("EXISTS", stream, record) == "2"; i++ {
			if i > 5000 {
				c.t.Fatal("nothing is evicted")
			}
			c.srv.do("SET", "filler-"+strconv.Itoa(i%200), strings.Repeat("x", 50_000))
		}
		for i := range 200 {
			c.srv.do("DEL", "filler-"+strconv.Itoa(i))
		}
	})
	c.srv.do("FLUSHALL")
}

func flushed(c *campaign) {
	c.loses(func(*owner) { c.srv.do("FLUSHALL") })
}

func trimmedTooFar(c *campaign) {
	c.loses(func(o *owner) {
		stream, _ := o.keys()
		c.srv.do("XTRIM", stream, "MINID", decimal(o.floor+1+c.rnd.Uint64N(o.told-o.floor)))
	})
}

func missingInTheMiddle(c *campaign) {
	c.loses(func(o *owner) {
		stream, _ := o.keys()
		for range 1 + c.rnd.IntN(3) {
			c.srv.do("XDEL", stream, decimal(o.floor+c.rnd.Uint64N(o.told-o.floor+1))+"-0")
		}
	})
}

// staleReplica: the replica stops to follow, the owner goes on, and then the replica is where the owner gets to.
func staleReplica(c *campaign) {
	r := c.srv.replica()
	var at redirect
	at.to.Store(c.srv.addr)
	c.cfgs = append(c.cfgs, at.dial)
	o := c.owner()
	stop := o.run()
	o.past(50)
	if c.rnd.IntN(2) == 0 {
		o.gate.Lock()
		want(c.t, "trim", o.b.Trim(c.t.Context(), 1, 20), nil)
		o.floor = 20
		o.gate.Unlock()
		o.past(10)
	}
	stream, _ := o.keys()
	o.gate.Lock()
	r.await("the replica to have it", func() bool { return r.do("XLEN", stream) == c.srv.do("XLEN", stream) })
	o.gate.Unlock()
	r.do("REPLICAOF", "NO", "ONE")
	o.past(20 + c.rnd.Uint64N(100))
	o.take(func() {
		at.to.Store(r.addr)
		c.srv.do("CLIENT", "KILL", "TYPE", "normal")
		o.holed(r.open().Buffer(o.b.(*buffer).id))
	})
	o.past(50)
	stop()
	if o.losses != 1 {
		c.t.Errorf("%d losses were told of 1", o.losses)
	}
	o.complete(r.open().Buffer(o.b.(*buffer).id))
	r.kill()
}

// staleOwner: who was fenced while it appended goes on trying.
func staleOwner(c *campaign) {
	id := writebuftest.ID()
	var stops []func()
	var last uint64
	for gen := uint32(1); gen <= 4; gen++ {
		b := c.srv.open(c.cfgs...).Buffer(id)
		before, err := b.Fence(c.t.Context(), gen)
		want(c.t, "fence", err, nil)
		if gen > 1 && (!before.Known || !before.Whole() || before.Last < last) {
			c.t.Errorf("generation %d found %+v, and %d were confirmed", gen, before, last)
		}
		if gen > 1 {
			got, err := b.Read(c.t.Context(), before.Floor, writebuf.Limit{Entries: 1 << 20, Bytes: 64 << 20})
			if err != nil || uint64(len(got)) != before.Count {
				c.t.Fatalf("read: %d of %d, %v", len(got), before.Count, err)
			}
			if s, err := b.Bounds(c.t.Context()); err != nil || s.Last != before.Last {
				c.t.Errorf("the old owner appended behind the fence: %+v, then %+v, %v", before, s, err)
			}
		}
		o := c.ownerOf(b, gen)
		o.floor, o.next, o.told = before.Last+1, before.Last+1, before.Last
		stops = append(stops, o.run())
		o.past(20 + c.rnd.Uint64N(100))
		last = o.most.Load()
		if gen == 4 {
			for _, stop := range stops {
				stop()
			}
			o.complete(c.again(o))
		}
	}
}

// severed is a connection that is cut, when told to, after something was sent and before the answer is seen.
type severed struct {
	net.Conn
	cuts *atomic.Int64
}

func (c severed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && bytes.Contains(p[:n], []byte("$2\r\nOK\r\n")) && c.cuts.Add(-1) >= 0 {
		c.Conn.Close()
		return 0, errors.New("cut")
	}
	return n, err
}

func cutBeforeTheAnswer(c *campaign) {
	cuts := &atomic.Int64{}
	c.cfgs = append(c.cfgs, func(c *Config) {
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return severed{conn, cuts}, err
		}
	})
	c.kept(func(o *owner) {
		for range 10 {
			cuts.Store(1 + c.rnd.Int64N(3))
			await(c.t, "the cuts", func() bool { return cuts.Load() <= 0 || c.t.Failed() })
			o.past(1 + c.rnd.Uint64N(10))
		}
	})
}

// primaryDies: with a replica that has to confirm, the replica has all that was confirmed, whenever the primary dies.
func primaryDies(c *campaign) {
	primary := start(c.t)
	r := primary.replica()
	var at redirect
	at.to.Store(primary.addr)
	o := c.ownerOf(primary.open(replicas(1), at.dial, func(c *Config) { c.Timeout = 50 * time.Millisecond }).Buffer(writebuftest.ID()), 1)
	stop := o.run()
	o.past(20 + c.rnd.Uint64N(300))
	r.cmd.Process.Signal(syscall.SIGSTOP) // what goes on meanwhile is confirmed by nobody
	<-time.After(time.Duration(c.rnd.IntN(100)) * time.Millisecond)
	r.cmd.Process.Signal(syscall.SIGCONT)
	o.past(c.rnd.Uint64N(50))
	if c.rnd.IntN(2) == 0 {
		r.do("REPLICAOF", "NO", "ONE") // while the owner goes on
		<-time.After(time.Duration(c.rnd.IntN(300)) * time.Millisecond)
	}
	primary.kill()
	stop()
	r.do("REPLICAOF", "NO", "ONE")
	o.complete(r.open().Buffer(o.b.(*buffer).id))
	o.b = r.open().Buffer(o.b.(*buffer).id)
	stop = o.run()
	o.past(20)
	stop()
	o.complete(r.open().Buffer(o.b.(*buffer).id))
	r.kill()
}
