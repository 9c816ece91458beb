package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// rconn is a RESP client with what streams need (XADD, XREAD), pipelined.
type rconn struct {
	c net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

func rdial() *rconn {
	c, err := net.Dial("tcp", *addr)
	must(err)
	return &rconn{c, bufio.NewReaderSize(c, 256<<10), bufio.NewWriterSize(c, 256<<10)}
}
func (r *rconn) cmd(args ...[]byte) {
	r.w.WriteByte('*')
	r.w.WriteString(strconv.Itoa(len(args)))
	r.w.WriteString("\r\n")
	for _, a := range args {
		r.w.WriteByte('$')
		r.w.WriteString(strconv.Itoa(len(a)))
		r.w.WriteString("\r\n")
		r.w.Write(a)
		r.w.WriteString("\r\n")
	}
}

// skip reads one reply; each bulk string is handed to f when not nil
func (r *rconn) skip(f func([]byte)) error {
	line, err := r.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	line = bytes.TrimRight(line, "\r\n")
	switch line[0] {
	case '+', ':':
		return nil
	case '-':
		return fmt.Errorf("%s", line[1:])
	case '$':
		k, _ := strconv.Atoi(string(line[1:]))
		if k < 0 {
			return nil
		}
		if f == nil {
			_, err := r.r.Discard(k + 2)
			return err
		}
		b := make([]byte, k+2)
		if _, err := io.ReadFull(r.r, b); err != nil {
			return err
		}
		f(b[:k])
	case '*':
		k, _ := strconv.Atoi(string(line[1:]))
		for i := 0; i < k; i++ {
			if err := r.skip(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// redisD is Redis Streams.
type redisD struct{}

var bXADD, bStar, bD = []byte("XADD"), []byte("*"), []byte("d")

func (d *redisD) setup(context.Context) {
	if *mode == "pub" || *mode == "e2e" {
		c := rdial()
		c.cmd([]byte("DEL"), []byte(*stream))
		c.w.Flush()
		must(c.skip(nil))
		c.c.Close()
	}
}
func (d *redisD) pub() pubFn {
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		c := rdial()
		defer c.c.Close()
		key := []byte(*stream)
		b := 1
		if *style == "batch" {
			b = *batch
		}
		var k, errs int64
		if *style == "async" { // sliding window
			sem := make(chan time.Time, *window)
			done := make(chan bool)
			go func() {
				for t := range sem {
					if err := c.skip(nil); err != nil {
						errs++
					} else {
						k++
						if k%16 == 0 {
							h.add(time.Since(t))
						}
					}
				}
				done <- true
			}()
			i := 0
			for {
				t := time.Now()
				if t.After(end) {
					break
				}
				c.cmd(bXADD, key, bStar, bD, p)
				select {
				case sem <- t:
				default:
					c.w.Flush()
					sem <- t
				}
				if i++; i%32 == 0 {
					c.w.Flush()
				}
			}
			c.w.Flush()
			close(sem)
			<-done
			return k, errs
		}
		for time.Now().Before(end) {
			t := time.Now()
			for i := 0; i < b; i++ {
				c.cmd(bXADD, key, bStar, bD, p)
			}
			must(c.w.Flush())
			for i := 0; i < b; i++ {
				if err := c.skip(nil); err != nil {
					errs++
				} else {
					k++
				}
			}
			h.add(time.Since(t))
		}
		return k, errs
	}
}
func (d *redisD) consume(want int, h *hist) (int64, time.Duration) {
	c := rdial()
	defer c.c.Close()
	if *style == "range" {
		return c.xrange()
	}
	var got int64
	last := []byte("0-0")
	st := time.Now()
	for int(got) < want {
		c.cmd([]byte("XREAD"), []byte("COUNT"), []byte(strconv.Itoa(*batch)), []byte("STREAMS"), []byte(*stream), last)
		must(c.w.Flush())
		// reply: [[key, [[id,[d,payload]],...]]]; bulk order: key, then id,d,payload repeated
		i, k := 0, int64(0)
		must(c.skip(func(b []byte) {
			if i > 0 && (i-1)%3 == 0 {
				last = append(last[:0], b...)
				k++
			}
			i++
		}))
		if k == 0 {
			break
		}
		got += k
	}
	return got, time.Since(st)
}

// xrange reads the longest of the streams whose names match -stream, in pages of -batch entries, and keeps nothing of it.
func (r *rconn) xrange() (int64, time.Duration) {
	key, longest := "", int64(0)
	var names []string
	r.cmd([]byte("KEYS"), []byte(*stream))
	must(r.w.Flush())
	must(r.skip(func(b []byte) { names = append(names, string(b)) }))
	for _, name := range names {
		r.cmd([]byte("XLEN"), []byte(name))
		must(r.w.Flush())
		if n := r.integer(':'); n > longest {
			key, longest = name, n
		}
	}
	var got int64
	from := "-"
	start := time.Now()
	for {
		r.cmd([]byte("XRANGE"), []byte(key), []byte(from), []byte("+"), []byte("COUNT"), []byte(strconv.Itoa(*batch)))
		must(r.w.Flush())
		n := r.integer('*')
		if n == 0 {
			return got, time.Since(start)
		}
		for range n {
			r.integer('*')
			r.bulk(func(id []byte) { from = "(" + string(id) })
			for range r.integer('*') {
				r.bulk(nil)
			}
		}
		got += n
	}
}

// integer reads the line that begins a reply of the type named, or is all of it.
func (r *rconn) integer(kind byte) int64 {
	line := must2(r.r.ReadSlice('\n'))
	if line[0] != kind {
		must(fmt.Errorf("%s", bytes.TrimSpace(line)))
	}
	return must2(strconv.ParseInt(string(bytes.TrimSpace(line[1:])), 10, 64))
}

// bulk reads a string, for f or for nobody; the latter counts as read.
func (r *rconn) bulk(f func([]byte)) {
	n := int(r.integer('$'))
	if f != nil {
		b := make([]byte, n)
		must2(io.ReadFull(r.r, b))
		f(b)
		n = 0
	} else {
		readBytes += int64(n)
	}
	must2(r.r.Discard(n + 2))
}
func (d *redisD) e2e(h *hist) (int64, time.Duration) {
	var got atomic.Int64
	stop := make(chan bool)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		c := rdial()
		defer c.c.Close()
		last := []byte("0-0")
		for {
			select {
			case <-stop:
				return
			default:
			}
			c.cmd([]byte("XREAD"), []byte("COUNT"), []byte("1000"), []byte("BLOCK"), []byte("100"), []byte("STREAMS"), []byte(*stream), last)
			must(c.w.Flush())
			i := 0
			must(c.skip(func(b []byte) {
				if i > 0 {
					switch (i - 1) % 3 {
					case 0:
						last = append(last[:0], b...)
					case 2:
						h.add(since(b))
						got.Add(1)
					}
				}
				i++
			}))
		}
	}()
	c := rdial()
	defer c.c.Close()
	go func() {
		for c.skip(nil) == nil {
		}
	}()
	time.Sleep(50 * time.Millisecond)
	p := make([]byte, *size)
	st := time.Now()
	pace(*rate, time.Duration(*secs*1e9), func(t time.Time) {
		stamp(p, t)
		c.cmd(bXADD, []byte(*stream), bStar, bD, p)
		c.w.Flush()
	})
	time.Sleep(400 * time.Millisecond)
	close(stop)
	wg.Wait()
	return got.Load(), time.Since(st)
}
func (d *redisD) idle(n int) string {
	c := rdial()
	defer c.c.Close()
	p := make([]byte, *size)
	for i := 0; i < n; i += 500 {
		k := min(500, n-i)
		for j := 0; j < k; j++ {
			c.cmd(bXADD, []byte(fmt.Sprintf("idle%d", i+j)), bStar, bD, p)
		}
		c.w.Flush()
		for j := 0; j < k; j++ {
			must(c.skip(nil))
		}
	}
	return "streams with 1 msg each;"
}
