package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// shift is something that happens to a machine's clock.
type shift struct {
	name string
	from time.Time                   // when it is, before
	to   func(t time.Time) time.Time // what the clock says instead of t, from then on
}

func date(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func ahead(d time.Duration) func(time.Time) time.Time {
	return func(t time.Time) time.Time { return t.Add(d) }
}

// to sets the clock to a date, once.
func to(from time.Time, text string) func(time.Time) time.Time {
	return ahead(date(text).Sub(from))
}

func shifts() []shift {
	today, year := date("2026-11-29T12:00:00Z"), 365*24*time.Hour
	return []shift{
		{"an hour ahead", today, ahead(time.Hour)},
		{"an hour back", today, ahead(-time.Hour)},
		{"ten years ahead", today, ahead(10 * year)},
		{"ten years back", today, ahead(-10 * year)},
		{"to 1970", today, to(today, "1970-01-01T00:00:00Z")},
		{"to 2099", today, to(today, "2099-12-31T23:59:59Z")},
		{"summer time begins, on a clock of local time", date("2027-03-28T01:00:00Z"), ahead(time.Hour)},
		{"summer time ends, on a clock of local time", date("2027-10-31T01:00:00Z"), ahead(-time.Hour)},
		{"a leap day counted twice", date("2028-02-29T23:30:00Z"), ahead(-24 * time.Hour)},
		{"past the end of 32 bits", date("2038-01-19T03:14:00Z"), ahead(-(1 << 32) * time.Second)},
	}
}

// moved is a machine whose clock a shift has changed or not, and its disk.
type moved struct {
	t       *testing.T
	fs      *vfs.Mem
	shift   shift
	shifted bool
	passed  time.Duration // really, since shift.from
	boot    int
	claim   *claim
	log     *seglog.Log
}

func (m *moved) clock() time.Time {
	t := m.shift.from.Add(m.passed)
	if m.shifted {
		t = m.shift.to(t)
	}
	return t
}

// restart ends the run and begins another one, as soon as machines do.
func (m *moved) restart(change func()) {
	m.t.Helper()
	if m.log != nil {
		if err := m.log.Close(); err != nil {
			m.t.Fatal(err)
		}
		if _, err := m.claim.stopped(seglog.CleanStop); err != nil {
			m.t.Fatal(err)
		}
	}
	m.passed += time.Minute
	change()
	m.boot++
	var err error
	m.claim, err = claimDir(m.fs, dataDir, machine{
		bootID: func() (string, error) { return fmt.Sprint(m.boot), nil }, sync: func(string) error { return nil },
		newID: func() id { return id{1} }, now: m.clock, uptime: func() time.Duration { return m.passed },
	}, silent)
	if err != nil {
		m.t.Fatal(err)
	}
	m.log, _, err = seglog.Open(seglog.Config{
		FS: m.fs, Dir: dataDir + "/topics/t", Topic: "t", SegmentBytes: 300, Retention: seglog.Retention{Age: 24 * time.Hour}, Now: m.claim.ages.now,
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// append writes a record that says of itself what time it is, and is a segment of its own.
func (m *moved) append(timestamp int64) {
	m.t.Helper()
	b := record.NewBuilder(record.None)
	if err := b.Append(record.Record{Value: []byte(strings.Repeat("x", 200)), Timestamp: timestamp}); err != nil {
		m.t.Fatal(err)
	}
	batch, err := b.Build(record.NoProducer)
	if err == nil {
		_, err = m.log.Append(m.t.Context(), batch)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// wantFirst lets time pass and retention work, and looks at where the log begins.
func (m *moved) wantFirst(pass time.Duration, first int64, why string) {
	m.t.Helper()
	m.passed += pass
	if _, err := m.log.Retain(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	if got := m.log.Bounds().First; got != first {
		m.t.Fatalf("%s: %v after the start the log begins at offset %d, want %d", why, m.passed, got, first)
	}
}

// TestClockChanges sets the machine's clock to whatever clocks get set to, while a broker runs and between two runs:
// retention by age, here of a day, removes nothing before it is a day old, and everything soon after; what producers
// say of the time does not matter.
func TestClockChanges(t *testing.T) {
	cases := 0
	for _, s := range shifts() {
		for when, play := range map[string]func(m *moved, set func(bool)){
			"while it runs":             func(_ *moved, set func(bool)) { set(true) },
			"while it runs, and back":   func(m *moved, set func(bool)) { set(true); m.passed += time.Hour; set(false) },
			"between runs":              func(m *moved, set func(bool)) { m.restart(func() { set(true) }) },
			"between runs, and back":    func(m *moved, set func(bool)) { m.restart(func() { set(true) }); m.restart(func() { set(false) }) },
			"while it runs, then a run": func(m *moved, set func(bool)) { set(true); m.restart(func() {}) },
			"at first":                  nil,
		} {
			if off := s.from.Sub(s.to(s.from)); play == nil && off > time.Hour && off < longestStop {
				continue // set right between two runs, that is a broker that was down for as long
			}
			t.Run(s.name+" "+when, func(t *testing.T) {
				cases++
				m := &moved{t: t, fs: newDisk(t), shift: s, shifted: play == nil}
				set := func(on bool) { m.shifted = on }
				m.restart(func() {})
				m.append(0)
				m.append(date("2099-01-01T00:00:00Z").UnixMilli()) // the first is closed now
				if play != nil {
					play(m, set)
				} else {
					m.restart(func() { set(false) }) // it was wrong before, and is right now
				}
				m.wantFirst(12*time.Hour, 0, "too early")
				m.append(-1) // another closed at half a day
				m.restart(func() {})
				m.wantFirst(time.Hour, 0, "too early")
				m.wantFirst(11*time.Hour+30*time.Minute, 1, "kept for ever, or the second too early")
				m.wantFirst(13*time.Hour, 2, "kept for ever")
				if err := m.log.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	t.Logf("%d cases", cases)
}
