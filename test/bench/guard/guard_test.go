//go:build !race && !invariants

// With the race detector or self-checks these figures mean nothing.

package guard

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func encode(t *testing.T, records int) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for range records {
		if err := b.Append(record.Record{Value: make([]byte, 128), Timestamp: 1}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// countingFS is the operating system's file system that counts flushes.
type countingFS struct {
	vfs.OS
	flushes *atomic.Int64
}

func (c countingFS) Open(name string, create bool) (vfs.File, error) {
	f, err := c.OS.Open(name, create)
	return countingFile{File: f, flushes: c.flushes}, err
}

type countingFile struct {
	vfs.File
	flushes *atomic.Int64
}

func (f countingFile) Sync() error {
	f.flushes.Add(1)
	return f.File.Sync()
}

const tmpfs = 0x01021994

// diskDir returns a directory whose flushes reach a device. Where the temporary folder is memory, that is this package's.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != tmpfs {
		return dir
	}
	dir, err := os.MkdirTemp(".", "guard-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// 64 appenders that wait for their flush share it: the committer lets those it has released come back before it takes
// the next group. Without that a flush serves half of them.
func TestRecordsAFlush(t *testing.T) {
	const appenders, each, wanted, attempts = 64, 100, 38, 5
	var best float64
	for range attempts { // a machine that does not run the appenders for a while is no regression
		if best = max(best, recordsAFlush(t, appenders, each)); best >= wanted {
			break
		}
	}
	t.Logf("%.1f records a flush", best)
	if best < wanted {
		t.Errorf("%d appenders: %.1f records a flush, want %d at least", appenders, best, wanted)
	}
}

func recordsAFlush(t *testing.T, appenders, each int) float64 {
	var flushes atomic.Int64
	dir := filepath.Join(diskDir(t), "log")
	log, _, err := seglog.Open(seglog.Config{FS: countingFS{flushes: &flushes}, Dir: dir, Topic: "default/guard", Mode: seglog.OnCommit})
	if err != nil {
		t.Fatal(err)
	}
	batch := encode(t, 1)
	if _, err := log.Append(t.Context(), batch); err != nil { // makes the files
		t.Fatal(err)
	}
	before := flushes.Load()
	var wg sync.WaitGroup
	for range appenders {
		wg.Go(func() {
			for range each {
				if _, err := log.Append(t.Context(), batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	flushed := flushes.Load() - before
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return float64(appenders*each) / float64(max(flushed, 1))
}

// mallocs returns how many objects the whole process allocates meanwhile.
func mallocs(work func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

// costs runs a path with batches of 1 and of many records and says what a batch allocates, and what a record beyond that.
func costs(t *testing.T, run func(batch []byte, times int)) (aBatch, aRecord float64) {
	t.Helper()
	const times, records = 2000, 500
	one, many := encode(t, 1), encode(t, records)
	run(one, times/10) // what is made once, and pools
	run(many, times/10)
	aBatch = mallocs(func() { run(one, times) }) / times
	aRecord = (mallocs(func() { run(many, times) })/times - aBatch) / (records - 1)
	t.Logf("%.2f allocations a batch, %.5f a record beyond it", aBatch, aRecord)
	return aBatch, aRecord
}

// Allocations of the broker's own path, about twice what was measured when these were set.
const (
	appendMay = 4 // a batch appended to a log
	submitMay = 4 // a batch submitted to the broker
	nextMay   = 6 // a stretch of up to 256 KiB read by a subscriber
)

// aRecordMay is nothing: what timers and the collector allocate meanwhile is spread over a million records.
const aRecordMay = 0.01

func TestAppendAllocations(t *testing.T) {
	log, _, err := seglog.Open(seglog.Config{FS: vfs.OS{}, Dir: t.TempDir() + "/log", Topic: "default/guard", Mode: seglog.None})
	if err != nil {
		t.Fatal(err)
	}
	aBatch, aRecord := costs(t, func(batch []byte, times int) {
		for range times {
			if _, err := log.Append(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if aBatch > appendMay || aRecord > aRecordMay {
		t.Errorf("%.2f allocations a batch and %.5f a record, want %d and 0 at most", aBatch, aRecord, appendMay)
	}
}

// startBroker runs a broker without listeners on a directory of its own, with a topic that does not flush.
func startBroker(t *testing.T) *broker.Broker {
	t.Helper()
	b, err := broker.New(broker.Config{Meta: meta.NewMemory(), FS: vfs.OS{}, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	none := "none"
	if _, err := b.CreateTopic(ctx, broker.TopicSpec{Name: "guard", Dispatch: broker.Reliable, Settings: broker.Settings{Fsync: &none}}); err != nil {
		t.Fatal(err)
	}
	return b
}

// publish submits a batch so often, a few at a time, and waits for the answers.
func publish(t *testing.T, b *broker.Broker) func(batch []byte, times int) {
	p, err := b.OpenPublisher(t.Context(), "guard", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	slots := make(chan struct{}, 16)
	done := func(r broker.PublishResult) {
		if r.Err != nil {
			t.Error(r.Err)
		}
		<-slots
	}
	return func(batch []byte, times int) {
		for range times {
			slots <- struct{}{}
			if err := p.Submit(t.Context(), 0, batch, done); err != nil {
				t.Fatal(err)
			}
		}
		for range cap(slots) {
			slots <- struct{}{}
		}
		for range cap(slots) {
			<-slots
		}
	}
}

func TestSubmitAllocations(t *testing.T) {
	aBatch, aRecord := costs(t, publish(t, startBroker(t)))
	if aBatch > submitMay || aRecord > aRecordMay {
		t.Errorf("%.2f allocations a batch and %.5f a record, want %d and 0 at most", aBatch, aRecord, submitMay)
	}
}

// Reading costs memory for each stretch that is read, whatever it holds.
func TestNextAllocations(t *testing.T) {
	b := startBroker(t)
	const batches, records = 1000, 100
	publish(t, b)(encode(t, records), batches)
	s, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: "guard", Start: broker.Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reads := 0
	spent := mallocs(func() {
		for next := int64(0); next < batches*records; reads++ {
			e, err := s.Next(t.Context(), 256<<10)
			if err != nil {
				t.Fatal(err)
			}
			next = e.Next
		}
	})
	perRead, perRecord := spent/float64(reads), spent/(batches*records)
	t.Logf("%d reads: %.2f allocations each, %.5f a record", reads, perRead, perRecord)
	if perRead > nextMay {
		t.Errorf("%.2f allocations a read, want %d at most", perRead, nextMay)
	}
}
