package codec_test

import (
	"fmt"
	"testing"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"google.golang.org/grpc/mem"
)

var sizes = []int{1 << 10, 8 << 10, 64 << 10, 1 << 20}

// frames cuts raw as it arrives from a connection.
func frames(raw []byte) (s mem.BufferSlice) {
	for len(raw) > 0 {
		n := min(len(raw), 16<<10)
		s = append(s, mem.SliceBuffer(raw[:n]))
		raw = raw[n:]
	}
	return s
}

func BenchmarkUnmarshalPublish(b *testing.B) {
	for _, n := range sizes {
		raw, err := (&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: make([]byte, n)}}}).MarshalVT()
		if err != nil {
			b.Fatal(err)
		}
		in := frames(raw)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				var out leveev1.PublishRequest
				if err := (codec.Codec{}).Unmarshal(in, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMarshalDelivery(b *testing.B) {
	for _, n := range sizes {
		m := &leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: make([]byte, n), Next: 12345}}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				out, err := (codec.Codec{}).Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
	}
}
