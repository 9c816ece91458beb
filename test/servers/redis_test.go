package servers

import (
	"os"
	"strings"
	"testing"

	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// A server that was away is empty, a replica has what its primary had, and takes its place when that is gone.
func TestRedisFailsOver(t *testing.T) {
	r := StartRedis(t)
	r.Do("SET", "a", "1")
	r.Kill()
	r.Start()
	if got := r.Do("GET", "a"); got != "" {
		t.Fatalf("a server that came back has %q", got)
	}
	replica := r.Replica()
	s := r.Sentinel("levee")
	r.Do("SET", "a", "2")
	replica.Await("the replica to have it", func() bool { return replica.Do("GET", "a") == "2" }) // a WAIT on a connection of its own would not tell
	r.Kill()
	s.Await("the sentinel to promote the replica", func() bool {
		role, err := replica.Try("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
	if got := replica.Do("GET", "a"); got != "2" {
		t.Fatalf("the replica has %q", got)
	}
}
