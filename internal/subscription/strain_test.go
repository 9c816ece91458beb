package subscription

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
	dto "github.com/prometheus/client_model/go"
)

// tape is a source of so many records, in batches of ten.
type tape struct {
	t   *testing.T
	end int64
}

func (s *tape) Read(_ context.Context, from int64, _, _ int, _ func(int) []byte) (seglog.Chunk, error) {
	if from >= s.end {
		return seglog.Chunk{Next: from, End: s.end}, nil
	}
	first := from - from%10
	b := record.NewBuilder(record.None)
	for range 10 {
		if err := b.Append(record.Record{Value: []byte("x")}); err != nil {
			s.t.Fatal(err)
		}
	}
	batch, err := b.Build(record.NoProducer)
	if err != nil {
		s.t.Fatal(err)
	}
	record.SetPlacement(batch, first, 1)
	return seglog.Chunk{Data: batch, First: first, Next: first + 10, Records: 10, End: s.end}, nil
}

func (s *tape) Changed() <-chan struct{} { return nil }

func (s *tape) Close() {}

// TestStrainIsToldBeforeTheBound covers what people see of a subscription whose first record is not settled while all
// above it is: a warning and a state at four fifths of the bound, once, nothing handed out at the bound, and the same
// again after there was room.
func TestStrainIsToldBeforeTheBound(t *testing.T) {
	var log bytes.Buffer
	tasks := task.NewGroup(t.Context())
	defer func() {
		tasks.Stop()
		if err := tasks.Wait(); err != nil && tasks.Context().Err() == nil {
			t.Error(err)
		}
	}()
	m := NewMetrics(nil)
	cfg := &Config{Tasks: tasks, Logger: slog.New(slog.NewTextHandler(&log, nil)), Metrics: m, Now: time.Now}
	const most = 1000
	spec := Spec{Key: Key{Name: "s"}, Topic: "default/t", Dispatch: dispatch.Config{Type: dispatch.Shared, MaxSpan: most, LookAhead: dispatch.Window{Messages: 10, Bytes: 1 << 20}}}
	r, err := New(cfg, spec, func(context.Context) (Source, error) { return &tape{t, 5000}, nil })
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.Join(t.Context(), Member{Name: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told := func() float64 {
		var v dto.Metric
		if err := m.Strained.Write(&v); err != nil {
			t.Fatal(err)
		}
		return v.GetCounter().GetValue()
	}
	next, open := int64(0), int64(0)
	// upTo takes what is handed out and settles it, all but the offset that stays open.
	upTo := func(end int64) {
		t.Helper()
		for next < end {
			e, err := c.Next(ctx, 100)
			if err != nil {
				t.Fatalf("after offset %d: %v", next, err)
			}
			for _, o := range e.Offsets {
				acks := []seglog.Range{o}
				if o.From <= open && open <= o.To {
					acks = []seglog.Range{{From: o.From, To: open - 1}, {From: open + 1, To: o.To}} // maybe empty
				}
				if err := c.Settle(Settlement{Acks: acks, Below: -1}); err != nil {
					t.Fatal(err)
				}
				next = o.To + 1
			}
		}
	}
	upTo(700)
	if told() != 0 || r.State().Strained {
		t.Errorf("told %v times, strained %v, with offset 0 open and %d handed out", told(), r.State().Strained, next)
	}
	upTo(most)
	if s := r.State(); told() != 1 || !s.Strained || s.Position != 0 {
		t.Errorf("told %v times, %+v", told(), s)
	}
	for _, want := range []string{"level=WARN", "default/t", "subscription=s", "position=0", "most=1000", "holder=slow"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in what was said: %s", want, &log)
		}
	}
	if s := r.State(); s.Stats.Span != most || s.Stats.MaxSpan != most {
		t.Errorf("%+v", s.Stats)
	}
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if e, err := c.Next(soon, 100); err == nil {
		t.Errorf("beyond the bound %v was handed out", e.Offsets)
	}
	said := log.Len()
	open = 1500
	if err := c.Settle(Settlement{Acks: []seglog.Range{{From: 0, To: 0}}, Below: -1}); err != nil {
		t.Fatal(err)
	}
	if s := r.State(); s.Strained || s.Position != most {
		t.Errorf("with nothing open: %+v", s)
	}
	upTo(2400)
	if s := r.State(); told() != 2 || !s.Strained || s.Position != 1500 {
		t.Errorf("told %v times, %+v", told(), s)
	}
	if log.Len() != said {
		t.Errorf("the log says it again within a minute: %s", log.String()[said:])
	}
}
