package tiers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// sealAge is how long a segment with records may stay as it is, and so, about, how long records are in the log alone.
const sealAge = time.Second

// setup is one of the ways to keep records.
type setup struct {
	name   string
	store  func(*testing.T) *store  // nil: no copies
	buffer func(*testing.T) *buffer // nil: no Valkey
}

// setups are the configurations of the matrix.
var setups = []setup{
	{name: "wal"},
	{name: "wal+cloud", store: directory},
	{name: "wal+s3", store: bucket},
	{name: "wal+valkey", buffer: single},
	{name: "wal+valkey+cloud", store: directory, buffer: single},
}

// having returns the setups that have copies, Valkey, or both.
func having(copies, valkey bool) (some []setup) {
	for _, s := range setups {
		if (s.store != nil || !copies) && (s.buffer != nil || !valkey) {
			some = append(some, s)
		}
	}
	return some
}

// rig is a broker with its tiers, a load on two topics, and a consumer that reads along on each.
type rig struct {
	*faults.Campaign
	setup
	objects *store  // nil: none
	valkey  *buffer // nil: none
	lossy   bool    // publishers end with each fault: what they were promised may be gone, and their sequence with it
	readers []*follower
	down    bool // there is no broker now
}

func newRig(t *testing.T, s setup, lossy bool) *rig {
	t.Helper()
	r := &rig{setup: s, lossy: lossy}
	env := map[string]string{"LEVEE_STORAGE_RETENTION_CHECK": "100ms"}
	if s.store != nil {
		r.objects = s.store(t)
		maps.Copy(env, r.objects.env)
		env["LEVEE_STORAGE_SEAL_AGE"] = sealAge.String()
		// So that most of what is read has left the log.
		env["LEVEE_STORAGE_RETENTION_BYTES"] = "200KiB"
	}
	if s.buffer != nil {
		r.valkey = s.buffer(t)
		maps.Copy(env, r.valkey.env)
	}
	r.Campaign = faults.Begin(t, faults.Options{Broker: proc.Options{Env: env}})
	for _, fsync := range []string{history.FsyncOnCommit, history.FsyncPeriodic} {
		r.Load(client.TopicSpec{
			Name: "default/" + fsync, Partitions: 2,
			Settings: client.Settings{Fsync: &fsync, SegmentBytes: new(int64(64 << 10))},
		})
	}
	if r.objects != nil { // a node that is lost before that is lost with its topics
		r.Broker.Await("a copy of the metadata that knows the topics", func() bool {
			res, err := proc.HTTP.Get("http://" + r.Broker.HTTP + "/metrics")
			must(t, err)
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			must(t, err)
			return strings.Contains(string(text), "\nlevee_storage_metadata_lag_seconds 0\n")
		})
	}
	for _, l := range r.Loads {
		r.publishers(l)
		r.readers = append(r.readers, follow(r, l))
	}
	return r
}

// publishers puts publishers on a load: idempotent and not, with many batches under way and with one.
func (r *rig) publishers(l *faults.Load) {
	for i, k := range []faults.Kind{
		{Idempotent: true, Window: 32},
		{Idempotent: true, Mortal: true, Window: 8, Codec: record.Zstd},
		{Window: 16},
		{Mortal: true, Ordered: true, Window: 4},
	} {
		k.Mortal = k.Mortal || r.lossy
		k.Timeout = proc.Patience + time.Duration(i)
		l.Add(k)
	}
}

// on returns a client of the broker that is there now.
func (r *rig) on(do func(context.Context, *client.Admin)) {
	r.T.Helper()
	c := r.Place.Client(r.T)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	do(ctx, c.Admin())
}

// states describes the partitions of a load's topic.
func (r *rig) states(l *faults.Load) (states []client.Partition) {
	r.T.Helper()
	r.on(func(ctx context.Context, admin *client.Admin) {
		d, err := admin.DescribeTopic(ctx, l.Topic)
		if err != nil {
			r.T.Fatal(err)
		}
		states = d.PartitionStates
	})
	return states
}

// copied notes what the broker says has a copy by now: from here on that may not be lost.
func (r *rig) copied() (records int64) {
	r.T.Helper()
	if r.objects == nil {
		return 0
	}
	for _, l := range r.Loads {
		for _, p := range r.states(l) {
			r.History.Copied(l.Topic, l.Incarnation, p.Partition, p.CopiedBelow)
			records += p.CopiedBelow
		}
	}
	return records
}

// exported waits until everything has a copy, and /readyz says so, too. Nobody may begin to publish meanwhile; what is under
// way may come yet.
func (r *rig) exported() {
	r.T.Helper()
	r.Broker.Await("done with copying", func() bool {
		for _, l := range r.Loads {
			for _, p := range r.states(l) {
				if p.CopiedBelow < p.End || p.ExposedBytes > 0 {
					return false
				}
			}
		}
		e := r.exposed()
		return e.Copies.Bytes == 0 && e.Copies.Ms == 0
	})
	r.copied()
}

// exposure is what /readyz says that this disk has alone.
type exposure struct {
	Copies *struct {
		Bytes int64 `json:"exposed_bytes"`
		Ms    int64 `json:"exposed_ms"`
	}
	Buffer *struct{ Unconfirmed, Uncovered int64 } `json:"write_buffer"`
}

// exposed asks for it. It says nothing of tiers that there are not.
func (r *rig) exposed() (e exposure) {
	r.T.Helper()
	res, err := proc.HTTP.Get("http://" + r.Broker.HTTP + "/readyz")
	must(r.T, err)
	defer res.Body.Close()
	must(r.T, json.NewDecoder(res.Body).Decode(&e))
	if (e.Copies != nil) != (r.objects != nil) || (e.Buffer != nil) != (r.valkey != nil) {
		r.T.Errorf("with %s, /readyz says of its tiers: %+v", r.name, e)
	}
	return e
}

// enough has publishers publish until a random number of acknowledgements.
func (r *rig) enough() {
	r.T.Helper()
	n := 500 + r.Rng.Int64N(3000)
	var hits []<-chan struct{}
	for _, l := range r.Loads {
		hits = append(hits, l.After(n))
	}
	r.Resume()
	for i, l := range r.Loads {
		faults.Await(r.T, hits[i], fmt.Sprintf("%d acknowledgements of %s", n, l.Topic))
	}
}

// kill ends the broker as it is.
func (r *rig) kill() {
	r.T.Helper()
	r.Place.Set("")
	r.Broker.Kill()
	r.down = true
}

// start starts a broker where there is none.
func (r *rig) start() {
	r.T.Helper()
	if r.down {
		r.Start()
		r.down = false
	}
}

// goOn begins again with publishing, by new publishers where the last fault has ended some, and waits until all of it
// works.
func (r *rig) goOn() {
	r.T.Helper()
	r.History.Heal()
	began := time.Now()
	var hits []<-chan struct{}
	for _, l := range r.Loads {
		hits = append(hits, l.After(50))
	}
	r.Resume()
	for i, l := range r.Loads {
		faults.Await(r.T, hits[i], "acknowledgements of "+l.Topic+" after it")
	}
	r.ToAck = max(r.ToAck, time.Since(began))
	r.Pause()
}

// cycle is a fault under load, and what comes of it. strike may leave the broker dead; after looks at what was said of it,
// before anything is read.
func (r *rig) cycle(when string, strike, after func()) {
	r.T.Helper()
	r.enough()
	strike()
	replace := r.clear()
	r.start()
	after()
	r.Check(when)
	replace()
	r.goOn()
}

// clear has nobody publish, and ends those that die with the broker. What it returns puts others in their place.
func (r *rig) clear() (replace func()) {
	r.T.Helper()
	r.Pause()
	gone := make([][]faults.Kind, len(r.Loads))
	for i, l := range r.Loads {
		gone[i] = l.CrashMortals()
	}
	return func() {
		r.T.Helper()
		for i, l := range r.Loads {
			for _, k := range gone[i] {
				l.Add(k)
			}
		}
	}
}

// end has everything answered, copied, scrubbed and read once more.
func (r *rig) end(cycles int) {
	r.T.Helper()
	r.Pause()
	for _, l := range r.Loads {
		l.Finish()
	}
	if r.objects != nil {
		r.exported()
	}
	if r.valkey != nil {
		r.covered()
	}
	for _, f := range r.readers {
		f.caughtUp()
		f.stop()
	}
	r.kill()
	r.start()
	for _, l := range r.Loads {
		l.Read()
	}
	report := r.History.Check(history.Options{AllRead: true})
	r.Counts = report.Counts
	for _, v := range report.Violations {
		r.T.Errorf("in the end: %v", v)
	}
	for _, u := range report.Undecided {
		r.T.Errorf("in the end, cannot be judged: %s", u)
	}
	if open := r.Counts.Pending - r.Counts.Orphaned; open > 0 {
		r.T.Errorf("%d publishes were never answered", open)
	}
	r.Broker.Terminate()
	if code := r.Broker.Wait(); code != 0 {
		r.T.Errorf("the last stop ended with exit code %d", code)
	}
	r.scrub()
	r.Report(cycles)
}
