package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tidwall/wal"
	bolt "go.etcd.io/bbolt"
	etcdwal "go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// engine appends records; append returns when they are as durable as the mode says.
type engine interface {
	append(recs [][]byte) error
	close()
}

const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE

type greq struct {
	buf  []byte
	done chan struct{}
}

// group is a sketch of group commit, without segments, offsets or recovery: what one file and one committer can do.
//
// groupz is the same on a file whose blocks were written before (as those of a recycled segment are), so that fdatasync has
// no metadata to commit, and with a committer that yields until the waiters it has just released are queued again.
type group struct {
	f      *os.File
	mode   string
	mu     sync.Mutex
	q      []*greq
	wake   chan struct{}
	stop   chan struct{}
	fin    chan struct{}
	syncs  atomic.Int64
	tab    *crc32.Table
	off    int64
	pool   sync.Pool
	seq    uint64
	pre    int64
	spare  []byte
	gather bool
}

func newGroup(mode string, z bool) *group {
	p := filepath.Join(*dir, "g.log")
	os.Remove(p)
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o644)
	must(err)
	g := &group{f: f, mode: mode, wake: make(chan struct{}, 1), stop: make(chan struct{}), fin: make(chan struct{}), tab: crc32.MakeTable(crc32.Castagnoli)}
	if z {
		g.gather = true
		b := make([]byte, 1<<20)
		for i := int64(0); i < 256; i++ {
			_, err := f.WriteAt(b, i<<20)
			must(err)
		}
		g.pre = 256 << 20
	} else {
		g.grow(64 << 20)
	}
	must(f.Sync())
	g.pool.New = func() any { return &greq{done: make(chan struct{}, 1)} }
	go g.loop()
	if mode == "periodic" {
		go func() {
			t := time.NewTicker(250 * time.Millisecond)
			for {
				select {
				case <-t.C:
					syscall.Fdatasync(int(f.Fd()))
				case <-g.stop:
					return
				}
			}
		}()
	}
	return g
}
func (g *group) grow(n int64) {
	if g.gather {
		g.off = 0
		return
	}
	must(syscall.Fallocate(int(g.f.Fd()), fallocKeepSize, g.pre, n))
	g.pre += n
}
func (g *group) loop() {
	var q []*greq
	last := 0
	for {
		if g.gather && last > 1 {
			for i := 0; i < 100; i++ {
				g.mu.Lock()
				n := len(g.q)
				g.mu.Unlock()
				if n >= last {
					break
				}
				runtime.Gosched()
			}
		}
		g.mu.Lock()
		q, g.q = g.q, q[:0]
		g.mu.Unlock()
		if len(q) == 0 {
			select {
			case <-g.wake:
				continue
			case <-g.stop:
				close(g.fin)
				return
			}
		}
		b := g.spare[:0]
		for _, r := range q {
			b = append(b, r.buf...)
		}
		g.spare = b
		if g.off+int64(len(b)) > g.pre-(16<<20) {
			g.grow(64 << 20)
		}
		_, err := g.f.WriteAt(b, g.off)
		must(err)
		g.off += int64(len(b))
		if g.mode == "on_commit" {
			must(syscall.Fdatasync(int(g.f.Fd())))
			g.syncs.Add(1)
		}
		last = len(q)
		for i, r := range q {
			r.done <- struct{}{}
			q[i] = nil
		}
	}
}
func (g *group) append(recs [][]byte) error {
	r := g.pool.Get().(*greq)
	b := r.buf[:0]
	for _, p := range recs {
		at := len(b)
		b = append(b, make([]byte, 24)...)
		b = append(b, p...)
		h := b[at:]
		binary.LittleEndian.PutUint32(h, uint32(len(p)))
		binary.LittleEndian.PutUint64(h[8:], uint64(len(b)))
		binary.LittleEndian.PutUint64(h[16:], 0)
		binary.LittleEndian.PutUint32(h[4:], crc32.Checksum(h[8:], g.tab))
	}
	r.buf = b
	g.mu.Lock()
	g.q = append(g.q, r)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	<-r.done
	g.pool.Put(r)
	return nil
}
func (g *group) close() { close(g.stop); <-g.fin; g.f.Close(); os.Remove(g.f.Name()) }

// direct writes under a mutex in the goroutine that appends: what a single writer costs without a hand-off.
type direct struct {
	f    *os.File
	mode string
	mu   sync.Mutex
	b    []byte
	tab  *crc32.Table
	stop chan struct{}
}

func newDirect(mode string) *direct {
	p := filepath.Join(*dir, "d.log")
	os.Remove(p)
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o644)
	must(err)
	must(syscall.Fallocate(int(f.Fd()), fallocKeepSize, 0, 1<<30))
	must(f.Sync())
	d := &direct{f: f, mode: mode, tab: crc32.MakeTable(crc32.Castagnoli), stop: make(chan struct{})}
	if mode == "periodic" {
		go func() {
			t := time.NewTicker(250 * time.Millisecond)
			for {
				select {
				case <-t.C:
					syscall.Fdatasync(int(f.Fd()))
				case <-d.stop:
					return
				}
			}
		}()
	}
	return d
}
func (g *direct) append(recs [][]byte) error {
	g.mu.Lock()
	b := g.b[:0]
	for _, p := range recs {
		at := len(b)
		b = append(b, make([]byte, 24)...)
		b = append(b, p...)
		h := b[at:]
		binary.LittleEndian.PutUint32(h, uint32(len(p)))
		binary.LittleEndian.PutUint32(h[4:], crc32.Checksum(h[8:], g.tab))
	}
	g.b = b
	_, err := g.f.Write(b)
	if err == nil && g.mode == "on_commit" {
		err = syscall.Fdatasync(int(g.f.Fd()))
	}
	g.mu.Unlock()
	return err
}
func (g *direct) close() { close(g.stop); g.f.Close(); os.Remove(g.f.Name()) }

// tid is github.com/tidwall/wal.
type tid struct {
	l  *wal.Log
	mu sync.Mutex
	i  uint64
	p  string
}

func newTid(mode string) *tid {
	p := filepath.Join(*dir, "tid")
	os.RemoveAll(p)
	o := *wal.DefaultOptions
	o.NoSync = mode != "on_commit"
	o.NoCopy = true
	l, err := wal.Open(p, &o)
	must(err)
	return &tid{l: l, p: p}
}
func (t *tid) append(recs [][]byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(recs) == 1 {
		t.i++
		return t.l.Write(t.i, recs[0])
	}
	var b wal.Batch
	for _, r := range recs {
		t.i++
		b.Write(t.i, r)
	}
	return t.l.WriteBatch(&b)
}
func (t *tid) close() { t.l.Close(); os.RemoveAll(t.p) }

// peb is pebble, a batch commit an append.
type peb struct {
	d *pebble.DB
	w *pebble.WriteOptions
	i atomic.Uint64
	p string
}

func newPeb(mode string) *peb {
	p := filepath.Join(*dir, "peb")
	os.RemoveAll(p)
	d, err := pebble.Open(p, &pebble.Options{MemTableSize: 256 << 20, MemTableStopWritesThreshold: 8, Logger: nolog{}, DisableAutomaticCompactions: true, L0StopWritesThreshold: 1000})
	must(err)
	w := pebble.NoSync
	if mode == "on_commit" {
		w = pebble.Sync
	}
	return &peb{d: d, w: w, p: p}
}

type nolog struct{}

func (nolog) Infof(string, ...any)      {}
func (nolog) Errorf(string, ...any)     {}
func (nolog) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (t *peb) append(recs [][]byte) error {
	b := t.d.NewBatch()
	var k [8]byte
	for _, r := range recs {
		binary.BigEndian.PutUint64(k[:], t.i.Add(1))
		b.Set(k[:], r, nil)
	}
	err := b.Commit(t.w)
	b.Close()
	return err
}
func (t *peb) close() { t.d.Close(); os.RemoveAll(t.p) }

// etcd is the log of etcd.
type etcd struct {
	w  *etcdwal.WAL
	mu sync.Mutex
	i  uint64
	p  string
}

func newEtcd(mode string) *etcd {
	p := filepath.Join(*dir, "etcdwal")
	os.RemoveAll(p)
	w, err := etcdwal.Create(zap.NewNop(), p, nil)
	must(err)
	if mode != "on_commit" {
		w.SetUnsafeNoFsync()
	}
	return &etcd{w: w, p: p}
}
func (t *etcd) append(recs [][]byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	es := make([]*raftpb.Entry, len(recs))
	for i, r := range recs {
		t.i++
		es[i] = &raftpb.Entry{Term: u64(1), Index: u64(t.i), Data: r}
	}
	return t.w.Save(&raftpb.HardState{Term: u64(1), Vote: u64(0), Commit: u64(t.i)}, es)
}
func (t *etcd) close() { t.w.Close(); os.RemoveAll(t.p) }

// bb is bbolt with its Batch, which gathers what is appended at once.
type bb struct {
	d *bolt.DB
	i atomic.Uint64
	p string
}

func newBolt(mode string) *bb {
	p := filepath.Join(*dir, "bb.db")
	os.Remove(p)
	d, err := bolt.Open(p, 0o644, &bolt.Options{NoSync: mode != "on_commit", NoFreelistSync: true})
	must(err)
	must(d.Update(func(tx *bolt.Tx) error { _, e := tx.CreateBucket([]byte("b")); return e }))
	return &bb{d: d, p: p}
}
func (t *bb) append(recs [][]byte) error {
	return t.d.Batch(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("b"))
		b.FillPercent = 1
		for _, r := range recs {
			var k [8]byte
			binary.BigEndian.PutUint64(k[:], t.i.Add(1))
			if err := b.Put(k[:], r); err != nil {
				return err
			}
		}
		return nil
	})
}
func (t *bb) close() { t.d.Close(); os.Remove(t.p) }

func u64(x uint64) *uint64 { return &x }
