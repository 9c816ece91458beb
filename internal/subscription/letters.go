package subscription

import (
	"context"
	"errors"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// Letter is one record that is to become a dead letter.
type Letter struct {
	Key
	Topic      string // namespace/name
	Offset     int64
	Deliveries int32
	Reason     string
	At         time.Time
	Record     record.Record
}

// grave is a range of records that are to become dead letters.
type grave struct {
	from, to int64
	count    int32
	reason   string
}

// graves is what is still to be buried. It is guarded by the Run's mutex.
type graves struct {
	list []grave
	busy bool // somebody is at it
}

func (g *graves) open() bool { return g.busy || len(g.list) > 0 }

// bury has dead letters made of what an effect names. The caller holds mu.
func (r *Run) bury(f *dispatch.Effect) {
	r.graves.list = append(r.graves.list, grave{f.From, f.To, f.Count, f.Reason})
	if r.graves.busy {
		return
	}
	r.graves.busy = r.cfg.Tasks.Go("dead letters", func(ctx context.Context) error {
		r.buryAll(ctx)
		return nil
	})
}

// buryQuiet keeps the log readable where a dead-letter topic cannot be written for long.
var buryQuiet = obs.Throttle{Every: 10 * time.Second}

// buryAll makes dead letters until there is nothing more to bury.
func (r *Run) buryAll(ctx context.Context) {
	for {
		r.mu.Lock()
		if len(r.graves.list) == 0 || ctx.Err() != nil {
			r.graves.busy = false
			r.graves.list = nil
			r.mu.Unlock()
			return
		}
		g := r.graves.list[0]
		r.graves.list = r.graves.list[1:]
		epoch := r.epoch
		r.mu.Unlock()

		through, err := r.buryOne(ctx, g)
		r.mu.Lock()
		if epoch == r.epoch { // otherwise a seek came between, and they are not what they were
			if through >= g.from {
				r.poisoned(g.from, through, false)
				r.changed()
			}
			if err != nil {
				r.poisoned(through+1, g.to, true)
			}
		}
		r.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			if held, ok := buryQuiet.Allow(r.spec.Topic+"/"+r.spec.Name, time.Now()); ok {
				r.logger().Warn("a record could not be made a dead letter; it is tried again", "topic", r.spec.Topic, "partition", r.spec.Partition,
					"subscription", r.spec.Name, "offset", through+1, "err", err, "held_back", held)
			}
		}
	}
}

// poisoned tells the dispatcher what became of a ToDeadLetter effect. The caller holds mu.
func (r *Run) poisoned(from, to int64, failed bool) {
	r.event.Kind, r.event.Failed = dispatch.Poisoned, failed
	r.about(seglog.Range{From: from, To: to})
	r.step()
}

// buryOne makes dead letters of a range. Through is the last offset that is done: what retention has removed meanwhile
// counts as done, for there is nothing left of it.
func (r *Run) buryOne(ctx context.Context, g grave) (through int64, err error) {
	through = g.from - 1
	source, err := r.open(ctx)
	if err != nil {
		return through, err
	}
	defer source.Close()
	for through < g.to {
		c, err := source.Read(ctx, through+1, fetchBytes, r.cfg.readCount(), allocate)
		var trimmed *seglog.TrimmedError
		switch {
		case errors.As(err, &trimmed):
			through = min(trimmed.Oldest-1, g.to)
			continue
		case err != nil:
			return through, err
		case c.Next <= through+1:
			return through, fault.New(fault.Internal, "offset %d of %s/%d was handed out and is not there", through+1, r.spec.Topic, r.spec.Partition)
		}
		for rest := c.Data; len(rest) > 0; {
			var batch []byte
			if batch, rest, err = record.Next(rest); err != nil {
				return through, r.corrupt(err)
			}
			if err := r.buryBatch(ctx, batch, g, &through); err != nil {
				return through, err
			}
		}
		through = min(max(through, c.Next-1), g.to)
	}
	return through, nil
}

func (r *Run) buryBatch(ctx context.Context, batch []byte, g grave, through *int64) error {
	return record.Each(batch, func(rec record.Record) error {
		if rec.Offset <= *through || rec.Offset > g.to {
			return nil
		}
		l := Letter{
			Key: r.spec.Key, Topic: r.spec.Topic, Offset: rec.Offset, Deliveries: g.count, Reason: g.reason, At: r.cfg.Now(), Record: rec,
		}
		if err := r.cfg.Bury(ctx, l); err != nil {
			return err
		}
		r.cfg.Metrics.DeadLetters.Inc()
		*through = rec.Offset
		return nil
	})
}
