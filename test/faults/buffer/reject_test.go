package buffer

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// TestReject has the server fail in every way while publishers publish. Nothing is acknowledged that it does not have; what
// it loses it gets again from the log; nothing acknowledged is lost, and no idempotent producer's record is there twice.
func TestReject(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		fault func(r *rig)
	}{
		{"killed", []string{"--appendonly", "yes", "--appendfsync", "always"}, func(r *rig) { r.server.Kill(); r.pause(time.Second); r.server.Start() }},
		{"killed for long", []string{"--appendonly", "yes", "--appendfsync", "always"}, func(r *rig) { r.server.Kill(); r.silent(1500 * time.Millisecond); r.server.Start() }},
		{"restarted empty", nil, func(r *rig) { r.server.Kill(); r.server.Start() }},
		{"stopped", nil, func(r *rig) { r.server.Pause(); r.silent(1500 * time.Millisecond); r.server.Continue() }},
		{"late answers", nil, func(r *rig) { r.relay.Delay(time.Second); r.silent(2 * time.Second); r.relay.Delay(0) }},
		{"cut before the answer", nil, func(r *rig) {
			for range 5 {
				r.relay.Cut(1 + r.Rng.IntN(2))
				r.server.Await("an answer to be lost", func() bool { return r.relay.Left() == 0 })
			}
		}},
		{"full", []string{"--maxmemory-policy", "noeviction"}, fillUp},
		{"evicted", []string{"--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru"}, evict},
		{"flushed", nil, func(r *rig) { r.server.Do("FLUSHALL") }},
		{"trimmed too far", nil, func(r *rig) {
			for _, k := range r.streams() {
				r.server.Do("XTRIM", k, "MAXLEN", "3")
			}
		}},
		{"missing in the middle", nil, func(r *rig) {
			for _, k := range r.streams() {
				id, _, _ := strings.Cut(strings.Split(r.server.Do("XREVRANGE", k, "+", "-", "COUNT", "5"), "\n")[0], "-")
				n, err := strconv.Atoi(id)
				if err != nil {
					r.T.Fatal(err)
				}
				r.server.Do("XDEL", k, strconv.Itoa(max(1, n/2))+"-0")
			}
		}},
		{"stale replica", nil, func(r *rig) {
			replica := r.server.Replica()
			r.pause(300 * time.Millisecond)
			replica.Do("REPLICAOF", "NO", "ONE")
			r.pause(300 * time.Millisecond)
			r.relay.Lead(replica.Addr)
			r.server.Kill()
			r.server = replica
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := begin(t, nil, c.args...)
			n := faults.Amount(2, 1, 20)
			for i := range n {
				r.strike(c.name, func() { c.fault(r) })
				if i%2 == 1 { // and the broker goes, too
					r.Resume()
					r.pause(100 * time.Millisecond)
					r.Crash()
					r.Start()
					r.Check("after a crash of the broker")
				}
			}
			r.Pause()
			r.load.Finish()
			r.Check("at the end")
			r.held()
			r.Report(n)
		})
	}
}

// snapshots is in the name of the stream of the metadata's snapshots: partition 1 of what is called "levee metadata 1".
const snapshots = "6c65766565206d657461646174612031/1}"

// held fails the test unless the server has what the logs have: who loses the log now loses nothing. What the server loses of
// a log shows with the next append, so the metadata has one first; its snapshots have theirs when one is made, and are left out.
func (r *rig) held() {
	r.T.Helper()
	c := r.Place.Client(r.T)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	if err := c.Admin().CreateNamespace(ctx, "one-more"); err != nil {
		r.T.Fatal(err)
	}
	for _, k := range r.streams() {
		if strings.Contains(k, snapshots) {
			continue
		}
		record := strings.Fields(r.server.Do("GET", strings.TrimSuffix(k, ":s")+":g"))
		if len(record) != 3 {
			r.T.Fatalf("the record of %s is %q", k, record)
		}
		floor, _ := strconv.Atoi(record[1])
		last, _ := strconv.Atoi(record[2])
		if n := r.server.Do("XLEN", k); n != strconv.Itoa(last-floor+1) {
			r.T.Errorf("%s has %s entries, and its record is %v", k, n, record)
		}
	}
	if n := len(r.streams()); n < partitions {
		r.T.Errorf("%d streams for %d partitions", n, partitions)
	}
}

// fillUp leaves the server no memory for a while.
func fillUp(r *rig) {
	r.server.Do("CONFIG", "SET", "maxmemory", "1mb") // less than an empty one takes
	r.silent(time.Second)
	r.server.Do("CONFIG", "SET", "maxmemory", "0")
}

// evict has the server throw away the partitions' keys.
func evict(r *rig) {
	before := len(r.streams())
	for i := 0; len(r.streams()) >= before; i++ {
		if i > 5000 {
			r.T.Fatal("nothing is evicted")
		}
		r.server.Do("SET", "filler-"+strconv.Itoa(i%400), strings.Repeat("x", 50_000))
	}
	for k := range strings.Lines(r.server.Do("KEYS", "filler-*")) {
		r.server.Do("DEL", strings.TrimSpace(k))
	}
}
