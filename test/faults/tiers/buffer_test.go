package tiers

import (
	"strings"
	"testing"

	"github.com/leveemq/levee/test/servers"
)

// buffer is the Valkey server of a broker, which can be lost.
type buffer struct {
	env      map[string]string // what a broker has to be told
	primary  *servers.Redis
	replica  *servers.Redis // nil: none
	sentinel *servers.Redis // nil: none
}

// single is one server.
func single(t *testing.T) *buffer {
	t.Helper()
	r := servers.StartRedis(t)
	return &buffer{env: map[string]string{"LEVEE_VALKEY_MODE": "single", "LEVEE_VALKEY_ADDRESSES": r.Addr}, primary: r}
}

// lose takes the server away, with what it has; it comes back empty.
func (b *buffer) lose() {
	b.primary.Kill()
	b.primary.Start()
}

// sentinelName is what sentinels call the primary.
const sentinelName = "levee"

// replicated is a server with a replica, which must have each record, and a sentinel that puts that in its place.
func replicated(t *testing.T) *buffer {
	t.Helper()
	const name = sentinelName
	r := servers.StartRedis(t)
	b := &buffer{primary: r, replica: r.Replica()}
	b.sentinel = r.Sentinel(name)
	b.env = map[string]string{
		"LEVEE_VALKEY_MODE": "sentinel", "LEVEE_VALKEY_ADDRESSES": b.sentinel.Addr, "LEVEE_VALKEY_MASTER_SET": name, "LEVEE_VALKEY_REPLICAS": "1",
	}
	return b
}

// failOver kills the primary and waits until the replica is in its place, with a new replica of its own.
func (b *buffer) failOver() {
	b.primary.Kill()
	promoted := b.replica
	b.sentinel.Await("the sentinel to promote the replica", func() bool {
		role, err := promoted.Try("ROLE") // it cuts connections when its role changes
		return err == nil && strings.HasPrefix(role, "master")
	})
	b.primary, b.replica = promoted, promoted.Replica()
	b.sentinel.Watch(promoted, sentinelName)
}
