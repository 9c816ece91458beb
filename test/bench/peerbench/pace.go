package main

import (
	"encoding/binary"
	"time"
)

// pace calls f rate times a second on average, whatever the broker makes of it, and returns how often. An idle process
// has no timer below a millisecond, so that calls come in small bursts.
func pace(rate int, dur time.Duration, f func(t time.Time)) int64 {
	start := time.Now()
	var sent int64
	for {
		since := time.Since(start)
		if since >= dur {
			return sent
		}
		for due := int64(since.Seconds() * float64(rate)); sent < due; sent++ {
			f(time.Now())
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// stamp writes the time of sending into a payload, for since.
func stamp(p []byte, t time.Time) { binary.LittleEndian.PutUint64(p, uint64(t.UnixNano())) }

func since(p []byte) time.Duration {
	return time.Duration(time.Now().UnixNano() - int64(binary.LittleEndian.Uint64(p)))
}
