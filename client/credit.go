package client

import (
	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// Credit. A partition's stream may be ahead of the caller by reader.credit bytes. At any time
//
//	credit = what the broker may still send + what was received and not handed out + owed
//
// where owed was handed out and is not given to the broker yet: it is given in portions, and only by one goroutine, since
// a stream takes one sender at a time and sending may block where Next must not.

// payBack owes the broker what the batch handed out last cost.
func (c *Consumer) payBack() {
	r, bytes := c.taken.reader, c.taken.bytes
	c.taken = payback{}
	if r == nil {
		return
	}
	c.mu.Lock()
	r.held -= bytes
	r.owed += bytes
	c.owe(r)
	c.mu.Unlock()
}

// owe makes returnCredit look at r if a portion is due. c.mu is held.
func (c *Consumer) owe(r *reader) {
	if r.indebted || r.rpc == nil || r.owed < max(r.credit/4, 1) {
		return
	}
	r.indebted = true
	c.debtors = append(c.debtors, r)
	select {
	case c.owing <- struct{}{}:
	default:
	}
}

// returnCredit sends what is owed.
func (c *Consumer) returnCredit() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.owing:
		}
		for {
			c.mu.Lock()
			if len(c.debtors) == 0 {
				c.mu.Unlock()
				break
			}
			r := c.debtors[0]
			c.debtors = c.debtors[1:]
			r.indebted = false
			rpc, bytes := r.rpc, r.owed
			if rpc != nil {
				r.owed = 0
			}
			c.mu.Unlock()
			if rpc != nil && bytes > 0 {
				// If it fails the reader learns why, and the next stream is opened with all the credit there is.
				_ = rpc.Send(&leveev1.SubscribeRequest{Credit: &leveev1.Credit{Bytes: bytes}})
			}
		}
	}
}
