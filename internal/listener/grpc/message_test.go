package grpc

import (
	"bytes"
	"testing"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"google.golang.org/grpc/mem"
)

// The memory of a message is nobody else's before its last batch is answered.
func TestMessageMemory(t *testing.T) {
	batch := func(c byte) []byte { return bytes.Repeat([]byte{c}, 30_000) }
	raw, err := (&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: batch('a')}, {Id: 2, Data: batch('b')}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	scribble := func() {
		var got []*[]byte
		for range 20 {
			b := codec.Pool.Get(len(raw))
			for i := range *b {
				(*b)[i] = '!'
			}
			got = append(got, b)
		}
		for _, b := range got {
			codec.Pool.Put(b)
		}
	}
	m := &message{}
	for range 50 {
		scribble()
		if err := m.decode(mem.BufferSlice{mem.SliceBuffer(raw[:20_000]), mem.SliceBuffer(raw[20_000:])}); err != nil {
			t.Fatal(err)
		}
		if m.memory == nil || m.memory.left.Load() != 2 {
			t.Fatalf("two large batches lie in %+v", m.memory)
		}
		first, second := m.Batches[0].Data, m.Batches[1].Data
		scribble()
		m.memory.release()
		scribble()
		if !bytes.Equal(first, batch('a')) || !bytes.Equal(second, batch('b')) {
			t.Fatal("a batch changed before its message was answered")
		}
		m.memory.release()
	}
}

func TestMessageIsWhatWasSentLast(t *testing.T) {
	m := &message{}
	for i, want := range []*leveev1.PublishRequest{
		{Open: &leveev1.OpenPublish{Topic: "t"}, Batches: []*leveev1.Batch{{Id: 1, Data: make([]byte, 5000)}, {Id: 2}}},
		{Batches: []*leveev1.Batch{{Id: 3, Partition: 1, Data: []byte("x")}}},
		{},
		{Batches: make([]*leveev1.Batch, 3*keptBatches)},
		{Batches: []*leveev1.Batch{{Id: 4}}},
	} {
		for j := range want.Batches {
			if want.Batches[j] == nil {
				want.Batches[j] = &leveev1.Batch{Id: uint64(j)}
			}
		}
		raw, err := want.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.decode(mem.BufferSlice{mem.SliceBuffer(raw)}); err != nil {
			t.Fatal(err)
		}
		again, err := m.MarshalVT()
		if err != nil || !bytes.Equal(again, raw) {
			t.Errorf("message %d: got %v, %v", i, &m.PublishRequest, err)
		}
	}
	if cap(m.Batches) > keptBatches {
		t.Errorf("the list of the largest message is kept: %d batches", cap(m.Batches))
	}
}
