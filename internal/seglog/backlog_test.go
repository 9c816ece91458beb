package seglog

import (
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// What waits for a copy is told, and what of it is there only for that.
func TestBacklog(t *testing.T) {
	now, copied := time.UnixMilli(1_000_000), int64(0)
	log, _, err := Open(Config{
		FS: vfs.NewMem(), Dir: "/log", SegmentBytes: 4 << 10, Now: func() time.Time { return now }, Copied: func() int64 { return copied },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if b := log.Backlog(0); b != (Backlog{}) {
		t.Errorf("of an empty log: %+v", b)
	}
	for range 200 {
		mustAppend(t, log, batch(t, noProducer, strings.Repeat("x", 100)))
		now = now.Add(time.Second)
	}
	v := log.view.Load()
	last, sizes := len(v.segs)-1, int64(0)
	if last < 4 {
		t.Fatalf("%d segments", len(v.segs))
	}
	for _, s := range v.segs[:last] {
		sizes += s.end
	}
	age := func(i int) time.Duration { return log.age(v.segs[i]) }
	for _, c := range []struct {
		copied int // segments
		keep   Retention
		want   Backlog
	}{
		{0, Retention{}, Backlog{sizes, age(0), 0}},
		{0, Retention{Bytes: 1}, Backlog{sizes, age(0), sizes}},
		{2, Retention{Bytes: 1}, Backlog{sizes - v.segs[0].end - v.segs[1].end, age(2), sizes - v.segs[0].end - v.segs[1].end}},
		{1, Retention{Age: age(3) - 1}, Backlog{sizes - v.segs[0].end, age(1), v.segs[1].end + v.segs[2].end}},
		{0, Retention{Bytes: v.bytes() - 1}, Backlog{sizes, age(0), v.segs[0].end}},
		{last, Retention{Bytes: 1}, Backlog{}},
	} {
		log.SetRetention(c.keep)
		if got := log.Backlog(v.segs[c.copied].BaseOffset); got != c.want {
			t.Errorf("%d copied, kept %+v: %+v, expected %+v", c.copied, c.keep, got, c.want)
		}
	}
	log.SetRetention(Retention{Bytes: 1})
	before := log.Backlog(0)
	copied = v.segs[last].BaseOffset
	removed, err := log.Retain(t.Context())
	if err != nil || removed != before.Held {
		t.Errorf("%d bytes were removed once there were copies, %d were said to be held: %v", removed, before.Held, err)
	}
}
