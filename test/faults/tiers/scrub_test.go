package tiers

import (
	"encoding/json"
	"strings"

	"github.com/leveemq/levee/test/proc"
)

// found is what levee fsck says of one thing, and at the end of all.
type found struct {
	Level, Area, Kind, Where, Message string

	Totals struct {
		Objects, Verified, Orphans, Removed, Losses int64
		ToRepair                                    int64 `json:"to_repair"`
	}
}

// scrub compares, with the broker stopped, all that is stored with each other, the objects with the metadata among it:
// nothing is missing or damaged. What an upload or a take-over that was cut off has left in the store is removed once it is
// old enough, and then there is nothing left over.
func (r *rig) scrub() {
	r.T.Helper()
	r.fsck()
	removed := r.fsck("--repair", "--grace", "1ms").Totals.Removed
	last := r.fsck()
	if last.Totals.Orphans != 0 || last.Totals.ToRepair != 0 || last.Totals.Objects != last.Totals.Verified {
		r.T.Errorf("after a repair there are still: %+v", last.Totals)
	}
	if r.objects != nil {
		r.T.Logf("%d objects, all verified, none missing; %d left over, and removed", last.Totals.Verified, removed)
	}
}

// fsck checks what the broker, which is stopped, has stored, and fails the test where something is lost.
func (r *rig) fsck(args ...string) (summary found) {
	r.T.Helper()
	res := proc.RunWith(r.T, r.Options.Broker.Env, nil, append([]string{"fsck", "--data-dir", r.Dir, "--output", "json"}, args...)...)
	for line := range strings.Lines(res.Stdout) {
		var f found
		must(r.T, json.Unmarshal([]byte(line), &f))
		switch f.Level {
		case "summary":
			summary = f
		case "lost":
			r.T.Errorf("fsck: %s", line)
		}
	}
	if res.Code != 0 || summary.Level == "" || summary.Totals.Losses > 0 {
		r.T.Errorf("fsck %q ended with exit code %d: %s%s", args, res.Code, res.Stdout, res.Stderr)
	}
	return summary
}
