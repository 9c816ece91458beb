package buffer

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
	"github.com/leveemq/levee/test/servers"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

const (
	topic      = "default/load"
	partitions = 2
	confirm    = 500 * time.Millisecond // how long a publish waits
)

// underWay is more than the publishers have under way together: of so many acknowledgements some are of publishes that began
// after the first of them was waited for.
const underWay = 300

// rig is a broker with a write buffer, and loads on it.
type rig struct {
	*faults.Campaign
	server *servers.Redis // the present primary
	relay  *servers.Relay // the broker's way there
	load   *faults.Load
	env    map[string]string // of the next broker
}

// begin starts a server with args, and a broker that uses it.
func begin(t *testing.T, env map[string]string, args ...string) *rig {
	t.Helper()
	v := servers.StartRedis(t, args...)
	r := &rig{server: v, relay: servers.NewRelay(t, v.Addr)}
	r.env = map[string]string{
		"LEVEE_VALKEY_MODE": "single", "LEVEE_VALKEY_ADDRESSES": r.relay.Addr, "LEVEE_VALKEY_TIMEOUT": "100ms", "LEVEE_VALKEY_CONFIRM_TIMEOUT": confirm.String(),
		"LEVEE_STORAGE_RETENTION_CHECK": "200ms",
	}
	maps.Copy(r.env, env)
	r.Campaign = faults.Begin(t, faults.Options{Broker: proc.Options{Env: r.env}})
	fsync := "on_commit"
	r.load = r.Load(client.TopicSpec{Name: topic, Partitions: partitions, Settings: client.Settings{Fsync: &fsync, SegmentBytes: new(int64(64 << 10))}})
	r.load.Add(faults.Kind{Idempotent: true, Window: 256, Stubborn: true}) // its batches are large enough to be transactions in Valkey
	r.load.Add(faults.Kind{Idempotent: true, Ordered: true, Window: 4, Stubborn: true})
	r.load.Add(faults.Kind{Window: 8, Stubborn: true})
	return r
}

// streams returns the keys of the partitions that hold entries.
func (r *rig) streams() (keys []string) {
	for k := range strings.Lines(r.server.Do("KEYS", "levee:*:s")) {
		keys = append(keys, strings.TrimSpace(k))
	}
	return keys
}

// states describes the partitions.
func (r *rig) states() []client.Partition {
	r.T.Helper()
	c := r.Place.Client(r.T)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	d, err := c.Admin().DescribeTopic(ctx, topic)
	if err != nil {
		r.T.Fatal(err)
	}
	return d.PartitionStates
}

// strike publishes for a while, has fault do its work, which ends with a server that works, and checks.
func (r *rig) strike(name string, fault func()) {
	r.T.Helper()
	hit := r.load.After(20 + r.Rng.Int64N(200))
	r.Resume()
	faults.Await(r.T, hit, "acknowledgements before "+name)
	began := time.Now()
	fault()
	r.Fault(name, began, history.Cost{})
	r.History.Heal()
	hit = r.load.After(underWay) // so that each partition has an append that the fault did not see, and shows what that has cost
	faults.Await(r.T, hit, "acknowledgements after "+name)
	r.Pause()
	r.Check("after " + name)
}

// silent fails the test where anything new is acknowledged while the server is away. (What is sent again, because its first
// answer was late, may be there.)
func (r *rig) silent(hold time.Duration) {
	r.T.Helper()
	// What was confirmed before is answered meanwhile, which a busy machine may take its time for.
	before := r.load.Fresh()
	for began, answered := time.Now(), int64(-1); before != answered; before = r.load.Fresh() {
		if time.Since(began) > proc.Patience {
			r.T.Fatalf("the broker goes on acknowledging while the write buffer cannot have anything")
		}
		answered = before
		<-time.After(time.Second)
	}
	<-time.After(hold)
	if n := r.load.Fresh() - before; n > 0 {
		r.T.Errorf("%d publishes were acknowledged while the write buffer could not have them", n)
	}
}

// pause waits for a random time.
func (r *rig) pause(most time.Duration) { <-time.After(time.Duration(r.Rng.Int64N(int64(most)))) }

// replace has a broker without a directory take the place of the one that is there, which dies.
func (r *rig) replace() {
	r.T.Helper()
	began := time.Now()
	r.Place.Set("")
	r.Broker.Kill()
	if err := os.Rename(r.Dir, filepath.Join(filepath.Dir(r.Dir), fmt.Sprintf("gone-%d", r.Starts))); err != nil {
		r.T.Fatal(err)
	}
	r.Start()
	r.Fault("disk gone", began, history.Cost{})
}

// metric returns what a series of the broker's metrics stands at, summed over its labels; -1 where there is none.
func (r *rig) metric(name string) float64 {
	r.T.Helper()
	res, err := proc.HTTP.Get("http://" + r.Broker.HTTP + "/metrics")
	if err != nil {
		r.T.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.T.Fatal(err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if family, _, _ := strings.Cut(series, "{"); family == name {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				r.T.Fatal(err)
			}
			sum, found = sum+n, true
		}
	}
	if !found {
		return -1
	}
	return sum
}
