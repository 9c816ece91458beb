package simulation

import (
	"maps"
	"slices"
)

// Shrink makes a failing schedule smaller: it leaves out whole streams, then chunks of decisions, makes chunks mild,
// and lowers what is left, as long as fails says that the failure is still there. It calls fails at most budget times.
// fails must run the schedule exactly, and return the decisions that were really drawn.
func Shrink(s Schedule, budget int, fails func(Schedule) (Schedule, bool)) Schedule {
	z := shrinker{best: s, left: budget, fails: fails}
	for z.left > 0 {
		before := z.best.String()
		z.streams()
		z.chunks()
		z.values()
		z.starts()
		if z.best.String() == before {
			break
		}
	}
	return z.best
}

type shrinker struct {
	best  Schedule
	left  int
	fails func(Schedule) (Schedule, bool)
}

// try adopts a candidate that still fails.
func (z *shrinker) try(candidate Schedule) bool {
	if z.left <= 0 {
		return false
	}
	z.left--
	drawn, failed := z.fails(candidate)
	if !failed {
		return false
	}
	// What was not drawn does nothing, so the drawn list is the better one, unless mild answers made it longer.
	length, sum := z.best.size()
	for _, c := range []Schedule{drawn, candidate.trim()} {
		if l, v := c.size(); l < length || l == length && v < sum {
			z.best = c
			return true
		}
	}
	return false
}

// with returns the best schedule with one stream replaced.
func (z *shrinker) with(name string, list []uint32) Schedule {
	s := maps.Clone(z.best)
	s[name] = list
	return s.trim()
}

func (z *shrinker) names() []string {
	return slices.Sorted(maps.Keys(z.best))
}

func (z *shrinker) streams() {
	for _, name := range z.names() {
		z.try(z.with(name, nil))
	}
	for _, name := range z.names() { // the first half is often enough
		for list := z.best[name]; len(list) > 1 && z.try(z.with(name, slices.Clone(list[:len(list)/2]))); list = z.best[name] {
			continue
		}
	}
}

// chunks deletes runs of decisions, or makes them mild, in ever smaller runs.
func (z *shrinker) chunks() {
	for _, name := range z.names() {
		for size := max(1, len(z.best[name])/2); size > 0; size /= 2 {
			for at := 0; at < len(z.best[name]); {
				list := z.best[name]
				end := min(at+size, len(list))
				if z.try(z.with(name, slices.Concat(list[:at], list[end:]))) {
					continue // what followed is here now
				}
				zeroed := slices.Clone(list)
				clear(zeroed[at:end])
				if !slices.Equal(zeroed, list) {
					z.try(z.with(name, zeroed))
				}
				at += size
			}
		}
	}
}

// maxStart bounds how many decisions starts leaves out of a stream.
const maxStart = 10

// starts leaves out the first decisions of two streams at once: what happened before the failure in one of them is often
// needed only to let as much happen in the other.
func (z *shrinker) starts() {
	for _, a := range z.names() {
		for _, b := range z.names() {
			for i := min(maxStart, len(z.best[a])); a < b && i > 0; i-- {
				for j := min(maxStart, len(z.best[b])); j > 0; j-- {
					if i > len(z.best[a]) || j > len(z.best[b]) {
						continue
					}
					candidate := z.with(a, slices.Clone(z.best[a][i:]))
					candidate[b] = slices.Clone(z.best[b][j:])
					z.try(candidate.trim())
				}
			}
		}
	}
}

// values lowers single decisions by bisection.
func (z *shrinker) values() {
	for _, name := range z.names() {
		for at := 0; at < len(z.best[name]); at++ {
			low, high := uint32(0), z.best[name][at] // high fails
			for low < high && z.left > 0 {
				list := slices.Clone(z.best[name])
				if at >= len(list) || list[at] != high {
					break // the run took another turn
				}
				mid := low + (high-low)/2
				list[at] = mid
				if z.try(z.with(name, list)) {
					high = mid
				} else {
					low = mid + 1
				}
			}
		}
	}
}
