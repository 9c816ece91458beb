package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

type demoCmd struct {
	DurableRestart demoDurableRestartCmd `cmd:"" name:"durable-restart" help:"Kill a broker and show what its successor still has."`
}

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

type demoJSON struct {
	OK     bool        `json:"ok" doc:"whether every check passed"`
	Checks []checkJSON `json:"checks"`
	Dir    string      `json:"dir,omitempty" doc:"where the data was kept, after a failure"`
}

type checkJSON struct {
	Name   string `json:"name" doc:"what was checked"`
	OK     bool   `json:"ok" doc:"whether it is so"`
	Detail string `json:"detail" doc:"what was found"`
}

// Run runs the demonstration.
func (c *demoDurableRestartCmd) Run(a *app) error {
	if c.Records < 1 || c.Records > 1_000_000 {
		return usagef("--records is %d: it is 1 to 1000000", c.Records)
	}
	dir, err := os.MkdirTemp("", "levee-demo-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	d := &durableRestart{a: a, records: c.Records, dir: dir}
	ctx, cancel := context.WithTimeout(a.ctx, demoTime)
	defer cancel()
	err = d.run(ctx)
	if d.conn != nil {
		err = errors.Join(err, d.conn.Close()) // again, where all went well
	}
	if d.broker != nil {
		d.broker.kill()
	}
	out := demoJSON{OK: err == nil && d.failed() == 0, Checks: d.checks}
	switch {
	case err != nil:
		err = fmt.Errorf("%w; data and the brokers' logs are kept in %s", err, dir)
	case !out.OK:
		err = fmt.Errorf("%s failed; data and the brokers' logs are kept in %s", plural(d.failed(), "check"), dir)
	default:
		err = os.RemoveAll(dir)
	}
	if !out.OK {
		out.Dir = dir
	}
	if out.Checks == nil {
		out.Checks = []checkJSON{}
	}
	if perr := a.print(out, "%s", d.verdict(err)); perr != nil {
		return perr
	}
	return err
}

// demoTime bounds a demonstration; what it does takes a few seconds.
const demoTime = time.Minute

// The demonstration's topics.
const (
	demoDurable  = "demo-durable"
	demoVolatile = "demo-volatile"
)

// durableRestart is one run of the demonstration.
type durableRestart struct {
	a       *app
	records int
	dir     string
	broker  *child
	conn    *client.Client
	started int // brokers so far
	checks  []checkJSON
}

func (d *durableRestart) failed() int {
	n := 0
	for _, c := range d.checks {
		if !c.OK {
			n++
		}
	}
	return n
}

func (d *durableRestart) verdict(err error) string {
	switch failed := d.failed(); {
	case failed > 0:
		return fmt.Sprintf("NOT as promised: %d of %d checks failed.", failed, len(d.checks))
	case err != nil:
		return fmt.Sprintf("Broken off after %d checks.", len(d.checks))
	}
	return fmt.Sprintf("All %d checks passed.", len(d.checks))
}

// say tells one step.
func (d *durableRestart) say(format string, args ...any) {
	w := d.a.stdout
	if d.a.json {
		w = d.a.stderr
	}
	fmt.Fprintf(w, format+"\n", args...)
}

// check records one comparison and says how it went.
func (d *durableRestart) check(ok bool, name, format string, args ...any) {
	c := checkJSON{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)}
	d.checks = append(d.checks, c)
	mark := "ok    "
	if !ok {
		mark = "FAILED"
	}
	d.say("   %s %s: %s", mark, c.Name, c.Detail)
}

func (d *durableRestart) run(ctx context.Context) error {
	d.say("1. Starting a broker on %s.", filepath.Join(d.dir, "data"))
	if err := d.start(ctx); err != nil {
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
	if err := d.start(ctx); err != nil {
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

func exitText(err error) string {
	if err == nil {
		return "exit code 0"
	}
	return err.Error()
}

// start starts a broker and connects to it.
func (d *durableRestart) start(ctx context.Context) error {
	d.started++
	log := filepath.Join(d.dir, fmt.Sprintf("broker-%d.log", d.started))
	var err error
	if d.broker, err = startChild(d.a, filepath.Join(d.dir, "data"), log); err != nil {
		return err
	}
	addr, err := d.broker.address(ctx)
	if err != nil {
		return err
	}
	d.conn, err = client.Dial(addr)
	return err
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

func demoValue(topic string, i int) string { return fmt.Sprintf("%s record %d", topic, i) }

// publish sends the records and receives those of the non-reliable topic while they pass.
func (d *durableRestart) publish(ctx context.Context) error {
	live, err := d.conn.Consume(ctx, demoVolatile, client.ConsumerConfig{From: client.Latest()})
	if err != nil {
		return err
	}
	defer live.Close()
	for _, topic := range []string{demoDurable, demoVolatile} {
		acks, err := publishAll(ctx, d.conn, topic, d.records)
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

// publishAll publishes n records one after the other's enqueueing and returns how many were acknowledged.
func publishAll(ctx context.Context, conn *client.Client, topic string, n int) (acks int, err error) {
	p, err := conn.NewProducer(ctx, topic, client.ProducerConfig{})
	if err != nil {
		return 0, err
	}
	answers := make(chan error, n)
	for i := range n {
		p.Publish(ctx, record.Record{Value: []byte(demoValue(topic, i))}, func(_ client.Ack, err error) { answers <- err })
	}
	if err := p.Close(ctx); err != nil {
		return 0, err
	}
	for range n {
		if aerr := <-answers; aerr == nil {
			acks++
		} else {
			err = errors.Join(err, aerr)
		}
	}
	return acks, err
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

// readToEnd returns the records up to the present end of a topic with one partition or, where listen is above zero,
// those that come within that time.
func readToEnd(ctx context.Context, conn *client.Client, topic string, listen time.Duration) ([]client.Message, error) {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	consumer, err := conn.Consume(reading, topic, client.ConsumerConfig{OnCaughtUp: func(int32, int64) { cancel() }})
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	if listen > 0 {
		timer := time.AfterFunc(listen, cancel)
		defer timer.Stop()
	}
	var all []client.Message
	for {
		batch, err := consumer.NextBatch(reading)
		all = append(all, batch...)
		switch {
		case ctx.Err() != nil:
			return all, ctx.Err()
		case reading.Err() != nil && len(batch) == 0:
			return all, nil
		case err != nil && reading.Err() == nil:
			return all, err
		}
	}
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
