// Command peerbench drives several brokers with the same payloads on the same clock, and prints one JSON line a run.
//
//	peerbench -target levee -addr 127.0.0.1:6650 -mode pub -style sync -size 128 -conc 64 -secs 2 -pid SERVERPID
//
// It talks to loopback addresses only, and every loop is bounded by -secs, -n or a time limit. It owns the load and the
// row; what starts and ends the servers are the scripts beside it. It never retries what a broker refused: it counts it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	target   = flag.String("target", "", "levee, nats-core, nats-js, redis, nsq, kafka, amqp or s3")
	mode     = flag.String("mode", "pub", "pub: publish for -secs; consume: read -n messages from the beginning; e2e: publish at -rate and measure until receipt; fanout: one publisher, -subs subscribers, -n messages; idle: create -n streams with one message each; ready: wait until -stream is served; rss: look at the server's memory only; paced, first, copied: of Levee, see tiers.go; mirror: of s3, see s3.go")
	style    = flag.String("style", "sync", "sync: one message in flight for each publisher; async: -window messages; batch: -batch messages a request; fast: NATS fast batches; ordered, fetch: ways of NATS to consume; range: XRANGE of Redis; shared, keyshared: subscriptions of Levee, acknowledged as the client batches it; shared-each: one by one, and the client sends what waits; shared-own: each with a message of its own")
	addr     = flag.String("addr", "", "the broker, host:port on loopback")
	size     = flag.Int("size", 128, "bytes of a message")
	conc     = flag.Int("conc", 1, "publishers, with a connection each but for -share; creators with -mode idle; consumers of a subscription")
	share    = flag.Bool("share", false, "levee, nats-core, nats-js: the publishers of -mode pub share one client connection")
	secs     = flag.Float64("secs", 2, "how long to publish")
	window   = flag.Int("window", 1024, "messages (levee, -style batch: batches) that a publisher has in flight")
	batch    = flag.Int("batch", 64, "messages a batch")
	pid      = flag.Int("pid", 0, "the server's process, for its CPU time and memory")
	n        = flag.Int("n", 500000, "messages to consume or fan out, streams to create, messages to be ready with")
	most     = flag.Int64("most", 0, "levee: end -mode pub after so many messages of all publishers; 0: only after -secs")
	subs     = flag.Int("subs", 1, "subscribers of -mode fanout")
	rate     = flag.Int("rate", 2000, "messages a second of -mode e2e and paced, of all publishers")
	stream   = flag.String("stream", "bench", "stream or topic")
	label    = flag.String("label", "", "copied to the row")
	fsync    = flag.String("fsync", "on_commit", "levee: fsync mode of the topics created")
	keys     = flag.Int("keys", 0, "levee, async and batch: messages have keys, so many, in turns")
	slow     = flag.Int("slow", 0, "levee: so many of the consumers of a subscription take 10 ms a message, and are not counted")
	metrics  = flag.String("metrics", "", "levee: the broker's HTTP port, for the flushes during a subscription's run")
	parts    = flag.Int("partitions", 1, "levee: partitions of the topics created")
	dispatch = flag.String("dispatch", "reliable", "levee: reliable or non_reliable")
	data     = flag.String("data", "", "the server's data directory, for the disk space that -mode idle takes")
	again    = flag.Bool("again", false, "-mode consume: begin again until -secs are up")
	from     = flag.Int64("from", 0, "levee: the offset that -mode first begins at")
	inBucket = flag.String("bucket", "", "s3: the bucket, with the keys that the environment has for Levee")
	proxy    = flag.String("proxy", "", "stand before the HTTP server at -addr on this address, count requests, and hold each back for -delay; -mode first: the one that the broker reads through")
	delay    = flag.Duration("delay", 100*time.Millisecond, "see -proxy")
	linger   = flag.Duration("linger", 0, "kafka: the producer's linger")
	table    = flag.Bool("table", false, "read rows on standard input and print their medians")
	profile  = flag.String("cpuprofile", "", "write a CPU profile of this program to a file")
	freeport = flag.Bool("freeport", false, "print a port that is free on loopback")
)

// hardLimit ends a run whatever it waits for.
const hardLimit = 300 * time.Second

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peerbench:", err)
		os.Exit(1)
	}
}

// pubFn is one publisher's work until end. It returns what was acknowledged and what was not.
type pubFn func(worker int, payload []byte, end time.Time, h *hist) (acked, errs int64)

// driver is one broker's client.
type driver interface {
	setup(ctx context.Context)
	pub() pubFn
	consume(want int, h *hist) (int64, time.Duration) // from the beginning
	e2e(h *hist) (int64, time.Duration)               // also fanout
	idle(n int) string                                // by *conc creators
}

var drivers = map[string]func() driver{
	"levee":     func() driver { return &leveeD{} },
	"nats-core": func() driver { return &natsCore{} },
	"nats-js":   func() driver { return &natsJS{} },
	"redis":     func() driver { return &redisD{} },
	"nsq":       func() driver { return &nsqD{} },
	"kafka":     func() driver { return &kafkaD{} },
	"amqp":      func() driver { return &amqpD{} },
	"s3":        func() driver { return &s3D{} },
}

func main() {
	flag.Parse()
	switch {
	case *table:
		printTable()
		return
	case *freeport:
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
		must(l.Close())
		return
	case *proxy != "" && *target == "":
		runProxy()
		return
	}
	newDriver := drivers[*target]
	if newDriver == nil {
		must(fmt.Errorf("unknown target %q", *target))
	}
	if *share && !slices.Contains([]string{"levee", "nats-core", "nats-js"}, *target) {
		must(fmt.Errorf("target %s has no -share", *target))
	}
	loopback(*addr)
	ctx, cancel := context.WithTimeout(context.Background(), hardLimit)
	defer cancel()
	time.AfterFunc(hardLimit, func() { fmt.Fprintln(os.Stderr, "peerbench: hard time limit"); os.Exit(2) })
	stopProfile := startProfile()
	r := run(ctx, newDriver())
	stopProfile()
	line, err := json.Marshal(r)
	must(err)
	fmt.Println(string(line))
}

// startProfile begins what -cpuprofile asks for, and returns what ends it.
func startProfile() (stop func()) {
	if *profile == "" {
		return func() {}
	}
	f, err := os.Create(*profile)
	must(err)
	must(pprof.StartCPUProfile(f))
	return func() {
		pprof.StopCPUProfile()
		must(f.Close())
	}
}

func loopback(a string) {
	host, _, err := net.SplitHostPort(a)
	must(err)
	ip := net.ParseIP(host)
	if host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		must(fmt.Errorf("%s is not on loopback", a))
	}
}

func run(ctx context.Context, d driver) *result {
	switch *mode {
	case "ready":
		return waitReady()
	case "rss":
		return row(0, 0, 0, &hist{}, 0, 0)
	}
	d.setup(ctx)
	switch *mode {
	case "pub":
		return runPub(d.pub())
	case "consume":
		return timed(func(h *hist) (int64, time.Duration) { return consume(d, h) })
	case "e2e", "fanout":
		return timed(d.e2e)
	case "idle":
		return runIdle(d)
	case "mirror":
		return (&s3D{}).mirror()
	case "paced", "first", "copied":
		l, ok := d.(*leveeD)
		if !ok {
			must(fmt.Errorf("target %s has no -mode %s", *target, *mode))
		}
		return map[string]func() *result{"paced": l.paced, "first": l.first, "copied": l.copied}[*mode]()
	}
	must(fmt.Errorf("unknown mode %q", *mode))
	return nil
}

func runPub(f pubFn) *result {
	var wg sync.WaitGroup
	var acked, errs atomic.Int64
	hs := make([]*hist, *conc)
	cli, srv, start := cpuSelf(), cpuOf(*pid), time.Now()
	end := start.Add(time.Duration(*secs * float64(time.Second)))
	for w := range *conc {
		hs[w] = &hist{}
		wg.Go(func() {
			a, e := f(w, payload(w), end, hs[w])
			acked.Add(a)
			errs.Add(e)
		})
	}
	wg.Wait()
	took := time.Since(start).Seconds()
	all := &hist{}
	for _, h := range hs {
		all.merge(h)
	}
	return row(acked.Load(), errs.Load(), took, all, cpuSelf()-cli, cpuOf(*pid)-srv)
}

func payload(w int) []byte {
	p := make([]byte, *size)
	for i := range p {
		p[i] = byte('a' + (i*7+w)%26)
	}
	return p
}

func timed(f func(h *hist) (int64, time.Duration)) *result {
	h := &hist{}
	cli, srv := cpuSelf(), cpuOf(*pid)
	got, took := f(h)
	r := row(got, 0, took.Seconds(), h, cpuSelf()-cli, cpuOf(*pid)-srv)
	r.Dropped, r.Errors = dropped.Load(), refused.Load()
	return r
}

// consume reads -n messages, with -again until -secs are up.
func consume(d driver, h *hist) (int64, time.Duration) {
	start := time.Now()
	var sum int64
	for {
		got, took := d.consume(*n, h)
		if !*again {
			return got, took
		}
		sum += got
		if got == 0 || time.Since(start).Seconds() >= *secs {
			return sum, time.Since(start)
		}
	}
}

func runIdle(d driver) *result {
	rss, _ := memOf(*pid)
	disk := diskUsage(*data)
	start := time.Now()
	note := d.idle(*n)
	took := time.Since(start).Seconds()
	time.Sleep(2 * time.Second) // what the server does behind its answers is part of what it holds
	r := row(int64(*n), 0, took, &hist{}, 0, 0)
	r.StreamKiB = (r.RSSMB - rss) * 1024 / float64(*n)
	r.StreamDiskKiB = float64(diskUsage(*data)-disk) / 1024 / float64(*n)
	r.OpenFiles = openFiles(*pid)
	r.Note = fmt.Sprintf("%s memory %.1f MB before, %.1f after: %.1f KiB a stream; %.1f KiB of disk a stream; %d open files", note, rss, r.RSSMB, r.StreamKiB, r.StreamDiskKiB, r.OpenFiles)
	return r
}
