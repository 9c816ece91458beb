package subscription

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// What a consumer waits for comes at once, whatever makes it possible. No ack timeout ever wakes the feed here.
func TestWakes(t *testing.T) {
	for name, test := range map[string]func(b *bench, c *Consumer){
		"publish": func(b *bench, c *Consumer) {
			go func() { <-time.After(time.Second); b.log.add(record.None, "x") }()
			b.within(time.Second, c, "0=x")
		},
		"window": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x", "y", "z")
			b.want(c, "0=x 1=y")
			go func() { <-time.After(time.Second); b.ack(c, seglog.Range{From: 1, To: 1}) }()
			b.within(time.Second, c, "2=z")
		},
		"nack": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x")
			b.want(c, "0=x")
			b.nothing(c, time.Second)
			b.nack(c, 0, 0, time.Minute)
			b.within(time.Minute, c, "0=x*2")
		},
		"shorter": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x", "y")
			b.want(c, "0=x 1=y")
			b.nack(c, 0, 0, time.Hour)
			b.nothing(c, time.Second)
			b.nack(c, 1, 1, time.Second)
			b.within(time.Second, c, "1=y*2")
		},
		"seek back": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x", "y")
			b.want(c, "0=x 1=y")
			b.ack(c, seglog.Range{From: 0, To: 1})
			b.nothing(c, time.Second)
			b.run.SeekTo(1, 2)
			b.within(0, c, "1=y")
		},
		"another one leaves": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x", "y")
			b.want(c, "0=x 1=y")
			d := b.join(Member{Name: "d"})
			b.nothing(d, time.Second)
			go func() { <-time.After(time.Second); c.Close() }()
			b.within(time.Second, d, "0=x*2 1=y*2")
		},
		"larger window": func(b *bench, c *Consumer) {
			b.log.add(record.None, "x", "y", "z")
			b.want(c, "0=x 1=y")
			b.nothing(c, time.Second)
			b.run.Reconfigure(dispatch.Config{Type: dispatch.Shared, Consumer: dispatch.Window{Messages: 3}})
			b.within(0, c, "2=z")
		},
		"its time": func(b *bench, c *Consumer) {
			due := time.Now().Add(time.Minute).UnixMilli()
			b.log.append(record.LZ4, record.Record{Value: []byte("late"), Headers: []record.Header{{Key: record.HeaderDeliverAt, Value: []byte(itoa(due))}}})
			b.log.add(record.None, "now")
			b.within(0, c, "1=now")
			b.within(time.Minute, c, "0=late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, dispatch.Config{Type: dispatch.Shared, Consumer: dispatch.Window{Messages: 2}}, func(b *bench) {
				c := b.join(Member{Name: "c"})
				b.nothing(c, time.Second) // so that the feed waits
				test(b, c)
			})
		})
	}
}

// A wait that ends takes its question back, and nothing is lost with it.
func TestNextEndsWithItsContext(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		c, d := b.join(Member{Name: "c"}), b.join(Member{Name: "d"})
		b.nothing(c, time.Second)
		b.log.add(record.None, "x")
		b.within(0, d, "0=x") // and not to c, which asks no more
		// What a delivery needs can no longer be had when its caller gives up: it comes back at once.
		b.nack(d, 0, 0, 0)
		b.log.set(func() { b.log.openErr = func(int) error { return context.Canceled } })
		b.run.mu.Lock()
		b.run.cache.clear()
		b.run.mu.Unlock()
		if _, err := c.Next(b.t.Context(), 1); !errors.Is(err, context.Canceled) {
			b.t.Fatal(err)
		}
		b.log.set(func() { b.log.openErr = nil })
		b.within(0, c, "0=x*3")
	})
}

func TestErrorsOfTheSource(t *testing.T) {
	broken := fault.New(fault.Stopped, "EIO")
	t.Run("open at join", func(t *testing.T) {
		with(t, dispatch.Config{}, func(b *bench) {
			b.log.openErr = func(n int) error {
				if n == 1 {
					return broken
				}
				return nil
			}
			if _, err := b.run.Join(b.t.Context(), Member{Name: "c"}); !errors.Is(err, broken) {
				b.t.Fatal(err)
			}
			b.log.add(record.None, "x")
			b.want(b.join(Member{Name: "c"}), "0=x")
		})
	})
	t.Run("read", func(t *testing.T) {
		with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
			b.log.readErr = func(int64) error { return broken }
			c, d := b.join(Member{Name: "c"}), b.join(Member{Name: "d"})
			b.fails(c, fault.Stopped)
			b.fails(d, fault.Stopped)
			b.log.set(func() { b.log.readErr = nil })
			b.log.add(record.None, "x")
			b.want(b.join(Member{Name: "c"}), "0=x")
			c.Close()
		})
	})
	t.Run("corrupt", func(t *testing.T) {
		with(t, dispatch.Config{Type: dispatch.KeyShared}, func(b *bench) {
			b.log.add(record.None, "x")
			b.log.batches[0][record.HeaderSize] ^= 0x55
			b.log.batches[0] = b.log.batches[0][:len(b.log.batches[0])-1]
			b.fails(b.join(Member{Name: "c"}), fault.Corrupt)
		})
	})
	t.Run("trimmed", func(t *testing.T) {
		with(t, dispatch.Config{}, func(b *bench) {
			b.log.add(record.None, "x")
			b.log.add(record.None, "y")
			b.log.oldest = 1
			b.fails(b.join(Member{Name: "c"}), fault.Trimmed)
			if _, err := b.run.Join(b.t.Context(), Member{Name: "c"}); fault.KindOf(err) != fault.Trimmed {
				b.t.Fatal(err)
			}
			b.run.SeekTo(1, 2)
			b.want(b.join(Member{Name: "c"}), "1=y")
		})
	})
	t.Run("trimmed in a delivery", func(t *testing.T) {
		with(t, dispatch.Config{Type: dispatch.Shared, SkipTrimmed: true}, func(b *bench) {
			b.log.add(record.None, "w", "x")
			b.log.add(record.None, "y", "z")
			c := b.join(Member{Name: "c"})
			synctest.Wait()
			b.run.mu.Lock()
			b.run.cache.clear()
			b.run.mu.Unlock()
			b.log.set(func() { b.log.oldest = 2 })
			e, err := c.Next(b.t.Context(), 1<<20)
			if err != nil || e.Kind != Skipped || e.Range != (seglog.Range{From: 0, To: 1}) {
				b.t.Fatalf("%+v, %v", e, err)
			}
			b.within(0, c, "2=y*2 3=z*2") // what is still there comes at once
			b.ack(c, seglog.Range{From: 2, To: 3})
			if p := c.Position(); p != 4 {
				b.t.Error(p)
			}
		})
	})
}

// Memory of the source is used again, and never while a delivery is made of it; what is not kept is read again.
func TestEvictedIsReadAgain(t *testing.T) {
	for _, codec := range []record.Codec{record.None, record.LZ4} {
		with(t, dispatch.Config{Type: dispatch.Shared, Consumer: dispatch.Window{Messages: 7}, LookAhead: dispatch.Window{Messages: 100, Bytes: 1 << 20}}, func(b *bench) {
			b.run.cache.most = 1 // the last read only
			for range 40 {
				b.log.add(codec, strings.Repeat("a", 30<<10), "b", strings.Repeat("c", 10<<10))
			}
			c := b.join(Member{Name: "c"})
			synctest.Wait()
			for at := int64(0); at < 120; {
				e, err := c.Next(b.t.Context(), 50<<10)
				if err != nil {
					b.t.Fatal(err)
				}
				b.read(e)
				b.ack(c, e.Offsets...)
				at += int64(e.Records)
			}
			if p := c.Position(); p != 120 {
				b.t.Errorf("position %d", p)
			}
		})
	}
}

// A subscription of what is not stored loses what it cannot keep, and goes on.
func TestNothingToReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dispatch.Config{Type: dispatch.Shared, AtMostOnce: true}, 0)
		defer b.end()
		b.log.passing = true
		c := b.join(Member{Name: "c"})
		b.run.cache.most = 1000
		for range 40 {
			b.log.add(record.None, "x")
			synctest.Wait()
		}
		if s := b.next(c); !strings.HasSuffix(s, " 38=x 39=x") || strings.HasPrefix(s, "0=x ") {
			t.Fatal(s)
		}
		b.log.add(record.None, "read", "by nobody")
		synctest.Wait()
		c.Close()
		c = b.join(Member{Name: "c"})
		b.log.add(record.None, "new")
		for {
			if s := b.next(c); strings.HasSuffix(s, "=new") {
				break
			}
		}
	})
}

// A delayed record of what is not stored is looked for in what is kept, and takes nothing of what passes by.
func TestDelayedPassingBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dispatch.Config{Type: dispatch.Shared, AtMostOnce: true, LookAhead: dispatch.Window{Messages: 3, Bytes: 1 << 20}}, 0)
		defer b.end()
		b.log.passing = true
		b.run.cache.most = 1 << 20
		c := b.join(Member{Name: "c"})
		synctest.Wait()
		due := strconv.AppendInt(nil, time.Now().Add(5*time.Minute).UnixMilli(), 10)
		b.log.append(record.None, record.Record{Value: []byte("late"), Headers: []record.Header{{Key: record.HeaderDeliverAt, Value: due}}})
		synctest.Wait()
		for i := range 8 { // more than is read ahead
			b.log.add(record.None, itoa(int64(i)))
			synctest.Wait()
		}
		<-time.After(6 * time.Minute)
		synctest.Wait()
		var all []string
		for len(all) < 9 {
			all = append(all, strings.Fields(b.next(c))...)
		}
		slices.Sort(all)
		if s := strings.Join(all, " "); s != "0=late 1=0 2=1 3=2 4=3 5=4 6=5 7=6 8=7" {
			t.Fatal(s)
		}
	})
}

// A record that is too large for who reads it is not handed to it, however small it was compressed.
func TestTooLargeForItsConsumer(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Exclusive, Poison: dispatch.Drop}, func(b *bench) {
		b.log.add(record.LZ4, strings.Repeat("x", 5000), "y")
		c := b.join(Member{Name: "c", MaxRecordBytes: 1000})
		b.want(c, "1=y")
	})
}

// A key that is empty is a key like any other where consumers filter: who takes all takes it.
func TestEmptyKeyIsFiltered(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.KeyShared}, func(b *bench) {
		b.log.append(record.None, record.Record{Key: []byte{}, Value: []byte("x")})
		b.join(Member{Name: "c", Filters: []string{"y"}})
		b.within(time.Second, b.join(Member{Name: "d"}), "0=x")
	})
}

// A run of records is handed out as a whole where its first ones were read again together with others, and its next ones
// lie in another read than those.
func TestPieceInSeveralReads(t *testing.T) {
	with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
		b.run.cache.most = 30 << 10 // two of these batches; a read that is made again holds five
		c := b.join(Member{Name: "c"})
		add := func(values ...string) {
			for _, v := range values {
				b.log.add(record.None, v+strings.Repeat("x", 12<<10))
				synctest.Wait() // each is read by itself
			}
		}
		add("a", "b", "c", "d")
		b.next(c)
		b.ack(c, seglog.Range{From: 1, To: 3})
		add("e", "f")
		b.nack(c, 0, 0, 0)
		var got []string
		for _, s := range strings.Fields(b.next(c)) {
			got = append(got, strings.ReplaceAll(s, "x", ""))
		}
		if s := strings.Join(got, " "); s != "0=a*2 4=e 5=f" {
			b.t.Errorf("got %s", s)
		}
	})
}
