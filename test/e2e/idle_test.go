package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

const (
	idlers     = 20
	published  = 64 << 20 // bytes
	pieceBytes = 4 << 10
	ceiling    = 200 << 20 // more memory than before
)

// TestWhoNeverReads has clients subscribe, ask for everything, and never read a byte: with native streams and as streams
// of events, on a topic with a log and on one without. The broker's memory stays bounded, and whoever does read gets
// everything meanwhile.
func TestWhoNeverReads(t *testing.T) {
	for _, how := range []struct {
		name     string
		dispatch string
		sleep    func(r *rig) io.Closer
	}{
		{"streams", client.Reliable, (*rig).subscribeAndSleep}, {"events", client.Reliable, (*rig).followAndSleep},
		{"streams without a log", client.NonReliable, (*rig).subscribeAndSleep}, {"events without a log", client.NonReliable, (*rig).followAndSleep},
	} {
		t.Run(how.name, func(t *testing.T) {
			r := newRig(t, nil)
			if _, err := r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: "t", Dispatch: how.dispatch}); err != nil {
				t.Fatal(err)
			}
			r.neverRead(how.dispatch == client.Reliable, how.sleep)
		})
	}
}

func (r *rig) neverRead(reliable bool, sleep func(r *rig) io.Closer) {
	r.t.Helper()
	r.publishPieces(1) // what a broker at work needs anyway
	before, _ := r.Memory()
	running, _ := r.Goroutines()
	var asleep []io.Closer
	for range idlers {
		asleep = append(asleep, sleep(r))
	}
	r.Await("followed by all", func() bool { return r.subscribers() == idlers })
	pieces := published / pieceBytes
	if !reliable {
		pieces *= 8 // all subscribers share what waits for them: only this much would show
	}
	read := make(chan error, 1)
	if reliable {
		go func() { read <- r.readPieces(pieces + 1) }()
	} else {
		read <- nil // what it could not take at once would be gone
	}
	began := time.Now()
	r.publishPieces(pieces)
	took := time.Since(began)
	timer := time.NewTimer(proc.Patience)
	defer timer.Stop()
	select {
	case err := <-read:
		if err != nil {
			r.t.Errorf("a client that reads: %v", err)
		}
	case <-timer.C:
		r.t.Fatal("a client that reads does not get everything")
	}
	now, most := r.Memory()
	bound := int64(ceiling)
	if proc.Race {
		bound *= 8
	}
	if most > before+bound {
		r.t.Errorf("the broker had up to %d MiB of memory, and %d before: more than %d above", most>>20, before>>20, bound>>20)
	}
	for _, c := range asleep {
		_ = c.Close()
	}
	r.Await("rid of the sleepers", func() bool {
		n, _ := r.Goroutines()
		return n <= running+10 && r.subscribers() == 0
	})
	r.t.Logf("%d clients that never read, %d MiB published in %v: memory was %d MiB, at most %d, at last %d",
		idlers, pieces*pieceBytes>>20, took.Round(time.Millisecond), before>>20, most>>20, now>>20)
	r.Terminate()
	if code := r.Wait(); code != 0 {
		r.t.Errorf("the broker ended with exit code %d", code)
	}
}

func (r *rig) subscribers() int {
	r.t.Helper()
	d, err := r.client.Admin().DescribeTopic(r.ctx, "t")
	if err != nil {
		r.t.Fatal(err)
	}
	return int(d.PartitionStates[0].Subscribers)
}

func (r *rig) publishPieces(n int) {
	r.t.Helper()
	p, err := r.client.NewProducer(r.ctx, "t", client.ProducerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	piece := make([]byte, pieceBytes)
	for range n {
		p.Publish(r.ctx, record.Record{Value: piece}, func(_ client.Ack, err error) {
			if err != nil {
				r.t.Errorf("publish: %v", err)
			}
		})
	}
	if err := p.Close(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) readPieces(n int) error {
	c, err := r.client.Consume(r.ctx, "t", client.ConsumerConfig{})
	if err != nil {
		return err
	}
	defer c.Close()
	for next := int64(0); next < int64(n); {
		batch, err := c.NextBatch(r.ctx)
		if err != nil {
			return fmt.Errorf("after %d records: %w", next, err)
		}
		for i := range batch {
			if m := &batch[i]; m.Offset != next || len(m.Value) != pieceBytes {
				return fmt.Errorf("offset %d came after %d", m.Offset, next-1)
			}
			next++
		}
	}
	return nil
}

// subscribeAndSleep opens a subscription of its own connection, gives it endless credit, and never receives.
func (r *rig) subscribeAndSleep() io.Closer {
	r.t.Helper()
	raw := r.Raw()
	st, err := raw.Subscribe(context.Background())
	if err == nil {
		err = st.Send(&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{Topic: "t", MaxBytes: 1 << 30}, Credit: &leveev1.Credit{Bytes: 1 << 50}})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return raw.Conn
}

// followAndSleep asks for a stream of events and never reads.
func (r *rig) followAndSleep() io.Closer {
	r.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(r.ctx, "tcp", r.HTTP)
	if err == nil {
		r.t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "GET /v1/topics/default/t/records?follow=1 HTTP/1.1\r\nHost: levee\r\n\r\n")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}
