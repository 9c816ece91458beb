package grpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

type consumeClient = rpc.BidiStreamingClient[leveev1.ConsumeRequest, leveev1.ConsumeResponse]

func openConsume(t *testing.T, ctx context.Context, f *fixture, first *leveev1.ConsumeRequest) consumeClient {
	t.Helper()
	st := must(f.client.Consume(ctx))(t)
	if first.Open == nil {
		first.Open = &leveev1.OpenConsume{}
	}
	tell(t, st, first)
	c := must(st.Recv())(t).Consuming
	if c == nil || len(c.TopicId) != 16 || c.Partitions != 4 || c.Type != "shared" || c.Name != "me" || c.Position != 5 || c.AckTimeoutMs != 60_000 {
		t.Fatalf("got consuming %v", c)
	}
	return st
}

func tell(t *testing.T, st consumeClient, req *leveev1.ConsumeRequest) {
	t.Helper()
	if err := st.Send(req); err != nil {
		t.Fatal(err)
	}
}

func TestConsumeOpens(t *testing.T) {
	for name, c := range map[string]struct {
		open *leveev1.OpenConsume
		want broker.Position
	}{
		"default":  {&leveev1.OpenConsume{}, broker.Earliest()},
		"earliest": {&leveev1.OpenConsume{Start: &leveev1.OpenConsume_Earliest{Earliest: true}}, broker.Earliest()},
		"latest":   {&leveev1.OpenConsume{Start: &leveev1.OpenConsume_Latest{Latest: true}}, broker.Latest()},
		"offset":   {&leveev1.OpenConsume{Start: &leveev1.OpenConsume_Offset{Offset: 12}}, broker.Offset(12)},
		"time":     {&leveev1.OpenConsume{Start: &leveev1.OpenConsume_TimeMs{TimeMs: 13}}, broker.Time(13)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				o := c.open
				o.Topic, o.TopicId, o.Partition, o.Subscription, o.Type, o.Create = "ns/t", []byte("id"), 2, "s", "shared", true
				o.Name, o.Priority, o.KeyFilters, o.WindowMessages, o.WindowBytes, o.MaxRecordBytes = "n", -3, []string{"a*"}, 7, 8, 9
				st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Open: o})
				got := f.joined
				got.Memory = nil
				want := broker.ConsumerSpec{
					Topic: "ns/t", ID: []byte("id"), Partition: 2, Subscription: "s", Type: broker.Shared, Create: true, Start: c.want,
					Name: "n", Priority: -3, KeyFilters: []string{"a*"}, WindowMessages: 7, WindowBytes: 8, MaxRecordBytes: 9,
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %+v, want %+v", got, want)
				}
				_ = st.CloseSend()
				wantEnd(t, st)
			})
		})
	}
}

func TestConsumeEvents(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 1 << 30}})
		f.cons.events <- broker.ConsumerEvent{
			Kind: broker.ConsumerData, Batches: []byte("batch"), Offsets: []broker.Range{{From: 7, To: 9}, {From: 12, To: 12}},
			Counts: []broker.DeliveryCount{{From: 8, To: 9, Deliveries: 2}}, Records: 4,
		}
		f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerData, Batches: pooledMemory(100_000), Offsets: []broker.Range{{From: 20, To: 20}}}
		f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerStandby}
		f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerActive}
		f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerLost, Range: broker.Range{From: 8, To: 9}}
		f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerSkipped, Range: broker.Range{From: 3, To: 4}}
		for _, want := range []string{
			`delivered:{batches:"batch" offsets:{from:7 to:9} offsets:{from:12 to:12} counts:{from:8 to:9 count:2}}`,
			"100000 bytes", "standby:true", "active:true", "lost:{from:8 to:9}", "skipped:{from:3 to:4}",
		} {
			r := must(st.Recv())(t)
			got := strings.ReplaceAll(r.String(), "  ", " ")
			if n := len(r.GetDelivered().GetBatches()); n > 1000 {
				got = fmt.Sprintf("%d bytes", n)
				if d := r.Delivered; len(d.Offsets) != 1 || d.Offsets[0].From != 20 || len(d.Counts) != 0 {
					t.Errorf("got %v of the delivery before, too", d.Offsets)
				}
			}
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		f.cons.events <- broker.ConsumerEvent{}
		_, err := st.Recv()
		wantKind(t, err, fault.Internal)
		if calls := f.cons.all(); !slices.Equal(calls, []string{"close"}) {
			t.Errorf("the consumer was called for %v", calls)
		}
	})
}

// What settles comes in order, and what the first message settles counts before the broker is asked for anything.
func TestConsumeSettles(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		zero, delay := int64(0), int64(1500)
		st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Acks: []*leveev1.Range{{From: 1, To: 2}}})
		if calls := f.cons.all(); len(calls) > 1 || len(f.cons.asked) > 0 {
			t.Errorf("%v, and the broker was asked %d times without credit", calls, len(f.cons.asked))
		}
		tell(t, st, &leveev1.ConsumeRequest{Heartbeat: true})
		tell(t, st, &leveev1.ConsumeRequest{
			Acks: []*leveev1.Range{{From: 4, To: 4}, {From: 1 << 40, To: 1 << 41}}, HasAckBelow: true, AckBelow: 0,
			Nacks: []*leveev1.Nack{{Range: &leveev1.Range{From: 5, To: 6}, Reason: "bad \xff"}, {Range: &leveev1.Range{From: 7, To: 7}, DelayMs: &zero},
				{Range: &leveev1.Range{}, DelayMs: &delay}},
			Heartbeat: true,
		})
		tell(t, st, &leveev1.ConsumeRequest{AckBelow: 9}) // without has_ack_below
		_ = st.CloseSend()
		wantEnd(t, st)
		c := f.cons
		if want := []string{"settle", "heartbeat", "settle", "heartbeat", "close"}; !slices.Equal(c.calls, want) {
			t.Errorf("called for %v, want %v", c.calls, want)
		}
		if want := []broker.Range{{From: 1, To: 2}, {From: 4, To: 4}, {From: 1 << 40, To: 1 << 41}}; !slices.Equal(c.acks, want) {
			t.Errorf("acks of %v", c.acks)
		}
		if !slices.Equal(c.below, []int64{-1, 0}) {
			t.Errorf("acks below %v", c.below)
		}
		if want := []broker.Nack{
			{Range: broker.Range{From: 5, To: 6}, Delay: -1, Reason: "bad \uFFFD"}, {Range: broker.Range{From: 7, To: 7}}, {Delay: 1500 * time.Millisecond},
		}; !slices.Equal(c.nacks, want) {
			t.Errorf("nacks %v", c.nacks)
		}
	})
}

// Saves do not hold up acknowledgements; one save answers all requests that came while another was under way.
func TestConsumeSaves(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Save: 1, Acks: []*leveev1.Range{{From: 1, To: 1}}})
		synctest.Wait()
		for id := range 100 {
			tell(t, st, &leveev1.ConsumeRequest{Save: uint64(id) + 2, Acks: []*leveev1.Range{{From: int64(id), To: int64(id)}}})
		}
		synctest.Wait()
		if n := len(f.cons.acks); n != 101 {
			t.Fatalf("%d of 101 acks were taken while a save waits for the disk", n)
		}
		f.cons.save <- nil
		if r := must(st.Recv())(t); r.Saved != 1 || r.SaveFailed != nil {
			t.Errorf("got %v", r)
		}
		synctest.Wait()
		_ = st.CloseSend() // what was asked for is answered all the same
		f.cons.save <- fault.New(fault.IO, "bad disk")
		for id := range 100 {
			if r := must(st.Recv())(t); r.Saved != uint64(id)+2 || r.SaveFailed.GetKind() != "io" {
				t.Fatalf("got %v", r)
			}
		}
		wantEnd(t, st)
		calls := slices.DeleteFunc(f.cons.all(), func(c string) bool { return c == "settle" })
		if !slices.Equal(calls, []string{"save", "save", "close"}) {
			t.Errorf("called for %v", calls)
		}
	})
}

func TestConsumeTooManySaves(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Save: 1})
		synctest.Wait()
		for id := range mostSaves + 1 {
			if err := st.Send(&leveev1.ConsumeRequest{Save: uint64(id) + 2}); err != nil {
				break
			}
		}
		_, err := st.Recv()
		wantKind(t, err, fault.InvalidArgument)
	})
}

func TestConsumeRules(t *testing.T) {
	open, bad, long := &leveev1.OpenConsume{}, int64(-1), int64(math.MaxInt64)
	one := &leveev1.Range{From: 1, To: 1}
	for name, reqs := range map[string][]*leveev1.ConsumeRequest{
		"nothing":          {},
		"no open":          {{Credit: &leveev1.Credit{Bytes: 1}}},
		"open twice":       {{Open: open}, {Open: open}},
		"max_bytes":        {{Open: &leveev1.OpenConsume{MaxBytes: -1}}},
		"window_messages":  {{Open: &leveev1.OpenConsume{WindowMessages: -1}}},
		"window_bytes":     {{Open: &leveev1.OpenConsume{WindowBytes: -1}}},
		"max_record_bytes": {{Open: &leveev1.OpenConsume{MaxRecordBytes: -1}}},
		"credit":           {{Open: open}, {Credit: &leveev1.Credit{}}},
		"first ack":        {{Open: open, Acks: []*leveev1.Range{{From: 2, To: 1}}}},
		"ack":              {{Open: open}, {Acks: []*leveev1.Range{{From: 2, To: 1}}}},
		"ack negative":     {{Open: open}, {Acks: []*leveev1.Range{{From: -2, To: 1}}}},
		"ack below":        {{Open: open}, {HasAckBelow: true, AckBelow: -1}},
		"nack":             {{Open: open}, {Nacks: []*leveev1.Nack{{Range: &leveev1.Range{From: 3}}}}},
		"delay":            {{Open: open}, {Nacks: []*leveev1.Nack{{Range: one, DelayMs: &bad}}}},
		"long delay":       {{Open: open}, {Nacks: []*leveev1.Nack{{Range: one, DelayMs: &long}}}},
		"many acks":        {{Open: open}, {Acks: slices.Repeat([]*leveev1.Range{one}, mostSettled+1)}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := must(f.client.Consume(t.Context()))(t)
				for _, r := range reqs {
					tell(t, st, r)
				}
				synctest.Wait()
				if len(reqs) == 0 {
					_ = st.CloseSend()
				}
				for {
					if _, err := st.Recv(); err != nil {
						wantKind(t, err, fault.InvalidArgument)
						return
					}
				}
			})
		})
	}
}

func TestConsumeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string // of the message; empty: the call's error
	}{
		"trimmed":     {fault.New(fault.Trimmed, "gone").With("requested", 3).With("oldest", 8), "trimmed:{requested:3 oldest:8}"},
		"deleted":     {fault.New(fault.Deleted, "gone"), `ended:{kind:"deleted" message:"gone"}`},
		"unavailable": {fault.New(fault.Unavailable, "later"), `ended:{kind:"unavailable" message:"later" retriable:true}`},
		"fenced":      {fault.New(fault.Fenced, "taken over"), `ended:{kind:"fenced" message:"taken over" retriable:true}`},
		"other":       {fault.New(fault.Corrupt, "bad bytes"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			for by, cause := range map[string]func(f *fixture, st consumeClient){
				"next":   func(f *fixture, _ consumeClient) { f.cons.events <- c.err },
				"settle": func(_ *fixture, st consumeClient) { tell(t, st, &leveev1.ConsumeRequest{Acks: []*leveev1.Range{{}}}) },
			} {
				bubble(t, Limits{}, func(t *testing.T, f *fixture) {
					f.cons.refuse = c.err
					st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 1}, Save: 1})
					cause(f, st)
					r, err := st.Recv()
					if c.want == "" {
						wantKind(t, err, fault.KindOf(c.err))
						return
					}
					if got := strings.ReplaceAll(r.String(), "  ", " "); err != nil || got != c.want {
						t.Errorf("%s: got %s, %v, want %s", by, got, err, c.want)
					}
					wantEnd(t, st)
				})
			}
		})
	}
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.openErr = fault.New(fault.Conflict, "held").With("consumer", "other")
		st := must(f.client.Consume(t.Context()))(t)
		tell(t, st, &leveev1.ConsumeRequest{Open: &leveev1.OpenConsume{}})
		_, err := st.Recv()
		if md := wantKind(t, err, fault.Conflict); md["consumer"] != "other" {
			t.Errorf("got metadata %v", md)
		}
	})
}

// Who has given no credit, or has used it up, is told news and the end all the same, and no records.
func TestConsumeNewsNeedNoCredit(t *testing.T) {
	for name, used := range map[string]bool{"none": false, "used up": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{})
				asked := 0
				data := broker.ConsumerEvent{Kind: broker.ConsumerData, Batches: []byte("batch"), Offsets: []broker.Range{{From: 7, To: 7}}}
				if used {
					tell(t, st, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 3}})
					f.cons.events <- data
					must(st.Recv())(t)
					asked++
				}
				f.cons.news <- broker.ConsumerEvent{Kind: broker.ConsumerStandby}
				f.cons.news <- broker.ConsumerEvent{Kind: broker.ConsumerSkipped, Range: broker.Range{From: 3, To: 4}}
				if r := must(st.Recv())(t); !r.Standby {
					t.Errorf("got %v", r)
				}
				if r := must(st.Recv())(t); r.Skipped == nil {
					t.Errorf("got %v", r)
				}
				synctest.Wait()
				if n := len(f.cons.bytesAsked()); n != asked {
					t.Errorf("asked for records %d times, want %d", n, asked)
				}
				tell(t, st, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 7}})
				f.cons.events <- data
				if r := must(st.Recv())(t); r.Delivered == nil {
					t.Errorf("got %v", r)
				}
				if got, want := f.cons.bytesAsked()[asked], 7-2*asked; got != want {
					t.Errorf("asked for %d bytes, want %d", got, want)
				}
				tell(t, st, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 1}})
				synctest.Wait()
				f.cons.events <- data // all is used up again
				must(st.Recv())(t)
				f.cons.news <- fault.New(fault.Fenced, "taken over")
				if r := must(st.Recv())(t); r.Ended.GetKind() != "fenced" {
					t.Errorf("got %v", r)
				}
				wantEnd(t, st)
			})
		})
	}
}

// A drain ends consumers whether they wait for records or for credit, and one that leaves is closed.
func TestConsumeDrainsAndLeaves(t *testing.T) {
	for name, first := range map[string]*leveev1.ConsumeRequest{"records": {Credit: &leveev1.Credit{Bytes: 1}}, "credit": {}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := openConsume(t, t.Context(), f, first)
				synctest.Wait()
				f.server.Drain(t.Context())
				if e := must(st.Recv())(t).Ended; e.GetKind() != "unavailable" {
					t.Errorf("got %v", e)
				}
				wantEnd(t, st)
			})
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				ctx, cancel := context.WithCancel(t.Context())
				openConsume(t, ctx, f, &leveev1.ConsumeRequest{Credit: first.Credit, Save: 7})
				synctest.Wait()
				cancel()
				synctest.Wait()
				if calls := f.cons.all(); !slices.Equal(calls, []string{"save", "close"}) {
					t.Errorf("called for %v", calls)
				}
			})
		})
	}
}

// On a topic that stores nothing there is nothing to settle, and batches are not the sender's to give away.
func TestConsumeNonReliable(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.cons.info.Reliable = false
		st := openConsume(t, t.Context(), f, &leveev1.ConsumeRequest{Credit: &leveev1.Credit{Bytes: 1 << 30}})
		shared := pooledMemory(100_000)
		for i := range shared {
			shared[i] = 'x'
		}
		for range 3 {
			f.cons.events <- broker.ConsumerEvent{Kind: broker.ConsumerData, Batches: shared, Offsets: []broker.Range{{}}}
			if b := must(st.Recv())(t).GetDelivered().GetBatches(); len(b) != len(shared) || b[0] != 'x' {
				t.Fatalf("got %d bytes", len(b))
			}
			clear(pooledMemory(len(shared)))
		}
		tell(t, st, &leveev1.ConsumeRequest{Acks: []*leveev1.Range{{}}})
		_ = st.CloseSend()
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
		if calls := f.cons.all(); !slices.Equal(calls, []string{"close"}) {
			t.Errorf("called for %v", calls)
		}
	})
}

// Each message is decoded as the standard decoder does it, whatever the one before it held, and costs no memory where it
// only acknowledges.
func TestConsumeMessage(t *testing.T) {
	m := &consumeMessage{}
	delay := int64(5)
	for i, want := range []*leveev1.ConsumeRequest{
		{Open: &leveev1.OpenConsume{Topic: "t", KeyFilters: []string{"a", "b"}}, Acks: []*leveev1.Range{{From: 1, To: 1 << 60}}},
		{Acks: []*leveev1.Range{{}, {From: 3}, {To: 4}}},
		{Nacks: []*leveev1.Nack{{Range: &leveev1.Range{From: 1}, DelayMs: &delay, Reason: "r"}}, Acks: []*leveev1.Range{{From: 9, To: 9}}, Heartbeat: true},
		{Save: 9, Credit: &leveev1.Credit{Bytes: 8}, HasAckBelow: true, AckBelow: 7},
		{},
	} {
		raw, err := want.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		in := mem.BufferSlice{mem.SliceBuffer(slices.Clone(raw))}
		if i%2 == 1 && len(raw) > 3 {
			in = mem.BufferSlice{mem.SliceBuffer(raw[:3]), mem.SliceBuffer(raw[3:])}
		}
		if err := m.decode(in); err != nil {
			t.Fatal(err)
		}
		clear(in[0].ReadOnlyData())
		got := leveev1.ConsumeRequest{
			Open: m.Open, Credit: m.Credit, Nacks: m.Nacks, Heartbeat: m.Heartbeat, Save: m.Save, HasAckBelow: m.HasAckBelow, AckBelow: m.AckBelow,
		}
		for _, r := range m.acks {
			got.Acks = append(got.Acks, &leveev1.Range{From: r.From, To: r.To})
		}
		if got.String() != want.String() {
			t.Errorf("message %d: got %v, want %v", i, &got, want)
		}
	}
	raw, _ := (&leveev1.ConsumeRequest{Acks: []*leveev1.Range{{From: 5, To: 6}, {From: 8, To: 9}}}).MarshalVT()
	in := mem.BufferSlice{mem.SliceBuffer(raw)}
	if n := testing.AllocsPerRun(100, func() { _ = m.decode(in) }); n > 0 {
		t.Errorf("acknowledgements take %v allocations a message", n)
	}
}

func FuzzConsumeMessage(f *testing.F) {
	raw, _ := (&leveev1.ConsumeRequest{Acks: []*leveev1.Range{{From: 5, To: 6}}, Heartbeat: true, Save: 3}).MarshalVT()
	f.Add(raw)
	f.Add([]byte{0x1a, 0x02, 0x08})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, want := &consumeMessage{}, &leveev1.ConsumeRequest{}
		err, wantErr := m.decode(mem.BufferSlice{mem.SliceBuffer(raw)}), proto.Unmarshal(raw, want)
		if (&leveev1.ConsumeRequest{}).UnmarshalVTUnsafe(slices.Clone(raw)) != nil {
			return // it is stricter where a field is of another type
		}
		if wantErr == nil && err == nil && len(m.acks) != len(want.Acks) {
			t.Fatalf("%d acks, want %d", len(m.acks), len(want.Acks))
		}
		if err != nil && wantErr == nil && len(raw) < mostSettled {
			t.Fatalf("refused what the standard decoder takes: %v", err)
		}
		for i := range m.acks {
			if err == nil && wantErr == nil && (m.acks[i].From != want.Acks[i].From || m.acks[i].To != want.Acks[i].To) {
				t.Fatalf("%v, want %v", m.acks[i], want.Acks[i])
			}
		}
	})
}
