package subscription

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/record"
	dto "github.com/prometheus/client_model/go"
)

// passing runs a test of a Run of a topic that is not stored: what was read cannot be read again.
func passing(t *testing.T, typ dispatch.Type, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dispatch.Config{Type: typ, AtMostOnce: true}, 0)
		defer b.end()
		b.log.passing = true
		test(t, b)
	})
}

// soon returns what a consumer is handed by now.
func (b *bench) soon(c *Consumer) (list []string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
	defer cancel()
	for {
		e, err := c.Next(ctx, 1<<20)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return list
		case err != nil:
			b.t.Fatal(err)
		case e.Kind == Data:
			list = append(list, strings.Fields(b.read(e))...)
		}
	}
}

// What was read before a consumer with filters came is still handed out, to each what it takes.
func TestFiltersJoinWhatPassesBy(t *testing.T) {
	passing(t, dispatch.KeyShared, func(t *testing.T, b *bench) {
		first := b.join(Member{Name: "first"})
		synctest.Wait()
		for i := range 5 {
			b.log.add(record.None, fmt.Sprintf("a%d/", i), fmt.Sprintf("b%d/", i))
		}
		synctest.Wait()
		second := b.join(Member{Name: "second", Filters: []string{"b*"}})
		synctest.Wait()
		some := b.soon(second)
		for _, s := range some {
			if !strings.Contains(s, "=b") {
				t.Errorf("%s was handed to who does not take it", s)
			}
		}
		all := append(b.soon(first), some...)
		slices.Sort(all)
		if got := strings.Join(all, " "); got != "0=a0/ 1=b0/ 2=a1/ 3=b1/ 4=a2/ 5=b2/ 6=a3/ 7=b3/ 8=a4/ 9=b4/" {
			t.Errorf("got %s", got)
		}
	})
}

// A read that is under way when somebody comes or goes counts, whatever that changes in how its records are looked at.
func TestJoinDuringARead(t *testing.T) {
	for _, typ := range []dispatch.Type{dispatch.Exclusive, dispatch.Shared, dispatch.Failover, dispatch.KeyShared} {
		for name, change := range map[string]func(b *bench, c *Consumer) *Consumer{
			"join":   func(b *bench, c *Consumer) *Consumer { return b.join(Member{Name: "c", MaxRecordBytes: 1000}) },
			"loosen": func(b *bench, c *Consumer) *Consumer { return b.join(Member{Name: "c"}) },
			"filter": func(b *bench, c *Consumer) *Consumer { return b.join(Member{Name: "c", Filters: []string{"k*"}}) },
			"two at it": func(b *bench, c *Consumer) *Consumer {
				b.join(Member{Name: "c", MaxRecordBytes: 1000})
				return b.join(Member{Name: "c"})
			},
		} {
			t.Run(fmt.Sprint(typ, " ", name), func(t *testing.T) {
				passing(t, typ, func(t *testing.T, b *bench) {
					held := make(chan struct{})
					b.log.held = held
					c := b.join(Member{Name: "c", MaxRecordBytes: 2000}) // the same name takes over
					b.log.add(record.None, "k/0", "k/1")
					b.log.add(record.LZ4, "k/2", strings.Repeat("x", 1500))
					synctest.Wait()
					c = change(b, c)
					close(held)
					want := "0=k/0 1=k/1 2=k/2"
					if c.maxRecord == 0 {
						want += " 3=" + strings.Repeat("x", 1500)
					}
					if got := strings.Join(b.soon(c), " "); got != want {
						t.Errorf("got %.100s, want %.100s", got, want)
					}
				})
			})
		}
	}
}

// A look for delayed records that is under way when somebody comes needs no second one.
func TestJoinDuringAScan(t *testing.T) {
	reads := func(join bool) (n int) {
		with(t, dispatch.Config{Type: dispatch.Shared}, func(b *bench) {
			c := b.join(Member{Name: "c"})
			due := strconv.AppendInt(nil, time.Now().Add(5*time.Minute).UnixMilli(), 10)
			b.log.append(record.LZ4, record.Record{Value: []byte("late"), Headers: []record.Header{{Key: record.HeaderDeliverAt, Value: due}}})
			b.nothing(c, time.Minute)
			held := make(chan struct{})
			b.log.set(func() { b.log.held, n = held, b.log.reads })
			b.nothing(c, 4*time.Minute-10*time.Second)
			if join {
				b.join(Member{Name: "d", MaxRecordBytes: 1000})
			}
			close(held)
			b.within(10*time.Second, c, "0=late")
			synctest.Wait() // the feed looks once more whether there is something behind it
			n = b.log.reads - n
		})
		return n
	}
	if with, without := reads(true), reads(false); with != without || without == 0 {
		t.Errorf("%d reads, and %d where nobody comes", with, without)
	}
}

// A delayed record that is no longer kept when its time comes is lost, and counted: the position does not wait for it.
func TestDelayedIsLostWhereItIsNotKept(t *testing.T) {
	for name, delay := range map[string]time.Duration{"known by itself": 30 * time.Second, "known by its block": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			passing(t, dispatch.Shared, func(t *testing.T, b *bench) {
				b.run.cache.most = 1000
				c := b.join(Member{Name: "c"})
				synctest.Wait()
				delayed := func(d time.Duration, value string) {
					due := strconv.AppendInt(nil, time.Now().Add(d).UnixMilli(), 10)
					b.log.append(record.None, record.Record{Value: []byte(value), Headers: []record.Header{{Key: record.HeaderDeliverAt, Value: due}}},
						record.Record{Value: []byte("now")}, record.Record{Value: []byte(value), Headers: []record.Header{{Key: record.HeaderDeliverAt, Value: due}}})
					synctest.Wait()
				}
				delayed(delay, "early")
				for range 40 {
					b.log.add(record.None, "x")
					synctest.Wait()
				}
				delayed(delay, "late")
				delayed(delay+time.Hour, "later")
				got := b.soon(c)
				<-time.After(delay)
				got = append(got, b.soon(c)...)
				if s := fmt.Sprint(got[len(got)-2:]); s != "[43=late 45=late]" {
					t.Errorf("got %s at the end", s)
				}
				if s := b.run.State(); s.Position != 46 {
					t.Errorf("position %d", s.Position)
				}
				var dropped dto.Metric
				if err := b.cfg.Metrics.Dropped.Write(&dropped); err != nil {
					t.Fatal(err)
				}
				if n := int(dropped.Counter.GetValue()); n < 2 || n+len(got) != 47 {
					t.Errorf("%d counted as dropped, %d of 47 came: %v", n, len(got), got)
				}
				<-time.After(time.Hour)
				if s := strings.Join(b.soon(c), " "); s != "46=later 48=later" {
					t.Errorf("got %s", s)
				}
			})
		})
	}
}
