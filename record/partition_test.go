package record

import "testing"

func TestPartitionOf(t *testing.T) {
	// Kafka's own figures for its clients' hash.
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		if got := PartitionOf([]byte(key), 10); got != (want&0x7fffffff)%10 {
			t.Errorf("PartitionOf(%q) = %d", key, got)
		}
	}
}
