package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

const (
	// sendBytes is how many bytes of records one message carries unless one batch has more: few enough to be under way while the next ones
	// are encoded.
	sendBytes = 1 << 20

	// drainTimeout bounds how long a broker that is about to stop may take to answer what it has.
	drainTimeout = 30 * time.Second
)

// stream is one open stream to a topic's broker.
type stream struct {
	rpc    grpc.BidiStreamingClient[leveev1.PublishRequest, leveev1.PublishResponse]
	cancel context.CancelFunc
	opened *leveev1.Opened
}

// open opens a stream and waits for the broker to take it. ctx bounds the opening only.
func (p *Producer) open(ctx context.Context) (*stream, error) {
	streamCtx, cancel := context.WithCancel(p.ctx)
	stop := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(openTimeout, cancel)
	defer timer.Stop()
	s := &stream{cancel: cancel}
	err := s.handshake(streamCtx, p)
	if err == nil && (!stop() || !timer.Stop()) {
		err = context.Canceled // it was cut off at the last moment
	}
	if err == nil {
		return s, nil
	}
	stop()
	cancel()
	e := asError(err)
	if e.Kind == KindCanceled && ctx.Err() == nil && p.ctx.Err() == nil {
		e = newError(KindUnavailable, "the broker did not take the stream within %v", openTimeout)
		e.Retriable = true
	}
	return nil, e
}

func (s *stream) handshake(ctx context.Context, p *Producer) (err error) {
	if s.rpc, err = p.client.stream.Publish(ctx); err != nil {
		return err
	}
	open := &leveev1.OpenPublish{Topic: p.topic, TopicId: p.topicID}
	if err := s.rpc.Send(&leveev1.PublishRequest{Open: open}); err != nil && !errors.Is(err, io.EOF) {
		return err // on EOF the reason comes with Recv
	}
	first, err := s.rpc.Recv()
	if err != nil {
		return err
	}
	if s.opened = first.GetOpened(); s.opened == nil {
		return newError(KindInternal, "the broker's first message does not say that the topic is open")
	}
	return nil
}

// newIdentity asks for a producer id that nobody has had.
func (p *Producer) newIdentity(ctx context.Context) (record.ProducerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	r, err := p.client.stream.InitProducer(ctx, &leveev1.InitProducerRequest{})
	if err != nil {
		return record.ProducerInfo{}, asError(err)
	}
	return record.ProducerInfo{ID: r.GetProducerId(), Epoch: int16(r.GetEpoch())}, nil //nolint:gosec // Kafka's width
}

// run keeps a stream open until the producer ends, and then answers what is left.
func (p *Producer) run(s *stream) {
	defer func() {
		p.mu.Lock()
		p.failAll(&Error{Kind: KindCanceled, Message: "the producer or its client was closed"})
		p.mu.Unlock()
		p.answer()
	}()
	for attempt := 0; ; attempt++ {
		if s == nil {
			var err error
			if s, err = p.open(p.ctx); err != nil {
				if !p.retry(err, attempt) {
					return
				}
				continue
			}
			p.client.logger.Info("producer reconnected", "topic", p.topic)
		}
		answered, err := p.session(s)
		s = nil
		p.mu.Lock()
		p.disconnected(time.Now())
		p.mu.Unlock()
		p.answer()
		if answered {
			attempt = -1
		}
		if !p.retry(err, max(attempt, 0)) {
			return
		}
	}
}

// retry waits before another attempt, and reports whether there is to be one.
func (p *Producer) retry(err error, attempt int) bool {
	select {
	case <-p.closing: // nothing is left to send
		return false
	default:
	}
	if p.ctx.Err() != nil {
		return false
	}
	e := streamError(err)
	p.mu.Lock()
	p.state.last = e
	if !e.Retriable {
		p.failAll(e)
	}
	p.mu.Unlock()
	if !e.Retriable {
		p.client.logger.Error("producer failed", "topic", p.topic, "error", e)
		return false
	}
	p.client.logger.Warn("producer lost its broker", "topic", p.topic, "error", e)
	t := time.NewTimer(backoff(attempt))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.closing:
	case <-p.ctx.Done():
	}
	return false
}

// session sends over s and takes its answers until it ends, and says whether any came.
func (p *Producer) session(s *stream) (answered bool, err error) {
	defer s.cancel()
	var (
		received  error
		receiving sync.WaitGroup
		ended     = make(chan struct{}) // nothing more will come
		draining  = make(chan struct{}) // nothing more should be sent
	)
	receiving.Add(1)
	if !p.client.spawn(&p.wg, func() {
		defer receiving.Done()
		defer close(ended)
		answered, received = p.receive(s, draining)
	}) {
		return false, errClientClosed
	}
	err = p.send(s, ended, draining)
	if err == nil { // the broker answers the rest and ends the stream
		cut := time.AfterFunc(drainTimeout, s.cancel)
		receiving.Wait()
		cut.Stop()
		return answered, received
	}
	s.cancel()
	receiving.Wait()
	if errors.Is(err, errEnded) || asError(err).Kind == KindCanceled {
		err = received // what broke the stream, not what followed from it
	}
	return answered, err
}

// errEnded says that the receiving side of a stream knows why it ended.
var errEnded = errors.New("stream ended")

// send sends batches until the stream breaks, or nothing more is to be sent on it: then it returns nil.
func (p *Producer) send(s *stream, ended, draining <-chan struct{}) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.mu.Lock()
		batches, nameless, wait := p.collect(time.Now())
		p.mu.Unlock()
		if len(batches) > 0 {
			if err := p.sendBatches(s, batches); err != nil {
				return err
			}
		}
		if nameless != nil {
			if err := p.identify(nameless); err != nil {
				return err
			}
		}
		if len(batches) > 0 || nameless != nil {
			select {
			case <-draining:
				return s.rpc.CloseSend()
			default:
				continue
			}
		}
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.closing:
			return s.rpc.CloseSend()
		case <-draining:
			return s.rpc.CloseSend()
		case <-ended:
			return errEnded
		}
	}
}

func (p *Producer) sendBatches(s *stream, batches []outgoing) error {
	req := &leveev1.PublishRequest{Batches: make([]*leveev1.Batch, 0, len(batches))}
	for _, b := range batches {
		if b.data == nil {
			data, err := b.builder.Seal(b.producer)
			if err != nil {
				return fromRecord(err, "encode batch")
			}
			b.data = data
		}
		req.Batches = append(req.Batches, &leveev1.Batch{Id: b.id, Partition: b.lane.partition, Data: b.data})
	}
	err := s.rpc.Send(req)
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}

// identify gives a lane that had to give a batch up an identity of its own.
func (p *Producer) identify(l *lane) error {
	id, err := p.newIdentity(p.ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	l.identity, l.identified = id, true
	p.mu.Unlock()
	return nil
}

// receive takes answers until the stream ends, and says whether any came.
func (p *Producer) receive(s *stream, draining chan struct{}) (answered bool, err error) {
	told := false
	for {
		resp, err := s.rpc.Recv()
		if err != nil {
			return answered, err
		}
		if resp.GetDraining() != nil && !told {
			told = true
			close(draining)
		}
		if len(resp.GetAcks()) == 0 {
			continue
		}
		answered = true
		now := time.Now()
		p.mu.Lock()
		for _, ack := range resp.GetAcks() {
			p.acknowledge(ack, now)
		}
		more := len(p.state.ready) > 0
		p.mu.Unlock()
		if more { // else the sender would look in vain
			p.poke()
		}
		p.answer()
	}
}

// watchDeadlines gives up batches whose time has run out, whatever state the stream is in.
func (p *Producer) watchDeadlines() {
	tick := time.NewTicker(max(min(p.config.DeliveryTimeout/20, time.Second), time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case now := <-tick.C:
			p.mu.Lock()
			p.expire(now.Add(-p.config.DeliveryTimeout))
			p.mu.Unlock()
			p.poke()
			p.answer()
		}
	}
}
