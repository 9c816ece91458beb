package bytes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// served is a broker on a damaged directory, seen from outside.
type served struct {
	t      *testing.T
	b      *proc.Broker
	client *client.Client
	raw    *proc.Raw
	ctx    context.Context
	cancel context.CancelFunc
	said   string
}

// start starts a broker that must come up.
func start(t *testing.T, dir string) *served {
	t.Helper()
	b := proc.Start(t, dir, proc.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*proc.Patience) // for all that is asked of one broker
	return &served{t: t, b: b, client: b.Dial(), raw: b.Raw(), ctx: ctx, cancel: cancel, said: b.Printed()}
}

// stop stops it in good order.
func (s *served) stop() {
	s.t.Helper()
	s.cancel()
	_ = s.client.Close()
	_ = s.raw.Conn.Close()
	s.b.Terminate()
	if code := s.b.Wait(); code != 0 {
		s.t.Errorf("the broker ended with exit code %d: %s", code, s.b.Printed())
	}
}

// outcome is how a case ended.
type outcome string

const (
	full        outcome = "served in full"
	repaired    outcome = "cut and kept aside"
	onRead      outcome = "refused when read"
	shortened   outcome = "oldest segment gone, told as trimmed"
	unavailable outcome = "partition unavailable"
	noStart     outcome = "start refused"
)

// reading is what a partition gave.
type reading struct {
	got    map[int64]bool // offsets of records that came, each right
	errors []*client.Error
	told   [][2]int64 // ranges declared lost or trimmed
	wrong  []string
}

func (r *reading) complain(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// readAll reads a partition from an offset to its end. Behind an error it goes on at each later batch.
func (s *served) readAll(p *part, from, end int64) *reading {
	r := &reading{got: map[int64]bool{}}
	for next := from; next < end; {
		reached, err := s.readFrom(p, next, end, r)
		if err == nil {
			if more := len(r.told) > 0 && r.told[len(r.told)-1] == [2]int64{end, reached - 1}; reached != end && !more {
				r.complain("reading ended at offset %d of %d", reached, end)
			}
			break
		}
		var e *client.Error
		if !errors.As(err, &e) {
			r.complain("offset %d: %v", reached, err)
			break
		}
		if e.Kind == client.KindTrimmed {
			oldest, _ := strconv.ParseInt(e.Details["oldest"], 10, 64)
			r.told = append(r.told, [2]int64{reached, oldest - 1})
			next = max(oldest, reached+1)
			continue
		}
		r.errors = append(r.errors, e)
		if e.Kind != client.KindCorrupt {
			r.complain("offset %d: %v", reached, e)
			break
		}
		if len(r.got) == 0 && e.Details["file"] == "" {
			break
		}
		next = end
		for i := range p.batch {
			if p.batch[i].base > reached {
				next = p.batch[i].base
				break
			}
		}
	}
	return r
}

// readFrom reads up to the end or an error, and returns the offset that it came to.
func (s *served) readFrom(p *part, from, end int64, r *reading) (next int64, err error) {
	next = from
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := false
	consumer, err := s.client.Consume(ctx, p.topic, client.ConsumerConfig{
		Partitions: []int32{p.n}, From: client.Offset(from),
		OnLost: func(_ int32, from, to int64) {
			if from != next {
				r.complain("offsets %d to %d are declared lost at offset %d", from, to, next)
			}
			r.told = append(r.told, [2]int64{from, to})
			next = to + 1
		},
		OnCaughtUp: func(_ int32, at int64) {
			ended = true
			if at != next {
				r.complain("caught up at offset %d, and got the records below %d", at, next)
			}
			cancel()
		},
	})
	if err != nil {
		return next, err
	}
	defer consumer.Close()
	i := 0
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil {
			if ended {
				err = nil
			}
			return next, err
		}
		for j := range batch {
			m := &batch[j]
			if m.Offset != next {
				r.complain("after offset %d came %d: a silent hole", next-1, m.Offset)
			}
			next = m.Offset + 1
			for i < len(p.batch) && p.batch[i].next() <= m.Offset {
				i++
			}
			if i == len(p.batch) || m.Offset < p.batch[i].base || !same(m.Record, p.batch[i].records[m.Offset-p.batch[i].base]) {
				r.complain("offset %d holds a record that nobody wrote there: %.60q", m.Offset, m.Value)
			}
			r.got[m.Offset] = true
		}
	}
}

// same compares records in everything.
func same(a, b record.Record) bool {
	equal := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && equal(a.Key, b.Key) && equal(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(a, b record.Header) bool { return a.Key == b.Key && equal(a.Value, b.Value) })
}

// check holds a partition against the verdict, with lookups and the producer's last batch if thorough. It returns how the
// case ended, and everything that is wrong.
func (s *served) check(dir string, p *part, v *verdict, thorough bool) (outcome, []string) {
	d, err := s.client.Admin().DescribeTopic(s.ctx, p.topic)
	if err != nil {
		return unavailable, []string{fmt.Sprint("describe: ", err)}
	}
	state := d.PartitionStates[p.n].State
	if v.refused != nil {
		return unavailable, s.checkRefused(dir, p, v.refused, state)
	}
	if state != "serving" {
		return unavailable, []string{"must be served, and is " + state}
	}
	r := s.readAll(p, 0, v.end)
	for i := range p.batch {
		b := &p.batch[i]
		if b.base < v.first || b.base >= v.end {
			continue
		}
		_, hidden := v.hidden[b.base]
		for o := b.base; o < b.next(); o++ {
			if !r.got[o] && !hidden {
				r.complain("offset %d is not read", o)
				break
			}
		}
	}
	for _, e := range r.errors {
		pos, err := strconv.ParseInt(e.Details["position"], 10, 64)
		file, below := strings.CutPrefix(e.Details["file"], s.b.Dir+"/"+dir+"/")
		if err != nil || !below || !v.bad[place{file, pos}] {
			r.complain("an error names %s byte %s, which is not a damaged frame: %v", e.Details["file"], e.Details["position"], e)
		}
		where := e.Details["file"] + ": byte " + e.Details["position"]
		if !strings.Contains(e.Message, where) || !strings.Contains(e.Message, p.String()) {
			r.complain("an error does not say %q and %q: %v", p, where, e)
		}
		if !strings.Contains(s.b.Printed(), where) {
			r.complain("the log does not say %q", where)
		}
	}
	for _, t := range r.told {
		if t[0] < v.end && !(t[0] == 0 && t[1] == v.first-1) {
			r.complain("offsets %d to %d are declared gone", t[0], t[1])
		}
	}
	if d.PartitionStates[p.n].First != v.first {
		r.complain("the first offset is %d, want %d", d.PartitionStates[p.n].First, v.first)
	}
	how := full
	switch {
	case len(v.bad) > 0:
		how = onRead
		if len(r.errors) == 0 {
			r.complain("damage is not noticed")
		}
	case v.cut > 0:
		how = repaired
	case thorough:
		r.wrong = append(r.wrong, s.lookups(p, v)...)
	}
	if thorough && v.end == p.end() && len(v.bad) == 0 {
		r.wrong = append(r.wrong, s.resend(p)...)
	}
	return how, r.wrong
}

// checkRefused wants that an unavailable partition says where it is damaged, to everybody who asks.
func (s *served) checkRefused(dir string, p *part, at *place, state string) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	r := &reading{got: map[int64]bool{}}
	_, err := s.readFrom(p, 0, p.end(), r)
	var e *client.Error
	if !errors.As(err, &e) || e.Kind != client.KindCorrupt || len(r.got) > 0 {
		complain("reading gives %v after %d records, want an error of kind corrupt", err, len(r.got))
		return wrong
	}
	file := strings.TrimSuffix(s.b.Dir+"/"+dir+"/"+at.file, "/")
	pos, err := strconv.ParseInt(e.Details["position"], 10, 64)
	if e.Details["file"] != file || err != nil || pos != at.pos && !(at.pos == inHeader && pos < segmentHeader) {
		complain("the error names %s byte %s, want %s byte %d", e.Details["file"], e.Details["position"], file, at.pos)
	}
	where := fmt.Sprintf("%s: byte %d", file, pos)
	if !strings.HasPrefix(state, "unavailable") || !strings.Contains(state, where) {
		complain("its state is %q, which does not say %q", state, where)
	}
	if !strings.Contains(e.Message, where) || !strings.Contains(e.Message, p.String()) {
		complain("the error does not say %q and %q: %v", p, where, e)
	}
	if !strings.Contains(s.said, where) {
		complain("the log does not say %q", where)
	}
	_, err = s.raw.PublishOnce(s.ctx, &leveev1.PublishOnceRequest{Topic: p.topic, Partition: p.n, Records: []*leveev1.Record{{Value: []byte("no")}}})
	if err == nil {
		complain("a publish to it is acknowledged")
	}
	return wrong
}

// lookups asks for offsets and times: all batches of one segment, or a few of the log.
func (s *served) lookups(p *part, v *verdict) (wrong []string) {
	first := func(from client.Position) (record.Record, error) {
		c, err := s.client.Consume(s.ctx, p.topic, client.ConsumerConfig{Partitions: []int32{p.n}, From: from})
		if err != nil {
			return record.Record{}, err
		}
		defer c.Close()
		m, err := c.Next(s.ctx)
		return m.Record, err
	}
	for i := range p.batch {
		b := &p.batch[i]
		wanted := i%15 == int(p.n)
		if v.look >= 0 {
			wanted = b.base >= v.look && (i < 40 || p.batch[i-40].base < v.look) // about a segment
		}
		if !wanted || b.base < v.first || b.base >= v.end {
			continue
		}
		want := b.records[len(b.records)-1]
		if got, err := first(client.Offset(want.Offset)); err != nil || !same(got, want) {
			wrong = append(wrong, fmt.Sprintf("asked for offset %d: got %d, %v", want.Offset, got.Offset, err))
		}
		ms := b.records[0].Timestamp
		want = p.since(ms, v)
		if got, err := first(client.At(time.UnixMilli(ms))); err != nil || !same(got, want) {
			wrong = append(wrong, fmt.Sprintf("asked for time %d: got offset %d, want %d: %v", ms, got.Offset, want.Offset, err))
		}
	}
	return wrong
}

// since returns the first record with that timestamp or a later one.
func (p *part) since(ms int64, v *verdict) record.Record {
	for i := range p.batch {
		for _, r := range p.batch[i].records {
			if r.Offset >= v.first && r.Timestamp >= ms {
				return r
			}
		}
	}
	return record.Record{}
}

// resend sends the idempotent producer's last batch again: it must be known.
func (s *served) resend(p *part) []string {
	r, err := s.raw.PublishOnce(s.ctx, &leveev1.PublishOnceRequest{Topic: p.topic, Partition: p.n, Batch: p.last})
	if err != nil || !r.GetDuplicate() || r.GetOffset() != p.lastBase {
		return []string{fmt.Sprintf("the producer's last batch sent again is answered %v, %v; want a duplicate at %d", r, err, p.lastBase)}
	}
	return nil
}

// complete is the verdict on a log that is as it was.
func (ma *master) complete(p *part) *verdict {
	l := ma.files.log(p.dir())
	v := judge(l, l, false)
	return &v
}

// checkAll holds every partition against its verdict, those without one against what was written, and the topics as
// well. It returns how the partitions with a verdict ended.
func (s *served) checkAll(ma *master, verdicts map[*part]*verdict) map[*part]outcome {
	s.t.Helper()
	s.checkTopics(ma)
	var mu sync.Mutex
	ended := map[*part]outcome{}
	var wg sync.WaitGroup
	next := make(chan *part)
	for range 4 {
		wg.Go(func() {
			for p := range next {
				v, damaged := verdicts[p]
				if !damaged {
					v = ma.complete(p)
				}
				how, wrong := s.check(p.dir(), p, v, damaged)
				mu.Lock()
				ended[p] = how
				mu.Unlock()
				for _, w := range wrong[:min(len(wrong), 5)] {
					s.t.Errorf("%s: %s", p, w)
				}
			}
		})
	}
	for _, p := range ma.parts {
		next <- p
	}
	close(next)
	wg.Wait()
	return ended
}

// checkTopics wants the metadata to be what it was. It returns what the topics are like.
func (s *served) checkTopics(ma *master) (got []client.TopicDescription) {
	s.t.Helper()
	got = describe(s.t, s.client)
	if len(got) != len(ma.topics) {
		s.t.Errorf("there are %d topics, want %d", len(got), len(ma.topics))
		return nil
	}
	for i := range got {
		g, w := got[i].Topic, ma.topics[i].Topic
		if fmt.Sprintf("%+v", flat(g)) != fmt.Sprintf("%+v", flat(w)) {
			s.t.Errorf("topic %s is %+v, want %+v", w.Name, flat(g), flat(w))
		}
	}
	return got
}

// checkEnds wants the metadata and the bounds of every partition to be what they were, and reads nothing.
func (s *served) checkEnds(ma *master) {
	s.t.Helper()
	parts := map[string][]*part{}
	for _, p := range ma.parts {
		parts[p.topic] = append(parts[p.topic], p)
	}
	for _, d := range s.checkTopics(ma) {
		for _, p := range parts[d.Name] {
			if is, v := d.PartitionStates[p.n], ma.complete(p); is.State != "serving" || is.First != v.first || is.End != v.end {
				s.t.Errorf("%s has offsets %d to %d and is %s, want %d to %d", p, is.First, is.End, is.State, v.first, v.end)
			}
		}
	}
}

// flat makes topics comparable.
func flat(t client.Topic) (list []any) {
	list = append(list, t.Name, t.ID, t.Incarnation, t.Partitions, t.Dispatch, t.Created.UnixMilli())
	for _, s := range []client.Settings{t.Settings, t.Effective} {
		list = append(list, value(s.Fsync), value(s.FsyncInterval), value(s.RetentionBytes), value(s.RetentionAge), value(s.SegmentBytes))
	}
	return list
}

func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}
