package cli

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

type demoDurableRestartCmd struct {
	Records int `default:"1000" placeholder:"N" help:"How many records to publish to each topic."`
}

// Help describes the command.
func (demoDurableRestartCmd) Help() string {
	return manual{
		text: "Starts a broker on a temporary directory, publishes to a reliable topic and to a non-reliable one, kills the broker with " +
			"SIGKILL, starts another on the same directory, and compares what is there with what was acknowledged. Exits with 1 when " +
			"something is not as promised; the directory is kept then, and removed otherwise. Needs no broker and touches none but its own.",
		example: "levee demo durable-restart",
		rows:    "one object; the steps are on standard error then", row: demoJSON{},
	}.String()
}

// Run runs the demonstration.
func (c *demoDurableRestartCmd) Run(a *app) error {
	if err := checkRecords(c.Records); err != nil {
		return err
	}
	return demonstrate(a, func(ctx context.Context, d *demonstration) error {
		return (&durableRestart{demonstration: d, records: c.Records}).run(ctx)
	})
}

// The demonstration's topics.
const (
	demoDurable  = "demo-durable"
	demoVolatile = "demo-volatile"
)

// durableRestart is one run of the demonstration.
type durableRestart struct {
	*demonstration
	records int
}

func (d *durableRestart) run(ctx context.Context) error {
	d.say("1. Starting a broker on %s.", filepath.Join(d.dir, "data"))
	if err := d.start(ctx, filepath.Join(d.dir, "data")); err != nil {
		return err
	}
	d.say("2. Making topic %s, reliable with fsync on_commit: an acknowledged record is on the device;", demoDurable)
	d.say("   and topic %s, non_reliable: records are passed to who is there and never stored.", demoVolatile)
	if err := d.makeTopics(ctx); err != nil {
		return err
	}
	d.say("3. Publishing %s to each, with a consumer at the non-reliable one.", plural(d.records, "record"))
	if err := d.publish(ctx); err != nil {
		return err
	}
	d.say("4. Killing the broker, process %d, with SIGKILL: it gets no chance to write anything more.", d.broker.cmd.Process.Pid)
	d.broker.kill()
	if err := d.conn.Close(); err != nil {
		return err
	}
	d.say("5. Starting another broker on the same directory.")
	if err := d.start(ctx, filepath.Join(d.dir, "data")); err != nil {
		return err
	}
	d.say("6. Reading both topics from the beginning.")
	if err := d.readBack(ctx); err != nil {
		return err
	}
	d.say("7. Publishing one more record to each.")
	if err := d.goOn(ctx); err != nil {
		return err
	}
	d.say("8. Stopping the broker in good order.")
	if err := d.conn.Close(); err != nil {
		return err
	}
	err := d.broker.stop(ctx)
	d.check(err == nil, "clean stop", "the broker ended with %s", exitText(err))
	return nil
}

func (d *durableRestart) makeTopics(ctx context.Context) error {
	fsync := "on_commit"
	_, err := d.conn.Admin().CreateTopic(ctx, client.TopicSpec{Name: demoDurable, Settings: client.Settings{Fsync: &fsync}})
	if err != nil {
		return err
	}
	_, err = d.conn.Admin().CreateTopic(ctx, client.TopicSpec{Name: demoVolatile, Dispatch: client.NonReliable})
	return err
}

// publish sends the records and receives those of the non-reliable topic while they pass.
func (d *durableRestart) publish(ctx context.Context) error {
	live, err := d.conn.Consume(ctx, demoVolatile, client.ConsumerConfig{From: client.Latest()})
	if err != nil {
		return err
	}
	defer live.Close()
	for _, topic := range []string{demoDurable, demoVolatile} {
		acks, err := d.publishAll(ctx, topic, d.records)
		if err != nil {
			return err
		}
		d.check(acks == d.records, topic+" acknowledged", "%d of %d records", acks, d.records)
	}
	received := 0
	waiting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for received+int(live.Dropped()) < d.records {
		m, err := live.Next(waiting)
		if err != nil {
			break // what is missing shows in the count
		}
		if strings.HasPrefix(string(m.Value), demoVolatile) {
			received++
		}
	}
	d.check(received+int(live.Dropped()) == d.records, demoVolatile+" live", "the consumer received %d records while the broker ran (%d dropped)", received, live.Dropped())
	return nil
}

// readBack compares what the second broker has with what the first acknowledged.
func (d *durableRestart) readBack(ctx context.Context) error {
	durable, err := readToEnd(ctx, d.conn, demoDurable, 0)
	if err != nil {
		return err
	}
	wrong := 0
	for i, m := range durable {
		if m.Offset != int64(i) || string(m.Value) != demoValue(demoDurable, i) {
			wrong++
		}
	}
	d.check(len(durable) == d.records && wrong == 0, demoDurable+" survived",
		"%d of %d acknowledged records are there, in order, %d with another value or offset", len(durable), d.records, wrong)
	// Such a topic has no end to arrive at: it is listened to for a moment.
	volatile, err := readToEnd(ctx, d.conn, demoVolatile, 500*time.Millisecond)
	if err != nil {
		return err
	}
	d.check(len(volatile) == 0, demoVolatile+" is empty", "%d records: nothing of a non-reliable topic is kept, as promised", len(volatile))
	return nil
}

// goOn publishes to both topics and checks that they work as before.
func (d *durableRestart) goOn(ctx context.Context) error {
	live, err := d.conn.Consume(ctx, demoVolatile, client.ConsumerConfig{From: client.Latest()})
	if err != nil {
		return err
	}
	defer live.Close()
	for _, topic := range []string{demoDurable, demoVolatile} {
		p, err := d.conn.NewProducer(ctx, topic, client.ProducerConfig{})
		if err != nil {
			return err
		}
		ack, err := p.PublishSync(ctx, record.Record{Value: []byte("after the restart")})
		if err != nil {
			return err
		}
		if topic == demoDurable {
			d.check(ack.Offset == int64(d.records), topic+" goes on", "the next record has offset %d", ack.Offset)
		}
		if err := p.Close(ctx); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m, err := live.Next(waiting)
	d.check(err == nil && string(m.Value) == "after the restart", demoVolatile+" works", "a consumer received the record")
	return nil
}
