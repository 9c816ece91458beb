package servers

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Relay is an address that leads to a server, or to another one. It is safe for concurrent use.
type Relay struct {
	Addr string

	mu    sync.Mutex
	to    string                // guarded by mu; "" is nobody
	late  time.Duration         // guarded by mu; how long answers are held back
	cuts  int                   // guarded by mu; how many answers to lose yet, and the connection with each
	conns map[net.Conn]struct{} // guarded by mu
	all   sync.WaitGroup
}

// NewRelay starts one, until the test's end.
func NewRelay(t testing.TB, to string) *Relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{Addr: ln.Addr().String(), to: to, conns: map[net.Conn]struct{}{}}
	r.all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.all.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		r.Lead("")
		r.all.Wait()
	})
	return r
}

// Lead cuts every connection and leads the next ones elsewhere.
func (r *Relay) Lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for c := range r.conns {
		c.Close()
	}
}

// Delay holds answers back from now on.
func (r *Relay) Delay(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = by
}

// Cut loses so many answers, with their connections.
func (r *Relay) Cut(answers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cuts = answers
}

// Left returns how many answers are to be lost yet.
func (r *Relay) Left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cuts
}

func (r *Relay) track(c net.Conn) (to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[c] = struct{}{}
	return r.to
}

func (r *Relay) serve(front net.Conn) {
	to := r.track(front)
	defer r.drop(front)
	if to == "" {
		return
	}
	back, err := net.DialTimeout("tcp", to, time.Second)
	if err != nil {
		return
	}
	if r.track(back) != to {
		r.drop(back)
		return
	}
	r.all.Go(func() {
		defer r.drop(front)
		defer r.drop(back)
		b := make([]byte, 64<<10)
		for {
			n, err := back.Read(b)
			if err != nil {
				return
			}
			late, cut := r.answer()
			if late > 0 {
				<-time.After(late)
			}
			if cut {
				return
			}
			if _, err := front.Write(b[:n]); err != nil {
				return
			}
		}
	})
	_, _ = io.Copy(back, front) // whichever end is gone
	r.drop(back)
}

// answer says what becomes of one.
func (r *Relay) answer() (late time.Duration, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cuts > 0 {
		r.cuts--
		return r.late, true
	}
	return r.late, false
}

func (r *Relay) drop(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}
