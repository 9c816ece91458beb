package writebuf_test

import (
	"testing"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

func TestMem(t *testing.T) {
	writebuftest.Run(t, func(*testing.T) writebuf.Store { return writebuf.NewMem() })
}

func TestMemForgetsTheFence(t *testing.T) {
	m, id := writebuf.NewMem(), writebuftest.ID()
	writebuftest.Forgets(t, m, id, func() { m.Lose(id) })
}
