package server

import (
	"fmt"
	"time"
)

// longestStop is how long a broker may have been down before its clock is believed less than its files.
const longestStop = 366 * 24 * time.Hour

// startOfAges decides at what time a run begins to count, for ages: of segments that retention removes, of producers
// that are forgotten. The machine's clock says it, unless the files know better, and then odd says why: a clock that is
// behind what an earlier run saw, or further ahead of it than any stop lasts, was set wrong then or is set wrong now.
// Either way the time stood still meanwhile: what is kept is kept longer, and nothing is removed that is not known to be
// old. seen is the last time that is on disk; zero: none.
func startOfAges(clock, seen time.Time) (start time.Time, odd string) {
	switch {
	case seen.IsZero():
		return clock, ""
	case clock.Before(seen):
		return seen, fmt.Sprintf("the machine's clock says %s, and an earlier run saw %s", clock.UTC().Format(time.RFC3339), seen.UTC().Format(time.RFC3339))
	case clock.Sub(seen) > longestStop:
		return seen, fmt.Sprintf("the machine's clock says %s, which is more than a year after the last run, at %s", clock.UTC().Format(time.RFC3339), seen.UTC().Format(time.RFC3339))
	}
	return clock, ""
}

// ageClock is the time that ages are measured by. While the run lasts it goes on as the machine's uptime does, whatever
// becomes of the machine's clock.
type ageClock struct {
	start  time.Time
	uptime func() time.Duration
	began  time.Duration
}

func newAgeClock(start time.Time, uptime func() time.Duration) *ageClock {
	return &ageClock{start: start, uptime: uptime, began: uptime()}
}

func (c *ageClock) now() time.Time { return c.start.Add(c.uptime() - c.began) }
