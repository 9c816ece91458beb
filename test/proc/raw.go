package proc

import (
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Raw is the native API without the client's good manners.
type Raw struct {
	leveev1.StreamClient
	leveev1.AdminClient
	Conn *grpc.ClientConn
}

// Raw returns a connection of its own to the broker, which the test's end closes.
func (b *Broker) Raw() *Raw {
	b.t.Helper()
	conn, err := grpc.NewClient(b.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(80<<20), grpc.MaxCallSendMsgSize(80<<20)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return &Raw{leveev1.NewStreamClient(conn), leveev1.NewAdminClient(conn), conn}
}

// Batch encodes records as nobody's batch.
func Batch(t testing.TB, codec record.Codec, records ...record.Record) []byte {
	t.Helper()
	return BatchOf(t, codec, record.NoProducer, records...)
}

// BatchOf encodes records as a batch of a producer.
func BatchOf(t testing.TB, codec record.Codec, p record.ProducerInfo, records ...record.Record) []byte {
	t.Helper()
	b := record.NewBuilder(codec)
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}
