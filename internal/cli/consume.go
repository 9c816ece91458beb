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
	Topic        string   `arg:"" placeholder:"NAME" help:"The topic: namespace/name, or name in namespace default."`
	From         position `default:"earliest" placeholder:"POSITION" help:"Where to begin in each partition: earliest, latest, an offset, or @ and a time (@2026-11-29T18:30:00Z) for the first record at or after it."`
	Partition    int32    `default:"-1" placeholder:"P" help:"Read this partition only; without it, all."`
	Count        int64    `default:"0" placeholder:"N" help:"Stop after this many records; 0 is never."`
	Timeout      duration `default:"0" placeholder:"D" help:"Stop, with exit code 0, when no record came for so long; 0 is never."`
	Subscription string   `placeholder:"S" help:"Consume this subscription: what is printed is acknowledged, and not handed out again. It begins where it stands, so --from does not count, unless it is made by --type."`
	Type         string   `placeholder:"exclusive|shared|failover|key_shared" enum:",exclusive,shared,failover,key_shared" default:"" help:"With --subscription: the type that it must have. Where there is no such subscription it is made, beginning at --from."`
	NoAck        bool     `help:"With --subscription: acknowledge nothing. The records are handed out again once the command has ended; it gets no more at a time than the subscription's window."`
	Format       string   `default:"%v\\n" placeholder:"TEMPLATE" help:"How to print a record: %o offset, %p partition, %k key, %v value, %t time, %h headers, %% a percent sign, and the escapes \\n, \\t, \\r, \\0 and \\\\."`
}

// Help describes the command.
func (consumeCmd) Help() string {
	return manual{
		text: "Without --count and --timeout it follows the topic until it is interrupted. Records of one partition come in their order. " +
			"Keys and values are printed byte for byte; a missing one as nothing. Headers are name=value, with commas between; the time is " +
			"UTC with milliseconds. Offsets that a crash has lost, and records of a non-reliable topic that were dropped because this " +
			"command was slow, are told on standard error. A position that retention has removed, or beyond the end, exits with 3.",
		example: "levee consume orders --from latest\nlevee consume orders --subscription invoices --type shared --count 10\nlevee consume orders --count 10 --format '%p/%o\\t%k\\t%v\\n'\nlevee consume orders --timeout 1s --output json",
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
	case c.Subscription == "" && (c.Type != "" || c.NoAck):
		return template{}, usagef("--type and --no-ack belong to --subscription: name one")
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
	source, err := c.open(a, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.close()) }()
	out := bufio.NewWriterSize(a.stdout, 64<<10)
	p := &printer{a: a, out: out, format: format, left: c.Count, endless: c.Count == 0, source: source, acknowledges: c.Subscription != "" && !c.NoAck}
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
	source.tell(true)
	return onTopic(c.Topic, err)
}

// source is where records come from.
type source interface {
	// next waits for records of one partition and returns how many there are.
	next(ctx context.Context) (n int, err error)
	// record returns one of those that came last.
	record(i int) *client.Message
	// printed says that so many of them are written out.
	printed(n int)
	// tell notes what should be known besides, now and then or at the end.
	tell(end bool)
	close() error
}

// open opens what the flags name.
func (c *consumeCmd) open(a *app, conn *client.Client) (source, error) {
	lost := func(partition int32, from, to int64) {
		a.note("partition %d: offsets %d to %d were lost in a crash; going on behind them", partition, from, to)
	}
	var partitions []int32
	if c.Partition >= 0 {
		partitions = []int32{c.Partition}
	}
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	defer cancel()
	if c.Subscription != "" {
		return c.subscribe(ctx, a, conn, client.SubscriptionConfig{Partitions: partitions, OnLost: lost})
	}
	consumer, err := conn.Consume(ctx, c.Topic, client.ConsumerConfig{From: c.From.client(), Partitions: partitions, OnLost: lost})
	if err != nil {
		return nil, onTopic(c.Topic, err)
	}
	return &reading{a: a, consumer: consumer}, nil
}

// reading reads a topic from a position on.
type reading struct {
	a        *app
	consumer *client.Consumer
	batch    []client.Message

	toldDropped int64
	toldAt      time.Time
}

func (r *reading) next(ctx context.Context) (n int, err error) {
	r.batch, err = r.consumer.NextBatch(ctx)
	return len(r.batch), err
}

func (r *reading) record(i int) *client.Message { return &r.batch[i] }

func (r *reading) printed(int) {}

func (r *reading) close() error {
	r.consumer.Close()
	return nil
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
	a       *app
	ctx     context.Context // of run: ends with the app's, or when nobody reads the output any more
	out     *bufio.Writer
	format  template
	left    int64 // records to print, unless endless
	endless bool
	// acknowledges: what is printed is acknowledged, and so has to be written out.
	acknowledges bool
	source       source
	line         []byte
}

// run prints until there were enough records, none came for idle (when above zero), or the user interrupts: that is no
// error where there was no other end.
func (p *printer) run(idle time.Duration) error {
	for p.endless || p.left > 0 {
		n, err := p.next(idle)
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
		if !p.endless {
			n = int(min(int64(n), p.left))
		}
		for i := range n {
			if err := p.print(p.source.record(i)); err != nil {
				return err
			}
		}
		p.left -= int64(n)
		if p.acknowledges {
			if err := p.out.Flush(); err != nil {
				return err
			}
		}
		p.source.printed(n)
		p.source.tell(false)
	}
	return nil
}

// next waits for the next batch. Before it waits it writes out what was printed so far.
func (p *printer) next(idle time.Duration) (int, error) {
	n, err := p.source.next(done)
	if err == nil || client.KindOf(err) != client.KindCanceled {
		return n, err
	}
	if err := p.out.Flush(); err != nil {
		return 0, err
	}
	ctx := p.ctx
	if idle > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, idle)
		defer cancel()
	}
	return p.source.next(ctx)
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

// tell tells of dropped records, once a second at most and at the end.
func (r *reading) tell(end bool) {
	n := r.consumer.Dropped()
	if n == r.toldDropped || !end && time.Since(r.toldAt) < time.Second {
		return
	}
	r.toldDropped, r.toldAt = n, time.Now()
	r.a.note("%s dropped so far, because this consumer was slow", plural(n, "record"))
}
