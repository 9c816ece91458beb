package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

// lag is how far export is behind: megabytes of sealed segments that have no copy yet, and of those that retention
// would have removed if they had one, when so much of the run was over.
type lag struct {
	At25, At50, At100, Most float64
	Held25, Held50, Held100 float64
}

// warmup is left out of what -mode paced measures: connections, the topic's files.
const warmup = time.Second

// paced publishes -rate messages a second for -secs by -conc publishers, whatever the broker makes of it. The latency of a
// message is from when it was due, so that what waits in the client because the broker is slow counts.
func (d *leveeD) paced() *result {
	var wg sync.WaitGroup
	var acked, errs atomic.Int64
	hs := make([]*hist, *conc)
	cli, srv, start := cpuSelf(), cpuOf(*pid), time.Now()
	dur := time.Duration(*secs * 1e9)
	measured := start.Add(min(warmup, dur/2))
	watching, stop := context.WithCancel(d.ctx)
	samples := make(chan []exportSample, 1)
	go func() { samples <- watchExport(watching, start) }()
	for i := range *conc {
		hs[i] = &hist{}
		wg.Go(func() {
			c := leveeConn()
			defer c.Close()
			producer := must2(c.NewProducer(d.ctx, *stream, client.ProducerConfig{MaxInFlightBytes: 256 << 20}))
			value := payload(i)
			paceDue(float64(*rate)/float64(*conc), start, dur, func(due time.Time) {
				producer.Publish(d.ctx, record.Record{Value: value}, func(_ client.Ack, err error) {
					switch {
					case err != nil:
						errs.Add(1)
					case due.After(measured):
						hs[i].add(time.Since(due))
						fallthrough
					default:
						acked.Add(1)
					}
				})
			})
			must(producer.Close(d.ctx))
		})
	}
	wg.Wait()
	took := time.Since(start)
	stop()
	all := &hist{}
	for _, h := range hs {
		all.merge(h)
	}
	r := row(acked.Load(), errs.Load(), took.Seconds(), all, cpuSelf()-cli, cpuOf(*pid)-srv)
	r.Offered, r.Window, r.Batch = float64(*rate), 0, 0
	if seen := <-samples; len(seen) > 0 {
		r.Lag, r.LagGrowth = summary(seen, dur, float64(*rate**size))
		r.Note = fmt.Sprintf("not exported yet at 25, 50, 100 %% of the run: %.1f, %.1f, %.1f MB, at most %.1f; held: %.1f, %.1f, %.1f MB",
			r.Lag.At25, r.Lag.At50, r.Lag.At100, r.Lag.Most, r.Lag.Held25, r.Lag.Held50, r.Lag.Held100)
	}
	return r
}

// paceDue calls f rate times a second until dur after start, with the time that each call was due at.
func paceDue(rate float64, start time.Time, dur time.Duration, f func(due time.Time)) {
	for sent := 0; ; {
		since := min(time.Since(start), dur)
		for due := int(since.Seconds() * rate); sent < due; sent++ {
			f(start.Add(time.Duration(float64(sent+1) / rate * 1e9)))
		}
		if since == dur {
			return
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// exportSample is what the broker said of its export, in bytes.
type exportSample struct {
	at        time.Duration
	lag, held float64
}

// watchExport asks -metrics again and again. Nothing where there is no export.
func watchExport(ctx context.Context, start time.Time) (seen []exportSample) {
	if *metrics == "" {
		return nil
	}
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return seen
		case <-tick.C:
		}
		values := scrape("levee_storage_export_lag_bytes", "levee_storage_export_held_bytes")
		if len(values) == 2 {
			seen = append(seen, exportSample{time.Since(start), values["levee_storage_export_lag_bytes"], values["levee_storage_export_held_bytes"]})
		}
	}
}

// scrape returns the metrics of these names that the broker has.
func scrape(names ...string) map[string]float64 {
	loopback(*metrics)
	resp := must2(http.Get("http://" + *metrics + "/metrics"))
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		must(errors.New("metrics: " + resp.Status))
	}
	found := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		for _, n := range names {
			if n == name {
				found[n] = must2(strconv.ParseFloat(value, 64))
			}
		}
	}
	return found
}

// summary is what samples of a run say. Its growth is the mean lag of the run's last quarter less that of its second, by
// what was to be published from the middle of the one to that of the other: 0 where export keeps up, 1 where it stands still.
func summary(seen []exportSample, dur time.Duration, bytesPerS float64) (*lag, *float64) {
	l := &lag{}
	var sum, count [4]float64
	for _, s := range seen {
		lagged, held := s.lag/1e6, s.held/1e6
		l.Most = max(l.Most, lagged)
		if s.at <= dur/4 {
			l.At25, l.Held25 = lagged, held
		}
		if s.at <= dur/2 {
			l.At50, l.Held50 = lagged, held
		}
		l.At100, l.Held100 = lagged, held
		q := min(int(4*s.at/dur), 3)
		sum[q] += s.lag
		count[q]++
	}
	if count[1] == 0 || count[3] == 0 {
		return l, nil
	}
	growth := (sum[3]/count[3] - sum[1]/count[1]) / (bytesPerS * dur.Seconds() / 2)
	return l, &growth
}

// copied waits until every record of -stream has a copy in the object store, and the log holds hardly anything else.
func (d *leveeD) copied() *result {
	start := time.Now()
	for {
		var missing, local int64
		topic := must2(d.conn.Admin().DescribeTopic(d.ctx, *stream))
		for _, p := range topic.PartitionStates {
			missing += p.End - p.CopiedBelow
			local += p.Bytes
		}
		if missing == 0 && local < 1<<20 {
			r := row(0, 0, time.Since(start).Seconds(), &hist{}, 0, 0)
			r.Note = fmt.Sprintf("%d bytes are left in the log", local)
			return r
		}
		if time.Since(start) > time.Minute {
			must(fmt.Errorf("%d records have no copy, and %d bytes are left in the log", missing, local))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// first reads the first messages from -from on. The broker reads through -proxy, which holds each request back for -delay,
// so that the time tells how many of them waited for one another.
func (d *leveeD) first() *result {
	must2(held(d.ctx, d.conn)) // it is open
	loopback(*proxy)
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	before, start := proxied(), time.Now()
	consumer := must2(d.conn.Consume(ctx, *stream, client.ConsumerConfig{From: client.Offset(*from)}))
	defer consumer.Close()
	messages := must2(consumer.NextBatch(ctx))
	took := time.Since(start)
	requests := proxied() - before
	if len(messages) == 0 || messages[0].Offset != *from {
		must(fmt.Errorf("%d messages, and not those from %d on", len(messages), *from))
	}
	r := row(int64(len(messages)), 0, took.Seconds(), &hist{}, 0, 0)
	r.Trips, r.Requests = int64(took / *delay), requests
	r.Note = fmt.Sprintf("first message after %v where each request takes %v longer: %d behind one another, %d in all", took, *delay, r.Trips, r.Requests)
	return r
}
