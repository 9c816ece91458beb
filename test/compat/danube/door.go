package danube

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Door is an address that stays while the broker behind it goes and comes back elsewhere: clients keep the address they
// were told. A connection made while there is no broker is closed at once.
type Door struct {
	Addr string

	ln     net.Listener
	behind atomic.Pointer[string]
	conns  sync.WaitGroup
}

// NewDoor opens a door to nowhere. The test's end closes it.
func NewDoor(t testing.TB) *Door {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &Door{Addr: ln.Addr().String(), ln: ln}
	d.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			d.conns.Go(func() { d.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		d.Lead("")
		d.conns.Wait()
	})
	return d
}

// Lead says where the broker is from now on; "" is nowhere. Connections that are open stay.
func (d *Door) Lead(to string) { d.behind.Store(&to) }

func (d *Door) pass(c net.Conn) {
	defer c.Close()
	to := d.behind.Load()
	if to == nil || *to == "" {
		return
	}
	s, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	defer s.Close()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(c, s) // ends when either side does
		_ = c.Close()
	})
	_, _ = io.Copy(s, c)
	_ = s.Close()
	back.Wait()
}
