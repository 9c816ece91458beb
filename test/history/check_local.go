package history

import (
	"cmp"
	"math"
	"slices"
)

// floor is what a client knows for certain: no later answer to it may be older.
type floor struct {
	revision    uint64
	incarnation map[string]uint64        // by topic: the lowest that may still be shown
	wrote       map[string]*MetadataCall // by topic: its last write
}

// localReads checks that what a client reads from a copy that may be behind never goes back, and is not older than what
// the client itself has written.
func (c *checker) localReads(calls []MetadataCall) {
	byClient := map[string][]*MetadataCall{}
	writes := map[string][]*MetadataCall{}
	local := false
	for i := range calls {
		m := &calls[i]
		switch {
		case m.info.Op == opDescribe || m.info.Op == opList:
			local = local || m.info.Local
		case m.outcome != Fail:
			writes[m.info.Topic] = append(writes[m.info.Topic], m)
		}
		if m.outcome == OK || m.result.Error == NotFound {
			byClient[m.info.Client] = append(byClient[m.info.Client], m)
		}
	}
	if !local {
		return
	}
	for _, client := range sortedKeys(byClient) {
		begun := byClient[client]
		ended := slices.Clone(begun)
		slices.SortStableFunc(begun, func(a, b *MetadataCall) int { return cmp.Compare(a.start, b.start) })
		slices.SortStableFunc(ended, func(a, b *MetadataCall) int { return cmp.Compare(a.end, b.end) })
		f := &floor{incarnation: map[string]uint64{}, wrote: map[string]*MetadataCall{}}
		for _, m := range begun {
			for len(ended) > 0 && ended[0].end < m.start {
				f.raise(ended[0])
				ended = ended[1:]
			}
			if m.info.Local {
				c.localRead(f, m, writes)
			}
		}
	}
}

// raise enters what a client was answered.
func (f *floor) raise(m *MetadataCall) {
	f.revision = max(f.revision, m.result.Revision)
	topic, r := m.info.Topic, m.result
	switch {
	case m.info.Op == opList || m.outcome != OK:
		return
	case m.info.Op == opDescribe:
		if r.Exists {
			f.incarnation[topic] = max(f.incarnation[topic], r.Incarnation)
		}
		return
	case m.info.Op == opDelete:
		f.incarnation[topic] = max(f.incarnation[topic], r.Incarnation) + 1
	default:
		f.incarnation[topic] = max(f.incarnation[topic], r.Incarnation)
	}
	f.wrote[topic] = m
}

func (c *checker) localRead(f *floor, m *MetadataCall, writes map[string][]*MetadataCall) {
	r := m.result
	if r.Revision != 0 && r.Revision < f.revision {
		c.complain(CheckMetadata, "client %s read revision %d at %s, and knew of %d", m.info.Client, r.Revision, seconds(m.start), f.revision)
	}
	if m.info.Op == opList {
		for topic, own := range f.wrote {
			listed := slices.Contains(r.Topics, topic)
			if len(topic) < len(m.info.Topic) || topic[:len(m.info.Topic)] != m.info.Topic || disturbed(own, m, writes[topic]) {
				continue
			}
			if listed == (own.info.Op == opDelete) {
				c.complain(CheckMetadata, "client %s: a list at %s shows %s: %v, after its own %s", m.info.Client, seconds(m.start), topic, listed, own.info.Op)
			}
		}
		return
	}
	topic := m.info.Topic
	if r.Exists && r.Incarnation != 0 && r.Incarnation < f.incarnation[topic] {
		c.complain(CheckMetadata, "client %s read %s@%d at %s, and incarnations before %d are over for it", m.info.Client, topic, r.Incarnation, seconds(m.start), f.incarnation[topic])
		return
	}
	own := f.wrote[topic]
	if own == nil || disturbed(own, m, writes[topic]) {
		return
	}
	if exists := own.info.Op != opDelete; exists != r.Exists || exists && r.Settings != own.info.Settings {
		c.complain(CheckMetadata, "client %s read that %s exists: %v%s at %s, after its own %s%s", m.info.Client, topic, r.Exists, setting(r.Settings),
			seconds(m.start), own.info.Op, setting(own.info.Settings))
	}
}

// disturbed reports whether another write may have come between a client's own and its reading.
func disturbed(own, reading *MetadataCall, writes []*MetadataCall) bool {
	return slices.ContainsFunc(writes, func(w *MetadataCall) bool {
		end := w.end
		if w.outcome != OK {
			end = math.MaxInt64
		}
		return w != own && w.start <= reading.end && end >= own.start
	})
}
