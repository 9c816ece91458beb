package server

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/raft/rafttest"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// openTestLog opens the metadata's log with segments so small that a few entries fill one.
func openTestLog(fs vfs.FS, crash seglog.Crash) (*seglog.Log, error) {
	l, _, err := seglog.Open(seglog.Config{
		FS: fs, Dir: "data/raft/log", SalvageDir: "data/salvage", Topic: metadataName, TopicID: metadataID(), Mode: seglog.OnCommit,
		SegmentBytes: 1 << 10, Crash: crash, VerifyAllOnOpen: true,
	})
	return l, err
}

func TestMetadataLogIsARaftLog(t *testing.T) {
	var fs *vfs.Mem
	open := func(t *testing.T) raft.Log {
		l, err := openTestLog(fs, seglog.ProcessCrash)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		return newMetaLog(l)
	}
	rafttest.TestLog(t, rafttest.Logs{
		Open: func(t *testing.T) raft.Log {
			fs = vfs.NewMem()
			return open(t)
		},
		Reopen: func(t *testing.T, l raft.Log) raft.Log {
			if err := l.(metaLog).log.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t)
		},
	})
}

// TestMetadataLogTakesAllOrNothing: a disk that fills between two segments leaves none of the entries, and the log goes
// on when there is room again.
func TestMetadataLogTakesAllOrNothing(t *testing.T) {
	cut := 0
	for n := 1; n <= 40; n++ {
		fs := vfs.NewMem()
		l, err := openTestLog(fs, seglog.CleanStop)
		if err != nil {
			t.Fatal(err)
		}
		m := newMetaLog(l)
		var entries []raft.Entry
		for seq := uint64(1); seq <= 24; seq++ {
			entries = append(entries, raft.Entry{Seq: seq, Term: 1, Batch: rafttest.Batch(t, "a command of some length")})
		}
		if err := m.Append(t.Context(), entries[:4]); err != nil {
			t.Fatal(err)
		}
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() && op.Kind != vfs.OpSync && op.N == n {
				return vfs.ErrNoSpace
			}
			return nil
		})
		err = m.Append(t.Context(), entries[4:])
		fs.SetHook(nil)
		_, last := m.Bounds()
		switch {
		case err == nil && last != 24:
			t.Errorf("operation %d: %d entries", n, last)
		case err == nil || l.Err() != nil || fault.KindOf(err) == fault.OutcomeUnknown:
		case last != 4:
			t.Errorf("operation %d: %v, and the log ends at %d", n, err, last)
		default:
			if err := m.Append(t.Context(), entries[4:]); err != nil {
				t.Errorf("operation %d: the log does not go on: %v", n, err)
			}
		}
		if err != nil && last == 4 {
			cut++
		}
		_ = l.Close()
	}
	if cut < 5 {
		t.Errorf("only %d operations failed and left the log as it was", cut)
	}
}

// metaRun is a store with what it stands on.
type metaRun struct {
	metaStore
	log *seglog.Log
}

func startMeta(fs vfs.FS, crash seglog.Crash) (*metaRun, error) {
	l, err := openTestLog(fs, crash)
	if err != nil {
		return nil, err
	}
	state := meta.NewState()
	g, err := raft.Open(raft.Config{Log: newMetaLog(l), FS: fs, SnapshotDir: "data/raft/snapshot", Machine: newMetaMachine(state), SnapshotEntries: 6})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &metaRun{newMetaStore(state, g), l}, nil
}

func (m *metaRun) close(t *testing.T) {
	t.Helper()
	if err := m.group.Close(); err != nil {
		t.Error(err)
	}
	if err := m.log.Close(); err != nil {
		t.Error(err)
	}
}

// metaScript is a life of some topics, every fourth of which is deleted and made again.
func metaScript(n int) []meta.Command {
	var out []meta.Command
	for i := 0; len(out) < n; i++ {
		name, id := meta.Name{Namespace: "default", Topic: fmt.Sprint("t", i)}, meta.TopicID{1, byte(i)}
		out = append(out, meta.CreateTopic{Name: name, ID: id, TimeMs: int64(i), Partitions: 2, Dispatch: meta.Reliable})
		if i%4 == 3 {
			out = append(out,
				meta.DeleteTopic{Name: name, ID: id, TimeMs: int64(i)},
				meta.CreateTopic{Name: name, ID: meta.TopicID{2, byte(i)}, TimeMs: int64(i), Partitions: 1, Dispatch: meta.Reliable},
				meta.TopicPurged{Name: name, Incarnation: 1},
				meta.ReserveProducerIDs{Count: 10})
		}
	}
	return out[:n]
}

func metaSnapshot(t *testing.T, s meta.Store) []byte {
	t.Helper()
	b, err := s.View().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMetaStoreAnswersAndRefuses(t *testing.T) {
	m, err := startMeta(vfs.NewMem(), seglog.CleanStop)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close(t)
	changed := m.Changed()
	c := metaScript(1)[0]
	r, err := m.Propose(t.Context(), c)
	if err != nil || r.Topic == nil || r.Topic.Incarnation != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	<-changed
	if got, err := m.View().Topic(r.Topic.Name); err != nil || got != r.Topic {
		t.Error(err)
	}
	if r, err := m.Propose(t.Context(), c); fault.KindOf(err) != fault.AlreadyExists || r.Refused == nil {
		t.Error(err)
	}
	before := m.View().Index()
	if _, err := m.Propose(t.Context(), meta.ReserveProducerIDs{}); fault.KindOf(err) != fault.InvalidArgument || m.View().Index() != before {
		t.Errorf("%v: it must not be stored", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Propose(ctx, meta.ReserveProducerIDs{Count: 1}); fault.KindOf(err) != fault.Canceled {
		t.Error(err)
	}
}

// TestTheLargestSchemaFits: whatever the metadata accepts as a schema, its log takes, however JSON has to write it.
func TestTheLargestSchemaFits(t *testing.T) {
	fs := vfs.NewMem()
	m, err := startMeta(fs, seglog.CleanStop)
	if err != nil {
		t.Fatal(err)
	}
	c := meta.RegisterSchema{Subject: "s", Type: "string", Definition: strings.Repeat("\x01", meta.MaxSchemaBytes), Fingerprint: "f"}
	if b, err := meta.Encode(c); err != nil || len(b) < 6*meta.MaxSchemaBytes {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if _, err := m.Propose(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m.close(t)
	if m, err = startMeta(fs, seglog.ProcessCrash); err != nil {
		t.Fatal(err)
	}
	defer m.close(t)
	if s, err := m.View().Schema(1); err != nil || s.Definition != c.Definition {
		t.Errorf("%v", err)
	}
}

// TestMetadataSurvivesACrashAnywhere loses power at every operation of the file system under the metadata's log and
// snapshots, keeping this and that of what was not flushed, and checks that exactly what was acknowledged is there.
func TestMetadataSurvivesACrashAnywhere(t *testing.T) {
	const commands = 40
	script := metaScript(commands)
	states := make([][]byte, commands+1) // by how many commands were applied
	reference := meta.NewMemory()
	states[0] = metaSnapshot(t, reference)
	for i, c := range script {
		if _, err := reference.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		states[i+1] = metaSnapshot(t, reference)
	}
	type found struct {
		op    vfs.Op
		acked int
		fs    *vfs.Mem
	}
	var points []found
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		acked := 0
		fs := vfs.NewMem()
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() {
				mu.Lock()
				defer mu.Unlock()
				points = append(points, found{op, acked, fs.Clone()})
			}
			return nil
		})
		m, err := startMeta(fs, seglog.CleanStop)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range script {
			if _, err := m.Propose(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			acked = i + 1
			mu.Unlock()
			if i%3 == 0 {
				synctest.Wait()
			}
		}
		m.close(t)
		if first, _ := newMetaLog(m.log).Bounds(); first == 1 {
			t.Error("the log was never trimmed")
		}
	})
	for _, p := range points {
		for seed := range uint64(4) {
			what := fmt.Sprintf("crash at %v, seed %d", p.op, seed)
			choice, crash := vfs.Random(seed), seglog.MachineCrash
			switch seed {
			case 0:
				choice, crash = vfs.KeepAll, seglog.ProcessCrash
			case 1:
				choice = vfs.KeepNothing
			}
			fs := p.fs.Crash(choice)
			synctest.Test(t, func(t *testing.T) {
				m, err := startMeta(fs, crash)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				n := int(m.View().Index())
				if n < p.acked || n > p.acked+1 {
					t.Errorf("%s: %d commands are there and %d were acknowledged", what, n, p.acked)
				}
				if got := metaSnapshot(t, m); !bytes.Equal(got, states[n]) {
					t.Fatalf("%s: after %d commands the state is\n%s", what, n, got)
				}
				for _, c := range script[n:min(n+8, commands)] {
					if _, err := m.Propose(t.Context(), c); err != nil {
						t.Errorf("%s: it does not go on: %v", what, err)
					}
				}
				n = min(n+8, commands)
				m.close(t)
				again, err := startMeta(fs.Crash(vfs.KeepNothing), seglog.MachineCrash)
				if err != nil {
					t.Fatalf("%s, then a second one: %v", what, err)
				}
				if got := metaSnapshot(t, again); !bytes.Equal(got, states[n]) {
					t.Errorf("%s, then a second one: the state is not that of %d commands", what, n)
				}
				again.close(t)
			})
		}
	}
	t.Logf("%d operations, %d states", len(points), len(points)*4)
}
