package meta

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
)

// whole returns the commands of the golden snapshot of version 2.
func whole() []Command {
	orders, commands := Name{DefaultNamespace, "orders"}, goldenCommands()
	create := everyCommand()[10].(CreateSubscription)
	first := uint64(len(commands) + 1)
	return append(commands,
		create,
		CreateSubscription{Topic: orders, ID: testID(1), Name: "audit", Type: Exclusive, TimeMs: 8, Starts: []int64{3, 4}},
		SaveCursors{[]CursorSave{
			{ID: testID(1), Subscription: "audit", Created: first + 1, Epoch: 1, Position: 9000, ActiveMs: 9},
			{
				ID: testID(1), Subscription: "billing", Created: first, Epoch: 1, Position: 9000,
				Blocks: []AckBlock{{2, []byte{1, 8, 3}}, {3, []byte{2}}}, Counts: []DeliveryCount{{9000, 2}, {9001, 3}},
			},
		}},
		SeekCursor{Topic: orders, ID: testID(1), Subscription: "billing", Created: first, Partition: 1, Epoch: 1, Position: 77},
		SetSubscription{Topic: orders, ID: testID(1), Name: "billing", Version: first, Settings: SubscriptionSettings{MaxDeliveries: ptr(int32(0))}},
		SetCompatibility{Mode: "forward"},
		SetCompatibility{Subject: "orders-value", Mode: "full"},
		RegisterSchema{Subject: "money", Type: "avro", Definition: `"int"`, Fingerprint: "sha256:0a"},
		withRevision(everyCommand()[15], first+6),
		everyCommand()[19],
		RegisterSchema{Subject: "gone", Type: "bytes", Fingerprint: "sha256:0c"},
		DeleteSubject{Subject: "gone", Revision: first + 10},
		DeleteSubject{Subject: "gone", Revision: first + 11, Permanent: true},
		RegisterSchema{Subject: "copy", Type: "avro", Definition: `"int"`, Fingerprint: "sha256:0a"},
		DeleteSchemaVersion{Subject: "copy", Version: 1, Revision: first + 13},
	)
}

func withRevision(c Command, revision uint64) Command {
	r := c.(RegisterSchema)
	r.Revision = revision
	return r
}

// TestGoldenSnapshotWithSubscriptions: the second version, which has them, and schemas.
func TestGoldenSnapshotWithSubscriptions(t *testing.T) {
	v := openGolden(t, "testdata/snapshot-v2.jsonl", whole())
	billing, err := v.Subscription(Name{DefaultNamespace, "orders"}, "billing")
	if err != nil {
		t.Fatal(err)
	}
	if len(billing.Settings.Keys()) != len(SubscriptionSettingKeys()) || *billing.Settings.MaxDeliveries != 0 || billing.Type != KeyShared || billing.Created != 9 || billing.Version != 13 {
		t.Errorf("restored wrongly: %s", subscriptionText(billing))
	}
	for i, want := range []string{`epoch=1 position=9000 2="\x01\b\x03" 3="\x02" 9000×2 9001×3`, "epoch=2 position=77"} {
		c, ok := v.Cursor(testID(1), "billing", int32(i))
		if !ok || cursorText(c) != want {
			t.Errorf("partition %d: %s", i, cursorText(c))
		}
	}
	if audit, err := v.Subscription(Name{DefaultNamespace, "orders"}, "audit"); err != nil || audit.ActiveMs != 9 || v.SubscriptionCount() != 2 {
		t.Errorf("%v, %d subscriptions", err, v.SubscriptionCount())
	}
	if set, ok := v.TopicSchema(testID(1)); !ok || set != (TopicSchema{"orders-value", PolicyEnforce, true}) || v.Compatibility() != "forward" {
		t.Errorf("%+v, %s", set, v.Compatibility())
	}
	subjects := ""
	for s := range v.Subjects() {
		subjects += subjectText(s) + "\n"
	}
	if subjects != "copy revision=23 last=1 deleted 1=1†\nmoney revision=16 last=1 1=1\norders-value revision=17 last=1 full 1=2\n" {
		t.Error(subjects)
	}
	if s, err := v.Schema(2); err != nil || s.Definition != everyCommand()[15].(RegisterSchema).Definition {
		t.Error(err, s)
	}
	if _, err := v.Schema(3); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
}

func TestSubscriptionsThatAreMissing(t *testing.T) {
	v := NewState().View()
	for n, detail := range map[Name]string{{"none", "t"}: "namespace", {DefaultNamespace, "t"}: "topic"} {
		if _, err := v.Subscription(n, "s"); fault.KindOf(err) != fault.NotFound || fault.DetailsOf(err)[detail] == "" {
			t.Errorf("%s: %v %v", n, err, fault.DetailsOf(err))
		}
	}
	s := NewState()
	if _, err := s.Apply(1, everyCommand()[2]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.View().Subscription(Name{DefaultNamespace, "orders"}, "s"); fault.KindOf(err) != fault.NotFound || fault.DetailsOf(err)["subscription"] != "s" {
		t.Errorf("%v %v", err, fault.DetailsOf(err))
	}
	if c, ok := s.View().Cursor(testID(1), "s", 0); ok {
		t.Error(cursorText(c))
	}
}

func TestLimitsOfSubscriptions(t *testing.T) {
	many := make([]AckBlock, MaxCursorBlocks+1)
	for i := range many {
		many[i].Number = int64(i)
	}
	counts := make([]DeliveryCount, MaxDeliveryCounts+1)
	for i := range counts {
		counts[i] = DeliveryCount{int64(i), 1}
	}
	save := func(blocks []AckBlock, counts []DeliveryCount) Command {
		return SaveCursors{[]CursorSave{{ID: testID(1), Subscription: "s", Created: 2, Epoch: 1, Blocks: blocks, Counts: counts}}}
	}
	for name, c := range map[string]Command{
		"blocks":   save(many, nil),
		"counts":   save(nil, counts),
		"bits":     save([]AckBlock{{1, make([]byte, maxAckBlockBytes+1)}}, nil),
		"saves":    SaveCursors{make([]CursorSave, MaxCursorSaves+1)},
		"starts":   CreateSubscription{Topic: Name{"n", "t"}, ID: testID(1), Name: "s", Type: Shared, Starts: make([]int64, MaxPartitions+1)},
		"name":     CreateSubscription{Topic: Name{"n", "t"}, ID: testID(1), Name: strings.Repeat("x", MaxNameLength+1), Type: Shared, Starts: []int64{0}},
		"no topic": SeekCursor{Topic: Name{"n", "t"}, Subscription: "s"},
	} {
		if err := c.Validate(); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A cursor with more blocks than there may be keeps those it has.
	s := NewState()
	for i, c := range []Command{
		CreateTopic{Name: Name{DefaultNamespace, "t"}, ID: testID(1), Partitions: 1, Dispatch: Reliable},
		CreateSubscription{Topic: Name{DefaultNamespace, "t"}, ID: testID(1), Name: "s", Type: Shared, Starts: []int64{0}},
	} {
		if r, err := s.Apply(uint64(i+1), c); err != nil || r.Refused != nil {
			t.Fatal(err, r.Refused)
		}
	}
	for i := range many {
		many[i].Bits = []byte{2}
	}
	for i, skipped := range []int{0, 1} {
		r, err := s.Apply(uint64(3+i), save(many[i*MaxCursorBlocks:][:max(1, MaxCursorBlocks*(1-i))], nil))
		if err != nil || r.Refused != nil || r.Skipped != skipped {
			t.Errorf("%v %v, skipped %d", err, r.Refused, r.Skipped)
		}
	}
	if c, _ := s.View().Cursor(testID(1), "s", 0); len(c.Blocks) != MaxCursorBlocks {
		t.Errorf("%d blocks", len(c.Blocks))
	}
}

func TestSnapshotsOfTheSecondVersionThatAreNone(t *testing.T) {
	s := NewState()
	for i, c := range whole() {
		if r, err := s.Apply(uint64(i+1), c); err != nil || r.Refused != nil {
			t.Fatal(err, r.Refused)
		}
	}
	good := mustSnapshot(t, s)
	without := func(part string) []byte {
		lines := bytes.SplitAfter(good, []byte("\n"))
		i := slices.IndexFunc(lines, func(line []byte) bool { return bytes.Contains(line, []byte(part)) })
		left := bytes.Join(slices.Delete(lines, i, i+1), nil)
		return bytes.Replace(left, fmt.Appendf(nil, `"lines":%d`, len(lines)-2), fmt.Appendf(nil, `"lines":%d`, len(lines)-3), 1)
	}
	replaced := func(old, new string) []byte {
		b := bytes.Replace(good, []byte(old), []byte(new), 1)
		if bytes.Equal(b, good) {
			t.Errorf("there is no %s in %s", old, good)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"older than it is":         replaced(`{"levee_meta":2`, `{"levee_meta":1`),
		"no cursor":                without(`"partition":1`),
		"no subscription":          without(`"name":"audit"`),
		"no topic":                 replaced(`"subscription":{"id":"a0000000000000000000000000000001"`, `"subscription":{"id":"a0000000000000000000000000000009"`),
		"topic that stores none":   replaced(`"subscription":{"id":"a0000000000000000000000000000001"`, `"subscription":{"id":"a0000000000000000000000000000002"`),
		"type":                     replaced(`"key_shared"`, `"queue"`),
		"setting":                  replaced(`"backoff":"exponential"`, `"backoff":"linear"`),
		"own dead letters":         replaced(`"audit/dead"`, `"orders"`),
		"order":                    replaced(`"name":"audit"`, `"name":"zudit"`),
		"created never":            replaced(`"created":9,`, `"created":0,`),
		"created after its change": replaced(`"created":9,`, `"created":14,`),
		"version of the future":    replaced(`"version":13,"type"`, `"version":24,"type"`),
		"active before created":    replaced(`"active_ms":9`, `"active_ms":7`),
		"partition":                replaced(`"subscription":"audit","partition":1`, `"subscription":"audit","partition":2`),
		"negative partition":       replaced(`"subscription":"audit","partition":0`, `"subscription":"audit","partition":-1`),
		"epoch":                    replaced(`"epoch":2`, `"epoch":0`),
		"position":                 replaced(`"position":77`, `"position":-1`),
		"blocks out of order":      replaced(`{"n":2,`, `{"n":4,`),
		"block below":              replaced(`{"n":2,`, `{"n":1,`),
		"block without bits":       replaced(`{"n":3,"b":"Ag=="}`, `{"n":3}`),
		"count below":              replaced(`[9000,2]`, `[8999,2]`),
		"count of none":            replaced(`[9000,2]`, `[9000,0]`),
		"counts out of order":      replaced(`[9000,2]`, `[9002,2]`),
		"half a count":             replaced(`[9000,2]`, `[9000]`),
		"stray cursor":             replaced(`{"cursor":{"id":"a0000000000000000000000000000001","subscription":"audit"`, `{"cursor":{"id":"a0000000000000000000000000000001","subscription":"aaa"`),

		"global mode":            replaced(`"compatibility":"forward"`, `"compatibility":"sideways"`),
		"ids given again":        replaced(`"last_schema_id":3`, `"last_schema_id":1`),
		"policy":                 replaced(`"policy":"enforce"`, `"policy":"maybe"`),
		"policy of no topic":     replaced(`"topic_schema":{"id":"a0000000000000000000000000000001"`, `"topic_schema":{"id":"a0000000000000000000000000000009"`),
		"policy that is none":    replaced(`"subject":"orders-value","policy":"enforce","validate":true`, `"subject":"","policy":"none","validate":false`),
		"schema 0":               replaced(`"schema":{"id":1`, `"schema":{"id":0`),
		"schemas out of order":   replaced(`"schema":{"id":1`, `"schema":{"id":3`),
		"no schema":              without(`"schema":{"id":1`),
		"schema of no subject":   without(`"name":"orders-value"`),
		"schema type":            replaced(`"type":"avro"`, `"type":"xml"`),
		"fingerprint twice":      replaced(`"sha256:0b"`, `"sha256:0a"`),
		"no fingerprint":         replaced(`"sha256:0b"`, `""`),
		"reference to nothing":   replaced(`"subject":"money","version":1`, `"subject":"money","version":2`),
		"reference to nobody":    replaced(`"subject":"money","version":1`, `"subject":"honey","version":1`),
		"subject's mode":         replaced(`"compatibility":"full"`, `"compatibility":"fuller"`),
		"subjects out of order":  replaced(`"name":"money"`, `"name":"aaa"`),
		"revision 0":             replaced(`"revision":17`, `"revision":0`),
		"revision of the future": replaced(`"revision":17`, `"revision":24`),
		"numbers given again":    replaced(`"name":"money","revision":16,"last_version":1`, `"name":"money","revision":16,"last_version":0`),
		"version 0":              replaced(`{"version":1,"schema_id":2`, `{"version":0,"schema_id":2`),
		"version of no schema":   replaced(`{"version":1,"schema_id":2`, `{"version":1,"schema_id":3`),
		"empty subject":          replaced(`"name":"gone","revision":21,"last_version":1`, `"name":"gone","revision":21`),
	} {
		restored := NewState()
		before := mustSnapshot(t, restored)
		if err := restored.Restore(b); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(before, mustSnapshot(t, restored)) {
			t.Errorf("%s: refused, but the state changed", name)
		}
	}
	if err := NewState().Restore(good); err != nil {
		t.Error(err)
	}
}

// withSubscriptions returns a state of n subscriptions with one cursor each, ten a topic.
func withSubscriptions(tb testing.TB, n int) *State {
	tb.Helper()
	s, index := NewState(), uint64(0)
	apply := func(c Command) {
		index++
		if r, err := s.Apply(index, c); err != nil || r.Refused != nil {
			tb.Fatal(err, r.Refused)
		}
	}
	for i := range n {
		topic := Name{DefaultNamespace, fmt.Sprint("topic-", i/10)}
		if i%10 == 0 {
			apply(CreateTopic{Name: topic, ID: manyID(i / 10), Partitions: 1, Dispatch: Reliable})
		}
		apply(CreateSubscription{
			Topic: topic, ID: manyID(i / 10), Name: fmt.Sprint("subscription-", i%10), Type: Shared, TimeMs: 1_700_000_000_000, Starts: []int64{int64(i)},
			Settings: SubscriptionSettings{MaxDeliveries: ptr(int32(5))},
		})
	}
	return s
}

func manyID(i int) TopicID {
	id := testID(1)
	id[1], id[2], id[3] = byte(i>>16), byte(i>>8), byte(i)
	return id
}

// TestSubscriptionsAreSmall: one that nobody uses costs little memory, and a hundred thousand no time worth mention when
// a snapshot is written or read.
func TestSubscriptionsAreSmall(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	s := withSubscriptions(t, n)
	start := time.Now()
	b := mustSnapshot(t, s)
	written := time.Since(start)
	runtime.KeepAlive(s)
	before := heap()
	again := NewState()
	start = time.Now()
	if err := again.Restore(b); err != nil {
		t.Fatal(err)
	}
	read := time.Since(start)
	each := float64(heap()-before) / float64(n)
	if again.View().SubscriptionCount() != n || !bytes.Equal(b, mustSnapshot(t, again)) {
		t.Error("restored wrongly")
	}
	t.Logf("%d subscriptions: %.0f bytes each in memory, %d in a snapshot, written in %v, read in %v", n, each, len(b)/n, written, read)
	if each > 1024 || math.IsNaN(each) {
		t.Errorf("a subscription with its cursor takes %.0f bytes", each)
	}
	runtime.KeepAlive(again)
}

// saves returns a command that saves n cursors of withSubscriptions.
func saves(n int, position int64) SaveCursors {
	var c SaveCursors
	for i := range n {
		c.Cursors = append(c.Cursors, CursorSave{
			ID: manyID(i / 10), Subscription: fmt.Sprint("subscription-", i%10), Created: uint64(i + i/10 + 2), Epoch: 1, Position: 1_000_000 + position,
			Blocks: []AckBlock{{Number: 1_000_000 / AckBlockOffsets, Bits: []byte{1, 8, 3, 200, 1, 7}}},
		})
	}
	return c
}

// BenchmarkSaveCursors1000 is a second of a broker on which a thousand cursors move: one command.
func BenchmarkSaveCursors1000(b *testing.B) {
	s := withSubscriptions(b, 100_000)
	index := s.View().Index()
	encoded, err := Encode(saves(1000, 0))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.ReportMetric(float64(len(encoded)), "bytes/command")
		c := saves(1000, 0)
		for b.Loop() {
			if _, err := Encode(c); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("apply", func(b *testing.B) {
		b.ReportAllocs()
		c := saves(1000, 0)
		for b.Loop() {
			index++
			if r, err := s.Apply(index, c); err != nil || r.Refused != nil || r.Skipped != 0 {
				b.Fatal(err, r.Refused, r.Skipped)
			}
		}
	})
}
