package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

var write = flag.String("write", "", "keep what TestPresentVersion writes as the directory of this version, which there must not be yet")

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// versions is where the directories are.
const versions = "../../testdata/upgrade"

const (
	orders   = "default/orders"
	events   = "default/events"
	fleeting = "shop/fleeting"

	largest = 300_000 // bytes of one version, all files together
)

// session is one broker on one directory, and a client of it.
type session struct {
	*proc.Broker
	t      *testing.T
	ctx    context.Context
	client *client.Client
	raw    *proc.Raw
}

func open(t *testing.T, dir string) *session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	t.Cleanup(cancel)
	b := proc.Start(t, dir, proc.Options{})
	return &session{Broker: b, t: t, ctx: ctx, client: b.Dial(), raw: b.Raw()}
}

// stop ends the broker in good order.
func (s *session) stop() {
	s.t.Helper()
	_ = s.client.Close()
	_ = s.raw.Conn.Close()
	s.Terminate()
	if code := s.Wait(); code != 0 {
		s.t.Fatalf("the broker ended with exit code %d: %s", code, s.Printed())
	}
}

// content is a partition's records and what was declared lost among them.
type content struct {
	records []record.Record
	lost    int64 // offsets
}

// read reads a partition from its beginning to its present end.
func (s *session) read(topic string, partition int32) (c content) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := false
	consumer, err := s.client.Consume(ctx, topic, client.ConsumerConfig{
		Partitions: []int32{partition},
		OnLost:     func(_ int32, from, to int64) { c.lost += to - from + 1 },
		OnCaughtUp: func(int32, int64) { ended = true; cancel() },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	defer consumer.Close()
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil && ended {
			return c
		}
		if err != nil {
			s.t.Fatalf("read %s/%d: %v", topic, partition, err)
		}
		for i := range batch {
			c.records = append(c.records, batch[i].Record)
		}
	}
}

// describe lists what the broker has.
func (s *session) describe() (list []Topic) {
	s.t.Helper()
	topics, err := s.client.Admin().Topics(s.ctx, "")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, info := range topics {
		d, err := s.client.Admin().DescribeTopic(s.ctx, info.Name)
		if err != nil {
			s.t.Fatal(err)
		}
		topic := Topic{Name: info.Name, ID: info.ID, Incarnation: info.Incarnation, Dispatch: info.Dispatch}
		if info.Settings.Fsync != nil {
			topic.Fsync = *info.Settings.Fsync
		}
		for _, p := range d.PartitionStates {
			part := Partition{First: p.First, End: p.End, Records: []string{}}
			if info.Dispatch == client.Reliable {
				if p.State != "serving" {
					s.t.Errorf("%s/%d is %s", info.Name, p.Partition, p.State)
				}
				for _, r := range s.read(info.Name, p.Partition).records {
					part.Records = append(part.Records, Sum(r))
				}
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		list = append(list, topic)
	}
	slices.SortFunc(list, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// holds wants that the broker has what is expected, and behind it in each partition of topic grown so many records more.
func (s *session) holds(want []Topic, grown string, more int) {
	s.t.Helper()
	got := s.describe()
	if len(got) != len(want) {
		s.t.Fatalf("there are %d topics, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Name != w.Name || !bytes.Equal(g.ID, w.ID) || g.Incarnation != w.Incarnation || g.Dispatch != w.Dispatch || g.Fsync != w.Fsync || len(g.Partitions) != len(w.Partitions) {
			s.t.Errorf("topic %s is %+v", w.Name, g)
			continue
		}
		for p, wp := range w.Partitions {
			gp, extra := g.Partitions[p], 0
			if w.Name == grown {
				extra = more
			}
			if gp.First != wp.First || gp.End != wp.End+int64(extra) || len(gp.Records) != len(wp.Records)+extra {
				s.t.Errorf("%s/%d has offsets %d to %d in %d records, want %d to %d in %d and %d more", w.Name, p, gp.First, gp.End, len(gp.Records), wp.First, wp.End, len(wp.Records), extra)
				continue
			}
			for n := range wp.Records {
				if gp.Records[n] != wp.Records[n] {
					s.t.Errorf("%s/%d: record %d is not what was written", w.Name, p, n)
				}
			}
		}
	}
}

// publish publishes one batch of idempotent producer p, and returns the answer.
func (s *session) publish(p Producer, topicID, batch []byte) (*leveev1.Ack, error) {
	s.t.Helper()
	st, err := s.raw.Publish(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = st.CloseSend() }()
	req := &leveev1.PublishRequest{
		Open:    &leveev1.OpenPublish{Topic: p.Topic, TopicId: topicID},
		Batches: []*leveev1.Batch{{Id: 1, Partition: p.Partition, Data: batch}},
	}
	if err := st.Send(req); err != nil {
		return nil, err
	}
	for {
		resp, err := st.Recv()
		if err != nil {
			return nil, err
		}
		if len(resp.GetAcks()) > 0 {
			return resp.GetAcks()[0], nil
		}
	}
}

// TestEveryVersionOpens opens a copy of every version's directory: everything is there, producers are known, the topic
// that was deleted stays so, and what is written now stands behind it, also after restarts and a crash.
func TestEveryVersionOpens(t *testing.T) {
	for _, v := range written(t) {
		t.Run(v, func(t *testing.T) {
			dir, want := checkOut(t, filepath.Join(versions, v))
			if want.Version != v {
				t.Errorf("expected.json is that of %s", want.Version)
			}
			opens(t, dir, want)
		})
	}
}

// written returns the versions there are.
func written(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(versions)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s holds no version", versions)
	}
	return names
}

// checkOut copies a version's directory and reads what is expected of it.
func checkOut(t *testing.T, from string) (dir string, want Expected) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(from, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(proc.Dir(t), "data")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(from, "data"))); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

func opens(t *testing.T, dir string, want Expected) {
	t.Helper()
	// The process that LOCK names is long gone, or another one by now: what counts is who holds the lock.
	if err := os.WriteFile(filepath.Join(dir, "LOCK"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if said := s.Printed(); !strings.Contains(said, "the last run stopped cleanly") {
		t.Errorf("a clean stop on another machine was not taken for one:\n%s", said)
	}
	s.holds(want.Topics, "", 0)
	s.resends(want)
	s.publishes(orders, "first")
	s.stop()

	s = open(t, dir)
	s.holds(want.Topics, orders, 1)
	s.publishes(orders, "second")
	s.Kill()

	s = open(t, dir)
	s.holds(want.Topics, orders, 2)
	s.goesOn(want.Producer)
	s.stop()
	if res := proc.Run(t, nil, "inspect", "segments", dir); res.Code != 0 {
		t.Errorf("levee inspect segments: exit code %d: %s%s", res.Code, res.Stdout, res.Stderr)
	}
}

// resends sends the last batch of the producer again, to the topic it knows and to one that is gone.
func (s *session) resends(want Expected) {
	s.t.Helper()
	p := want.Producer
	ack, err := s.publish(p, nil, p.Batch)
	if err != nil || ack.GetError() != nil || !ack.GetDuplicate() || ack.GetOffset() != p.Offset || ack.GetLastOffset() != p.Last {
		s.t.Errorf("a batch sent again is answered %v, %v; want a duplicate at %d to %d", ack, err, p.Offset, p.Last)
	}
	gone := Producer{Topic: want.Deleted.Name}
	ack, err = s.publish(gone, want.Deleted.ID, proc.BatchOf(s.t, record.None, record.NoProducer, record.Record{Value: []byte("late")}))
	if err == nil || ack != nil || !strings.Contains(err.Error(), "was deleted") {
		s.t.Errorf("a batch for the incarnation that was deleted is answered %v, %v", ack, err)
	}
}

// goesOn publishes the producer's next batch.
func (s *session) goesOn(p Producer) {
	s.t.Helper()
	next := record.ProducerInfo{ID: p.ID, Epoch: p.Epoch, Sequence: p.Next}
	ack, err := s.publish(p, nil, proc.BatchOf(s.t, record.None, next, record.Record{Value: []byte("next")}))
	if err != nil || ack.GetError() != nil || ack.GetDuplicate() || ack.GetOffset() <= p.Last {
		s.t.Errorf("the producer's next batch is answered %v, %v", ack, err)
	}
	id, err := s.raw.InitProducer(s.ctx, &leveev1.InitProducerRequest{})
	if err != nil || id.GetProducerId() <= p.ID {
		s.t.Errorf("a new producer is number %v, %v; there was a %d", id, err, p.ID)
	}
}

// publishes publishes one record to each partition of a topic.
func (s *session) publishes(topic, value string) {
	s.t.Helper()
	for p := range int32(2) {
		if _, err := s.raw.PublishOnce(s.ctx, &leveev1.PublishOnceRequest{Topic: topic, Partition: p, Records: []*leveev1.Record{{Value: []byte(value)}}}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestEveryVersionAfterACrash opens directories that say they were in use when another machine, or this one before its
// last boot, went down: on_commit topics have everything and say nothing else; the others have what is there, and declare
// the offsets lost that may have been given out beyond it.
func TestEveryVersionAfterACrash(t *testing.T) {
	for _, v := range written(t) {
		t.Run(v, func(t *testing.T) {
			dir, want := checkOut(t, filepath.Join(versions, v))
			setRun(t, dir, `"state":"clean"`, `"state":"running"`)
			s := open(t, dir)
			if said := s.Printed(); !strings.Contains(said, "the machine was restarted without a clean stop") || !strings.Contains(said, "new_storage_id=false") {
				t.Errorf("a run of another boot that did not end was not taken for a crash of the machine:\n%s", said)
			}
			s.Await("recovered", func() bool {
				state, text := proc.RunFile(t, dir)
				return state == "running" && strings.Contains(text, `"unsettled":""`)
			})
			for _, topic := range want.Topics {
				for p, part := range topic.Partitions {
					if topic.Dispatch == client.Reliable {
						s.survived(topic, int32(p), part)
					}
				}
			}
			s.stop()
			s = open(t, dir)
			if said := s.Printed(); !strings.Contains(said, "the last run stopped cleanly") {
				t.Errorf("the stop after it was not clean:\n%s", said)
			}
			s.stop()
		})
	}
}

// survived wants that a partition has its records, and that the next one goes where no record can have been.
func (s *session) survived(topic Topic, partition int32, want Partition) {
	s.t.Helper()
	res, err := s.raw.PublishOnce(s.ctx, &leveev1.PublishOnceRequest{Topic: topic.Name, Partition: partition, Records: []*leveev1.Record{{Value: []byte("after")}}})
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.read(topic.Name, partition)
	if n := len(want.Records); len(got.records) != n+1 {
		s.t.Fatalf("%s/%d has %d records, want %d and one more", topic.Name, partition, len(got.records), n)
	}
	for i, sum := range want.Records {
		if Sum(got.records[i]) != sum {
			s.t.Errorf("%s/%d: record %d is not what was written", topic.Name, partition, i)
		}
	}
	switch volatile := topic.Fsync == "periodic" || topic.Fsync == "none"; {
	case !volatile && (got.lost != 0 || res.GetOffset() != want.End):
		s.t.Errorf("%s/%d, which is on_commit, declares %d offsets lost and goes on at %d instead of %d", topic.Name, partition, got.lost, res.GetOffset(), want.End)
	case volatile && (got.lost == 0 || res.GetOffset() != want.End+got.lost):
		s.t.Errorf("%s/%d declares %d offsets lost and goes on at %d, and ended at %d", topic.Name, partition, got.lost, res.GetOffset(), want.End)
	}
}

var checksum = regexp.MustCompile(` crc32c=[0-9a-f]{8}`)

// setRun changes what the file run says, as docs/formats/identity.md describes it. The boot it names is not this one.
func setRun(t *testing.T, dir, from, to string) {
	t.Helper()
	name := filepath.Join(dir, "run")
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := checksum.ReplaceAllString(string(raw), "")
	if !strings.Contains(text, from) || !strings.Contains(text, `"boot_id":"`) {
		t.Fatalf("run holds %s", raw)
	}
	text = strings.Replace(text, from, to, 1)
	text = regexp.MustCompile(`"boot_id":"[^"]*"`).ReplaceAllString(text, `"boot_id":"00000000-0000-0000-0000-000000000000"`)
	sum := crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))
	text = strings.Replace(text, "\n", fmt.Sprintf(" crc32c=%08x\n", sum), 1)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestVersionsAreSmall: what is kept for ever is small, holds no reserved space, and says that it was stopped cleanly.
func TestVersionsAreSmall(t *testing.T) {
	for _, v := range written(t) {
		small(t, filepath.Join(versions, v))
	}
}

func small(t *testing.T, dir string) {
	t.Helper()
	total := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		total += len(text)
		if end := len(bytes.TrimRight(text, "\x00")); len(text)-end > 4096 {
			t.Errorf("%s ends in %d zeros", path, len(text)-end)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > largest {
		t.Errorf("%s has %d bytes, more than %d", dir, total, largest)
	}
	if state, text := proc.RunFile(t, filepath.Join(dir, "data")); state != "clean" {
		t.Errorf("%s says %s", dir, text)
	}
}

// TestPresentVersion has this version write a directory, and opens that. With -write it is kept.
func TestPresentVersion(t *testing.T) {
	work := proc.Dir(t)
	home := filepath.Join(work, "version")
	version := *write
	if version == "" {
		version = "present"
	}
	want := compose(t, filepath.Join(work, "data"), version)
	if err := os.CopyFS(filepath.Join(home, "data"), os.DirFS(filepath.Join(work, "data"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(home, "data", "reserve")); err != nil { // it is room, and says nothing
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(want, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "expected.json"), append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	prune(t, home)
	small(t, home)
	if *write != "" {
		if err := os.CopyFS(filepath.Join(versions, version), os.DirFS(home)); err != nil {
			t.Fatal(err)
		}
	}
	dir, again := checkOut(t, home)
	opens(t, dir, again)
}

// prune removes directories that hold nothing: version control would not keep them.
func prune(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			prune(t, filepath.Join(dir, e.Name()))
		}
	}
	if entries, err = os.ReadDir(dir); err == nil && len(entries) == 0 {
		err = os.Remove(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// compose has the real binary write a directory, and returns what is in it.
func compose(t *testing.T, dir, version string) Expected {
	t.Helper()
	s := open(t, dir)
	admin := s.client.Admin()
	create := func(spec client.TopicSpec) client.Topic {
		t.Helper()
		topic, err := admin.CreateTopic(s.ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		return topic
	}
	if err := admin.CreateNamespace(s.ctx, "shop"); err != nil {
		t.Fatal(err)
	}
	small := new(int64(64 << 10))
	create(client.TopicSpec{Name: orders, Partitions: 2, Settings: client.Settings{SegmentBytes: small}})
	create(client.TopicSpec{Name: fleeting, Dispatch: client.NonReliable})
	periodic := client.Settings{SegmentBytes: small, Fsync: new("periodic"), RetentionBytes: new(int64(1 << 30))}
	old := create(client.TopicSpec{Name: events, Settings: periodic})
	rng := rand.New(rand.NewPCG(1, 1))
	s.fill(rng, events, 0, 20)
	if err := admin.DeleteTopic(s.ctx, events); err != nil {
		t.Fatal(err)
	}
	create(client.TopicSpec{Name: events, Settings: periodic})
	producer := s.idempotent(rng, 40)
	s.fill(rng, orders, 0, 180)
	s.fill(rng, orders, 1, 10)
	s.fill(rng, events, 0, 105)
	s.Kill() // a second generation of everything, recovered
	s = open(t, dir)
	s.fill(rng, orders, 1, 5)
	s.fill(rng, events, 0, 5)
	s.stop()
	s = open(t, dir)
	topics := s.describe()
	s.stop()
	return Expected{Version: version, Topics: topics, Deleted: Deleted{events, old.ID}, Producer: producer}
}

// fill publishes batches of records of every shape, compressed in every way, about a kilobyte each.
func (s *session) fill(rng *rand.Rand, topic string, partition int32, batches int) {
	s.t.Helper()
	for n := range batches {
		base := int64(1_700_000_000_000 + 1000*n)
		var records []record.Record
		for i := range 1 + rng.IntN(6) {
			r := record.Record{Timestamp: base + int64(i), Value: random(rng, rng.IntN(400))}
			switch rng.IntN(5) {
			case 0:
				r.Key = []byte{}
			case 1:
				r.Key = fmt.Appendf(nil, "key-%d", rng.IntN(10))
			case 2:
				r.Key, r.Value = []byte("gone"), nil
			case 3:
				r.Headers = []record.Header{{Key: "trace", Value: random(rng, 8)}, {Key: "trace"}, {Key: "", Value: []byte{}}}
			default:
				r.Value = bytes.Repeat([]byte("compressible "), 30)
			}
			records = append(records, r)
		}
		batch := proc.BatchOf(s.t, record.Codec(n%5), record.NoProducer, records...)
		if _, err := s.raw.PublishOnce(s.ctx, &leveev1.PublishOnceRequest{Topic: topic, Partition: partition, Batch: batch}); err != nil {
			s.t.Fatal(err)
		}
	}
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// idempotent publishes batches of one idempotent producer, and returns it.
func (s *session) idempotent(rng *rand.Rand, batches int) Producer {
	s.t.Helper()
	id, err := s.raw.InitProducer(s.ctx, &leveev1.InitProducerRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	p := Producer{Topic: orders, ID: id.GetProducerId(), Epoch: int16(id.GetEpoch())}
	for n := range batches {
		info := record.ProducerInfo{ID: p.ID, Epoch: p.Epoch, Sequence: p.Next}
		p.Batch = proc.BatchOf(s.t, record.Codec(n%5), info,
			record.Record{Timestamp: 1_700_000_000_000, Value: random(rng, 700)}, record.Record{Timestamp: 1_700_000_000_001, Value: random(rng, 100)})
		ack, err := s.publish(p, nil, p.Batch)
		if err != nil || ack.GetError() != nil {
			s.t.Fatal(ack, err)
		}
		p.Offset, p.Last, p.Next = ack.GetOffset(), ack.GetLastOffset(), p.Next+2
	}
	return p
}
