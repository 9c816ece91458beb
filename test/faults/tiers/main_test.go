// Package tiers owns the guarantee matrix: real brokers keep their records in the log alone, with copies in an object store,
// with a Valkey server in front, or with both, and lose a process, a disk, a server or several of them while clients
// publish. It looks from outside: at what clients were told and read, and at what the broker, its command line and the
// store say. Invariant: each cell of the matrix names what it may cost; what was lost beyond that, or was lost and not
// said, fails the cell.
package tiers

import (
	"os"
	"testing"

	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }
