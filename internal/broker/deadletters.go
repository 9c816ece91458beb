package broker

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/subscription"
	"github.com/leveemq/levee/record"
)

// deadLetterSubscription is the subscription of a dead-letter topic that says which of its records are still to be dealt
// with: those it has not settled.
const deadLetterSubscription = "levee-dlq"

// ours are the headers that a dead letter has beside its own.
var ours = []string{
	record.HeaderSourceTopic, record.HeaderSourceTopicID, record.HeaderSourcePartition, record.HeaderSourceOffset, record.HeaderSubscription,
	record.HeaderReason, record.HeaderDeliveryCount, record.HeaderDeadLetteredAt,
}

// bury makes a dead letter of a record, and its topic where that is missing. The record keeps key, value, headers and
// time.
func (h *hub) bury(ctx context.Context, l subscription.Letter) error {
	source, err := meta.ParseTopic(l.Topic)
	if err != nil {
		return err
	}
	m, err := h.b.cfg.Meta.View().Subscription(source, l.Name)
	if err != nil {
		return err
	}
	topic := *subscription.Effective(m).DeadLetterTopic
	if err := h.deadLetterTopic(ctx, topic); err != nil {
		return err
	}
	rec := l.Record
	values := []string{
		l.Topic, hex.EncodeToString(l.TopicID[:]), strconv.Itoa(int(l.Partition)), strconv.FormatInt(l.Offset, 10), l.Name,
		l.Reason, strconv.Itoa(int(l.Deliveries)), strconv.FormatInt(l.At.UnixMilli(), 10),
	}
	headers, _ := split(rec.Headers) // of a dead letter that was redriven and failed once more
	for i, name := range ours {
		headers = append(headers, record.Header{Key: name, Value: []byte(values[i])})
	}
	rec.Headers = slices.DeleteFunc(headers, func(h record.Header) bool { return h.Key == record.HeaderDeliverAt })
	_, _, err = h.b.Publish(ctx, topic, -1, []record.Record{rec})
	return err
}

// deadLetterTopic makes a dead-letter topic where it is missing, with the subscription that says what is in it.
func (h *hub) deadLetterTopic(ctx context.Context, name string) error {
	n, err := meta.ParseTopic(name)
	if err != nil {
		return err
	}
	if _, err := h.b.cfg.Meta.View().Subscription(n, deadLetterSubscription); err == nil {
		return nil
	}
	if _, err := h.b.CreateTopic(ctx, TopicSpec{Name: name}); err != nil && fault.KindOf(err) != fault.AlreadyExists {
		return err
	}
	t, err := h.reliable(name)
	if err != nil {
		return err
	}
	err = h.createSubscription(ctx, t, SubscriptionSpec{Name: deadLetterSubscription, Type: Shared, Start: Earliest()})
	if fault.KindOf(err) == fault.AlreadyExists {
		err = nil
	}
	return err
}

// split parts the headers that a dead letter has of its own from those that make it one.
func split(headers []record.Header) (own []record.Header, facts map[string]string) {
	facts = map[string]string{}
	for _, h := range headers {
		if slices.Contains(ours, h.Key) {
			facts[h.Key] = string(h.Value)
		} else {
			own = append(own, h)
		}
	}
	return own, facts
}

// errEnough ends a walk over dead letters.
var errEnough = errors.New("enough")

// DeadLetters calls each with the dead letters of a subscription that were neither redriven nor purged, oldest first, with
// at most most of them; 0: all. It returns the first error of each.
func (h *hub) DeadLetters(ctx context.Context, topic, name string, most int, each func(DeadLetter) error) error {
	n := 0
	err := h.eachDeadLetter(ctx, topic, name, func(l DeadLetter, _ settling) error {
		if most > 0 && n == most {
			return errEnough
		}
		n++
		return each(l)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// RedriveDeadLetters publishes the dead letters of a subscription to the topic they came from, into the partition they
// came from, and returns how many that were. each, unless nil, is told of each. A crash in the middle publishes at most
// what was published since the last second or so once more.
func (h *hub) RedriveDeadLetters(ctx context.Context, topic, name string, each func(DeadLetter) error) (int, error) {
	return h.settleDeadLetters(ctx, topic, name, func(l DeadLetter) error {
		rec := l.Record
		rec.Headers = append(rec.Headers, record.Header{Key: record.HeaderRedrivenFrom, Value: []byte(strconv.FormatInt(l.Offset, 10))})
		_, _, err := h.b.Publish(ctx, topic, l.SourcePartition, []record.Record{rec})
		return err
	}, each)
}

// PurgeDeadLetters gives the dead letters of a subscription up for good, and returns how many that were. Their topic keeps
// their bytes as its retention says.
func (h *hub) PurgeDeadLetters(ctx context.Context, topic, name string) (int, error) {
	return h.settleDeadLetters(ctx, topic, name, nil, nil)
}

// settleDeadLetters settles the dead letters of a subscription, each once first has done what it has to, and tells then of
// it; either may be nil. It returns how many were settled, and has that made durable.
func (h *hub) settleDeadLetters(ctx context.Context, topic, name string, first, then func(DeadLetter) error) (n int, err error) {
	runs := map[*subscription.Run]bool{}
	err = h.eachDeadLetter(ctx, topic, name, func(l DeadLetter, settle settling) error {
		if first != nil {
			if err := first(l); err != nil {
				return err
			}
		}
		run, err := settle()
		if err != nil {
			return err
		}
		runs[run] = true
		n++
		if then == nil {
			return nil
		}
		return then(l)
	})
	return n, errors.Join(err, saveAll(ctx, runs))
}

func saveAll(ctx context.Context, runs map[*subscription.Run]bool) error {
	var errs []error
	for run := range runs {
		errs = append(errs, run.Save(ctx))
	}
	return errors.Join(errs...)
}

// settling settles the dead letter it came with, and returns what has to be saved for that.
type settling func() (*subscription.Run, error)

// discharge settles an offset of a partition for a subscription. The Run that a walk began with may have been retired
// since: nobody would ever look at what it is told.
func (h *hub) discharge(t *topic, m *meta.Subscription, part int32, offset int64) (*subscription.Run, error) {
	for {
		run, err := h.run(t, m, part)
		if err != nil {
			return nil, err
		}
		err = run.Discharge(Range{From: offset, To: offset})
		if !subscription.Retired(err) {
			return run, err
		}
		h.sweep()
	}
}

// eachDeadLetter walks over the dead letters of a subscription that are still to be dealt with.
func (h *hub) eachDeadLetter(ctx context.Context, topic, name string, each func(DeadLetter, settling) error) error {
	source, m, err := h.subscription(topic, name)
	if err != nil {
		return err
	}
	dead, dlq, err := h.subscription(*subscription.Effective(m).DeadLetterTopic, deadLetterSubscription)
	if fault.KindOf(err) == fault.NotFound {
		return nil // there never was one
	}
	if err != nil {
		return err
	}
	for i := range dead.parts {
		run, err := h.run(dead, dlq, int32(i)) //nolint:gosec // bounded by meta
		if err != nil {
			return err
		}
		err = h.eachOf(ctx, dead, int32(i), run, func(rec record.Record) error { //nolint:gosec // bounded by meta
			own, facts := split(rec.Headers)
			if facts[record.HeaderSourceTopicID] != hex.EncodeToString(source.ID[:]) || facts[record.HeaderSubscription] != name {
				return nil
			}
			l := DeadLetter{Topic: dead.Full, Offset: rec.Offset, Reason: facts[record.HeaderReason], Record: rec}
			l.Record.Headers = own
			l.SourceOffset, _ = strconv.ParseInt(facts[record.HeaderSourceOffset], 10, 64)
			part, _ := strconv.ParseInt(facts[record.HeaderSourcePartition], 10, 32)
			count, _ := strconv.ParseInt(facts[record.HeaderDeliveryCount], 10, 32)
			l.SourcePartition, l.Deliveries = int32(part), int32(count)
			l.TimeMs, _ = strconv.ParseInt(facts[record.HeaderDeadLetteredAt], 10, 64)
			return each(l, func() (*subscription.Run, error) { return h.discharge(dead, dlq, int32(i), l.Offset) }) //nolint:gosec // bounded by meta
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOf walks over the records of one partition that a subscription has not settled, up to where the log ends when it
// begins.
func (h *hub) eachOf(ctx context.Context, t *topic, part int32, run *subscription.Run, each func(record.Record) error) error {
	first, end, err := resolve(ctx, t.Full, part, t.parts[part], Earliest())
	if err != nil {
		return err
	}
	at := max(first, run.State().Position)
	reader, err := t.parts[part].NewReader(ctx, at)
	if err != nil {
		return err
	}
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := reader.Next(ctx, h.b.cfg.BytesPerRead, h.b.cfg.RecordsPerRead)
		if err != nil {
			return err
		}
		for rest := c.Data; len(rest) > 0; {
			var batch []byte
			if batch, rest, err = record.Next(rest); err != nil {
				return err
			}
			if err := record.Each(batch, func(rec record.Record) error {
				if rec.Offset < at || rec.Offset >= end || run.Settled(rec.Offset) {
					return nil
				}
				return each(rec)
			}); err != nil {
				return err
			}
		}
		if c.Next <= at {
			return nil
		}
		at = c.Next
	}
	return nil
}
