// Package obs owns what every part of the broker needs to be observed: a silent default logger, a registerer that may
// be absent, and log throttling. It never logs by itself and holds no global state.
package obs

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Logger returns l, or a logger that discards everything where l is nil.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// Register registers cs with reg; a nil reg registers nothing. A metric that is registered twice is a bug and panics.
func Register(reg prometheus.Registerer, cs ...prometheus.Collector) {
	if reg == nil {
		return
	}
	for _, c := range cs {
		reg.MustRegister(c)
	}
}

// Throttle lets one event of each key through per interval and counts what it held back. Its zero value lets
// everything through. It is safe for concurrent use; it remembers at most 1,024 keys and forgets all of them beyond.
type Throttle struct {
	Every time.Duration

	mu   sync.Mutex
	last map[string]*throttled // guarded by mu
}

type throttled struct {
	at   time.Time
	held int
}

// Allow reports whether an event of this key may be logged at time now, and how many were held back since the last one.
func (t *Throttle) Allow(key string, now time.Time) (held int, ok bool) {
	if t.Every <= 0 {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil || len(t.last) > 1024 {
		t.last = map[string]*throttled{}
	}
	e := t.last[key]
	if e != nil && now.Sub(e.at) < t.Every {
		e.held++
		return 0, false
	}
	if e == nil {
		e = &throttled{}
		t.last[key] = e
	}
	held, e.held, e.at = e.held, 0, now
	return held, true
}
