package subscription

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log is a log in memory, with errors where a test wants them.
type log struct {
	t *testing.T

	mu      sync.Mutex // guards everything below
	batches [][]byte
	end     int64
	oldest  int64
	changed chan struct{}
	open    int               // sources
	opened  int               // ever
	reads   int               // ever
	openErr func(n int) error // of the nth
	readErr func(from int64) error
	held    chan struct{} // a read waits until it is closed; nil: none does
	passing bool          // a source begins where the log ends when it is opened, and reads nothing twice
}

// add appends a batch of values; keys and headers come from opts.
func (l *log) add(codec record.Codec, values ...string) {
	recs := make([]record.Record, len(values))
	for i, v := range values {
		recs[i] = record.Record{Value: []byte(v), Timestamp: 1}
		if key, _, ok := strings.Cut(v, "/"); ok {
			recs[i].Key = []byte(key)
		}
	}
	l.append(codec, recs...)
}

func (l *log) append(codec record.Codec, recs ...record.Record) {
	b := record.NewBuilder(codec)
	for _, rec := range recs {
		if err := b.Append(rec); err != nil {
			panic(err)
		}
	}
	batch, err := b.Build(record.NoProducer)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	record.SetPlacement(batch, l.end, 1)
	l.batches = append(l.batches, batch)
	l.end += int64(len(recs))
	close(l.changed)
	l.changed = make(chan struct{})
}

// value returns what stands at an offset.
func (l *log) value(offset int64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.batches {
		if info, _ := record.ParseHeader(b); offset >= info.BaseOffset && offset <= info.LastOffset() {
			recs, err := record.Records(b)
			if err != nil {
				panic(err)
			}
			return string(recs[offset-info.BaseOffset].Value)
		}
	}
	return ""
}

// set changes what the log does.
func (l *log) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *log) source(context.Context) (Source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened++
	if l.openErr != nil {
		if err := l.openErr(l.opened); err != nil {
			return nil, err
		}
	}
	l.open++
	return &source{l: l, at: l.end}, nil
}

type source struct {
	l      *log
	at     int64
	closed bool
}

func (s *source) Read(_ context.Context, from int64, maxBytes, maxRecords int, memory func(int) []byte) (seglog.Chunk, error) {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.held; held != nil {
		l.mu.Unlock()
		<-held
		l.mu.Lock()
	}
	l.reads++
	if l.passing {
		from, s.at = s.at, l.end
	}
	if l.readErr != nil {
		if err := l.readErr(from); err != nil {
			return seglog.Chunk{}, err
		}
	}
	if from < l.oldest {
		return seglog.Chunk{}, &seglog.TrimmedError{Topic: "default/a", Requested: from, Oldest: l.oldest}
	}
	var found [][]byte
	c := seglog.Chunk{First: from, Next: from, End: l.end}
	size := 0
	for _, b := range l.batches {
		info, _ := record.ParseHeader(b)
		if info.LastOffset() < from {
			continue
		}
		if len(found) > 0 && (size+len(b) > maxBytes || c.Records+int(info.Count) > maxRecords) {
			break
		}
		if len(found) == 0 {
			c.First = info.BaseOffset
		}
		found = append(found, b)
		size += len(b)
		c.Records += int(info.Count)
		c.Next = info.LastOffset() + 1
	}
	if len(found) == 0 {
		return c, nil
	}
	c.Data = memory(max(size, pooledLeast))
	whole := c.Data[:cap(c.Data)]
	for i := range whole {
		whole[i] = 0xee // whoever still reads what was here before notices
	}
	c.Data = c.Data[:0]
	for _, b := range found {
		c.Data = append(c.Data, b...)
	}
	return c, nil
}

func (s *source) Changed() <-chan struct{} {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return s.l.changed
}

func (s *source) Close() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.closed {
		s.l.t.Error("a source is closed twice")
	}
	s.closed = true
	s.l.open--
}

// store keeps what cursors were saved, and fails where it is told to.
type store struct {
	meta.Store
	mu    sync.Mutex
	saves []meta.CursorSave // guarded by mu
	fail  error             // guarded by mu
	held  chan struct{}     // guarded by mu; a save waits until it is closed
}

func (s *store) Propose(_ context.Context, c meta.Command) (meta.Result, error) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return meta.Result{}, s.fail
	}
	s.saves = append(s.saves, c.(meta.SaveCursors).Cursors...)
	return meta.Result{}, nil
}

func (s *store) set(fail error, held chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.held = fail, held
}

// last returns what was saved last.
func (s *store) last() (c meta.CursorSave, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = len(s.saves); n > 0 {
		c = s.saves[n-1]
	}
	return c, n
}

// bench is a Run with everything it needs.
type bench struct {
	t     *testing.T
	log   *log
	store *store
	tasks *task.Group
	cfg   *Config
	run   *Run

	mu      sync.Mutex
	letters []Letter           // guarded by mu
	bury    func(Letter) error // guarded by mu; nil: it works
}

// with runs a test of a Run in a bubble.
func with(t *testing.T, c dispatch.Config, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, c, 1)
		defer b.end()
		test(b)
	})
}

func newBench(t *testing.T, c dispatch.Config, created uint64) *bench {
	b := &bench{t: t, log: &log{t: t, changed: make(chan struct{})}, store: &store{}, tasks: task.NewGroup(context.Background())}
	b.cfg = &Config{
		Saver: cursor.NewSaver(b.store, time.Second, nil, nil), Tasks: b.tasks, Metrics: NewMetrics(nil), Now: time.Now, ReadBytes: pooledLeast,
		Bury: func(_ context.Context, l Letter) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.bury != nil {
				if err := b.bury(l); err != nil {
					return err
				}
			}
			b.letters = append(b.letters, l)
			return nil
		},
	}
	b.tasks.Go("saver", b.cfg.Saver.Run)
	spec := Spec{Key: Key{Name: "s"}, Topic: "default/a", Created: created, Epoch: created, Dispatch: c}
	run, err := New(b.cfg, spec, b.log.source)
	if err != nil {
		t.Fatal(err)
	}
	b.run = run
	return b
}

// end ends everything, and sees that nothing is left.
func (b *bench) end() {
	b.t.Helper()
	b.run.End(fault.New(fault.Unavailable, "over"))
	b.tasks.Stop()
	if err := b.tasks.Wait(); err != nil {
		b.t.Error(err)
	}
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	if b.log.open != 0 {
		b.t.Errorf("%d sources are still open", b.log.open)
	}
}

func (b *bench) join(m Member) *Consumer {
	b.t.Helper()
	c, err := b.run.Join(b.t.Context(), m)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// read checks an event and returns what was handed out, as "offset=value" or "offset=value*count".
func (b *bench) read(e Event) string {
	var list []string
	at := 0
	for rest := e.Batches; len(rest) > 0; {
		batch, more, err := record.Next(rest)
		if err == nil {
			_, err = record.Check(batch)
		}
		if err != nil {
			b.t.Errorf("what was handed out cannot be read: %v", err)
			return ""
		}
		rest = more
		recs, err := record.Records(batch)
		if err != nil {
			b.t.Error(err)
			return ""
		}
		for i := range recs {
			for at < len(e.Offsets) && e.Offsets[at].To < recs[i].Offset {
				at++
			}
			if at == len(e.Offsets) || recs[i].Offset < e.Offsets[at].From {
				continue // somebody else's
			}
			s := fmt.Sprintf("%d=%s", recs[i].Offset, recs[i].Value)
			if want := b.log.value(recs[i].Offset); want != string(recs[i].Value) {
				b.t.Errorf("%s, published was %s", s, want)
			}
			for _, c := range e.Counts {
				if recs[i].Offset >= c.From && recs[i].Offset <= c.To {
					s += fmt.Sprintf("*%d", c.Deliveries)
				}
			}
			list = append(list, s)
		}
	}
	if len(list) != e.Records {
		b.t.Errorf("%d records in %v instead of %d: %v", len(list), e.Offsets, e.Records, list)
	}
	return strings.Join(list, " ")
}

// next returns the data that comes next.
func (b *bench) next(c *Consumer) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Hour)
	defer cancel()
	for {
		e, err := c.Next(ctx, 1<<20)
		if err != nil {
			b.t.Fatal(err)
		}
		if e.Kind == Data {
			return b.read(e)
		}
	}
}

func (b *bench) want(c *Consumer, want string) {
	b.t.Helper()
	if got := b.next(c); got != want {
		b.t.Fatalf("got %s, want %s", got, want)
	}
}

// within is want, with the time it may take.
func (b *bench) within(d time.Duration, c *Consumer, want string) {
	b.t.Helper()
	began := time.Now()
	b.want(c, want)
	if took := time.Since(began); took > d {
		b.t.Fatalf("%s came after %v", want, took)
	}
}

// nothing waits for a while in which nothing must come.
func (b *bench) nothing(c *Consumer, d time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	for {
		e, err := c.Next(ctx, 1<<20)
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil || e.Kind == Data {
			b.t.Fatalf("%s, %v", b.read(e), err)
		}
	}
}

// fails waits for the end of a consumer.
func (b *bench) fails(c *Consumer, kind fault.Kind) {
	b.t.Helper()
	for {
		e, err := c.Next(b.t.Context(), 1<<20)
		if err == nil && e.Kind != Data {
			continue
		}
		if fault.KindOf(err) != kind {
			b.t.Fatalf("%v, want %v", err, kind)
		}
		return
	}
}

func (b *bench) ack(c *Consumer, ranges ...seglog.Range) {
	b.t.Helper()
	if err := c.Settle(Settlement{Acks: ranges, Below: -1}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) nack(c *Consumer, from, to int64, delay time.Duration) {
	b.t.Helper()
	if err := c.Settle(Settlement{Below: -1, Nacks: []Nack{{seglog.Range{From: from, To: to}, delay, "no"}}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) buried() (list []Letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(list, b.letters...)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
