package record

import "testing"

func BenchmarkParseHeader(b *testing.B) {
	batch := build(b, None, NoProducer, compressible(100)...)
	b.ReportAllocs()
	for range b.N {
		if _, err := ParseHeader(batch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	batch := build(b, None, NoProducer, compressible(100)...)
	b.ReportAllocs()
	b.SetBytes(int64(len(batch)))
	for range b.N {
		if _, err := Check(batch); err != nil {
			b.Fatal(err)
		}
	}
}

func benchCodecs(b *testing.B, run func(b *testing.B, batch []byte)) {
	for codec := range codecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch := build(b, codec, NoProducer, compressible(1000)...)
			b.ReportAllocs()
			b.ResetTimer()
			run(b, batch)
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	benchCodecs(b, func(b *testing.B, batch []byte) {
		for range b.N {
			if _, err := Verify(batch, Limits{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRecords(b *testing.B) {
	benchCodecs(b, func(b *testing.B, batch []byte) {
		for range b.N {
			if _, err := Records(batch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	for codec := range codecs {
		b.Run(codec.String(), func(b *testing.B) {
			records := compressible(1000)
			builder := NewBuilder(codec)
			b.ReportAllocs()
			for range b.N {
				for _, r := range records {
					if err := builder.Append(r); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := builder.Build(NoProducer); err != nil {
					b.Fatal(err)
				}
				builder.Reset()
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
		})
	}
}
