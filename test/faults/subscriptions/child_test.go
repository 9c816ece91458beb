package subscriptions

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/leveemq/levee/client"
)

// childSpec is what a consumer process is told.
type childSpec struct {
	Addr, Topic, Subscription, Name string
	Who                             int32
	Ack                             int // acknowledges so many at a time
	AckEvery                        int // the client's
	AckDelay                        time.Duration
	// Danube, unless nil, has it be a client of Danube's; AckEvery and AckDelay are not for it.
	Danube *danubeSpec
}

// childMain is a consumer process: it says what it is handed before it does anything with it, and what it acknowledges
// before it does. It ends with its standard input: when who started it is gone.
func childMain(text string) int {
	var spec childSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	consume := spec.consume
	if spec.Danube != nil {
		consume = spec.consumeDanube
	}
	if err := consume(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (c *childSpec) consume(ctx context.Context) error {
	cl, err := client.Dial(c.Addr)
	if err != nil {
		return err
	}
	defer cl.Close()
	s, err := cl.Subscribe(ctx, c.Topic, c.Subscription, client.SubscriptionConfig{Name: c.Name, AckEvery: c.AckEvery, AckDelay: c.AckDelay, WindowMessages: 200})
	if err != nil {
		return err
	}
	defer s.Close(context.Background())
	var lines []byte
	for {
		batch, err := s.NextBatch(ctx)
		if err != nil {
			return err
		}
		lines = lines[:0]
		for i := range batch {
			lines = appendEvent(lines, eventOf(&batch[i], given, c.Who))
		}
		if _, err := os.Stdout.Write(lines); err != nil {
			return err
		}
		for len(batch) > 0 {
			part := batch[:min(c.Ack, len(batch))]
			batch = batch[len(part):]
			lines = lines[:0]
			for i := range part {
				lines = appendEvent(lines, eventOf(&part[i], acked, c.Who))
			}
			if _, err := os.Stdout.Write(lines); err != nil {
				return err
			}
			client.AckBatch(part)
		}
	}
}

const eventFormat = "%d %c %d %d %d %d %d %d\n"

func appendEvent(to []byte, e event) []byte {
	return fmt.Appendf(to, eventFormat, e.at, e.kind, e.partition, e.offset, e.who, e.count, e.key, e.value)
}

// child is a consumer process.
type child struct {
	spec  childSpec
	cmd   *exec.Cmd
	input io.Closer
	read  chan struct{} // closed when all that it said is in the ledger
}

// spawn starts a consumer process. The test's end ends it at the latest.
func (r *rig) spawn(l *ledger, spec childSpec) *child {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &child{spec: spec, cmd: exec.Command(self), read: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.input, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(c.read)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return // what was cut off did not happen
			}
			var e event
			var k rune
			if _, err := fmt.Sscanf(line, eventFormat, &e.at, &k, &e.partition, &e.offset, &e.who, &e.count, &e.key, &e.value); err != nil {
				r.t.Errorf("a consumer process said %q: %v", line, err)
				return
			}
			e.kind = kind(k)
			l.note(e)
		}
	}()
	r.t.Cleanup(func() { c.end(true) })
	return c
}

// end ends the process, by force or in good order, and waits until all it said is in the ledger.
func (c *child) end(kill bool) {
	if c.cmd.ProcessState != nil {
		return
	}
	if kill {
		_ = c.cmd.Process.Kill()
	}
	_ = c.input.Close()
	<-c.read
	_ = c.cmd.Wait()
}
