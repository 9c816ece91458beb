package partition

import (
	"log/slog"
	"time"
)

// Backlog is what the logs of a broker have that is not in the object store yet.
type Backlog struct {
	Bytes      int64         // of sealed segments that wait to be exported
	Age        time.Duration // of the oldest of them
	Held       int64         // of them, what is there only because it is not exported
	Exposed    int64         // of all that only a log has
	ExposedAge time.Duration // of the oldest of it
	Partitions int           // that have segments waiting
}

// Add adds what a partition has. It does no I/O.
func (b *Backlog) Add(p *Partition) {
	if l := p.log.Load(); l != nil && p.cfg.Tier != nil {
		if own := l.Backlog(p.copied()); own.Bytes > 0 {
			b.Partitions++
			b.Bytes, b.Held, b.Age = b.Bytes+own.Bytes, b.Held+own.Held, max(b.Age, own.Age)
		}
	}
	if e, ok := p.Exposure(); ok {
		b.Exposed, b.ExposedAge = b.Exposed+e.Bytes, max(b.ExposedAge, e.Age)
	}
}

// Report makes b what the metrics say, and says it in words, once a minute at most, where a store that takes nothing makes
// logs keep more than they should. One goroutine at a time calls it. Where t is nil it does nothing.
func (t *Tier) Report(b Backlog, logger *slog.Logger) {
	if t == nil {
		return
	}
	if m := t.Metrics; m != nil {
		m.LagBytes.Set(float64(b.Bytes))
		m.LagSeconds.Set(b.Age.Seconds())
		m.HeldBytes.Set(float64(b.Held))
		m.ExposureBytes.Set(float64(b.Exposed))
		m.ExposureSeconds.Set(b.ExposedAge.Seconds())
	}
	failing := t.Exporter.Stats().Waiting
	if b.Held == 0 && (failing == 0 || b.Bytes == 0) {
		return
	}
	t.told.Every = time.Minute
	if _, ok := t.told.Allow("backlog", time.Now()); ok {
		logger.Warn("segments wait to be exported, and stay on this disk until they are",
			"held_bytes", b.Held, "waiting_bytes", b.Bytes, "oldest", b.Age.Round(time.Second), "partitions", b.Partitions, "failing", failing)
	}
}
