package cli

import (
	"context"
	"errors"
	"time"

	"github.com/leveemq/levee/client"
)

type benchConsumeCmd struct {
	Topic     string   `arg:"" placeholder:"TOPIC" help:"The topic."`
	Consumers int      `default:"1" placeholder:"N" help:"How many read the whole topic side by side."`
	Duration  duration `default:"5s" placeholder:"D" help:"How long to measure at most."`
}

// Help describes the command.
func (benchConsumeCmd) Help() string {
	return manual{
		text: "Each consumer reads all partitions from the oldest record on, and ends when it has reached the end of each or the time is " +
			"up; a non-reliable topic has no past, there it reads what comes. Every record is decoded. Latency is the wait for a batch. " +
			"CPU and memory are this process's, not the broker's.",
		example: "levee bench publish bench --batch 256 --in-flight 8\nlevee bench consume bench",
		rows:    "one object", row: benchJSON{},
	}.String()
}

// Run measures.
func (c *benchConsumeCmd) Run(a *app) (err error) {
	switch {
	case c.Consumers < 1 || c.Consumers > 10_000:
		return usagef("--consumers is %d: it is 1 to 10000", c.Consumers)
	case c.Duration <= 0:
		return usagef("--duration is %s: it is more than nothing", c.Duration)
	}
	conns, err := a.connections(c.Consumers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(conns)) }()
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	topic, err := conns[0].Admin().DescribeTopic(ctx, c.Topic)
	cancel()
	if err != nil {
		return onTopic(c.Topic, err)
	}
	settings := settingsJSON{Topic: c.Topic, Consumers: c.Consumers, Duration: c.Duration.String()}
	run := load{a: a, name: "consume", duration: time.Duration(c.Duration), settings: settings, workers: c.Consumers}
	run.work = func(stop context.Context, i int, t *tally) error {
		return onTopic(c.Topic, c.read(stop, conns[i%len(conns)], topic, t))
	}
	return a.reportBench(run.run())
}

// read reads until stop is done or, on a reliable topic, every partition's end was reached.
func (c *benchConsumeCmd) read(stop context.Context, conn *client.Client, topic client.TopicDescription, t *tally) error {
	ctx, cancel := context.WithCancel(stop)
	defer cancel()
	ended := map[int32]bool{}
	consumer, err := conn.Consume(ctx, c.Topic, client.ConsumerConfig{
		CreditBytes: 16 << 20,
		OnCaughtUp: func(partition int32, _ int64) {
			ended[partition] = true
			if len(ended) == int(topic.Partitions) && topic.Dispatch == client.Reliable {
				cancel()
			}
		},
	})
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer consumer.Close()
	for {
		start := time.Now()
		batch, err := consumer.NextBatch(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		took, bytes := time.Since(start), 0
		for i := range batch {
			bytes += len(batch[i].Value)
		}
		t.done(int64(len(batch)), int64(bytes), took)
	}
}

// ignoreEnd drops the error of a wait that ctx ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
