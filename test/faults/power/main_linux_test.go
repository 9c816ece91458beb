package power

import (
	"os"
	"testing"

	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(device.Main(func() int { return proc.Main(m) })) }
