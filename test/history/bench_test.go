package history

import (
	"bytes"
	"io"
	"testing"
)

// big returns a history of n acknowledged publishes by 16 producers to two partitions, read back many times.
func big(n, readings int) *History {
	h := New()
	var producers []*Producer
	for i := range 16 {
		producers = append(producers, h.Producer(ProducerInfo{Topic: "default/load", Incarnation: 1, Idempotent: i%2 == 0, Ordered: i%4 == 1}))
	}
	var logs [2][]Value
	var known [2]int // how much of each has been read
	for i := range n {
		v := producers[i%16].Begin(int32(i % 2))
		logs[i%2] = append(logs[i%2], v)
		h.End(v, OK, int64(len(logs[i%2])-1), false, nil)
		if i%(n/readings) != 0 {
			continue
		}
		h.Fault("kill", h.Now(), Cost{})
		for p, log := range logs {
			r := h.reading(h.now(), logID{"default/load", 1, int32(p)}, "", 0)
			if known[p] > 0 { // as if it had been read again
				r.segment(segment{to: int64(known[p] - 1), kind: segSame})
			}
			for ; known[p] < len(log); known[p]++ {
				r.record(int64(known[p]), log[known[p]])
			}
			r.finish(h.now(), int64(len(log)))
		}
		h.Heal()
	}
	return h
}

// BenchmarkRecord is a publish on the path of a load generator: Begin and End.
func BenchmarkRecord(b *testing.B) {
	h := New()
	p := h.Producer(ProducerInfo{Topic: "t"})
	b.ReportAllocs()
	offset := int64(0)
	for b.Loop() {
		h.End(p.Begin(0), OK, offset, false, nil)
		offset++
	}
}

// BenchmarkRecordStreamed is BenchmarkRecord while the history is written as well.
func BenchmarkRecordStreamed(b *testing.B) {
	h := New()
	h.Stream(io.Discard)
	p := h.Producer(ProducerInfo{Topic: "t"})
	b.ReportAllocs()
	offset := int64(0)
	for b.Loop() {
		h.End(p.Begin(0), OK, offset, false, nil)
		offset++
	}
}

// BenchmarkReread is one record that has been read before.
func BenchmarkReread(b *testing.B) {
	h := New()
	r := h.Reading("t", 0, 0, "", 0)
	for o := range int64(1 << 20) {
		r.Record(o, Value{0, int32(o)})
	}
	r.End(1 << 20)
	r = h.Reading("t", 0, 0, "", 0)
	b.ReportAllocs()
	o := int64(0)
	for b.Loop() {
		if o == 1<<20 {
			o, r = 0, h.Reading("t", 0, 0, "", 0)
		}
		r.Record(o, Value{0, int32(o)})
		o++
	}
}

// BenchmarkCheck judges a million publishes, 500 faults and 1,000 readings.
func BenchmarkCheck(b *testing.B) {
	h := big(1_000_000, 500)
	b.ReportAllocs()
	for b.Loop() {
		if r := h.Check(Options{}); !r.OK() {
			b.Fatal(r.Violations)
		}
	}
}

// BenchmarkWrite and BenchmarkRead are for 100,000 publishes and as many records.
func BenchmarkWrite(b *testing.B) {
	h := big(100_000, 50)
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Write(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	if err := big(100_000, 50).Write(&text); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}
