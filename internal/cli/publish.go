package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

type publishCmd struct {
	Topic        string    `arg:"" placeholder:"NAME" help:"The topic: namespace/name, or name in namespace default."`
	File         string    `placeholder:"FILE" help:"Read from this file instead of standard input."`
	KeySeparator string    `placeholder:"C" help:"What stands between key and value in a line; the first one counts. A line without it has no key. The escapes are \\n, \\t, \\r, \\0 and \\\\."`
	Header       []header  `sep:"none" placeholder:"NAME=VALUE" help:"A header of every record; may be given several times."`
	Partition    int32     `default:"-1" placeholder:"P" help:"Publish to this partition only. Without it, records with the same key go to the same partition, and those without a key are spread."`
	Batch        int       `default:"0" placeholder:"N" help:"Most records in a batch; 0 leaves it to the client."`
	Compression  string    `placeholder:"none|gzip|snappy|lz4|zstd" enum:"none,gzip,snappy,lz4,zstd" default:"none" help:"How batches are compressed."`
	Rate         float64   `default:"0" placeholder:"N" help:"Records a second; 0 is as fast as they come."`
	Idempotent   bool      `help:"A record that is sent again, because its acknowledgement did not come, is stored once."`
	DeliverAfter *duration `placeholder:"D" help:"Subscriptions of type shared and key_shared hand the records out no sooner than so long after they were published."`
	Timeout      duration  `default:"0" placeholder:"D" help:"How long to go on trying to get a record acknowledged, and to reach the broker at the beginning. Without it 30s, and a broker that is not there is an error at once."`
}

// Help describes the command.
func (publishCmd) Help() string {
	return manual{
		text: "Every line is a record: an empty line is an empty record, what follows the last newline is a record unless it is empty, " +
			"and a carriage return before a newline stays part of the record. A line over the broker's limit ends the command with an " +
			"error that names its number.\n\n" +
			"The command ends when all lines are acknowledged, or at the first that cannot be. Then, and when it is interrupted, it tells " +
			"how many lines from the first one on are acknowledged without a gap. Lines after those may have been stored, too. Offsets are " +
			"those of the first and the last of these lines, each in the partition that it went to.",
		example: "levee publish orders --file orders.txt --key-separator :\nseq 1000 | levee publish orders --rate 100 --output json",
		rows:    "one object, also on failure", row: publishJSON{},
	}.String()
}

type publishJSON struct {
	Acknowledged int64 `json:"acknowledged" doc:"how many lines, from the first one on, are acknowledged"`
	FirstOffset  int64 `json:"first_offset" doc:"offset of the first line; -1 when nothing is acknowledged"`
	LastOffset   int64 `json:"last_offset" doc:"offset of the last acknowledged one; -1 when nothing is"`
}

func (c *publishCmd) validate() (separator []byte, codec record.Codec, err error) {
	sep, err := unescape(c.KeySeparator)
	switch {
	case err != nil:
		return nil, 0, usagef("--key-separator: %v", err)
	case c.Batch < 0:
		return nil, 0, usagef("--batch is %d: it is 1 or more, or 0 for as many as the client likes", c.Batch)
	case c.Rate < 0:
		return nil, 0, usagef("--rate is %v: it is records a second, or 0 for no limit", c.Rate)
	case c.DeliverAfter != nil && *c.DeliverAfter < 0:
		return nil, 0, usagef("--deliver-after is %s: it is 0 or more", *c.DeliverAfter)
	case c.Partition < -1:
		return nil, 0, usagef("--partition is %d: it is 0 or more", c.Partition)
	}
	codec, err = record.ParseCodec(c.Compression)
	return []byte(sep), codec, err
}

// defaultDelivery is how long a record is retried unless --timeout says otherwise.
const defaultDelivery = 30 * time.Second

func (c *publishCmd) delivery() time.Duration {
	if c.Timeout > 0 {
		return time.Duration(c.Timeout)
	}
	return defaultDelivery
}

// Run publishes.
func (c *publishCmd) Run(a *app) (err error) {
	separator, codec, err := c.validate()
	if err != nil {
		return err
	}
	in, size, closeIn, err := c.input(a)
	if err != nil {
		return err
	}
	defer closeIn()
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	limit, err := a.recordLimit(conn, time.Duration(c.Timeout))
	if err != nil {
		return err
	}
	config := client.ProducerConfig{
		Compression: codec, BatchRecords: c.Batch, Idempotent: c.Idempotent, DeliveryTimeout: c.delivery(),
	}
	if c.Partition >= 0 {
		config.Partitioner = func(record.Record, int32) int32 { return c.Partition }
	}
	opening, cancel := context.WithTimeout(a.ctx, c.delivery())
	producer, err := conn.NewProducer(opening, c.Topic, config)
	cancel()
	if err != nil {
		return onTopic(c.Topic, err)
	}
	if n := producer.Partitions(); c.Partition >= n {
		return errors.Join(usagef("--partition is %d: topic %s has %s, counted from 0", c.Partition, c.Topic, plural(n, "partition")), producer.Close(a.ctx))
	}
	p := &publishing{producer: producer, separator: separator, pace: pacer{rate: c.Rate}, total: size, moved: make(chan struct{}, 1), delay: (*time.Duration)(c.DeliverAfter)}
	for _, h := range c.Header {
		p.headers = append(p.headers, record.Header{Key: h.key, Value: []byte(h.value)})
	}
	err = p.run(a, newLineReader(in, limit), c.delivery())
	if serr := p.summary(a); serr != nil {
		return serr
	}
	return onTopic(c.Topic, err)
}

// input returns where the lines come from and, for a file, how many bytes there are.
func (c *publishCmd) input(a *app) (in io.Reader, size int64, closeIn func(), err error) {
	if c.File == "" {
		return a.stdin, 0, func() {}, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("open --file: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return f, size, func() { _ = f.Close() }, nil
}

// recordLimit asks the broker how large a record may be, and for patience goes on asking where it cannot be reached.
func (a *app) recordLimit(conn *client.Client, patience time.Duration) (int, error) {
	deadline := time.Now().Add(patience)
	told := false
	for {
		ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
		info, err := conn.Admin().ServerInfo(ctx)
		cancel()
		var remote *client.Error
		switch {
		case err == nil:
			return int(info.MaxRecordBytes), nil
		case !errors.As(err, &remote) || !remote.Retriable || !time.Now().Before(deadline) || a.ctx.Err() != nil:
			return 0, err
		}
		if !told {
			told = true
			a.note("waiting for the broker at %s: %s", a.conn.Addr, a.message(err))
		}
		wait := time.NewTimer(100 * time.Millisecond)
		select {
		case <-wait.C:
		case <-a.ctx.Done():
			wait.Stop()
		}
	}
}

// publishing is one run of the command. Lines are numbered from 0 here and from 1 in what people see.
type publishing struct {
	producer  *client.Producer
	separator []byte
	headers   []record.Header
	delay     *time.Duration // nil: none
	pace      pacer
	total     int64         // bytes of the input; 0: unknown
	moved     chan struct{} // holds one: the acknowledged prefix has grown, or a line failed

	mu struct {
		sync.Mutex
		acked ackedPrefix
		read  int64 // bytes of lines handed to the producer
		sent  int64 // lines
		line  int64 // the first that failed
		err   error // how; nil while none has
	}
}

// maxGap bounds how far acknowledgements may run ahead of a line that has none yet, because its partition is busy with
// retries while others go on: each takes eight bytes.
const maxGap = 1 << 20

// lineChunk is what one read of the input gave.
type lineChunk struct {
	lines [][]byte
	err   error
}

// run publishes every line and waits for the answers. It returns why not all lines are acknowledged.
func (p *publishing) run(a *app, in *lineReader, patience time.Duration) error {
	chunks := make(chan lineChunk, 4)
	reading := task.NewGroup(a.ctx)
	// Nobody waits for this goroutine when the command is interrupted: it may be in a read that nothing ends.
	reading.Go("read-lines", func(ctx context.Context) error {
		for {
			lines, err := in.next()
			select {
			case chunks <- lineChunk{lines, err}:
			case <-ctx.Done():
				return nil
			}
			if err != nil {
				return nil
			}
		}
	})
	defer reading.Stop()
	bar := p.progress(a)
	err := p.send(a.ctx, chunks)
	// What was sent is waited for also when the command is interrupted; each record's own time bounds that.
	closing, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), patience+time.Second)
	defer cancel()
	cerr := p.producer.Close(closing)
	bar.Stop()
	_ = bar.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case a.ctx.Err() != nil && (errors.Is(err, errInterrupted) || errors.Is(p.mu.err, context.Canceled)):
		return errInterrupted
	case p.mu.err != nil:
		return fmt.Errorf("line %d: %w", p.mu.line+1, p.mu.err)
	case err != nil:
		return err
	}
	return cerr
}

// send hands lines to the producer until the input ends, a line fails, or ctx is done.
func (p *publishing) send(ctx context.Context, chunks <-chan lineChunk) error {
	line := int64(0)
	for {
		var c lineChunk
		select {
		case c = <-chunks:
		case <-ctx.Done():
			return errInterrupted
		}
		for len(c.lines) > 0 {
			n, err := p.pace.next(ctx, int64(len(c.lines)))
			if err != nil {
				return errInterrupted
			}
			for _, text := range c.lines[:n] {
				p.publish(ctx, line, text)
				line++
			}
			if p.gap(ctx) {
				return nil
			}
			c.lines = c.lines[n:]
		}
		switch {
		case errors.Is(c.err, io.EOF):
			return nil
		case fault.KindOf(c.err) == fault.TooLarge:
			return c.err
		case c.err != nil:
			return fmt.Errorf("read line %d: %w", line+1, c.err)
		}
	}
}

func (p *publishing) publish(ctx context.Context, line int64, text []byte) {
	key, value := keyed(text, p.separator)
	r := record.Record{Key: key, Value: value, Headers: p.headers}
	if p.delay != nil {
		r.Headers = append(r.Headers[:len(r.Headers):len(r.Headers)], client.DeliverAfter(*p.delay))
	}
	p.producer.Publish(ctx, r, func(ack client.Ack, err error) {
		p.mu.Lock()
		switch {
		case err == nil:
			p.mu.acked.acknowledge(line, ack.Offset)
		case p.mu.err == nil || line < p.mu.line:
			p.mu.line, p.mu.err = line, err
		}
		p.mu.Unlock()
		select {
		case p.moved <- struct{}{}:
		default:
		}
	})
	p.mu.Lock()
	p.mu.sent = line + 1
	p.mu.read += int64(len(text)) + 1
	p.mu.Unlock()
}

// gap waits while acknowledgements are too far ahead of the prefix, and reports whether to stop because a line failed.
func (p *publishing) gap(ctx context.Context) (failed bool) {
	for {
		p.mu.Lock()
		failed, wait := p.mu.err != nil, p.mu.acked.used > maxGap
		p.mu.Unlock()
		if failed || !wait || ctx.Err() != nil {
			return failed
		}
		select {
		case <-p.moved:
		case <-ctx.Done():
		}
	}
}

// progress starts the progress bar, on a terminal.
func (p *publishing) progress(a *app) *task.Group {
	group := task.NewGroup(context.WithoutCancel(a.ctx))
	if isTerminal(a.stderr) {
		start := time.Now()
		group.Go("progress", progress{out: a.stderr, state: func() (int64, int64, string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			rate := float64(p.mu.acked.n) / time.Since(start).Seconds()
			return p.mu.read, p.total, fmt.Sprintf("%s sent, %s acknowledged, %s/s", plural(p.mu.sent, "record"), count(p.mu.acked.n), count(int64(rate)))
		}}.run)
	}
	return group
}

// summary prints what is acknowledged.
func (p *publishing) summary(a *app) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, last := p.mu.acked.offsets()
	row := publishJSON{Acknowledged: p.mu.acked.n, FirstOffset: first, LastOffset: last}
	switch {
	case row.Acknowledged == 0:
		return a.print(row, "acknowledged no record")
	case p.producer.Partitions() > 1:
		return a.print(row, "acknowledged %s in up to %d partitions, the first at offset %d and the last at offset %d", plural(row.Acknowledged, "record"), p.producer.Partitions(), first, last)
	}
	return a.print(row, "acknowledged %s at offsets %d to %d", plural(row.Acknowledged, "record"), first, last)
}
