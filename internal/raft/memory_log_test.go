package raft_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/raft/rafttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryLog(t *testing.T) {
	rafttest.TestLog(t, rafttest.Logs{
		Open:   func(*testing.T) raft.Log { return raft.NewMemoryLog() },
		Reopen: func(_ *testing.T, l raft.Log) raft.Log { return l.(*raft.MemoryLog).Clone() },
	})
}
