package broker

import (
	"context"

	"github.com/leveemq/levee/internal/exposure"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
)

// Topics returns the topics of a namespace, or all of them where namespace is empty, by name. It fails with kind
// not_found where there is no such namespace.
func (b *Broker) Topics(namespace string) ([]TopicInfo, error) {
	v := b.cfg.Meta.View()
	if namespace != "" {
		if _, err := v.Namespace(namespace); err != nil {
			return nil, err
		}
	}
	var list []TopicInfo
	for t := range v.Topics(namespace) {
		list = append(list, *b.cfg.Defaults.info(t))
	}
	return list, nil
}

// Topic returns what the metadata says about a topic. It works while the broker drains, too.
func (b *Broker) Topic(name string) (TopicInfo, error) {
	n, err := meta.ParseTopic(name)
	if err != nil {
		return TopicInfo{}, err
	}
	t, err := b.cfg.Meta.View().Topic(n)
	if err != nil {
		return TopicInfo{}, errNoTopic(n)
	}
	return *b.cfg.Defaults.info(t), nil
}

// exposed returns what says how much a topic could lose.
func (b *Broker) exposed(info *TopicInfo) exposure.Topic {
	if !info.Reliable() {
		return exposure.Topic{}
	}
	s := info.Effective
	e := exposure.Topic{
		Reliable: true, Mode: modeOf(*s.Fsync), FsyncInterval: *s.FsyncInterval, RetentionBytes: *s.RetentionBytes, RetentionAge: *s.RetentionAge,
		ObjectBytes: value(s.ObjectRetentionBytes), ObjectAge: value(s.ObjectRetentionAge),
	}
	if t := b.cfg.Tier; t != nil {
		e.Copied, e.SealAge, e.Inside = true, t.SealAge, t.Inside
	}
	if w := b.cfg.Buffer; w != nil {
		e.Buffered, e.Degrade, e.KeepSegments = true, w.Degrade, w.KeepSegments
	}
	return e
}

// value returns what v points at; the zero value where that is nothing.
func value[T any](v *T) (is T) {
	if v != nil {
		is = *v
	}
	return is
}

// DescribeTopic returns a topic as it stands here and now. It waits for nothing, but what it finds not opened yet is
// opened next: whoever asks again finds it as it is, also at the start of a broker with very many topics.
func (b *Broker) DescribeTopic(_ context.Context, name string) (TopicDescription, error) {
	info, err := b.Topic(name)
	if err != nil {
		return TopicDescription{}, err
	}
	d := TopicDescription{TopicInfo: info, Exposures: exposure.Of(b.exposed(&info))}
	n, _ := meta.ParseTopic(name)
	t := b.topics.get(n)
	if t == nil || t.ID != info.ID {
		return d, nil
	}
	for i := range t.subscribers {
		p := PartitionInfo{Partition: int32(i), State: partition.Serving.String(), Subscribers: int(t.subscribers[i].Load())} //nolint:gosec // bounded by meta
		if info.Reliable() {
			describe(t.parts[i], &p)
			if c := b.cfg.Meta.View().Custody(t.ID, int32(i)); c != nil { //nolint:gosec // as above
				p.Uncovered, p.TakenOver = c.Uncovered, c.Report
			}
		} else {
			p.End = t.fans[i].End()
			p.First, p.Durable = p.End, 0
		}
		d.Parts = append(d.Parts, p)
	}
	return d, nil
}

// describe fills in where a reliable partition stands.
func describe(part *partition.Partition, p *PartitionInfo) {
	part.Prepare(false)
	s := part.Status()
	p.State = s.State.String()
	switch s.State {
	case partition.Opening:
		if s.Waits != "" {
			p.State += ": " + s.Waits
		}
	case partition.Unloaded:
		p.State += ": the next use opens it"
	case partition.Unavailable, partition.Closed:
		p.State = partition.Unavailable.String()
		if kind := fault.KindOf(s.Err); s.Err != nil && kind != fault.Unavailable {
			p.State += ": " + kind.String()
		}
		if s.Err != nil {
			p.State += ": " + s.Err.Error()
		}
	}
	if bounds, ok := part.Bounds(); ok {
		p.First, p.End, p.Durable = bounds.First, bounds.End, bounds.Durable
		p.Bytes, p.Segments, p.Generation = bounds.Bytes, bounds.Segments, bounds.Generation
	}
	if c, ok := part.Covered(); ok {
		p.Buffered, p.Confirmed = true, c.Below
	}
	if e, ok := part.Exposure(); ok {
		p.Copied, p.CopiedBelow, p.ExposedBytes, p.ExposedMs = true, e.Copied, e.Bytes, e.Age.Milliseconds()
	}
}
