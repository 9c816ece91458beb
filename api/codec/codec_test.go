package codec_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func large(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 31)
	}
	return b
}

// messages covers maps, optional fields, a oneof, negative numbers, and sizes on both sides of every threshold.
func messages() []proto.Message {
	fsync, none := "periodic", int64(0)
	all := []proto.Message{
		&leveev1.PublishRequest{},
		&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "a/b", TopicId: large(16)}},
		&leveev1.PublishResponse{
			Acks: []*leveev1.Ack{
				{Id: math.MaxUint64, Offset: -1, LastOffset: math.MaxInt64, Duplicate: true, Ranges: []*leveev1.Range{{From: 1, To: 2}}},
				{Error: &leveev1.Error{Kind: "no_space", Message: "full", Retriable: true, Details: map[string]string{"a": "b"}}},
			},
			Draining: &leveev1.Error{Kind: "unavailable"},
		},
		&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{Topic: "t", Start: &leveev1.OpenSubscribe_Offset{Offset: 0}}},
		&leveev1.CreateTopicRequest{Name: "n", Settings: &leveev1.TopicSettings{Fsync: &fsync, RetentionBytes: &none}},
		&leveev1.SubscribeResponse{AtEnd: true, CaughtUp: 7},
		wrapperspb.String("not one of ours"),
		wrapperspb.Bytes(large(5000)),
	}
	for _, n := range []int{0, 1, 1000, 1024, 16<<10 - 1, 16 << 10, 16<<10 + 1, 300_000} {
		all = append(all,
			&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Partition: -1, Data: large(n)}, {Id: 2, Data: large(10)}}},
			&leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: large(n)}},
			&leveev1.SubscribeResponse{
				Delivery: &leveev1.Delivery{Batches: large(n), Next: 1 << 40, Dropped: 3},
				AtEnd:    true, CaughtUp: 1 << 40, Subscribed: &leveev1.Subscribed{Start: 5}, Lost: &leveev1.Range{From: 1, To: 2},
				Trimmed: &leveev1.Trimmed{Oldest: 4}, Ended: &leveev1.Error{Kind: "deleted"},
			},
			&leveev1.ConsumeResponse{Delivered: &leveev1.Delivered{Batches: large(n)}},
			&leveev1.ConsumeResponse{
				Delivered: &leveev1.Delivered{
					Batches: large(n), Offsets: []*leveev1.Range{{From: 1, To: 2}, {From: 4, To: 1 << 40}},
					Counts: []*leveev1.Deliveries{{From: 4, To: 4, Count: 2}},
				},
				Consuming: &leveev1.Consuming{Position: 5}, Active: true, Standby: true, Lost: &leveev1.Range{From: 1, To: 2},
				Skipped: &leveev1.Range{From: 3, To: 4}, Trimmed: &leveev1.Trimmed{Oldest: 4}, Ended: &leveev1.Error{Kind: "deleted"},
				Saved: 9, SaveFailed: &leveev1.Error{Kind: "io"},
			},
		)
	}
	return all
}

// What we write the standard library reads, and the other way round.
func TestAgainstStandardLibrary(t *testing.T) {
	for _, want := range messages() {
		out, err := codec.Codec{}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		raw := out.Materialize()
		out.Free()
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(raw, got); err != nil || !proto.Equal(want, got) {
			t.Errorf("%T of %d bytes, read by the standard library: %v", want, len(raw), err)
		}

		raw, err = proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got = want.ProtoReflect().New().Interface()
		if err := (codec.Codec{}).Unmarshal(frames(raw), got); err != nil || !proto.Equal(want, got) {
			t.Errorf("%T of %d bytes, written by the standard library: %v", want, len(raw), err)
		}
	}
}

func TestDeliveryIsNotCopied(t *testing.T) {
	batches := large(100_000)
	out, err := codec.Codec{}.Marshal(&leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: batches}})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range out {
		if b.Len() == len(batches) && &b.ReadOnlyData()[0] == &batches[0] {
			return
		}
	}
	t.Error("the batches were copied")
}

// A delivery with a field that the encoding in parts forgets would lose it silently.
func TestDeliveryInPartsKnowsEveryField(t *testing.T) {
	for _, c := range []struct {
		message proto.Message
		fields  int
	}{
		{&leveev1.SubscribeResponse{}, 7}, {&leveev1.Delivery{}, 3}, {&leveev1.ConsumeResponse{}, 10}, {&leveev1.Delivered{}, 3},
	} {
		if n := c.message.ProtoReflect().Descriptor().Fields().Len(); n != c.fields {
			t.Errorf("%T has %d fields: teach withoutBatches, then this test", c.message, n)
		}
	}
}

func TestUnmarshalReplacesAndKeepsNothing(t *testing.T) {
	raw, err := proto.Marshal(&leveev1.Delivery{Batches: []byte("abc")})
	if err != nil {
		t.Fatal(err)
	}
	got := &leveev1.Delivery{Next: 9, Batches: []byte("before")}
	if err := (codec.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, got); err != nil {
		t.Fatal(err)
	}
	clear(raw) // gRPC uses the buffer for something else
	if got.Next != 0 || !bytes.Equal(got.Batches, []byte("abc")) {
		t.Errorf("got %v", got)
	}
}

func TestErrorsNameTheType(t *testing.T) {
	bad := mem.BufferSlice{mem.SliceBuffer{0xff}}
	_, notMessage := codec.Codec{}.Marshal(1)
	for want, err := range map[string]error{
		"marshal int":    notMessage,
		"unmarshal *int": codec.Codec{}.Unmarshal(bad, new(int)),
		"*leveev1.Batch": codec.Codec{}.Unmarshal(bad, &leveev1.Batch{}),
		"StringValue":    codec.Codec{}.Unmarshal(bad, &wrapperspb.StringValue{}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not say %q", err, want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, m := range messages() {
		if raw, err := proto.Marshal(m); err == nil && len(raw) < 2000 {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, v := range []proto.Message{&leveev1.PublishRequest{}, &leveev1.SubscribeRequest{}, &leveev1.PublishOnceRequest{}} {
			if err := (codec.Codec{}).Unmarshal(frames(raw), v); err != nil {
				continue
			}
			out, err := codec.Codec{}.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			again := v.ProtoReflect().New().Interface()
			if err := (codec.Codec{}).Unmarshal(out, again); err != nil {
				t.Fatalf("%T does not read its own bytes: %v", v, err)
			}
		}
	})
}
