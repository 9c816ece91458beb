package simulation

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Choices is where every decision of a run comes from: what a client asks for, what becomes of a message, when a node
// crashes and what its disk keeps. Decisions are drawn from named streams, so that leaving one out moves only those
// behind it in its own stream. 0 is always the mildest outcome: no fault, no delay, nothing asked for.
//
// It is used from one goroutine.
type Choices struct {
	next    func(stream string, at int) (uint32, bool)
	streams map[string][]uint32 // as drawn
}

// Schedule is a list of decisions: by stream, in the order in which they are drawn. What is missing at an end is zeros.
type Schedule map[string][]uint32

// Seeded returns the choices of a seed. The same seed meets the same questions with the same answers.
func Seeded(seed uint64) *Choices {
	sources := map[string]*rand.Rand{}
	return &Choices{streams: map[string][]uint32{}, next: func(stream string, _ int) (uint32, bool) {
		r := sources[stream]
		if r == nil {
			h := fnv.New64a()
			h.Write([]byte(stream))
			r = rand.New(rand.NewPCG(seed, h.Sum64()))
			sources[stream] = r
		}
		return r.Uint32(), true
	}}
}

// Replay returns the choices of a schedule.
func Replay(s Schedule) *Choices {
	return &Choices{streams: map[string][]uint32{}, next: func(stream string, at int) (uint32, bool) {
		if list := s[stream]; at < len(list) {
			return list[at], false
		}
		return 0, false
	}}
}

// Draw decides between 0 and n-1.
func (c *Choices) Draw(stream string, n int) int {
	if n <= 1 {
		return 0
	}
	v, fresh := c.next(stream, len(c.streams[stream]))
	if fresh {
		v = uint32(uint64(v) * uint64(n) >> 32)
	}
	v = min(v, uint32(n-1)) // a shortened schedule may ask another question here than the one that was answered
	c.streams[stream] = append(c.streams[stream], v)
	return int(v)
}

// Pick decides between the indexes of weights, each as likely as its weight. The first is the mildest.
func (c *Choices) Pick(stream string, weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	v := c.Draw(stream, sum)
	for i, w := range weights {
		if v -= w; v < 0 {
			return i
		}
	}
	return 0 // all weights are 0
}

// Taken returns the decisions so far.
func (c *Choices) Taken() Schedule {
	s := Schedule{}
	for name, list := range c.streams {
		s[name] = slices.Clone(list)
	}
	return s.trim()
}

// trim drops zeros at the ends, which say nothing.
func (s Schedule) trim() Schedule {
	for name, list := range s {
		n := len(list)
		for n > 0 && list[n-1] == 0 {
			n--
		}
		if n == 0 {
			delete(s, name)
		} else {
			s[name] = list[:n]
		}
	}
	return s
}

// Decisions returns how many decisions are not the mildest.
func (s Schedule) Decisions() int {
	n := 0
	for _, list := range s {
		for _, v := range list {
			if v != 0 {
				n++
			}
		}
	}
	return n
}

// size orders schedules while they are shrunk: shorter first, then smaller.
func (s Schedule) size() (length, sum int) {
	for _, list := range s {
		length += len(list)
		for _, v := range list {
			sum += int(v)
		}
	}
	return length, sum
}

// String writes the schedule on one line, as ParseSchedule reads it: "stream=1 0 3; other=2 0*14 1".
func (s Schedule) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(name + "=")
		list := s[name]
		for i := 0; i < len(list); {
			n := 1
			for i+n < len(list) && list[i+n] == list[i] {
				n++
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, "%d", list[i])
			if n > 1 {
				fmt.Fprintf(&b, "*%d", n)
			}
			i += n
		}
	}
	return b.String()
}

// maxDecisions bounds what a written schedule may unfold to.
const maxDecisions = 1 << 20

// ParseSchedule reads what String writes.
func ParseSchedule(text string) (Schedule, error) {
	s := Schedule{}
	for _, part := range strings.Split(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, list, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("parse schedule: %q is not stream=decisions", part)
		}
		for _, word := range strings.Fields(list) {
			value, times, repeated := strings.Cut(word, "*")
			v, err := strconv.ParseUint(value, 10, 32)
			n := uint64(1)
			if err == nil && repeated {
				n, err = strconv.ParseUint(times, 10, 32)
			}
			if err != nil || n > maxDecisions-uint64(len(s[name])) {
				return nil, fmt.Errorf("parse schedule: stream %s: %q is no decision", name, word)
			}
			s[name] = append(s[name], slices.Repeat([]uint32{uint32(v)}, int(n))...)
		}
	}
	return s.trim(), nil
}
