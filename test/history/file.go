package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// recorder writes events as they come.
type recorder struct {
	w    *bufio.Writer
	line []byte
	err  error
}

func (r *recorder) write(e *Event) {
	if r.err != nil {
		return
	}
	r.line = e.Append(r.line[:0])
	_, r.err = r.w.Write(r.line)
}

// emit streams an event if the history is being streamed.
func (h *History) emit(e Event) {
	if h.out != nil {
		h.out.write(&e)
	}
}

// Stream begins to write all that comes from now on to w, through a buffer: Flush empties it. Call it before anything is
// recorded, for what is there already is not written.
func (h *History) Stream(w io.Writer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out = &recorder{w: bufio.NewWriterSize(w, 1<<16)}
}

// Flush writes what has been streamed so far, and returns the first error of
// any write.
func (h *History) Flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.out == nil {
		return nil
	}
	for _, r := range h.readings {
		r.flush()
	}
	h.emit(Event{Op: opEnd, End: h.horizon()})
	return errors.Join(h.out.err, h.out.w.Flush())
}

// horizon returns until when the history was watched.
func (h *History) horizon() int64 {
	if h.saved {
		return h.last
	}
	return h.now()
}

// Write writes the history as it stands, one event a line.
func (h *History) Write(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &recorder{w: bufio.NewWriterSize(w, 1<<16)}
	put := func(e Event) { out.write(&e) }
	for _, s := range h.all() {
		for _, t := range s.infos {
			put(topicEvent(t))
		}
	}
	for _, p := range h.producers {
		put(p.event())
	}
	for _, f := range h.faults {
		put(f.event())
	}
	for _, e := range h.heals {
		put(e.event())
	}
	for _, l := range h.logs {
		for _, at := range l.syncs {
			put(l.syncEvent(at))
		}
		for _, c := range l.copies {
			put(l.copiedEvent(c))
		}
	}
	for _, m := range h.meta {
		put(m.event())
	}
	for _, p := range h.producers {
		p.each(func(v Value, pub *publish) { put(h.publishEvent(v, pub)) })
		if p.gone != forever {
			put(p.goneEvent())
		}
	}
	for _, r := range h.readings {
		r.put(put)
	}
	for _, s := range h.subs {
		s.put(put)
	}
	put(Event{Op: opEnd, End: h.horizon()})
	return errors.Join(out.err, out.w.Flush())
}

func (r *Reading) put(put func(Event)) {
	put(r.beginEvent())
	for i := range r.segments {
		s := &r.segments[i]
		switch s.kind {
		case segFirst:
			r.log.read.each(s.from, s.to, func(offset int64, v Value) {
				put(Event{Op: opRead, Reading: r.id, Offset: offset, Value: &v})
			})
		case segSame:
			put(r.sameEvent(s))
		case segOdd:
			put(Event{Op: opRead, Reading: r.id, Offset: s.from, Value: &s.value})
		default:
			put(r.toldEvent(s))
		}
	}
	if r.ended() {
		put(r.endEvent())
	}
}

func (s *Subscriber) put(put func(Event)) {
	put(s.event())
	for i := range s.deliveries {
		put(s.deliveryEvent(&s.deliveries[i]))
	}
	for i := range s.acks {
		put(s.ackEvent(&s.acks[i]))
	}
}

// Read reads a saved history. Its time stands still where it ended.
func Read(r io.Reader) (*History, error) {
	h := New()
	h.saved = true
	in := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		text, err := readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		last := err != nil
		if text = bytes.TrimSpace(text); len(text) > 0 {
			var e Event
			if err := json.Unmarshal(text, &e); err != nil {
				if last {
					return h, nil // cut off while it was written
				}
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			if err := h.Apply(e); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		}
		if last {
			return h, nil
		}
	}
}

// readLine returns the next line. It is valid until the next call, unless it is a long one.
func readLine(in *bufio.Reader) ([]byte, error) {
	text, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, err
	}
	text = slices.Clone(text)
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = in.ReadSlice('\n')
		text = append(text, more...)
	}
	return text, err
}

// Apply adds an event of a saved history.
func (h *History) Apply(e Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(max(e.Start, e.End))
	id := logID{e.Topic, e.Incarnation, e.Partition}
	outcome := slices.Index(outcomes, e.Outcome)
	if outcome < 0 {
		return fmt.Errorf("outcome %q is none of ok, fail and unknown", e.Outcome)
	}
	switch e.Op {
	case opTopic:
		h.topic(e.Start, TopicInfo{e.Topic, e.Incarnation, e.Fsync, time.Duration(e.Interval), e.Retention, e.Compacted})
	case opClient:
		if int(e.Producer) != len(h.producers) {
			return fmt.Errorf("producer %d comes where %d should", e.Producer, len(h.producers))
		}
		h.producer(ProducerInfo{e.Client, e.Topic, e.Incarnation, e.Idempotent, e.Ordered, e.Mortal})
	case opGone:
		if uint32(e.Producer) >= uint32(len(h.producers)) {
			return fmt.Errorf("no line says what producer %d is like", e.Producer)
		}
		h.producers[e.Producer].gone = e.End
	case opPublish:
		return h.applyPublish(&e, Outcome(outcome))
	case opReadBegin:
		if e.Reading != len(h.readings) {
			return fmt.Errorf("reading %d comes where %d should", e.Reading, len(h.readings))
		}
		h.reading(e.Start, id, e.Source, e.From)
	case opRead, opReadEnd:
		return h.applyRead(&e)
	case opTold:
		return h.applyTold(&e, id)
	case opSubscribe:
		order := slices.Index(orders, e.Order)
		if order < 0 {
			return fmt.Errorf("order %q is none of %q", e.Order, orders)
		}
		h.subscriber(SubscriptionInfo{e.Subscription, e.Topic, e.Incarnation, e.Partition, e.From, Order(order)})
	case opDeliver, opAck:
		return h.applyDelivery(&e, id, Outcome(outcome))
	case opFault:
		if costs := []string{CostNothing, CostUnsynced, CostUncopied}; !slices.Contains(costs, e.MayLose) {
			return fmt.Errorf("a fault may lose %q, want one of %q", e.MayLose, costs)
		}
		h.fault(fault{e.Kind, e.Start, e.End, Cost{e.MayLose, time.Duration(e.Slack)}})
	case opHeal:
		h.heal(heal{e.Start, e.Subscriptions})
	case opSync:
		h.synced(e.End, id)
	case opCopied:
		h.log(id).copied(h, copied{e.End, e.Next})
	case opCreate, opDelete, opDescribe, opList, opSettings:
		return h.applyMetadata(&e, Outcome(outcome))
	case opEnd:
	default:
		return fmt.Errorf("operation %q is not known", e.Op)
	}
	return nil
}

func (h *History) applyPublish(e *Event, outcome Outcome) error {
	if e.Value == nil || e.Value.Producer < 0 || e.Value.Seq < 0 {
		return errors.New("a publish without a value")
	}
	v := *e.Value
	if int(v.Producer) >= len(h.producers) {
		return fmt.Errorf("no line says what producer %d is like", v.Producer)
	}
	p := h.producers[v.Producer]
	if int64(v.Seq) > int64(p.count)+1<<20 {
		return fmt.Errorf("value %v comes where %d/%d should", v, p.id, p.count)
	}
	for p.count <= v.Seq {
		p.add().absent = true
	}
	pub := p.at(v.Seq)
	*pub = publish{
		start: e.Start, end: e.End, offset: e.Offset, log: p.log(e.Partition), err: h.names.id(e.Error),
		key: h.names.id(e.Key), outcome: outcome, duplicate: e.Duplicate,
	}
	h.acked(v, pub)
	return nil
}

func (h *History) openReading(id int) (*Reading, error) {
	if uint(id) >= uint(len(h.readings)) {
		return nil, fmt.Errorf("reading %d has not begun", id)
	}
	return h.readings[id], nil
}

func (h *History) applyRead(e *Event) error {
	r, err := h.openReading(e.Reading)
	switch {
	case err != nil:
		return err
	case e.Op == opReadEnd:
		r.finish(e.End, e.Next)
	case e.Value != nil:
		r.record(e.Offset, *e.Value)
	case e.Same:
		r.segment(segment{from: e.From, to: e.To, kind: segSame})
	default:
		return errors.New("a read without a value")
	}
	return nil
}

func (h *History) applyTold(e *Event, id logID) error {
	why := Told(max(slices.Index(toldKinds, e.Kind), 0))
	if why == 0 {
		return fmt.Errorf("told %q, which is none of %q", e.Kind, toldKinds[1:])
	}
	if e.Subscription == "" {
		r, err := h.openReading(e.Reading)
		if err == nil {
			r.told(why, e.From, e.To)
		}
		return err
	}
	s := h.subOf[subID{e.Subscription, id}]
	if s == nil {
		return fmt.Errorf("no line says what subscription %q of %s is like", e.Subscription, e.Topic)
	}
	s.deliver(delivery{at: e.Start, from: e.From, to: e.To, client: h.names.id(e.Client), why: why})
	return nil
}

func (h *History) applyDelivery(e *Event, id logID, outcome Outcome) error {
	s := h.subOf[subID{e.Subscription, id}]
	switch {
	case s == nil:
		return fmt.Errorf("no line says what subscription %q of %s is like", e.Subscription, e.Topic)
	case e.Op == opAck:
		s.ack(subAck{e.Offset, e.Start, e.End, h.names.id(e.Client), outcome})
	case e.Value == nil:
		return errors.New("a delivery without a value")
	default:
		s.deliver(delivery{
			at: e.Start, from: e.Offset, to: e.Offset, value: *e.Value, client: h.names.id(e.Client), key: h.names.id(e.Key),
			attempt: e.Attempt,
		})
	}
	return nil
}

func (h *History) applyMetadata(e *Event, outcome Outcome) error {
	m := &MetadataCall{
		h: h, id: e.Call, info: MetadataInfo{e.Client, e.Op, e.Topic, e.Settings, e.Local}, start: e.Start, end: e.End, outcome: outcome,
		result: MetadataResult{e.Exists, e.Incarnation, "", e.Topics, e.Revision, e.Error},
	}
	if e.Op == opDescribe {
		m.info.Settings, m.result.Settings = "", e.Settings
	}
	if e.Call == len(h.meta) {
		h.meta = append(h.meta, m)
		return nil
	}
	if uint(e.Call) > uint(len(h.meta)) {
		return fmt.Errorf("call %d comes where %d should", e.Call, len(h.meta))
	}
	h.meta[e.Call] = m // it began on an earlier line
	return nil
}
