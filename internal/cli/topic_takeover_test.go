package cli

import (
	"testing"
	"time"

	"github.com/leveemq/levee/client"
)

// A description says of each partition that was taken over where its records came from, and what of them is lost; of others
// nothing. From where on the write buffer lacks records stands beside what it has.
func TestTakeOversInWords(t *testing.T) {
	at := time.UnixMilli(1767225600000)
	partitions := []client.Partition{
		{Partition: 0},
		{Partition: 1, TakenOver: &client.TakenOver{At: at, From: "host:data", Objects: 10, Replayed: 17}},
		{Partition: 2, TakenOver: &client.TakenOver{At: at, From: "host:data", Objects: 10, Replayed: 12, Lost: &[2]int64{12, 99}}},
	}
	const want = "\npartition 1 was taken over from host:data at 2026-01-01T00:00:00Z: below 10 from objects, below 17 from the write buffer" +
		"\npartition 2 was taken over from host:data at 2026-01-01T00:00:00Z: below 10 from objects, below 12 from the write buffer; offsets 12 to 99 are lost\n"
	if got := describeTakeovers(partitions); got != want {
		t.Errorf("it says\n%s, want\n%s", got, want)
	}
	if got := describeTakeovers(partitions[:1]); got != "" {
		t.Errorf("where nothing was taken over it says %q", got)
	}
	from := int64(7)
	const buffer = "\nPARTITION  IN THE WRITE BUFFER BELOW  BEHIND  ACKNOWLEDGED WITHOUT IT FROM\n" +
		"0          5                          4       7\n"
	if got := describeBuffer([]client.Partition{{Buffered: true, Confirmed: 5, End: 9, Uncovered: &from}}); got != buffer {
		t.Errorf("it says\n%s, want\n%s", got, buffer)
	}
	if got := describeBuffer(partitions[:1]); got != "" {
		t.Errorf("without a write buffer it says %q", got)
	}
}
