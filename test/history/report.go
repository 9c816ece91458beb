package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The checks.
const (
	CheckLost     = 1 + iota // acknowledged records
	CheckOffsets             // one value each
	CheckCopies              // of values
	CheckOrder               // of producers and deliveries
	CheckHoles               // that nobody was told of
	CheckLiveness            // after a heal
	CheckMetadata            // of topics
	CheckInvented            // values
	checks
)

// Options say how to check. The zero value is the strictest that needs no knowledge of the test.
type Options struct {
	Only          []int         // the checks to make; none: all
	AllRead       bool          // each acknowledged record must have been read back by a reading begun after its answer
	PublishWithin time.Duration // after a heal; 0: 10 s
	DeliverWithin time.Duration // after a heal, or after a later record was delivered; 0: 5 s
	MetadataTime  time.Duration // how long CheckMetadata may think; 0: 10 s
	Visualization string        // a file to which CheckMetadata draws (HTML) the first topic that fails; empty: none
}

func (o Options) withDefaults() Options {
	o.PublishWithin = cmp.Or(o.PublishWithin, 10*time.Second)
	o.DeliverWithin = cmp.Or(o.DeliverWithin, 5*time.Second)
	o.MetadataTime = cmp.Or(o.MetadataTime, 10*time.Second)
	return o
}

// maxTexts bounds how many violations of one check a report tells. It counts all.
const maxTexts = 20

// Violation is one broken promise.
type Violation struct {
	Check int    `json:"check"`
	Text  string `json:"text"`
}

// String returns check and text.
func (v Violation) String() string { return fmt.Sprintf("check %d: %s", v.Check, v.Text) }

// Counts sum up a history.
type Counts struct {
	Publishes   int `json:"publishes"`
	Answered    int `json:"answered"` // OK, failed or unknown
	Acked       int `json:"acked"`
	Failed      int `json:"failed"`
	Unknown     int `json:"unknown"`
	Pending     int `json:"pending"`
	Orphaned    int `json:"orphaned"`     // of the pending ones: of producers that are gone or mortal
	Resent      int `json:"resent"`       // acknowledged as duplicates of what the broker had already
	Records     int `json:"records"`      // offsets at which something was read
	Duplicates  int `json:"duplicates"`   // values at a further offset, each after a fault that left its outcome open
	UnknownKept int `json:"unknown_kept"` // unknown, and read
	Lost        int `json:"lost"`         // acknowledged and lost, as a fault was allowed to
	Unread      int `json:"unread"`       // acknowledged, and no complete reading was begun after it
	Readings    int `json:"readings"`     // complete ones
	Deliveries  int `json:"deliveries"`
	Redelivered int `json:"redelivered"` // of the deliveries: of offsets delivered before
	Faults      int `json:"faults"`
	Heals       int `json:"heals"`
	HealsShort  int `json:"heals_short"` // heals after which the next fault or the end came too soon to judge liveness
	Metadata    int `json:"metadata"`    // operations
}

// Report is what the checks found.
type Report struct {
	Violations []Violation   `json:"violations"` // at most 20 a check
	Found      [checks]int   `json:"-"`          // by check: how many there are
	Undecided  []string      `json:"undecided"`  // what could not be judged in time
	Counts     Counts        `json:"counts"`
	Took       time.Duration `json:"took"`
}

// OK reports whether all was judged and nothing was found.
func (r *Report) OK() bool { return len(r.Violations) == 0 && len(r.Undecided) == 0 }

// checker is one check under way.
type checker struct {
	h      *History
	o      Options
	r      Report
	now    int64
	faults []fault // by start
}

func (c *checker) complain(check int, format string, args ...any) {
	c.r.Found[check]++
	if c.r.Found[check] <= maxTexts {
		c.r.Violations = append(c.r.Violations, Violation{check, fmt.Sprintf(format, args...)})
	}
}

// Check judges the history as it stands. It keeps others from recording meanwhile, some 100 ms for a million publishes,
// except that CheckMetadata may take longer and does not.
func (h *History) Check(o Options) Report {
	began := time.Now()
	c := &checker{h: h, o: o.withDefaults()}
	calls := c.underLock()
	if c.wants(CheckMetadata) {
		c.metadata(calls)
	}
	c.r.Took = time.Since(began)
	slices.SortStableFunc(c.r.Violations, func(a, b Violation) int { return cmp.Compare(a.Check, b.Check) })
	return c.r
}

func (c *checker) wants(check int) bool {
	return len(c.o.Only) == 0 || slices.Contains(c.o.Only, check)
}

// underLock makes the checks that look at records, and returns a copy of the metadata operations.
func (c *checker) underLock() []MetadataCall {
	h := c.h
	h.mu.Lock()
	defer h.mu.Unlock()
	c.now = h.horizon()
	c.faults = slices.Clone(h.faults)
	slices.SortStableFunc(c.faults, func(a, b fault) int { return cmp.Compare(a.start, b.start) })
	c.count()
	for check, run := range []func(){
		CheckLost: c.lost, CheckOffsets: c.offsets, CheckCopies: c.duplicates, CheckOrder: c.order, CheckHoles: c.holes,
		CheckLiveness: c.liveness, CheckInvented: c.invented,
	} {
		if run != nil && c.wants(check) {
			run()
		}
	}
	calls := make([]MetadataCall, len(h.meta))
	for i, m := range h.meta {
		calls[i] = *m
	}
	return calls
}

// declaredLost returns the offsets that readers were told are lost. What was read there before does not stand there any
// more, and its publish may have been sent again; whether it could be lost is for CheckLost.
func (l *log) declaredLost() (s spans) {
	for _, r := range l.readings {
		for _, g := range r.segments {
			if g.told() == Lost {
				s = s.add(span{g.from, g.to})
			}
		}
	}
	return s
}

// count counts, and finds at how many offsets each value was read.
func (c *checker) count() {
	h, n := c.h, &c.r.Counts
	for _, p := range h.producers {
		p.each(func(_ Value, pub *publish) {
			pub.copies = 0
			n.Publishes++
			switch pub.outcome {
			case Pending:
				n.Pending++
				if p.info.Mortal || p.gone != forever {
					n.Orphaned++
				}
			case OK:
				n.Acked++
				if pub.duplicate {
					n.Resent++
				}
			case Fail:
				n.Failed++
			case Unknown:
				n.Unknown++
			}
		})
	}
	n.Answered = n.Acked + n.Failed + n.Unknown
	for _, l := range h.logs {
		n.Records += l.read.count
		gone := l.declaredLost()
		l.read.each(0, forever, func(offset int64, v Value) {
			pub := h.publish(v)
			if pub == nil || len(gone) > 0 && gone.contains(offset) {
				return
			}
			if pub.copies == 0 && pub.outcome == Unknown {
				n.UnknownKept++
			}
			if pub.copies < 255 {
				pub.copies++
			}
		})
		for _, r := range l.readings {
			if r.ended() {
				n.Readings++
			}
		}
	}
	for _, s := range h.subs {
		var before spans
		for i := range s.deliveries {
			d := &s.deliveries[i]
			if d.why != 0 {
				continue
			}
			n.Deliveries++
			if before.contains(d.from) {
				n.Redelivered++
			}
			before = before.add(span{d.from, d.from})
		}
	}
	n.Faults, n.Heals, n.Metadata = len(c.faults), len(h.heals), len(h.meta)
}

// Total returns how many violations there are, those included that are not told.
func (r *Report) Total() (n int) {
	for _, found := range r.Found {
		n += found
	}
	return n
}
