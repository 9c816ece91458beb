package cli

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

// brokerBench are the flags of the benchmarks that need a broker.
type brokerBench struct {
	Topic string `arg:"" placeholder:"TOPIC" help:"The topic. It is made, with --fsync, where it does not exist, and left in place."`
	benchFlags
	Compression string `placeholder:"none|gzip|snappy|lz4|zstd" enum:"none,gzip,snappy,lz4,zstd" default:"none" help:"How batches are compressed."`
	Idempotent  bool   `help:"Publish as idempotent producers."`
}

func (f *brokerBench) settings() settingsJSON {
	s := f.benchFlags.settings()
	s.Topic, s.Compression, s.Idempotent = f.Topic, f.Compression, f.Idempotent
	return s
}

// perConnection is how many publishers or consumers share a connection. Each has a stream of its own; on one connection
// streams contend for the same writer.
const perConnection = 16

// connections opens enough of them for n workers. The caller closes them.
func (a *app) connections(n int) ([]*client.Client, error) {
	conns := make([]*client.Client, 0, min(4, 1+(n-1)/perConnection))
	for range cap(conns) {
		c, err := a.dial()
		if err != nil {
			return nil, errors.Join(err, closeAll(conns))
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*client.Client) error {
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// ensureTopic makes the topic where there is none. Where there is one, its fsync mode is what gets measured and reported,
// whatever the flag says.
func (f *brokerBench) ensureTopic(a *app, conn *client.Client) error {
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	defer cancel()
	topic, err := conn.Admin().DescribeTopic(ctx, f.Topic)
	if err == nil {
		f.Fsync = ""
		if mode := topic.Effective.Fsync; mode != nil {
			f.Fsync = *mode
		}
	}
	if client.KindOf(err) != client.KindNotFound {
		return onTopic(f.Topic, err)
	}
	_, err = conn.Admin().CreateTopic(ctx, client.TopicSpec{Name: f.Topic, Settings: client.Settings{Fsync: &f.Fsync}})
	if err != nil && client.KindOf(err) != client.KindAlreadyExists { // somebody else may have been quicker
		return onTopic(f.Topic, err)
	}
	a.note("made topic %s with fsync %s", f.Topic, f.Fsync)
	return nil
}

// producers opens one producer a publisher, spread over the connections.
func (f *brokerBench) producers(a *app, conns []*client.Client) ([]*client.Producer, error) {
	codec, err := record.ParseCodec(f.Compression)
	if err != nil {
		return nil, err
	}
	config := client.ProducerConfig{
		Compression: codec, Idempotent: f.Idempotent, BatchRecords: f.Batch, BatchBytes: record.MaxBatchBytes, MaxInFlight: f.InFlight,
		MaxInFlightBytes: 1 << 40, // the benchmark has a bound of its own
	}
	if f.Batch > 1 {
		config.Linger = time.Millisecond // a batch goes when it is full, which is sooner
	}
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	defer cancel()
	all := make([]*client.Producer, f.Publishers)
	for i := range all {
		if all[i], err = conns[i%len(conns)].NewProducer(ctx, f.Topic, config); err != nil {
			return nil, onTopic(f.Topic, err)
		}
	}
	return all, nil
}

type benchPublishCmd struct {
	brokerBench
}

// Help describes the command.
func (benchPublishCmd) Help() string {
	return manual{
		text: "Every publisher is a stream of its own, sixteen of them on a connection, four connections at most. Latency is from handing " +
			"a batch over to the acknowledgement of its last record. CPU and memory are this process's, not the broker's.",
		example: "levee bench publish bench --publishers 64\nlevee bench publish bench --batch 256 --in-flight 8 --size 1KiB --output json",
		rows:    "one object", row: benchJSON{},
	}.String()
}

// Run measures.
func (c *benchPublishCmd) Run(a *app) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	conns, err := a.connections(c.Publishers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(conns)) }()
	if err := c.ensureTopic(a, conns[0]); err != nil {
		return err
	}
	producers, err := c.producers(a, conns)
	if err != nil {
		return err
	}
	value := payload(int(c.Size))
	run := load{a: a, name: "publish", duration: time.Duration(c.Duration), settings: c.settings(), workers: c.Publishers}
	run.work = func(stop context.Context, i int, t *tally) error {
		c.publish(stop, a.ctx, producers[i], value, t)
		return nil
	}
	return a.reportBench(run.run())
}

// publish keeps --in-flight batches under way until stop is done, and waits for the answers.
func (c *benchPublishCmd) publish(stop, ctx context.Context, p *client.Producer, value []byte, t *tally) {
	slots := make(chan struct{}, c.InFlight)
	for stop.Err() == nil && !t.broken() {
		select {
		case slots <- struct{}{}:
		case <-stop.Done():
			continue
		}
		start := time.Now()
		var left atomic.Int64
		left.Store(int64(c.Batch))
		var failure atomic.Pointer[error]
		answered := func(_ client.Ack, err error) {
			if err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			if left.Add(-1) > 0 {
				return
			}
			if first := failure.Load(); first != nil {
				t.failed(*first)
			} else {
				t.done(int64(c.Batch), int64(c.Batch*len(value)), time.Since(start))
			}
			<-slots
		}
		for range c.Batch {
			p.Publish(ctx, record.Record{Value: value}, answered)
		}
	}
	for range cap(slots) { // every answer is in
		slots <- struct{}{}
	}
}
