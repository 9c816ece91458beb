package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// TestConnectionStorm opens and closes ten thousand connections to both ports, most of which say something that makes
// no sense there, while one client publishes and reads. That client notices nothing, and nothing is left of the others.
func TestConnectionStorm(t *testing.T) {
	const side = 200 // at a time
	connections := 10_000
	if testing.Short() {
		connections = 1000
	}
	r := newRig(t, nil)
	r.create("t", client.Settings{})
	quiet := r.worker()
	beforeMemory, _ := r.Memory()
	files, running := r.Descriptors(), 0
	running, _ = r.Goroutines()

	began := time.Now()
	var wg sync.WaitGroup
	next := make(chan int)
	failed := make(chan error, side)
	for range side {
		wg.Go(func() {
			for i := range next {
				if err := r.visit(i); err != nil {
					select {
					case failed <- fmt.Errorf("connection %d: %w", i, err):
					default:
					}
				}
			}
		})
	}
	for i := range connections {
		next <- i
	}
	close(next)
	wg.Wait()
	took := time.Since(began)
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	var filesNow, runningNow int
	var goroutines string
	settled := func() bool {
		filesNow = r.Descriptors()
		runningNow, goroutines = r.Goroutines()
		return filesNow <= files+5 && runningNow <= running+10
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(proc.Patience); !settled(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines are left, there were %d and %d:\n%s", filesNow, runningNow, files, running, goroutines)
		}
	}
	records, slowest := quiet()
	now, most := r.Memory()
	t.Logf("%d connections in %v; descriptors %d, then %d; goroutines %d, then %d; memory %d MiB, at most %d, then %d; %d records went through meanwhile, the slowest in %v",
		connections, took.Round(time.Millisecond), files, filesNow, running, runningNow, beforeMemory>>20, most>>20, now>>20, records, slowest.Round(time.Millisecond))
	if !proc.Ready("http://" + r.HTTP) {
		t.Error("the broker is not ready any more")
	}
	r.Terminate()
	if code := r.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// worker publishes a record now and then and reads each back. The function it returns ends that, and says how many there
// were and how long the slowest took to be acknowledged and to come.
func (r *rig) worker() func() (records int, slowest time.Duration) {
	r.t.Helper()
	p, err := r.client.NewProducer(r.ctx, "t", client.ProducerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := r.client.Consume(r.ctx, "t", client.ConsumerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.ctx)
	done := make(chan struct{})
	var records int
	var slowest time.Duration
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			began := time.Now()
			if _, err := p.PublishSync(r.ctx, record.Record{Value: fmt.Append(nil, records)}); err != nil {
				r.t.Errorf("publish in the storm: %v", err)
				return
			}
			m, err := c.Next(r.ctx)
			if err != nil || m.Offset != int64(records) {
				r.t.Errorf("read in the storm: %v at offset %d, want %d", err, m.Offset, records)
				return
			}
			records++
			slowest = max(slowest, time.Since(began))
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	r.t.Cleanup(func() { stop(); <-done })
	return func() (int, time.Duration) {
		stop()
		<-done
		return records, slowest
	}
}

// visit is one connection, of a sort that its number decides. What the broker answers is its business; that the
// connection can be made is all that counts.
func (r *rig) visit(i int) error {
	addr := r.GRPC
	if i%2 == 1 {
		addr = r.HTTP
	}
	d := net.Dialer{Timeout: 30 * time.Second}
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	say := func(text string) { _, _ = io.WriteString(conn, text) }
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	switch i / 2 % 10 {
	case 0: // nothing
	case 1:
		say(garbage(rng, 1+rng.IntN(300)))
	case 2:
		say(garbage(rng, 100_000))
		_, _ = io.Copy(io.Discard, conn)
	case 3:
		err := tls.Client(conn, &tls.Config{ServerName: "levee"}).Handshake()
		if err == nil {
			return errors.New("TLS on a port without")
		}
	case 4:
		say(preface + settings + garbage(rng, 500))
		_, _ = io.Copy(io.Discard, conn)
	case 5:
		say(preface + settings + "\xff\xff\xff\x00\x00\x00\x00\x00\x01")
		_, _ = io.Copy(io.Discard, conn)
	case 6:
		say("POST /v1/topics/default/t/records HTTP/1.1\r\nHost: levee\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\nhalf")
	case 7:
		say("GET /" + garbage(rng, 20))
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset instead of an end
		}
	case 8:
		say("GET /readyz HTTP/1.1\r\nHost: levee\r\nConnection: close\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	case 9:
		say(preface + settings)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, conn)
	}
	return nil
}

func garbage(rng *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return string(b)
}
