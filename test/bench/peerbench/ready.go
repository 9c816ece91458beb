package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const readyLimit = 120 * time.Second

// waitReady asks again and again until the server serves -stream with at least -n messages. Its time counts from the
// start of this process, which the scripts start right after the server.
func waitReady() *result {
	start := time.Now()
	for {
		got, err := ready()
		if err == nil && got >= int64(*n) {
			r := row(got, 0, time.Since(start).Seconds(), &hist{}, 0, cpuOf(*pid))
			r.Note = fmt.Sprintf("ready after %.3f s with %d messages, %.2f s of server CPU", r.Secs, got, cpuOf(*pid))
			return r
		}
		if time.Since(start) > readyLimit {
			must(fmt.Errorf("not ready: %d messages, error: %w", got, err))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ready returns the number of messages in -stream, or an error while the server does not serve it.
func ready() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	// A client library may wait before it tries again to connect; this does not.
	c, err := net.DialTimeout("tcp", *addr, time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	switch *target {
	case "levee":
		return readyLevee(ctx)
	case "nats-js":
		return readyJetStream(ctx)
	case "redis":
		return readyRedis(c)
	case "kafka":
		return readyKafka(ctx)
	}
	must(fmt.Errorf("target %s cannot be asked whether it is ready", *target))
	return 0, nil
}

func readyLevee(ctx context.Context) (int64, error) {
	c, err := client.Dial(*addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return held(ctx, c)
}

func readyJetStream(ctx context.Context) (int64, error) {
	c, err := nats.Connect("nats://"+*addr, nats.Timeout(time.Second))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err != nil {
		return 0, err
	}
	s, err := js.Stream(ctx, *stream)
	if err != nil {
		return 0, err
	}
	return int64(s.CachedInfo().State.Msgs), nil
}

func readyRedis(c net.Conn) (int64, error) {
	if _, err := fmt.Fprintf(c, "XLEN %s\r\n", *stream); err != nil {
		return 0, err
	}
	b := make([]byte, 256)
	k, err := c.Read(b)
	if err != nil {
		return 0, err
	}
	if b[0] != ':' {
		return 0, fmt.Errorf("%s", b[:k])
	}
	var length int64
	_, err = fmt.Sscan(string(b[1:k]), &length)
	return length, err
}

func readyKafka(ctx context.Context) (int64, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(*addr), kgo.DialTimeout(time.Second), kgo.RetryTimeout(2*time.Second))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	listed, err := kadm.NewClient(c).ListEndOffsets(ctx, *stream)
	if err != nil {
		return 0, err
	}
	var sum int64
	listed.Each(func(o kadm.ListedOffset) { sum += max(o.Offset, 0) })
	return sum, nil
}
