package cli

import (
	"bufio"
	"context"
	"errors"
	"os"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/task"
)

type consumeCmd struct {
	Topic     string   `arg:"" placeholder:"NAME" help:"The topic: namespace/name, or name in namespace default."`
	From      position `default:"earliest" placeholder:"POSITION" help:"Where to begin in each partition: earliest, latest, an offset, or @ and a time (@2026-11-29T18:30:00Z) for the first record at or after it."`
	Partition int32    `default:"-1" placeholder:"P" help:"Read this partition only; without it, all."`
	Count     int64    `default:"0" placeholder:"N" help:"Stop after this many records; 0 is never."`
	Timeout   duration `default:"0" placeholder:"D" help:"Stop, with exit code 0, when no record came for so long; 0 is never."`
	Format    string   `default:"%v\\n" placeholder:"TEMPLATE" help:"How to print a record: %o offset, %p partition, %k key, %v value, %t time, %h headers, %% a percent sign, and the escapes \\n, \\t, \\r, \\0 and \\\\."`
}

// Help describes the command.
func (consumeCmd) Help() string {
	return manual{
		text: "Without --count and --timeout it follows the topic until it is interrupted. Records of one partition come in their order. " +
			"Keys and values are printed byte for byte; a missing one as nothing. Headers are name=value, with commas between; the time is " +
			"UTC with milliseconds. Offsets that a crash has lost, and records of a non-reliable topic that were dropped because this " +
			"command was slow, are told on standard error. A position that retention has removed, or beyond the end, exits with 3.",
		example: "levee consume orders --from latest\nlevee consume orders --count 10 --format '%p/%o\\t%k\\t%v\\n'\nlevee consume orders --timeout 1s --output json",
		rows:    "one object a record (--format does not count then)", row: recordJSON{},
	}.String()
}

func (c *consumeCmd) validate() (template, error) {
	format, err := parseTemplate(c.Format)
	switch {
	case err != nil:
		return template{}, usagef("--format: %v", err)
	case c.Partition < -1:
		return template{}, usagef("--partition is %d: it is 0 or more", c.Partition)
	case c.Count < 0:
		return template{}, usagef("--count is %d: it is 1 or more, or 0 for no end", c.Count)
	}
	return format, nil
}

// Run prints records.
func (c *consumeCmd) Run(a *app) (err error) {
	format, err := c.validate()
	if err != nil {
		return err
	}
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	// A consumer waits for a broker that is away; at the beginning that would only hide that there is none.
	if _, err := a.recordLimit(conn, 0); err != nil {
		return err
	}
	config := client.ConsumerConfig{From: c.From.client(), OnLost: func(partition int32, from, to int64) {
		a.note("partition %d: offsets %d to %d were lost in a crash; going on behind them", partition, from, to)
	}}
	if c.Partition >= 0 {
		config.Partitions = []int32{c.Partition}
	}
	opening, cancel := context.WithTimeout(a.ctx, callTimeout)
	consumer, err := conn.Consume(opening, c.Topic, config)
	cancel()
	if err != nil {
		return onTopic(c.Topic, err)
	}
	defer consumer.Close()
	out := bufio.NewWriterSize(a.stdout, 64<<10)
	p := &printer{a: a, out: out, format: format, left: c.Count, endless: c.Count == 0, consumer: consumer}
	watch := task.NewGroup(a.ctx)
	defer watch.Stop() // not waited for: it notices within a moment, which nobody should have to wait for
	if f, ok := a.stdout.(*os.File); ok {
		watch.Go("watch-stdout", func(ctx context.Context) error { return watchHangup(ctx, f) })
	}
	p.ctx = watch.Context()
	err = p.run(time.Duration(c.Timeout))
	if ferr := out.Flush(); ferr != nil {
		return ferr
	}
	p.dropped(true)
	return onTopic(c.Topic, err)
}

// client returns the position as the client takes it.
func (p position) client() client.Position {
	switch p.kind {
	case startLatest:
		return client.Latest()
	case startOffset:
		return client.Offset(p.offset)
	case startTime:
		return client.At(p.time)
	}
	return client.Earliest()
}

// printer prints what a consumer reads.
type printer struct {
	a        *app
	ctx      context.Context // of run: ends with the app's, or when nobody reads the output any more
	out      *bufio.Writer
	format   template
	left     int64 // records to print, unless endless
	endless  bool
	consumer *client.Consumer
	line     []byte

	toldDropped int64
	toldAt      time.Time
}

// run prints until there were enough records, none came for idle (when above zero), or the user interrupts: that is no
// error where there was no other end.
func (p *printer) run(idle time.Duration) error {
	for p.endless || p.left > 0 {
		batch, err := p.next(idle)
		switch {
		case err == nil:
		case p.a.ctx.Err() != nil && p.endless:
			return nil
		case p.a.ctx.Err() != nil:
			return errInterrupted
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		case idle > 0 && errors.Is(err, context.DeadlineExceeded):
			return nil
		default:
			return err
		}
		if !p.endless && int64(len(batch)) > p.left {
			batch = batch[:p.left]
		}
		for i := range batch {
			if err := p.print(&batch[i]); err != nil {
				return err
			}
		}
		p.left -= int64(len(batch))
		p.dropped(false)
	}
	return nil
}

// next returns the next batch. Before it waits it writes out what was printed so far.
func (p *printer) next(idle time.Duration) ([]client.Message, error) {
	batch, err := p.consumer.NextBatch(done)
	if err == nil || client.KindOf(err) != client.KindCanceled {
		return batch, err
	}
	if err := p.out.Flush(); err != nil {
		return nil, err
	}
	ctx := p.ctx
	if idle > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, idle)
		defer cancel()
	}
	return p.consumer.NextBatch(ctx)
}

// done is a context that has ended: with it, waiting returns what is there.
var done = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (p *printer) print(m *client.Message) error {
	if p.a.json {
		return writeJSON(p.out, newRecordJSON(m.Partition, &m.Record))
	}
	p.line = p.format.append(p.line[:0], m.Partition, &m.Record)
	_, err := p.out.Write(p.line)
	return err
}

// dropped tells of dropped records, once a second at most and at the end.
func (p *printer) dropped(end bool) {
	n := p.consumer.Dropped()
	if n == p.toldDropped || !end && time.Since(p.toldAt) < time.Second {
		return
	}
	p.toldDropped, p.toldAt = n, time.Now()
	p.a.note("%s dropped so far, because this consumer was slow", plural(n, "record"))
}
