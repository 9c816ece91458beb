package main

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// sink keeps results alive, so that nothing is optimised away.
var sink atomic.Uint64

func tcp() {
	for _, size := range []int{64 << 10, 256 << 10} {
		for _, conns := range []int{1, 2} {
			tcpThroughput(size, conns)
		}
	}
	for _, size := range []int{128, 1024} {
		tcpRoundTrip(size)
	}
}

// serve accepts connections on loopback until the listener is closed.
func serve(each func(net.Conn)) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				each(c)
			}()
		}
	}()
	return l
}

func tcpThroughput(size, conns int) {
	var got atomic.Int64
	l := serve(func(c net.Conn) {
		b := make([]byte, 256<<10)
		for {
			n, err := c.Read(b)
			got.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	defer l.Close()
	var wg sync.WaitGroup
	start := time.Now()
	for range conns {
		wg.Go(func() {
			c, err := net.Dial("tcp", l.Addr().String())
			must(err)
			defer c.Close()
			b := make([]byte, size)
			for time.Since(start) < length()/2 {
				_, err := c.Write(b)
				must(err)
			}
		})
	}
	wg.Wait()
	r := bandwidth(fmt.Sprintf("tcp loopback, writes of %dK", size>>10), size, got.Load(), time.Since(start))
	r.Conc = conns
	put(r)
}

func tcpRoundTrip(size int) {
	l := serve(func(c net.Conn) {
		b := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	must(err)
	defer c.Close()
	b := make([]byte, size)
	var each []time.Duration
	start := time.Now()
	for time.Since(start) < length()/2 {
		t := time.Now()
		_, err := c.Write(b)
		must(err)
		_, err = io.ReadFull(c, b)
		must(err)
		each = append(each, time.Since(t))
	}
	put(timed(fmt.Sprintf("tcp loopback, ping-pong of %d B", size), size, 1, each, time.Since(start)))
}

func checksum() {
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, size := range []int{128, 1024, 4096, 65536} {
		b := make([]byte, size)
		var bytes int64
		var sum uint32
		start := time.Now()
		for time.Since(start) < length()/4 {
			for range 1000 {
				sum ^= crc32.Checksum(b, table)
			}
			bytes += 1000 * int64(size)
		}
		sink.Add(uint64(sum))
		put(bandwidth(fmt.Sprintf("crc32c of %d B", size), size, bytes, time.Since(start)))
	}
}

// rounds of each hand-off.
const rounds = 300_000

func handOff() {
	for _, procs := range []int{1, 2} {
		before := runtime.GOMAXPROCS(procs)
		handOffRoundTrip(procs)
		handOffWaiters(procs)
		runtime.GOMAXPROCS(before)
	}
}

func perItem(name string, procs, n int, took time.Duration) {
	put(row{Mode: name, Conc: procs, MsgsPerS: float64(n) / took.Seconds(), P50: took.Seconds() * 1e6 / float64(n)})
}

func handOffRoundTrip(procs int) {
	there, back := make(chan int), make(chan int)
	go func() {
		for v := range there {
			back <- v
		}
	}()
	start := time.Now()
	for i := range rounds {
		there <- i
		<-back
	}
	perItem("channel round trip", procs, rounds, time.Since(start))
	close(there)
}

// handOffWaiters is a group commit without the commit: waiters, one committer, an answer to each.
func handOffWaiters(procs int) {
	const waiters = 64
	requests := make(chan chan struct{}, 1024)
	go func() {
		for done := range requests {
			done <- struct{}{}
		}
	}()
	var wg sync.WaitGroup
	start := time.Now()
	for range waiters {
		wg.Go(func() {
			done := make(chan struct{}, 1)
			for range rounds / waiters {
				requests <- done
				<-done
			}
		})
	}
	wg.Wait()
	perItem("64 waiters, one committer", procs, rounds/waiters*waiters, time.Since(start))
	close(requests)
}

func sleep() {
	for _, d := range []time.Duration{50 * time.Microsecond, 200 * time.Microsecond, time.Millisecond} {
		var each []time.Duration
		start := time.Now()
		for range 300 {
			t := time.Now()
			time.Sleep(d)
			each = append(each, time.Since(t))
		}
		put(timed(fmt.Sprintf("sleep of %v", d), 0, 1, each, time.Since(start)))
	}
}
