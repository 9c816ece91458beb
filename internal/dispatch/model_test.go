package dispatch

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// The model knows each message by itself, and looks at all of them all the time. It does not say what the dispatcher
// must do, but whether what it did was right, and whether it left out anything that it had to do.

type msgState int

const (
	msgNew msgState = iota
	msgLeased
	msgWaiting
	msgAgain  // to be handed out again
	msgDoomed // the policy must have it now
	msgPoison // on the way to the dead letters
	msgStuck
	msgSettled
)

type msg struct {
	off    int64
	key    string
	due    int64
	state  msgState
	count  int32
	holder ConsumerID
	since  time.Duration
	again  time.Duration
	saved  bool // from another life: nobody knows when it is read
}

const msgSize = 10

type modelConsumer struct {
	id    ConsumerID
	m     Member
	beat  time.Duration
	asked int64
}

type model struct {
	cfg       Config
	s         *shell
	now       Now
	msgs      []*msg // by offset
	position  int64
	consumers []*modelConsumer // by age
	active    ConsumerID
	failed    int64
	ignored   int64
	err       error

	delivered, redelivered, poisoned, expired int
}

func (m *model) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

func (m *model) open() []*msg { return m.msgs[min(m.position, int64(len(m.msgs))):] }

func (m *model) consumer(id ConsumerID) *modelConsumer {
	for _, c := range m.consumers {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (m *model) settle(x *msg) {
	x.state = msgSettled
	for m.position < int64(len(m.msgs)) && m.msgs[m.position].state == msgSettled {
		m.position++
	}
}

func (m *model) ready(x *msg) {
	x.state, x.holder = msgAgain, 0
	if m.cfg.MaxDeliveries > 0 && x.count >= m.cfg.MaxDeliveries {
		x.state = msgDoomed
	}
}

func (m *model) wait(x *msg, delay time.Duration) {
	if delay <= 0 {
		m.ready(x)
		return
	}
	x.state, x.holder, x.again = msgWaiting, 0, m.now.Mono+delay
}

func (m *model) backoff(count int32) time.Duration {
	wait := m.cfg.Backoff.Base
	if m.cfg.Backoff.Exponential {
		wait <<= max(count-1, 0)
	}
	return min(wait, m.cfg.Backoff.Max)
}

// elapse is what the time brings before the event.
func (m *model) elapse(now Now) {
	m.now = now
	for _, x := range m.open() {
		if x.state == msgWaiting && x.again <= now.Mono {
			m.ready(x)
		}
	}
	if m.cfg.AckTimeout <= 0 {
		return
	}
	for _, x := range m.open() {
		if x.state == msgLeased && max(x.since, m.consumer(x.holder).beat)+m.cfg.AckTimeout <= now.Mono {
			m.expired++
			m.wait(x, m.backoff(x.count))
		}
	}
}

func (m *model) event(e *Event) {
	switch e.Kind {
	case Join:
		m.join(e)
	case Leave:
		m.leave(e.Consumer)
	case Ask, Unask:
		if c := m.consumer(e.Consumer); c != nil {
			c.asked = 0
			if e.Kind == Ask {
				c.asked = max(e.Bytes, 1)
			}
		}
	case Heartbeat:
		if c := m.consumer(e.Consumer); c != nil {
			c.beat = m.now.Mono
		}
	case Ack:
		for _, r := range e.Ranges {
			m.ignored += max(r.To-max(r.From, 0)+1, 0) - m.ack(r.From, r.To)
		}
	case AckBelow:
		m.ack(0, e.Offset-1)
	case Nack:
		m.each(e.Ranges, msgLeased, func(x *msg) {
			if e.Consumer == 0 || e.Consumer == x.holder {
				delay := e.Delay
				if delay < 0 {
					delay = m.backoff(x.count)
				}
				m.wait(x, delay)
			}
		})
	case Poisoned:
		m.each(e.Ranges, msgPoison, func(x *msg) {
			if e.Failed {
				m.wait(x, cmp.Or(m.backoff(max(x.count, 1)), time.Second))
			} else {
				m.settle(x)
			}
		})
	case Seek:
		m.seek(e.Offset)
	case Lost:
		for _, r := range e.Ranges {
			for off := max(r.From, 0); off <= r.To && off < int64(len(m.msgs)); off++ {
				m.settle(m.msgs[off])
			}
		}
	case Trimmed:
		m.trimmed(e.Offset)
	case Reconfigure:
		m.cfg = *e.Config
		if m.failed >= 0 {
			m.trimmed(m.failed)
		}
		for _, x := range m.open() {
			if x.state == msgStuck {
				m.ready(x)
			}
		}
		m.elapse(m.now)
	}
}

func (m *model) each(ranges []cursor.Range, state msgState, visit func(*msg)) {
	for _, r := range ranges {
		for off := max(r.From, 0); off <= r.To && off < int64(len(m.msgs)); off++ {
			if x := m.msgs[off]; x.state == state && off >= m.position {
				visit(x)
			}
		}
	}
}

func (m *model) ack(from, to int64) (settled int64) {
	for off := max(from, 0); off <= to && off < int64(len(m.msgs)); off++ {
		if x := m.msgs[off]; x.count > 0 && x.state != msgSettled {
			settled++
			m.settle(x)
		}
	}
	return settled
}

func (m *model) seek(off int64) {
	m.failed = -1
	for _, x := range m.msgs {
		x.state, x.count, x.holder, x.saved = msgNew, 0, 0, false
		if x.off < off {
			x.state = msgSettled
		}
	}
	m.position = off
}

func (m *model) trimmed(oldest int64) {
	if oldest <= m.position {
		return
	}
	if !m.cfg.SkipTrimmed {
		m.failed = max(m.failed, oldest)
		return
	}
	m.failed = -1
	for _, x := range m.msgs[:oldest] {
		m.settle(x)
	}
}

func (m *model) join(e *Event) {
	for _, c := range m.consumers {
		if c.m.Name == e.Member.Name {
			m.leave(c.id)
			break
		}
	}
	if m.cfg.Type == Exclusive && len(m.consumers) > 0 {
		return
	}
	m.consumers = append(m.consumers, &modelConsumer{id: e.Consumer, m: e.Member, beat: m.now.Mono})
	m.elect()
}

func (m *model) leave(id ConsumerID) {
	m.consumers = slices.DeleteFunc(m.consumers, func(c *modelConsumer) bool { return c.id == id })
	m.takeBack(id)
	m.elect()
}

func (m *model) takeBack(id ConsumerID) {
	for _, x := range m.open() {
		if x.state == msgLeased && x.holder == id {
			m.ready(x)
		}
	}
}

func (m *model) elect() {
	if m.cfg.Type != Failover {
		return
	}
	best := ConsumerID(0)
	if len(m.consumers) > 0 {
		best = slices.MinFunc(m.consumers, func(a, b *modelConsumer) int {
			return cmp.Or(cmp.Compare(a.m.Priority, b.m.Priority), cmp.Compare(a.m.Name, b.m.Name))
		}).id
	}
	if best != m.active {
		if m.consumer(m.active) != nil {
			m.takeBack(m.active)
		}
		m.active = best
	}
}

// restart is a new life: it knows what Counts said.
func (m *model) restart() {
	m.consumers, m.active, m.failed, m.ignored = nil, 0, -1, 0
	for _, x := range m.open() {
		switch {
		case x.state == msgSettled || x.state == msgNew:
		case x.count > 1 || x.count == 1 && x.state != msgLeased:
			x.state, x.holder, x.saved = msgAgain, 0, true
		default:
			x.state, x.holder, x.count = msgNew, 0, 0
		}
	}
}

// stopped reports whether nothing may be handed out.
func (m *model) stopped() bool {
	return m.failed >= 0 || slices.ContainsFunc(m.open(), func(x *msg) bool { return x.state == msgStuck })
}

// poison takes an effect of the policy.
func (m *model) poison(f *Effect, policy Poison) {
	if m.cfg.AtMostOnce || policy != m.cfg.Poison {
		m.fail("%s: not the policy", effectText(*f))
	}
	for off := f.From; off <= f.To; off++ {
		x := m.msgs[off]
		late := x.saved && x.state == msgAgain && m.cfg.MaxDeliveries > 0 && x.count >= m.cfg.MaxDeliveries
		if x.state != msgDoomed && !late && (x.state != msgStuck || policy != Block) || x.count != f.Count {
			m.fail("%s: %+v", effectText(*f), *x)
		}
		m.poisoned++
		switch policy {
		case DeadLetter:
			x.state = msgPoison
		case Drop:
			m.settle(x)
		case Block:
			x.state = msgStuck
		}
	}
}

func (m *model) effect(f *Effect) {
	switch f.Kind {
	case Deliver:
		m.deliver(f)
	case ToDeadLetter:
		m.poison(f, DeadLetter)
	case Dropped:
		m.poison(f, Drop)
	case Blocked:
		m.poison(f, Block)
	case Passed:
		m.fail("%s: all is kept here", effectText(*f))
	case Active:
		if f.Consumer != m.active {
			m.fail("active is %d, not %d", f.Consumer, m.active)
		}
	case Refused:
		if m.cfg.Type != Exclusive || m.consumer(f.Consumer) != nil {
			m.fail("refused %d", f.Consumer)
		}
	case Evicted:
		if m.consumer(f.Consumer) != nil {
			m.fail("evicted %d", f.Consumer)
		}
	}
}

// hidden reports whether a message is not due.
func (m *model) hidden(x *msg) bool {
	return (m.cfg.Type == Shared || m.cfg.Type == KeyShared) && x.count == 0 && x.due > m.now.WallMs
}

func (m *model) holds(id ConsumerID) (n int64) {
	for _, x := range m.open() {
		if x.state == msgLeased && x.holder == id {
			n++
		}
	}
	return n
}

// unsettled counts what was handed out and is not settled, where asked with what an earlier life handed out.
func (m *model) unsettled(earlier bool) (n int64) {
	for _, x := range m.open() {
		if x.count > 0 && x.state != msgSettled && (earlier || !x.saved) {
			n++
		}
	}
	return n
}

// may says why a message may not be handed to a consumer, or "", and with must, whether it has to be.
func (m *model) may(x *msg, c *modelConsumer, must bool) string {
	switch {
	case x.state != msgNew && x.state != msgAgain:
		return "of its state"
	case m.hidden(x):
		return "it is not due"
	case (x.count == 0 || x.saved && must) && x.off-m.position >= m.cfg.MaxSpan:
		return "of the span"
	case m.cfg.Type == Failover && c.id != m.active:
		return "the consumer stands by"
	case m.cfg.Type != KeyShared || x.key == "":
		return ""
	}
	if k := m.s.d.keys.byHash[hashKey(x.key)]; k == nil {
		return "its key is not known"
	} else if owner, _ := m.s.d.keys.find(k, m.s.d.members.filter > 0, msgSize); owner == nil || owner.id != c.id {
		return "its key is not the consumer's"
	}
	matches := len(c.m.Filters) == 0
	for _, glob := range c.m.Filters {
		ok, _ := path.Match(glob, x.key)
		matches = matches || ok
	}
	if !matches {
		return "the key does not match"
	}
	inFlight := 0
	for _, o := range m.open() {
		switch {
		case o.key != x.key || o == x:
		case o.state == msgLeased && o.holder != c.id:
			return "another one has the key"
		case o.state == msgLeased:
			inFlight++
		case o.off > x.off || o.state == msgSettled:
		case o.state != msgNew:
			return "an earlier one of the key comes again"
		case o.due == 0 && x.count == 0:
			return "an earlier one of the key is not handed out"
		}
	}
	if m.cfg.KeyInFlight > 0 && inFlight >= m.cfg.KeyInFlight {
		return "of the key's bound"
	}
	return ""
}

func (m *model) deliver(f *Effect) {
	c := m.consumer(f.Consumer)
	if c == nil || c.asked == 0 || m.stopped() {
		m.fail("%s: it does not ask, or all is stopped", effectText(*f))
		return
	}
	held, fresh, n, last := m.holds(c.id), false, int64(0), int64(-1)
	for _, s := range f.Spans {
		if s.From <= last || s.Bytes != msgSize*(s.To-s.From+1) {
			m.fail("%s: span %+v", effectText(*f), s)
		}
		last = s.To
		for off := s.From; off <= s.To; off++ {
			n++
			x := m.msgs[off]
			if s.Count != x.count+1 {
				m.fail("%s: %+v", effectText(*f), *x)
			}
			fresh = fresh || x.count == 0
		}
	}
	// Keys are checked in the order of offsets; keyless ones may be handed out in any.
	for _, s := range f.Spans {
		for off := s.From; off <= s.To; off++ {
			x := m.msgs[off]
			if why := m.may(x, c, false); why != "" && why != "its key is not known" {
				m.fail("%s: not %+v, because %s", effectText(*f), *x, why)
			}
			m.lease(x, c)
		}
	}
	if fresh && m.cfg.Type != KeyShared {
		m.inOrder(f)
	}
	w := c.m.Window
	if w.Messages == 0 {
		w.Messages = m.cfg.Consumer.Messages
	}
	if !m.cfg.AtMostOnce && (held+n > int64(w.Messages) || (held+n)*msgSize > m.cfg.Consumer.Bytes && held+n > 1) {
		m.fail("%s: the consumer had %d", effectText(*f), held)
	}
	if total := m.unsettled(false); fresh && !m.cfg.AtMostOnce && (total > int64(m.cfg.Total.Messages) || total*msgSize > m.cfg.Total.Bytes && total > 1) {
		m.fail("%s: now %d are not settled", effectText(*f), total)
	}
	if n*msgSize > c.asked && n > 1 {
		m.fail("%s: it asked for %d bytes", effectText(*f), c.asked)
	}
	c.asked = 0
}

func (m *model) lease(x *msg, c *modelConsumer) {
	m.delivered++
	if x.count > 0 {
		m.redelivered++
	}
	x.count++
	x.saved = false
	x.state, x.holder, x.since = msgLeased, c.id, m.now.Mono
	if m.cfg.AtMostOnce {
		m.settle(x)
	}
}

// inOrder: what is handed out again goes first, and what is new goes in order.
func (m *model) inOrder(f *Effect) {
	high := f.Spans[len(f.Spans)-1]
	for _, x := range m.open() {
		if x.state == msgAgain && !x.saved || x.state == msgNew && x.due == 0 && x.off < high.To && high.Count == 1 {
			m.fail("%s: before %+v", effectText(*f), *x)
		}
	}
}

// rest checks what is left when all is done that a step brought.
func (m *model) rest() {
	stopped := m.stopped()
	leased := int64(0)
	for _, x := range m.open() {
		if x.state == msgDoomed && !stopped {
			m.fail("the policy did not have %+v", *x)
		}
		if x.state == msgDoomed { // all that comes while it is blocked
			x.state = msgStuck
		}
		if x.state == msgLeased {
			leased++
		}
		if m.s.d.set.Has(x.off) != (x.state == msgSettled) {
			m.fail("settled %v: %+v", m.s.d.set.Has(x.off), *x)
		}
	}
	st := m.s.d.Stats()
	if st.InFlightMessages != leased || st.InFlightBytes != leased*msgSize || st.Ignored != m.ignored || m.s.d.set.Position() != m.position {
		m.fail("%+v, position %d; expected %d in flight, %d ignored, position %d", st, m.s.d.set.Position(), leased, m.ignored, m.position)
	}
	if stopped {
		return
	}
	unsettled := m.unsettled(true)
	for _, c := range m.consumers {
		w := c.m.Window
		if w.Messages == 0 {
			w.Messages = m.cfg.Consumer.Messages
		}
		held := m.holds(c.id)
		if c.asked == 0 || held >= int64(w.Messages) || (held+1)*msgSize > m.cfg.Consumer.Bytes && held > 0 {
			continue
		}
		full := unsettled >= int64(m.cfg.Total.Messages) || (unsettled+1)*msgSize > m.cfg.Total.Bytes && unsettled > 0
		for _, x := range m.open() {
			if (x.count > 0 || !full) && m.may(x, c, true) == "" {
				m.fail("consumer %d asks and holds %d, and is not given %+v", c.id, held, *x)
			}
		}
	}
}
