// Package subscriptions owns the tests that break whoever takes part in a subscription: consumers are killed, stop
// reading, go silent behind a connection that stays open, say what is not so, come and go in crowds; the broker is killed
// and stopped while they acknowledge. It looks from outside: at what consumers are handed and told, and at what the broker
// says of a subscription. Invariant: what is judged is one ledger of everything that publishers and consumers saw, in
// the order of its time; the verdict knows which fault may cost what, and anything beyond that fails the test.
package subscriptions

import (
	"os"
	"testing"

	"github.com/leveemq/levee/test/proc"
)

// A consumer process is this binary again, with this set.
const childEnv = "SUBSCRIPTION_CONSUMER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(childMain(spec))
	}
	os.Exit(proc.Main(m))
}
