package bytes

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	topicCount = 12
	partitions = 2
	gone       = "default/gone"
	fleeting   = "shop/fleeting"
)

// bulk has the longest name there is: changes of it fill the metadata's log.
var bulk = strings.Repeat("n", 200) + "/" + strings.Repeat("t", 200)

// batch is one batch as it was acknowledged.
type batch struct {
	base    int64
	records []record.Record
}

func (b *batch) next() int64 { return b.base + int64(len(b.records)) }

// part is one partition, and all that was published to it.
type part struct {
	topic string
	n     int32
	batch []batch

	producer record.ProducerInfo // its idempotent producer, at the sequence of the last batch
	last     []byte              // which this is
	lastBase int64
}

func (p *part) String() string { return fmt.Sprintf("%s/%d", p.topic, p.n) }

// dir is where the partition is in a data directory.
func (p *part) dir() string { return fmt.Sprintf("topics/%s@1/%d", p.topic, p.n) }

func (p *part) end() int64 { return p.batch[len(p.batch)-1].next() }

// master is a data directory as the last run on it left it. It is not changed: tests work on copies.
type master struct {
	name      string // how that run ended
	dir       string
	files     files
	kinds     map[kind][]string
	yesterday files // the same directory at an earlier time
	other     files // another broker's
	parts     []*part
	topics    []client.TopicDescription
	copies    int
}

// loadDir reads a directory. What a broker that runs on it removes or renames meanwhile is not there.
func loadDir(t *testing.T, dir string) files {
	t.Helper()
	f := files{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) && path != dir {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		f[filepath.ToSlash(name)] = b
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// maker makes the masters.
type maker struct {
	t    *testing.T
	rng  *rand.Rand
	home string
	b    *proc.Broker
	raw  *proc.Raw
	ctx  context.Context
}

func (m *maker) start(dir string) {
	m.t.Helper()
	m.b = proc.Start(m.t, dir, proc.Options{Env: map[string]string{"LEVEE_STORAGE_RETENTION_CHECK": "100ms"}})
	m.raw = m.b.Raw()
}

func (m *maker) stop() {
	m.t.Helper()
	_ = m.raw.Conn.Close()
	m.b.Terminate()
	if code := m.b.Wait(); code != 0 {
		m.t.Fatalf("exit code %d: %s", code, m.b.Printed())
	}
}

// prepare has real brokers write a data directory, and ends one copy of it with a clean stop, another with SIGKILL.
func prepare(t *testing.T) []*master {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*proc.Patience)
	defer cancel()
	m := &maker{t: t, rng: faults.Seeded(t), home: proc.Dir(t), ctx: ctx}
	dir := func(name string) string { return filepath.Join(m.home, name) }
	m.start(dir("other"))
	m.stop()
	other := loadDir(t, dir("other"))

	m.start(dir("data"))
	parts := m.create()
	m.publish(parts, 60)
	brief := faults.Amount(0, 1, 0) == 1 // one snapshot less, which is half the time
	m.change(func(f map[kind][]string) bool { return brief || len(f[newSnapshot]) == 1 })
	m.stop()
	yesterday := loadDir(t, dir("data"))

	m.tear(parts[0])
	m.start(dir("data"))
	for i, p := range parts {
		m.publish([]*part{p}, []int{60, 60, 60, 60, 3}[i%5]) // 3 go to the segment that was active yesterday
	}
	m.change(func(f map[kind][]string) bool {
		return len(f[metaSealed]) > 0 && len(f[newSnapshot])+len(f[oldSnapshot]) == faults.Amount(2, 1, 2)
	})
	m.trimmed()
	m.stop()
	var masters []*master
	for _, name := range []string{"a clean stop", "kill -9"} {
		to := dir(strings.ReplaceAll(name, " ", "-"))
		if err := os.CopyFS(to, os.DirFS(dir("data"))); err != nil {
			t.Fatal(err)
		}
		ma := &master{name: name, dir: to, yesterday: yesterday, other: other}
		for _, p := range parts {
			own := *p
			own.batch = slices.Clone(p.batch)
			ma.parts = append(ma.parts, &own)
		}
		m.end(ma)
		masters = append(masters, ma)
	}
	t.Logf("prepared in %.1f seconds: %s", time.Since(began).Seconds(), masters[1].census())
	return masters
}

// census counts what there is, and wants all of it to be known.
func (ma *master) census() string {
	size := 0
	for _, b := range ma.files {
		size += len(b)
	}
	batches := 0
	for _, p := range ma.parts {
		batches += len(p.batch)
	}
	return fmt.Sprintf("%d files of %d bytes, %d batches in %d partitions", len(ma.files), size, batches, len(ma.parts))
}

func (m *maker) create() (parts []*part) {
	m.t.Helper()
	create := func(spec *leveev1.CreateTopicRequest) {
		m.t.Helper()
		if _, err := m.raw.CreateTopic(m.ctx, spec); err != nil {
			m.t.Fatal(err)
		}
	}
	for _, ns := range []string{"shop", bulk[:200]} {
		if _, err := m.raw.CreateNamespace(m.ctx, &leveev1.CreateNamespaceRequest{Name: ns}); err != nil {
			m.t.Fatal(err)
		}
	}
	create(&leveev1.CreateTopicRequest{Name: fleeting, Dispatch: client.NonReliable})
	create(&leveev1.CreateTopicRequest{Name: bulk})
	create(&leveev1.CreateTopicRequest{Name: gone, Partitions: partitions, Settings: &leveev1.TopicSettings{SegmentBytes: new(int64(64 << 10))}})
	for i := range topicCount {
		settings := &leveev1.TopicSettings{Fsync: &faults.Modes[i%len(faults.Modes)], SegmentBytes: new(int64(64 << 10))}
		if i%4 == 3 {
			settings.RetentionBytes = new(int64(150_000))
		}
		name := fmt.Sprintf("default/t%02d", i)
		create(&leveev1.CreateTopicRequest{Name: name, Partitions: partitions, Settings: settings})
		for n := range int32(partitions) {
			id, err := m.raw.InitProducer(m.ctx, &leveev1.InitProducerRequest{})
			if err != nil {
				m.t.Fatal(err)
			}
			parts = append(parts, &part{topic: name, n: n, producer: record.ProducerInfo{ID: id.GetProducerId(), Epoch: int16(id.GetEpoch())}})
		}
	}
	m.publish([]*part{{topic: gone, producer: record.NoProducer}}, 60)
	return parts
}

// change changes the settings of one topic until the metadata is as it is wanted. Few large commands among many small ones
// get there soonest.
func (m *maker) change(enough func(map[kind][]string) bool) {
	m.t.Helper()
	large := &leveev1.SetTopicRequest{Name: bulk, Unset: slices.Repeat([]string{"retention_age_ms"}, 30_000)}
	for i := int64(1); ; i++ {
		if sorted, _ := loadDir(m.t, m.b.Dir).kinds(); enough(sorted) {
			return
		}
		requests := []*leveev1.SetTopicRequest{large}
		for n := range int64(20) {
			requests = append(requests, &leveev1.SetTopicRequest{Name: bulk, Settings: &leveev1.TopicSettings{RetentionBytes: new(1000*i + n)}})
		}
		for _, r := range requests {
			if _, err := m.raw.SetTopic(m.ctx, r); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

// publish publishes n batches to each partition: of every size and shape, compressed in every way, every other one of an
// idempotent producer.
func (m *maker) publish(parts []*part, n int) {
	m.t.Helper()
	for _, p := range parts {
		st, err := m.raw.Publish(m.ctx)
		if err != nil {
			m.t.Fatal(err)
		}
		req := &leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: p.topic}}
		first := len(p.batch)
		var encoded [][]byte
		for i := range n {
			records := m.records(len(p.batch))
			info := record.NoProducer
			if p.producer.ID >= 0 && i%2 == 0 {
				info = p.producer
				p.producer.Sequence += int32(len(records))
			}
			encoded = append(encoded, proc.BatchOf(m.t, record.Codec(i%5), info, records...))
			p.batch = append(p.batch, batch{records: records})
			req.Batches = append(req.Batches, &leveev1.Batch{Id: uint64(i + 1), Partition: p.n, Data: encoded[i]})
			if info.ID >= 0 {
				p.last = encoded[i]
			}
		}
		if err := st.Send(req); err != nil {
			m.t.Fatal(err)
		}
		for acked := 0; acked < n; {
			resp, err := st.Recv()
			if err != nil {
				m.t.Fatal(err)
			}
			for _, a := range resp.GetAcks() {
				if a.GetError() != nil || a.GetDuplicate() {
					m.t.Fatal(a)
				}
				acked++
				b := &p.batch[first+int(a.GetId())-1]
				b.base = a.GetOffset()
				for i := range b.records {
					b.records[i].Offset = b.base + int64(i)
				}
				if i := int(a.GetId()) - 1; p.producer.ID >= 0 && i%2 == 0 {
					p.lastBase = max(p.lastBase, a.GetOffset())
				}
			}
		}
		_ = st.CloseSend()
	}
}

// records are those of the n-th batch of a partition.
func (m *maker) records(n int) (list []record.Record) {
	rng := m.rng
	for i := range 1 + rng.IntN(6) {
		r := record.Record{Timestamp: 1_700_000_000_000 + 1000*int64(n) + int64(i) - int64(rng.IntN(3000)), Value: random(rng, rng.IntN(900))}
		switch rng.IntN(8) {
		case 0:
			r.Key = []byte{}
		case 1:
			r.Key = fmt.Appendf(nil, "key-%d", rng.IntN(10))
		case 2:
			r.Key, r.Value = []byte("gone"), nil
		case 3:
			r.Headers = []record.Header{{Key: "trace", Value: random(rng, 8)}, {Key: "trace"}, {Key: "", Value: []byte{}}}
		case 4:
			r.Value = []byte(strings.Repeat("compressible ", 1+rng.IntN(200)))
		case 5:
			r.Value = random(rng, 1)
		}
		list = append(list, r)
	}
	if n%40 == 17 {
		list[0].Value = random(rng, 20_000)
	}
	return list
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// tear puts a few bytes behind a log's end: the next start cuts and keeps them.
func (m *maker) tear(p *part) {
	m.t.Helper()
	l := loadDir(m.t, filepath.Join(m.home, "data")).log(p.dir())
	f, err := os.OpenFile(filepath.Join(m.home, "data", p.dir(), l.active()), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write(random(m.rng, 50))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// trimmed waits until retention has nothing left to do.
func (m *maker) trimmed() {
	m.t.Helper()
	m.b.Await("done with retention", func() bool {
		for i := 3; i < topicCount; i += 4 {
			d, err := m.raw.DescribeTopic(m.ctx, &leveev1.DescribeTopicRequest{Name: fmt.Sprintf("default/t%02d", i)})
			if err != nil {
				m.t.Fatal(err)
			}
			for _, p := range d.GetPartitions() {
				if p.GetFirst() == 0 && p.GetBytes() > 150_000 || p.GetBytes() > 150_000+64<<10 {
					return false
				}
			}
		}
		return true
	})
}

// end runs a broker on the master's directory, in which the removal of a topic does not come to its end, and ends it.
func (m *maker) end(ma *master) {
	m.t.Helper()
	m.start(ma.dir)
	ma.describe(m.t, m.b.Dial())
	blocked := filepath.Join(ma.dir, ".deleted")
	err := os.Remove(blocked) // it is empty
	if err == nil {
		err = os.WriteFile(blocked, nil, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	d, err := m.raw.DescribeTopic(m.ctx, &leveev1.DescribeTopicRequest{Name: gone})
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.raw.DeleteTopic(m.ctx, &leveev1.DeleteTopicRequest{Name: gone}); err != nil {
		m.t.Fatal(err)
	}
	ma.topics = slices.DeleteFunc(ma.topics, func(d client.TopicDescription) bool { return d.Name == gone })
	m.b.Await("sure of what is on the device", func() bool {
		f := loadDir(m.t, ma.dir)
		for _, p := range ma.parts {
			if !f.log(p.dir()).settled() {
				return false
			}
		}
		return f.log(metadataLog).settled()
	})
	if ma.name == "a clean stop" {
		m.stop()
	} else {
		var fresh []*part
		for i, p := range ma.parts {
			if i%6 == 5 {
				fresh = append(fresh, p)
			}
		}
		m.publish(fresh, 4) // which the durable mark does not claim yet
		m.b.Kill()
	}
	// What the removal does first, had it been able to.
	err = os.Remove(blocked)
	if err == nil {
		err = os.Mkdir(blocked, 0o700)
	}
	if err == nil {
		err = os.Rename(filepath.Join(ma.dir, "topics", gone+"@1"), filepath.Join(blocked, hex.EncodeToString(d.GetTopic().GetId())))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	ma.files = loadDir(m.t, ma.dir)
	var unknown []string
	if ma.kinds, unknown = ma.files.kinds(); len(unknown) > 0 {
		m.t.Errorf("files of kinds that no test here damages: %q", unknown)
	}
	if !ma.files.log(metadataLog).settled() {
		m.t.Fatal("the metadata's durable mark does not claim its last frame")
	}
}

// describe notes every topic.
func (ma *master) describe(t *testing.T, c *client.Client) {
	t.Helper()
	ma.topics = describe(t, c)
}

func describe(t *testing.T, c *client.Client) (list []client.TopicDescription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	topics, err := c.Admin().Topics(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		d, err := c.Admin().DescribeTopic(ctx, topic.Name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	return list
}

// checkOut makes a copy of the master that a broker may work on. Files that nobody changes in place are links. The copy stays
// if the test fails.
func (ma *master) checkOut(t *testing.T) string {
	t.Helper()
	ma.copies++
	to := fmt.Sprintf("%s-copy-%d", ma.dir, ma.copies)
	linked := map[string]bool{}
	for _, k := range []kind{sealedLog, metaSealed, newSnapshot, oldSnapshot} {
		for _, name := range ma.kinds[k] {
			linked[name] = true
		}
	}
	for name, b := range ma.files {
		path := filepath.Join(to, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil && linked[name] {
			err = os.Link(filepath.Join(ma.dir, filepath.FromSlash(name)), path)
		} else if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// discard removes a copy, unless the test has failed and somebody will want to look at it.
func discard(t *testing.T, dir string, list ...*damage) {
	t.Helper()
	if t.Failed() {
		for _, d := range list {
			t.Logf("damaged in %s: %s", dir, d)
		}
		return
	}
	for _, path := range []string{dir, dir + ".log"} {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	}
}
