package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// quarrel is clients that change the same few topics at the same time.
type quarrel struct {
	history *history.History
	raw     *proc.Raw
	names   []string
	acked   atomic.Int64
	enough  int64
	hit     chan struct{} // closed at enough
}

// TestMetadataIsLinearizable has clients make, set, look at and delete the same topics side by side while the broker is
// killed again and again: all that they are told fits one order of events, in which each stands between its beginning
// and its end.
func TestMetadataIsLinearizable(t *testing.T) {
	proc.Binary(t)
	rng := Seeded(t)
	dir := proc.Dir(t)
	h := history.New()
	data := filepath.Join(dir, "data")
	cycles := Amount(12, 2, 200)
	b := proc.Start(t, data, proc.Options{})
	for n := range cycles {
		q := &quarrel{history: h, raw: b.Raw(), enough: 20 + rng.Int64N(150), hit: make(chan struct{})}
		for i := range 3 { // new names now and then: what was cut off stays possible for ever, which is hard to think about
			q.names = append(q.names, fmt.Sprintf("default/q%d-%d", n/3, i))
		}
		var wg sync.WaitGroup
		for i := range 5 {
			draw := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() { q.client(fmt.Sprintf("c%d-%d", n, i), draw) })
		}
		Await(t, q.hit, "changes of topics")
		began := h.Now()
		b.Kill()
		wg.Wait()
		h.Fault("kill", began, history.Cost{})
		_ = q.raw.Conn.Close()
		b = proc.Start(t, data, proc.Options{})
	}
	report := h.Check(history.Options{Only: []int{history.CheckMetadata}, MetadataTime: proc.Patience, Visualization: filepath.Join(dir, "topics.html")})
	for _, v := range report.Violations {
		t.Error(v)
	}
	for _, u := range report.Undecided {
		t.Errorf("cannot be judged: %s", u)
	}
	t.Logf("%d cycles, %d operations on topics, judged in %v", cycles, report.Counts.Metadata, report.Took)
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the last stop ended with exit code %d", code)
	}
}

// client works until the broker is gone.
func (q *quarrel) client(name string, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	for {
		topic := q.names[rng.IntN(len(q.names))]
		if gone := q.operate(ctx, name, topic, rng); gone {
			return
		}
		if q.acked.Add(1) == q.enough {
			close(q.hit)
		}
	}
}

// operate does one thing, and reports whether the broker is gone.
func (q *quarrel) operate(ctx context.Context, who, name string, rng *rand.Rand) bool {
	ops := []string{history.Create, history.Create, history.Delete, history.Settings, history.Describe, history.Describe}
	info := history.MetadataInfo{Client: who, Op: ops[rng.IntN(len(ops))], Topic: name}
	bytes := 1 + rng.Int64N(1<<40) // what tells one setting from another
	if info.Op == history.Create || info.Op == history.Settings {
		info.Settings = strconv.FormatInt(bytes, 10)
	}
	settings := &leveev1.TopicSettings{RetentionBytes: &bytes}
	call := q.history.Metadata(info)
	var topic interface{ GetTopic() *leveev1.Topic }
	var err error
	switch info.Op {
	case history.Create:
		topic, err = q.raw.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: name, Settings: settings})
	case history.Settings:
		topic, err = q.raw.SetTopic(ctx, &leveev1.SetTopicRequest{Name: name, Settings: settings})
	case history.Describe:
		topic, err = q.raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: name})
	case history.Delete:
		_, err = q.raw.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: name})
	}
	var result history.MetadataResult
	if err == nil && topic != nil {
		result.Incarnation = topic.GetTopic().GetIncarnation()
		if info.Op == history.Describe {
			result.Exists, result.Settings = true, strconv.FormatInt(topic.GetTopic().GetSettings().GetRetentionBytes(), 10)
		}
	}
	return end(call, result, err)
}

// end notes an answer. Only a connection that is cut leaves open what has happened.
func end(call *history.MetadataCall, result history.MetadataResult, err error) (gone bool) {
	switch status.Code(err) {
	case codes.OK:
		call.End(history.OK, result)
	case codes.AlreadyExists:
		call.End(history.Fail, history.MetadataResult{Error: history.AlreadyExists})
	case codes.NotFound:
		call.End(history.Fail, history.MetadataResult{Error: history.NotFound})
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		call.End(history.Unknown, history.MetadataResult{Error: err.Error()})
		return true
	default: // refused, e.g. because somebody else changed the topic meanwhile
		call.End(history.Fail, history.MetadataResult{Error: err.Error()})
	}
	return false
}
