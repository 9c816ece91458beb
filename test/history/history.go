package history

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Outcome is what a client knows about what it asked for.
type Outcome uint8

// The outcomes. What is pending or unknown may have happened, and may yet.
const (
	Pending Outcome = iota
	OK
	Fail // certainly not done
	Unknown
)

var outcomes = []string{"", "ok", "fail", "unknown"}

// String returns an outcome's name.
func (o Outcome) String() string {
	if o == Pending {
		return "pending"
	}
	return outcomes[o]
}

// Value names one record: whose it is, and its place among that producer's. No two publishes have the same.
type Value struct {
	Producer int32
	Seq      int32
}

// String returns producer/seq.
func (v Value) String() string {
	return strconv.Itoa(int(v.Producer)) + "/" + strconv.Itoa(int(v.Seq))
}

// UnmarshalText takes producer/seq.
func (v *Value) UnmarshalText(text []byte) error {
	producer, seq, _ := strings.Cut(string(text), "/")
	p, err := strconv.ParseInt(producer, 10, 32)
	if err != nil {
		return fmt.Errorf("value %q is not producer/seq", text)
	}
	s, err := strconv.ParseInt(seq, 10, 32)
	if err != nil {
		return fmt.Errorf("value %q is not producer/seq", text)
	}
	*v = Value{int32(p), int32(s)}
	return nil
}

// The ways in which a topic's records get onto the device.
const (
	FsyncOnCommit = "on_commit" // before they are acknowledged
	FsyncPeriodic = "periodic"  // within an interval
	FsyncNone     = "none"      // when the operating system likes
)

// TopicInfo says what a topic is like. A later one for the same topic and incarnation replaces it from then on.
type TopicInfo struct {
	Topic       string
	Incarnation uint64
	Fsync       string        // one of the Fsync constants; empty is FsyncOnCommit
	Interval    time.Duration // of FsyncPeriodic: how long a record may wait, and its flush may take
	Retention   bool          // old records may be removed
	Compacted   bool          // records may be removed between others
}

// ProducerInfo says what a producer is like.
type ProducerInfo struct {
	Client      string
	Topic       string
	Incarnation uint64
	Idempotent  bool // re-sent records are recognised: each stands once, and in order
	Ordered     bool // one batch under way at a time: order holds without idempotence, too
	Mortal      bool // it may die at any time, with publishes under way that nobody will ever answer
}

// publish is one record as its client saw it. There are millions: it stays small.
type publish struct {
	start, end int64
	offset     int64
	log        int32 // index in History.logs; -1: not known yet, whoever answers says where it went
	err        uint32
	key        uint32
	outcome    Outcome
	duplicate  bool
	absent     bool  // a place in the order that no line of the file filled
	copies     uint8 // scratch of a check: at how many offsets it was read
}

// until is when a publish can no longer be re-sent by its client.
func (p *publish) until(gone int64) int64 {
	if p.outcome == Pending {
		return gone
	}
	return p.end
}

// Producer is one producer from its opening to its end.
type Producer struct {
	h      *History
	id     int32
	info   ProducerInfo
	logs   []int32 // by partition; -1: not used yet
	chunks [][]publish
	count  int32
	gone   int64 // when it died; forever while it has not
}

// ID is the first half of the producer's values.
func (p *Producer) ID() int32 { return p.id }

// stream is one incarnation of a topic.
type stream struct {
	topic       string
	incarnation uint64
	infos       []topicAt
}

type topicAt struct {
	at   int64
	info TopicInfo
}

// info returns what was true of the topic at a time.
func (s *stream) info(at int64) TopicInfo {
	info := TopicInfo{Fsync: FsyncOnCommit}
	for i, t := range s.infos {
		if i == 0 || t.at <= at {
			info = t.info
		}
	}
	return info
}

// ever reports whether something was ever true of the topic.
func (s *stream) ever(is func(TopicInfo) bool) bool {
	for _, t := range s.infos {
		if is(t.info) {
			return true
		}
	}
	return false
}

// logID names one partition of one incarnation of a topic.
type logID struct {
	topic       string
	incarnation uint64
	partition   int32
}

// oddity is a value at an offset that has another one.
type oddity struct {
	offset int64
	value  Value
	who    string
}

// log is all that was seen of one partition.
type log struct {
	id       logID
	index    int32
	stream   *stream
	read     table // what was first read at an offset
	acked    table // what was first acknowledged at an offset
	odd      []oddity
	readings []*Reading
	subs     []*Subscriber
	syncs    []int64
	copies   []copied
}

// copied is what was known at a time to have a copy that outlives the log: all offsets below next.
type copied struct{ at, next int64 }

// String names a log in a sentence.
func (l *log) String() string {
	return fmt.Sprintf("%s@%d partition %d", l.id.topic, l.id.incarnation, l.id.partition)
}

// see notes that a value was read at an offset.
func (l *log) see(offset int64, v Value, who fmt.Stringer) (first, same bool) {
	has, first := l.read.put(offset, v)
	if has != v {
		l.odd = append(l.odd, oddity{offset, v, who.String()})
		return false, false
	}
	return first, true
}

// What a fault may cost.
const (
	CostNothing  = ""         // all that was acknowledged is there afterwards
	CostUnsynced = "unsynced" // as after a power cut: what was not on the device yet, as each topic's fsync mode allows
	CostUncopied = "uncopied" // as when the log's disk is gone: what had no copy elsewhere that was known of (see Copied)
)

// Cost says what a fault may cost.
type Cost struct {
	MayLose string        // one of the Cost constants
	Slack   time.Duration // with CostUnsynced: how much longer than its interval a periodic flush may have taken
}

// fault is one thing that was done to the system, from before it began until after it had its effect.
type fault struct {
	kind       string
	start, end int64
	cost       Cost
}

// heal is a moment from which on nothing is broken.
type heal struct {
	at            int64
	subscriptions []string
}

// History is what happened, as seen from outside. It is safe for concurrent use, and so is all it hands out, except that
// one Reading belongs to one goroutine.
type History struct {
	began time.Time

	mu        sync.Mutex
	saved     bool  // read from a file: time stands still at last; guarded by mu, like all that follows
	last      int64 // the latest time in it
	names     names
	streams   map[string][]*stream // by topic
	logs      []*log
	logOf     map[logID]int32
	producers []*Producer
	readings  []*Reading
	subs      []*Subscriber
	subOf     map[subID]*Subscriber
	faults    []fault
	heals     []heal
	meta      []*MetadataCall
	out       *recorder
}

// names numbers strings that come again and again. Number 0 is the empty one.
type names struct {
	list []string
	of   map[string]uint32
}

func (n *names) id(s string) uint32 {
	if s == "" {
		return 0
	}
	id, ok := n.of[s]
	if !ok {
		id = uint32(len(n.list))
		n.list = append(n.list, s)
		n.of[s] = id
	}
	return id
}

// New returns an empty history that begins now.
func New() *History {
	return &History{
		began: time.Now(), names: names{list: []string{""}, of: map[string]uint32{}}, streams: map[string][]*stream{},
		logOf: map[logID]int32{}, subOf: map[subID]*Subscriber{},
	}
}

// Now returns the time since the history began.
func (h *History) Now() time.Duration {
	return time.Since(h.began)
}

func (h *History) now() int64 { return int64(h.Now()) }

// stream returns what is known of a topic's incarnation.
func (h *History) stream(topic string, incarnation uint64) *stream {
	for _, s := range h.streams[topic] {
		if s.incarnation == incarnation {
			return s
		}
	}
	s := &stream{topic: topic, incarnation: incarnation}
	h.streams[topic] = append(h.streams[topic], s)
	return s
}

// all returns all streams, in order of their topics.
func (h *History) all() (all []*stream) {
	for _, topic := range sortedKeys(h.streams) {
		all = append(all, h.streams[topic]...)
	}
	return all
}

// log returns a partition's log.
func (h *History) log(id logID) *log {
	i, ok := h.logOf[id]
	if !ok {
		i = int32(len(h.logs))
		h.logOf[id] = i
		h.logs = append(h.logs, &log{id: id, index: i, stream: h.stream(id.topic, id.incarnation)})
	}
	return h.logs[i]
}

// publish returns a value's publish, or nil when nobody published it.
func (h *History) publish(v Value) *publish {
	if uint32(v.Producer) >= uint32(len(h.producers)) {
		return nil
	}
	p := h.producers[v.Producer]
	if uint32(v.Seq) >= uint32(p.count) {
		return nil
	}
	if pub := p.at(v.Seq); !pub.absent {
		return pub
	}
	return nil
}

func (p *Producer) at(seq int32) *publish { return &p.chunks[seq>>chunkBits][seq&(chunkSize-1)] }

// each calls fn for each publish of a producer, in order.
func (p *Producer) each(fn func(Value, *publish)) {
	v := Value{Producer: p.id}
	for _, c := range p.chunks {
		for i := range c {
			if !c[i].absent {
				fn(v, &c[i])
			}
			v.Seq++
		}
	}
}

// Topic says what a topic is like from now on.
func (h *History) Topic(info TopicInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.topic(h.now(), info)
}

func (h *History) topic(at int64, info TopicInfo) {
	if info.Fsync == "" {
		info.Fsync = FsyncOnCommit
	}
	s := h.stream(info.Topic, info.Incarnation)
	s.infos = append(s.infos, topicAt{at, info})
	h.note(at)
	h.emit(topicEvent(topicAt{at, info}))
}

// Producer adds a producer.
func (h *History) Producer(info ProducerInfo) *Producer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.producer(info)
}

func (h *History) producer(info ProducerInfo) *Producer {
	p := &Producer{h: h, id: int32(len(h.producers)), info: info, gone: forever}
	h.producers = append(h.producers, p)
	h.emit(p.event())
	return p
}

// Begin notes that the producer is about to publish its next record to a partition, and names it. Partition -1 says that
// the broker will choose: call Placed before End.
func (p *Producer) Begin(partition int32) Value {
	return p.begin(partition, nil, "")
}

// BeginFunc is Begin where the partition follows from the value. fn must not call the history.
func (p *Producer) BeginFunc(fn func(Value) int32) Value { return p.begin(0, fn, "") }

// BeginKey is Begin for a record with a key.
func (p *Producer) BeginKey(partition int32, key string) Value { return p.begin(partition, nil, key) }

func (p *Producer) begin(partition int32, fn func(Value) int32, key string) Value {
	h := p.h
	start := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	v := Value{p.id, p.count}
	if fn != nil {
		partition = fn(v)
	}
	pub := p.add()
	*pub = publish{start: start, log: p.log(partition), key: h.names.id(key)}
	if h.out != nil {
		h.emit(h.publishEvent(v, pub))
	}
	return v
}

// add makes room for the next publish.
func (p *Producer) add() *publish {
	last := len(p.chunks) - 1
	if last < 0 || len(p.chunks[last]) == chunkSize {
		p.chunks = append(p.chunks, nil)
		last++
	}
	p.chunks[last] = append(p.chunks[last], publish{})
	p.count++
	return &p.chunks[last][len(p.chunks[last])-1]
}

// log returns the index of a partition's log.
func (p *Producer) log(partition int32) int32 {
	if partition < 0 {
		return -1
	}
	if int(partition) < len(p.logs) && p.logs[partition] >= 0 {
		return p.logs[partition]
	}
	l := p.h.log(logID{p.info.Topic, p.info.Incarnation, partition}).index
	if partition < 1<<16 { // a wild number must not cost memory
		for len(p.logs) <= int(partition) {
			p.logs = append(p.logs, -1)
		}
		p.logs[partition] = l
	}
	return l
}

// Gone notes that the producer's process has died: what has no answer by now will never have one, and is not re-sent.
func (p *Producer) Gone() {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.gone = p.h.now()
	p.h.emit(p.goneEvent())
}

// Placed says to which partition the broker put a value that was begun with partition -1.
func (h *History) Placed(v Value, partition int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if pub := h.publish(v); pub != nil {
		pub.log = h.producers[v.Producer].log(partition)
	}
}

// End notes what became of a publish. offset matters with OK only; -1 says that the broker did not know it any more.
// duplicate says that the broker had the record already.
func (h *History) End(v Value, outcome Outcome, offset int64, duplicate bool, err error) {
	end := h.now()
	text := ""
	if err != nil {
		text = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	pub := h.publish(v)
	if pub == nil {
		panic(fmt.Sprintf("history: the end of %v, which never began", v))
	}
	pub.outcome, pub.offset, pub.duplicate, pub.end, pub.err = outcome, offset, duplicate, end, h.names.id(text)
	h.acked(v, pub)
	if h.out != nil {
		h.emit(h.publishEvent(v, pub))
	}
}

// acked enters an acknowledgement into its log.
func (h *History) acked(v Value, pub *publish) {
	if pub.outcome == OK && pub.offset >= 0 && pub.log >= 0 {
		h.logs[pub.log].acked.put(pub.offset, v)
	}
}

// Fault notes a fault that began at start, has had its effect by now, and may cost something.
func (h *History) Fault(kind string, start time.Duration, cost Cost) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault(fault{kind, int64(start), h.now(), cost})
}

func (h *History) fault(f fault) {
	h.faults = append(h.faults, f)
	h.note(f.end)
	h.emit(f.event())
}

// Heal notes that from now on nothing is broken, and names the subscriptions that have records waiting and room to take
// them: they must be delivered to soon, as every publish must succeed soon.
func (h *History) Heal(subscriptions ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heal(heal{h.now(), subscriptions})
}

func (h *History) heal(e heal) {
	h.heals = append(h.heals, e)
	h.note(e.at)
	h.emit(e.event())
}

// Synced notes that all that a partition has acknowledged by now is known to be on the device.
func (h *History) Synced(topic string, incarnation uint64, partition int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced(h.now(), logID{topic, incarnation, partition})
}

func (h *History) synced(at int64, id logID) {
	l := h.log(id)
	l.syncs = append(l.syncs, at)
	h.note(at)
	h.emit(l.syncEvent(at))
}

// Copied notes that all offsets of a partition below next are known by now to have a copy that outlives the log.
func (h *History) Copied(topic string, incarnation uint64, partition int32, next int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log(logID{topic, incarnation, partition}).copied(h, copied{h.now(), next})
}

func (l *log) copied(h *History, c copied) {
	l.copies = append(l.copies, c)
	h.note(c.at)
	h.emit(l.copiedEvent(c))
}

// note remembers the latest time in the history.
func (h *History) note(at int64) { h.last = max(h.last, at) }
