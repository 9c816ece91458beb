package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

type benchE2ECmd struct {
	brokerBench
	Rate      float64 `default:"2000" placeholder:"N" help:"Records a second of all publishers together, whatever the broker makes of it; 0 is as fast as --in-flight allows."`
	Consumers int     `default:"1" placeholder:"N" help:"How many receive every record."`
}

// Help describes the command.
func (benchE2ECmd) Help() string {
	return manual{
		text: "Consumers wait at the end of the topic; publishers send at a fixed rate. Latency is from handing a record over to its " +
			"receipt, on this process's clock. Records of others in the topic are left out. With a rate, --batch and --in-flight do not count. A record " +
			"that was acknowledged and not received two seconds after the end counts as an error on a reliable topic.",
		example: "levee bench e2e bench --rate 2000 --size 128",
		rows:    "one object", row: benchJSON{},
	}.String()
}

const (
	stampSize = 16 // run id, then nanoseconds since the run's beginning
	settle    = 2 * time.Second
)

// e2e is one run.
type e2e struct {
	cmd       *benchE2ECmd
	run       uint64
	begin     time.Time
	acked     atomic.Int64
	received  atomic.Int64
	consumers []*client.Consumer
	tallies   []tally // a consumer each
}

// Run measures.
func (c *benchE2ECmd) Run(a *app) (err error) {
	if err := c.validateE2E(); err != nil {
		return err
	}
	conns, err := a.connections(c.Publishers + c.Consumers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(conns)) }()
	if err := c.ensureTopic(a, conns[0]); err != nil {
		return err
	}
	if c.Rate > 0 {
		c.Batch, c.InFlight = 0, 64 // the client's own
	}
	producers, err := c.producers(a, conns)
	if err != nil {
		return err
	}
	r := &e2e{cmd: c, run: rand.Uint64(), begin: time.Now(), tallies: make([]tally, c.Consumers)} //nolint:gosec // only has to differ
	if err := r.subscribe(a, conns); err != nil {
		return err
	}
	return a.reportBench(r.measure(a, conns[0], producers))
}

func (c *benchE2ECmd) validateE2E() error {
	if err := c.validate(); err != nil {
		return err
	}
	switch {
	case c.Size < stampSize:
		return usagef("--size is %d: a record carries %d bytes of its own here", c.Size, stampSize)
	case c.Rate < 0:
		return usagef("--rate is %v: it is records a second, or 0", c.Rate)
	case c.Consumers < 1 || c.Consumers > 1000:
		return usagef("--consumers is %d: it is 1 to 1000", c.Consumers)
	}
	return nil
}

// subscribe opens the consumers at the end of the topic.
func (r *e2e) subscribe(a *app, conns []*client.Client) error {
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	defer cancel()
	for i := range r.cmd.Consumers {
		c, err := conns[(r.cmd.Publishers+i)%len(conns)].Consume(ctx, r.cmd.Topic, client.ConsumerConfig{From: client.Latest()})
		if err != nil {
			return onTopic(r.cmd.Topic, err)
		}
		r.consumers = append(r.consumers, c)
	}
	return nil
}

// measure runs publishers and consumers, and waits for what is on its way at the end.
func (r *e2e) measure(a *app, conn *client.Client, producers []*client.Producer) (benchJSON, error) {
	receiving := task.NewGroup(context.WithoutCancel(a.ctx))
	for i, consumer := range r.consumers {
		receiving.Go(fmt.Sprintf("bench-receive-%d", i), func(ctx context.Context) error { return ignoreEnd(ctx, r.receive(ctx, consumer, &r.tallies[i])) })
	}
	settings := r.cmd.settings()
	settings.Rate, settings.Consumers, settings.Batch, settings.InFlight = r.cmd.Rate, r.cmd.Consumers, r.cmd.Batch, r.cmd.InFlight
	publishing := load{a: a, name: "e2e", duration: time.Duration(r.cmd.Duration), settings: settings, workers: r.cmd.Publishers}
	publishing.work = func(stop context.Context, i int, t *tally) error {
		r.publish(stop, a.ctx, producers[i], t)
		return nil
	}
	out, err := publishing.run()
	want := r.acked.Load() * int64(r.cmd.Consumers)
	r.await(a.ctx, want)
	receiving.Stop()
	if rerr := receiving.Wait(); rerr != nil {
		return out, errors.Join(err, rerr)
	}
	total := tally{}
	for i := range r.tallies {
		total.latency.merge(&r.tallies[i].latency)
		total.records += r.tallies[i].records
		total.bytes += r.tallies[i].bytes
	}
	// The load counted what was sent; what arrived is what is asked for.
	seconds := time.Duration(r.cmd.Duration).Seconds()
	out.LatencyUs, out.Records = total.latency.json(), total.records
	out.RecordsPerSecond, out.BytesPerSecond = round(float64(total.records)/seconds), round(float64(total.bytes)/seconds)
	if missing := want - total.records; missing > 0 && err == nil {
		reliable, derr := r.reliable(a, conn)
		if derr != nil {
			return out, derr
		}
		if reliable {
			out.Errors += missing
			err = &exitError{code: exitData, err: fmt.Errorf("%s acknowledged and not received within %s", plural(missing, "record"), settle)}
		}
	}
	return out, err
}

func (r *e2e) reliable(a *app, conn *client.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	defer cancel()
	topic, err := conn.Admin().DescribeTopic(ctx, r.cmd.Topic)
	return topic.Dispatch == client.Reliable, err
}

func (r *e2e) publish(stop, ctx context.Context, p *client.Producer, t *tally) {
	pace := pacer{rate: r.cmd.Rate / float64(r.cmd.Publishers)}
	value := payload(int(r.cmd.Size))
	binary.LittleEndian.PutUint64(value, r.run)
	slots := make(chan struct{}, r.cmd.InFlight*max(r.cmd.Batch, 1))
	for stop.Err() == nil && !t.broken() {
		n, err := pace.next(stop, 1024)
		if err != nil {
			break
		}
		if pace.rate <= 0 {
			n = 1
			slots <- struct{}{}
		}
		for range n {
			binary.LittleEndian.PutUint64(value[8:], uint64(time.Since(r.begin))) //nolint:gosec // not negative
			p.Publish(ctx, record.Record{Value: value}, func(_ client.Ack, err error) {
				if err != nil {
					t.failed(err)
				} else {
					r.acked.Add(1)
				}
				if pace.rate <= 0 {
					<-slots
				}
			})
		}
	}
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := p.Flush(flushing); err != nil {
		t.failed(err)
	}
}

func (r *e2e) receive(ctx context.Context, c *client.Consumer, t *tally) error {
	for {
		batch, err := c.NextBatch(ctx)
		if err != nil {
			return err
		}
		now := time.Since(r.begin)
		for i := range batch {
			v := batch[i].Value
			if len(v) >= stampSize && binary.LittleEndian.Uint64(v) == r.run {
				t.done(1, int64(len(v)), now-time.Duration(binary.LittleEndian.Uint64(v[8:]))) //nolint:gosec // this process wrote it
				r.received.Add(1)
			}
		}
	}
}

// await waits until as many records were received, for as long as settle.
func (r *e2e) await(ctx context.Context, want int64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(settle)
	for r.received.Load() < want && time.Now().Before(end) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
