package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

type demoEphemeralNodeCmd struct {
	Records int `default:"10000" placeholder:"N" help:"How many records to publish."`
}

// Help describes the command.
func (demoEphemeralNodeCmd) Help() string {
	return manual{
		text: "Starts a broker with a Valkey server and a directory as object store, publishes, kills the broker with SIGKILL and " +
			"deletes its whole data directory, starts another on an empty one, and compares what that has from offset 0 on with what " +
			"was acknowledged. Exits with 1 when something is not as promised; what is left is kept then, and removed otherwise. " +
			"valkey-server or redis-server is taken from PATH; without one, something that speaks its protocol runs in this " +
			"process, which is said first. Needs no broker and touches none but its own.",
		example: "levee demo ephemeral-node",
		rows:    "one object; the steps are on standard error then", row: demoJSON{},
	}.String()
}

// Run runs the demonstration.
func (c *demoEphemeralNodeCmd) Run(a *app) error {
	if err := checkRecords(c.Records); err != nil {
		return err
	}
	return demonstrate(a, func(ctx context.Context, d *demonstration) error {
		return (&ephemeralNode{demonstration: d, records: c.Records}).run(ctx)
	})
}

// demoEphemeral is the demonstration's topic.
const demoEphemeral = "demo-ephemeral"

// ephemeralNode is one run of the demonstration.
type ephemeralNode struct {
	*demonstration
	records  int
	settings []string // of its brokers
}

func (d *ephemeralNode) run(ctx context.Context) error {
	buffer, end, err := d.startBuffer(ctx)
	if err != nil {
		return err
	}
	defer end()
	objects := filepath.Join(d.dir, "objects")
	if err := os.Mkdir(objects, 0o700); err != nil {
		return err
	}
	d.settings = []string{
		"LEVEE_VALKEY_MODE=single", "LEVEE_VALKEY_ADDRESSES=" + buffer, "LEVEE_STORAGE_MODE=shared_fs", "LEVEE_STORAGE_ROOT=" + objects,
		"LEVEE_STORAGE_RETENTION_CHECK=100ms",
	}
	disk := filepath.Join(d.dir, "node-1")
	d.say("1. Starting a broker on %s, with Valkey at %s and %s as object store.", disk, buffer, objects)
	if err := d.start(ctx, disk, d.settings...); err != nil {
		return err
	}
	d.say("2. Making topic %s with small segments, so that some are copied to the object store before the end.", demoEphemeral)
	segment := int64(64 << 10)
	if _, err := d.conn.Admin().CreateTopic(ctx, client.TopicSpec{Name: demoEphemeral, Settings: client.Settings{SegmentBytes: &segment}}); err != nil {
		return err
	}
	d.say("3. Publishing %s.", plural(d.records, "record"))
	if err := d.publish(ctx); err != nil {
		return err
	}
	d.say("4. Killing the broker, process %d, with SIGKILL, and deleting %s: nothing of the node is left.", d.broker.cmd.Process.Pid, disk)
	if err := d.lose(disk); err != nil {
		return err
	}
	disk = filepath.Join(d.dir, "node-2")
	d.say("5. Starting another broker on %s, which is empty.", disk)
	if err := d.start(ctx, disk, d.settings...); err != nil {
		return err
	}
	d.say("6. Reading everything from offset 0 on.")
	if err := d.readBack(ctx); err != nil {
		return err
	}
	d.say("7. Stopping the broker in good order.")
	if err := d.conn.Close(); err != nil {
		return err
	}
	err = d.broker.stop(ctx)
	d.check(err == nil, "clean stop", "the broker ended with %s", exitText(err))
	return nil
}

// startBuffer starts a Valkey server, or what stands in for one, and returns where it is.
func (d *ephemeralNode) startBuffer(ctx context.Context) (addr string, end func(), err error) {
	for _, name := range []string{"valkey-server", "redis-server"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		return d.startServer(ctx, program)
	}
	d.say("Neither valkey-server nor redis-server is in PATH: something that speaks their protocol, in this process, stands in for")
	d.say("a Valkey server. What the brokers do is the same; what a server of its own would take is not shown.")
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return "", nil, fmt.Errorf("start what stands in for Valkey: %w", err)
	}
	return m.Addr(), m.Close, nil
}

// startServer starts a Valkey server that keeps nothing on disk, and waits until it answers.
func (d *ephemeralNode) startServer(ctx context.Context, program string) (addr string, end func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", nil, err
	}
	log := filepath.Join(d.dir, "valkey.log")
	cmd := exec.CommandContext(d.a.ctx, program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", d.dir, "--logfile", log) //nolint:gosec // from PATH
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", program, err)
	}
	exited := make(chan struct{})
	task.NewGroup(context.WithoutCancel(d.a.ctx)).Go("valkey-process", func(context.Context) error {
		defer close(exited)
		return cmd.Wait()
	})
	end = func() {
		_ = cmd.Process.Kill() // it may be gone
		<-exited
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr); err == nil {
			return addr, end, conn.Close()
		}
		select {
		case <-again.C:
		case <-exited:
			return "", nil, fmt.Errorf("%s ended before it listened; see %s", program, log)
		case <-ctx.Done():
			end()
			return "", nil, fmt.Errorf("%s does not listen: %w", program, ctx.Err())
		}
	}
}

// publish publishes the records, and says what of them is where.
func (d *ephemeralNode) publish(ctx context.Context) error {
	acks, err := d.publishAll(ctx, demoEphemeral, d.records)
	if err != nil {
		return err
	}
	d.check(acks == d.records, "acknowledged", "%d of %d records", acks, d.records)
	copied, err := d.copied(ctx)
	if err != nil {
		return err
	}
	d.say("   %d of them are in the object store by now, the others on this node's disk and in Valkey alone.", copied)
	return nil
}

// copied returns how many records are in the object store. Where there are enough for a segment, it waits for a moment until
// one is copied, so that what comes back comes from both places.
func (d *ephemeralNode) copied(ctx context.Context) (int64, error) {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	patience := time.NewTimer(3 * time.Second)
	defer patience.Stop()
	for {
		t, err := d.conn.Admin().DescribeTopic(ctx, demoEphemeral)
		if err != nil {
			return 0, err
		}
		if p := t.PartitionStates[0]; p.CopiedBelow > 0 || p.Segments < 2 {
			return p.CopiedBelow, nil
		}
		select {
		case <-again.C:
		case <-patience.C:
			return 0, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// lose takes the node away.
func (d *ephemeralNode) lose(disk string) error {
	d.broker.kill()
	if err := d.conn.Close(); err != nil {
		return err
	}
	return os.RemoveAll(disk)
}

// readBack compares what the second broker has with what the first acknowledged, and publishes one more.
func (d *ephemeralNode) readBack(ctx context.Context) error {
	all, err := readToEnd(ctx, d.conn, demoEphemeral, 0)
	if err != nil {
		return err
	}
	wrong := 0
	for i, m := range all {
		if m.Offset != int64(i) || string(m.Value) != demoValue(demoEphemeral, i) {
			wrong++
		}
	}
	d.check(len(all) == d.records && wrong == 0, "survived", "%d of %d acknowledged records are there, in order, %d with another value or offset", len(all), d.records, wrong)
	p, err := d.conn.NewProducer(ctx, demoEphemeral, client.ProducerConfig{})
	if err != nil {
		return err
	}
	ack, err := p.PublishSync(ctx, record.Record{Value: []byte(strings.Repeat("after the loss ", 2))})
	if err != nil {
		return err
	}
	d.check(ack.Offset == int64(d.records), "goes on", "the next record has offset %d", ack.Offset)
	return p.Close(ctx)
}
