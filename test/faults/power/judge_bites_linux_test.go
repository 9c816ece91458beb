package power

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/history"
)

// TestJudgeBites shows the judge a reading with each thing it looks for.
func TestJudgeBites(t *testing.T) {
	began := time.Now()
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	rec := func(offset int64, seq int32) entry {
		return entry{offset: offset, to: -1, value: history.Value{Producer: 0, Seq: seq}}
	}
	for name, c := range map[string]struct {
		mode    string
		entries []entry
		end     int64
		want    string // "": nothing is wrong
	}{
		"all there":             {"on_commit", []entry{rec(0, 0), rec(1, 1), rec(2, 2)}, 3, ""},
		"what was under way":    {"on_commit", []entry{rec(0, 0), rec(1, 1)}, 2, ""},
		"lost":                  {"on_commit", []entry{rec(0, 0)}, 1, "value 0/1 was acknowledged at offset 1"},
		"lost and declared":     {"on_commit", []entry{rec(0, 0), {offset: 1, to: 9}}, 10, "value 0/1 was acknowledged at offset 1"},
		"lost as it may be":     {"none", []entry{{offset: 0, to: 9}}, 10, ""},
		"young enough":          {"periodic", []entry{rec(0, 0), {offset: 1, to: 9}}, 10, ""},
		"too old to be lost":    {"periodic", []entry{{offset: 0, to: 9}}, 10, "value 0/0 was acknowledged at offset 0"},
		"silent hole":           {"none", []entry{rec(0, 0), rec(7, 1)}, 8, "after offset 0 comes 7"},
		"silent end":            {"none", []entry{rec(0, 0)}, 5, "its end is 5"},
		"another value":         {"none", []entry{rec(0, 1), rec(1, 2)}, 2, "value 0/0 was acknowledged at offset 0, and 0/1 stands there"},
		"order":                 {"none", []entry{rec(0, 0), rec(1, 1), rec(2, 0)}, 3, "behind its 1"},
		"never published":       {"none", []entry{rec(0, 0), rec(1, 1), rec(2, 8)}, 3, "0/8, which nobody published"},
		"published afterwards":  {"none", []entry{rec(0, 0), rec(1, 1), rec(2, 3)}, 3, "after the moment"},
		"published to another":  {"none", []entry{rec(0, 0), rec(1, 1), rec(2, 4)}, 3, "was published to t partition 1"},
		"another topic's value": {"none", []entry{rec(0, 0), rec(1, 1), rec(2, 5)}, 3, "was published to other partition 0"},
	} {
		t.Run(name, func(t *testing.T) {
			tp := &topic{name: "t", mode: c.mode}
			l := &load{kinds: []kind{{idempotent: true}}, pubs: [][]publish{{
				{topic: tp, start: at(0), end: at(1), offset: 0},
				{topic: tp, start: at(1), end: at(10).Add(-interval), offset: 1},
				{topic: tp, start: at(9), offset: -1},
				{topic: tp, start: at(11), offset: -1},
				{topic: tp, partition: 1, start: at(9), offset: -1},
				{topic: &topic{name: "other"}, start: at(9), offset: -1},
			}}}
			j := &judge{load: l, topic: tp, moment: at(10), kept: tp.kept(at(10), time.Second)}
			j.read([][]entry{c.entries}, []int64{c.end})
			switch {
			case c.want == "" && len(j.broken) > 0:
				t.Errorf("it found %q, and nothing is wrong", j.broken)
			case c.want != "" && !slices.ContainsFunc(j.broken, func(s string) bool { return strings.Contains(s, c.want) }):
				t.Errorf("it found %q, want %q", j.broken, c.want)
			}
		})
	}
}
