package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

type demoCmd struct {
	DurableRestart demoDurableRestartCmd `cmd:"" name:"durable-restart" help:"Kill a broker and show what its successor still has."`
	EphemeralNode  demoEphemeralNodeCmd  `cmd:"" name:"ephemeral-node" help:"Kill a broker, delete its disk, and show what its successor still has."`
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

// demoTime bounds a demonstration; what it does takes a few seconds.
const demoTime = time.Minute

// demonstration is one run of one: brokers one after the other on a temporary directory, and what was checked.
type demonstration struct {
	a       *app
	dir     string
	broker  *child
	conn    *client.Client
	started int // brokers so far
	checks  []checkJSON
}

// checkRecords refuses numbers of records that no demonstration takes.
func checkRecords(n int) error {
	if n < 1 || n > 1_000_000 {
		return usagef("--records is %d: it is 1 to 1000000", n)
	}
	return nil
}

// demonstrate runs one, prints how it went, and removes its directory where all is well.
func demonstrate(a *app, run func(ctx context.Context, d *demonstration) error) error {
	dir, err := os.MkdirTemp("", "levee-demo-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	d := &demonstration{a: a, dir: dir}
	ctx, cancel := context.WithTimeout(a.ctx, demoTime)
	defer cancel()
	err = run(ctx, d)
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

func (d *demonstration) failed() int {
	n := 0
	for _, c := range d.checks {
		if !c.OK {
			n++
		}
	}
	return n
}

func (d *demonstration) verdict(err error) string {
	switch failed := d.failed(); {
	case failed > 0:
		return fmt.Sprintf("NOT as promised: %d of %d checks failed.", failed, len(d.checks))
	case err != nil:
		return fmt.Sprintf("Broken off after %d checks.", len(d.checks))
	}
	return fmt.Sprintf("All %d checks passed.", len(d.checks))
}

// say tells one step.
func (d *demonstration) say(format string, args ...any) {
	w := d.a.stdout
	if d.a.json {
		w = d.a.stderr
	}
	fmt.Fprintf(w, format+"\n", args...)
}

// check records one comparison and says how it went.
func (d *demonstration) check(ok bool, name, format string, args ...any) {
	c := checkJSON{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)}
	d.checks = append(d.checks, c)
	mark := "ok    "
	if !ok {
		mark = "FAILED"
	}
	d.say("   %s %s: %s", mark, c.Name, c.Detail)
}

func exitText(err error) string {
	if err == nil {
		return "exit code 0"
	}
	return err.Error()
}

// start starts a broker on a directory and connects to it.
func (d *demonstration) start(ctx context.Context, dataDir string, settings ...string) error {
	d.started++
	log := filepath.Join(d.dir, fmt.Sprintf("broker-%d.log", d.started))
	var err error
	if d.broker, err = startChild(d.a, dataDir, log, settings...); err != nil {
		return err
	}
	addr, err := d.broker.address(ctx)
	if err != nil {
		return err
	}
	d.conn, err = client.Dial(addr)
	return err
}

func demoValue(topic string, i int) string { return fmt.Sprintf("%s record %d", topic, i) }

// publishAll publishes n records one after the other's enqueueing and returns how many were acknowledged.
func (d *demonstration) publishAll(ctx context.Context, topic string, n int) (acks int, err error) {
	var acked atomic.Int64
	bar := task.NewGroup(context.WithoutCancel(ctx))
	if isTerminal(d.a.stderr) {
		bar.Go("progress", progress{out: d.a.stderr, state: func() (int64, int64, string) {
			return acked.Load(), int64(n), plural(acked.Load(), "record") + " acknowledged"
		}}.run)
	}
	defer func() {
		bar.Stop()
		_ = bar.Wait()
	}()
	p, err := d.conn.NewProducer(ctx, topic, client.ProducerConfig{})
	if err != nil {
		return 0, err
	}
	answers := make(chan error, n)
	for i := range n {
		p.Publish(ctx, record.Record{Value: []byte(demoValue(topic, i))}, func(_ client.Ack, err error) {
			if err == nil {
				acked.Add(1)
			}
			answers <- err
		})
	}
	if err := p.Close(ctx); err != nil {
		return 0, err
	}
	for range n {
		err = errors.Join(err, <-answers)
	}
	return int(acked.Load()), err
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
