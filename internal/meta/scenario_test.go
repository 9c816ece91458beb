package meta

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios gave into their files; read the difference like code")

// TestScenarios runs testdata/scenarios: blocks of a directive, its input, a line "----" and what came out. Directives:
// apply (one command a line, as: op args; %id N stands for an id), snapshot, reopen (through a snapshot), topics
// [namespace], namespaces, deletions, tombstones N (lowers their bound), subscriptions (with their cursors), exports, custody, schemas.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScenario(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s differs; got:\n%s", file, got)
			}
		})
	}
}

type scenario struct {
	state *State
	last  uint64
}

func runScenario(t *testing.T, text string) string {
	s := &scenario{state: NewState()}
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		input, _, _ := strings.Cut(block, "\n----")
		fmt.Fprintf(&out, "%s\n", input)
		for strings.HasPrefix(input, "#") {
			_, input, _ = strings.Cut(input, "\n")
		}
		if input == "" {
			out.WriteString("\n")
			continue
		}
		head, body, _ := strings.Cut(input, "\n")
		result := s.run(t, strings.Fields(head), body)
		fmt.Fprintf(&out, "----\n%s\n", result)
	}
	return out.String()
}

func (s *scenario) run(t *testing.T, head []string, body string) string {
	var out strings.Builder
	arg := func() string {
		if len(head) > 1 {
			return head[1]
		}
		return ""
	}
	switch head[0] {
	case "apply":
		for line := range strings.Lines(body) {
			s.apply(t, &out, strings.TrimSpace(line))
		}
	case "snapshot":
		out.Write(mustSnapshot(t, s.state))
	case "reopen":
		again := NewState()
		again.tombstones = s.state.tombstones
		before := mustSnapshot(t, s.state)
		if err := again.Restore(before); err != nil {
			t.Fatal(err)
		}
		if after := mustSnapshot(t, again); !bytes.Equal(before, after) {
			t.Errorf("a snapshot of a restored snapshot differs:\n%s\n%s", before, after)
		}
		s.state = again
		out.WriteString("same\n")
	case "topics":
		for topic := range s.state.View().Topics(arg()) {
			fmt.Fprintln(&out, topicText(topic))
		}
	case "namespaces":
		for n := range s.state.View().Namespaces() {
			fmt.Fprintf(&out, "%s topics=%d\n", n.Name, n.Topics)
		}
	case "deletions":
		for d := range s.state.View().Deletions() {
			fmt.Fprintf(&out, "%s@%d id=%s partitions=%d\n", d.Name, d.Incarnation, d.ID, d.Partitions)
		}
	case "subscriptions":
		v := s.state.View()
		for sub := range v.AllSubscriptions() {
			fmt.Fprintln(&out, subscriptionText(sub))
			for i := int32(0); ; i++ {
				c, ok := v.Cursor(sub.TopicID, sub.Name, i)
				if !ok {
					break
				}
				fmt.Fprintf(&out, "  %d: %s\n", i, cursorText(c))
			}
		}
	case "schemas":
		v := s.state.View()
		if mode := v.Compatibility(); mode != "" {
			fmt.Fprintf(&out, "compatibility %s\n", mode)
		}
		for topic := range v.Topics("") {
			if schema, ok := v.TopicSchema(topic.ID); ok {
				fmt.Fprintf(&out, "%s: %+v\n", topic.Name, schema)
			}
		}
		for _, schema := range v.schemas.all() {
			fmt.Fprintf(&out, "%d %s %q", schema.ID, schema.Type, schema.Definition)
			for subject, version := range v.SchemaUses(schema.ID) {
				fmt.Fprintf(&out, " %s/%d", subject, version)
			}
			out.WriteString("\n")
		}
		for subject := range v.Subjects() {
			fmt.Fprintln(&out, subjectText(subject))
			for _, there := range subject.Versions {
				for id := range v.SchemaReferrers(subject.Name, there.Version) {
					fmt.Fprintf(&out, "  schema %d refers to version %d\n", id, there.Version)
				}
			}
		}
	case "exports":
		v := s.state.View()
		for topic := range v.Topics("") {
			for p := range topic.Partitions {
				if e := v.Export(topic.ID, int32(p)); e != nil {
					fmt.Fprintf(&out, "%s/%d %s\n", topic.Name, p, exportText(e))
				}
			}
		}
	case "custody":
		out.WriteString(custodyText(t, s.state.View()))
	case "tombstones":
		n, err := strconv.Atoi(arg())
		if err != nil {
			t.Fatal(err)
		}
		s.state.tombstones = n
	default:
		t.Fatalf("unknown directive %q", head[0])
	}
	return out.String()
}

func custodyText(t *testing.T, v *View) (text string) {
	for topic := range v.Topics("") {
		for p := range topic.Partitions {
			if c := v.Custody(topic.ID, int32(p)); c != nil {
				b, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				text += fmt.Sprintf("%s/%d %s\n", topic.Name, p, b)
			}
		}
	}
	return text
}

func (s *scenario) apply(t *testing.T, out *strings.Builder, line string) {
	for n := range 10 {
		line = strings.ReplaceAll(line, fmt.Sprintf("%%id%d", n), testID(n).String())
	}
	op, args, _ := strings.Cut(line, " ")
	s.last++
	r, err := s.state.ApplyEncoded(s.last, []byte(`{"v":1,"op":"`+op+`","args":`+args+`}`))
	switch {
	case err != nil:
		fmt.Fprintf(out, "%d stop %s", s.last, fault.KindOf(err))
		if fault.KindOf(err) == fault.Unsupported { // the others quote the JSON package, whose words are not ours
			fmt.Fprintf(out, ": %v", err)
		}
		out.WriteString("\n")
		s.last--
	case r.Refused != nil:
		fmt.Fprintf(out, "%d %s: %v\n", r.Index, r.Refused.Kind, r.Refused)
	default:
		fmt.Fprintf(out, "%d ok%s\n", r.Index, resultText(t, r))
	}
}

func resultText(t *testing.T, r Result) string {
	switch {
	case r.SchemaVersion != nil:
		return fmt.Sprintf(" schema %d version %d of %s", r.Schema.ID, r.SchemaVersion.Version, subjectText(r.Subject))
	case r.Subject != nil:
		return " " + subjectText(r.Subject)
	case r.Export != nil:
		return " " + exportText(r.Export)
	case r.Topic != nil:
		return " " + topicText(r.Topic)
	case r.Deletion != nil:
		return fmt.Sprintf(" deletion of %s@%d", r.Deletion.Name, r.Deletion.Incarnation)
	case r.FirstProducerID != 0:
		return fmt.Sprintf(" producers from %d", r.FirstProducerID)
	case r.Registration != 0:
		return fmt.Sprintf(" registration %d", r.Registration)
	case r.Cursor != nil:
		return fmt.Sprintf(" %s: %s", r.Subscription.Name, cursorText(r.Cursor))
	case r.Subscription != nil:
		return " " + subscriptionText(r.Subscription)
	case r.Skipped != 0:
		return fmt.Sprintf(" skipped %d", r.Skipped)
	}
	return ""
}

func subscriptionText(s *Subscription) string {
	text := fmt.Sprintf("%s:%s@%d version=%d %s created=%d active=%d", s.Topic, s.Name, s.Created, s.Version, s.Type, s.CreatedMs, s.ActiveMs)
	for _, k := range s.Settings.Keys() {
		text += " " + k
	}
	return text
}

func cursorText(c *Cursor) string {
	text := fmt.Sprintf("epoch=%d position=%d", c.Epoch, c.Position)
	for _, b := range c.Blocks {
		text += fmt.Sprintf(" %d=%q", b.Number, b.Bits)
	}
	for _, n := range c.Counts {
		text += fmt.Sprintf(" %d×%d", n.Offset, n.Deliveries)
	}
	return text
}

func subjectText(s *Subject) string {
	text := fmt.Sprintf("%s revision=%d last=%d", s.Name, s.Revision, s.LastVersion)
	if s.Compatibility != "" {
		text += " " + s.Compatibility
	}
	if s.Deleted {
		text += " deleted"
	}
	for _, there := range s.Versions {
		text += fmt.Sprintf(" %d=%d", there.Version, there.SchemaID)
		if there.Deleted {
			text += "†"
		}
	}
	return text
}

func exportText(e *Export) string {
	text := fmt.Sprintf("exported below %d:", e.Frontier())
	if m := e.Manifest; m != nil {
		text += fmt.Sprintf(" [%d objects %d-%d from %d on]", m.Count, m.Base, m.Next-1, m.First)
	}
	for _, o := range e.Objects {
		text += fmt.Sprintf(" %d-%d", o.Base, o.Next-1)
	}
	return text
}

func topicText(t *Topic) string {
	text := fmt.Sprintf("%s@%d version=%d %s", t.Name, t.Incarnation, t.Version, t.Dispatch)
	if len(t.Partitions) > 4 {
		text += fmt.Sprintf(" partitions=%d×%v", len(t.Partitions), t.Partitions[0])
	} else {
		text += fmt.Sprintf(" partitions=%v", t.Partitions)
	}
	for _, k := range t.Settings.Keys() {
		text += " " + k
	}
	return text
}

func testID(n int) TopicID {
	var id TopicID
	id[0], id[14], id[15] = 0xa0, byte(n>>8), byte(n)
	return id
}

func mustSnapshot(t testing.TB, s *State) []byte {
	t.Helper()
	b, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ptr[T any](v T) *T { return &v }

// everyCommand has one of each, with every field set.
func everyCommand() []Command {
	orders := Name{DefaultNamespace, "orders"}
	return []Command{
		CreateNamespace{Name: "audit", TimeMs: 1_700_000_000_000},
		DeleteNamespace{Name: "audit"},
		CreateTopic{
			Name: orders, ID: testID(1), TimeMs: 1_700_000_000_001, Partitions: 2, Dispatch: Reliable, Reserved: 4096,
			Settings: Settings{
				Fsync: ptr(FsyncPeriodic), FsyncIntervalMs: ptr(int64(100)), RetentionBytes: ptr(int64(1 << 40)), RetentionAgeMs: ptr(int64(86_400_000)),
				SegmentBytes: ptr(int64(1 << 20)),
			},
		},
		SetTopic{Name: orders, ID: testID(1), Version: 3, Settings: Settings{RetentionBytes: ptr(int64(0))}, Unset: []string{KeyRetentionAge}},
		DeleteTopic{Name: orders, ID: testID(1), TimeMs: 1_700_000_000_002},
		TopicPurged{Name: orders, Incarnation: 1},
		ReserveOffsets{Name: orders, ID: testID(1), Partition: 1, Generation: 1, Through: 8192},
		NewGeneration{Name: orders, ID: testID(1), Partition: 1, From: 1, To: 2, Reserved: 16384},
		ReserveProducerIDs{Count: 1000},
		RaiseRegistration{Broker: "b-1", From: 7},
		CreateSubscription{
			Topic: orders, ID: testID(1), Name: "billing", Type: KeyShared, TimeMs: 1_700_000_000_003, Starts: []int64{0, 1 << 40},
			Settings: SubscriptionSettings{
				ptr(int64(60_000)), ptr(int32(5)), ptr(int64(200)), ptr(int64(60_000)), ptr(BackoffExponential), ptr(PoisonDeadLetter), ptr("audit/dead"),
				ptr(int32(1000)), ptr(int64(1 << 24)), ptr(int32(50_000)), ptr(int64(1 << 28)), ptr(int32(1)), ptr(TrimmedSkip), ptr(int64(86_400_000)),
			},
		},
		SetSubscription{Topic: orders, ID: testID(1), Name: "billing", Version: 11, Settings: SubscriptionSettings{MaxDeliveries: ptr(int32(0))}, Unset: []string{"poison"}},
		DeleteSubscription{Topic: orders, ID: testID(1), Name: "billing", Created: 11},
		SaveCursors{[]CursorSave{
			{
				ID: testID(1), Subscription: "billing", Created: 11, Partition: 1, Epoch: 2, Position: 1<<40 + 7, ActiveMs: 1_700_000_000_004,
				Blocks: []AckBlock{{1 << 28, []byte{1, 8, 3}}, {1<<28 + 1, nil}, {1<<28 + 2, []byte{2}}}, Counts: []DeliveryCount{{1<<40 + 7, 2}, {1<<40 + 9, 3}},
			},
			{ID: testID(1), Subscription: "billing", Created: 11, Epoch: 1, Position: 5},
		}},
		SeekCursor{Topic: orders, ID: testID(1), Subscription: "billing", Created: 11, Partition: 1, Epoch: 1, Position: 1 << 40},
		RegisterSchema{
			Subject: "orders-value", Type: "avro", Definition: "{\"type\":\"record\",\n \"name\":\"<Order> & Söhne\"}", Fingerprint: "sha256:0b", TimeMs: 1_700_000_000_005,
			References: []SchemaReference{{"com.example.Money", "money", 1}}, CreatedBy: "ann", Description: "what is\nordered", Tags: []string{"a", "b"}, Revision: 16,
		},
		DeleteSchemaVersion{Subject: "orders-value", Version: 1, Permanent: true, Revision: 16},
		DeleteSubject{Subject: "orders-value", Permanent: true, Revision: 16},
		SetCompatibility{Subject: "orders-value", Mode: "full_transitive"},
		SetTopicSchema{Topic: orders, ID: testID(1), Subject: "orders-value", Policy: PolicyEnforce, ValidatePayload: true},
		ExportObject{
			Name: orders, ID: testID(1), Partition: 1, Generation: 2, Frontier: 0,
			Object: ExportedObject{Base: 0, Next: 1 << 20, BaseSeq: 1, NextSeq: 4097, Generation: 2, MaxTime: 1_700_000_000_006, SegmentBytes: 1 << 28, IndexBytes: 1 << 20, TimesBytes: 4096, Size: 1<<28 + 1<<20 + 5000, CRC: 0xe3069283},
		},
		DropObjects{Name: orders, ID: testID(1), Partition: 1, Below: 1 << 20},
		TakeOver{AtMs: 1_700_000_000_007, From: "broker 1 on <node-a>", By: "broker 1 on node-b"},
		AcceptLoss{Name: orders, ID: testID(1), Partition: 1},
		SettleTakeover{
			Name: orders, ID: testID(1), Partition: 1, Generation: 3,
			Report: TakeoverReport{AtMs: 1_700_000_000_008, From: "broker 1 on <node-a>", Objects: 1 << 20, Replayed: 1<<20 + 5, Lost: &OffsetRange{1<<20 + 5, 1 << 41}},
		},
		SetUncovered{Name: orders, ID: testID(1), Partition: 1, Generation: 3, From: 1 << 42},
		SetTopic{Name: orders, ID: testID(1), Version: 4, Settings: Settings{ObjectRetentionBytes: ptr(int64(1 << 40)), ObjectRetentionAgeMs: ptr(int64(0))}, Unset: []string{KeySegmentBytes}},
		ExportObject{
			Name: orders, ID: testID(1), Partition: 0, Generation: 2, Frontier: 5,
			Object: ExportedObject{Base: 5, Next: 6, BaseSeq: 1, NextSeq: 2, Generation: 2, SegmentBytes: 200, IndexBytes: 24, TimesBytes: 16, Size: 368, CRC: 1, StoredMs: 1_700_000_000_007},
		},
		FoldObjects{
			Name: orders, ID: testID(1), Partition: 1, Generation: 2, From: &Manifest{First: 5, Base: 0, Next: 10, Count: 3, CRC: 7}, Base: 10, Objects: 2, Through: 30,
			Manifest: Manifest{First: 5, Base: 0, Next: 30, Count: 5, CRC: 0xfedcba98},
		},
		MergeObjects{
			Name: orders, ID: testID(1), Partition: 1, Generation: 2, Sources: []uint32{7, 0xfedcba98, 0},
			Object: ExportedObject{Base: 5, Next: 30, BaseSeq: 6, NextSeq: 31, Generation: 2, MaxTime: 1_700_000_000_006, SegmentBytes: 4000, IndexBytes: 24, TimesBytes: 16, Size: 4168, CRC: 3, StoredMs: 1_700_000_000_007},
		},
	}
}

// TestGoldenCommands: what is stored must be read in every later version, and be written alike.
func TestGoldenCommands(t *testing.T) {
	const file = "testdata/commands-v1.jsonl"
	var got bytes.Buffer
	for _, c := range everyCommand() {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", c.Op(), err)
		}
		b, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if fmt.Sprintf("%T", back) != fmt.Sprintf("%T", c) {
			t.Errorf("%T came back as %T", c, back)
		}
		again, err := Encode(back)
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("encoded, decoded, encoded:\n%s\n%s\n%v", b, again, err)
		}
		got.Write(append(b, '\n'))
	}
	checkGolden(t, file, got.Bytes())
}

// openGolden opens a snapshot that was written once, by what these commands made, and must open for ever.
func openGolden(t *testing.T, file string, made []Command) *View {
	t.Helper()
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) && *rewrite { // one that is there is never replaced
		s, index := NewState(), uint64(0)
		for _, c := range made {
			index++
			if r, err := s.Apply(index, c); err != nil || r.Refused != nil {
				t.Fatal(err, r.Refused)
			}
		}
		checkGolden(t, file, mustSnapshot(t, s))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := NewState()
	if err := s.Restore(b); err != nil {
		t.Fatal(err)
	}
	if again := mustSnapshot(t, s); !bytes.Equal(b, again) {
		t.Errorf("written again, it differs:\n%s", again)
	}
	return s.View()
}

// goldenCommands make what is in the first golden snapshot.
func goldenCommands() []Command {
	return append([]Command{
		CreateTopic{Name: Name{"default", "plain"}, ID: testID(2), TimeMs: 5, Partitions: 1, Dispatch: NonReliable},
		CreateTopic{Name: Name{"default", "gone"}, ID: testID(3), TimeMs: 6, Partitions: 1, Dispatch: Reliable},
		DeleteTopic{Name: Name{"default", "gone"}, ID: testID(3), TimeMs: 7},
		RaiseRegistration{Broker: "b-1", From: 0},
	}, everyCommand()[2], everyCommand()[6], everyCommand()[7], everyCommand()[8])
}

// TestGoldenSnapshotWithExports: version 3.
func TestGoldenSnapshotWithExports(t *testing.T) {
	export := everyCommand()[20]
	v := openGolden(t, "testdata/snapshot-v3.jsonl", append(goldenCommands(), export))
	e := v.Export(testID(1), 1)
	if first, ok := e.First(); !ok || first != 0 || e.Frontier() != 1<<20 || e.Objects[0] != export.(ExportObject).Object {
		t.Errorf("partition 1 is exported as %+v", e)
	}
	if v.Export(testID(1), 0).Frontier() != 0 {
		t.Error("partition 0 is exported")
	}
}

// TestGoldenSnapshotWithCustody: version 4.
func TestGoldenSnapshotWithCustody(t *testing.T) {
	every := everyCommand()
	v := openGolden(t, "testdata/snapshot-v4.jsonl", append(goldenCommands(), every[20], every[22], every[23], every[24], every[25]))
	if c := v.Custody(testID(1), 0); c == nil || c.Pending == nil || c.Pending.Generation != 1 || c.Pending.Accepted || c.Report != nil || c.Uncovered != nil {
		t.Errorf("partition 0: %+v", c)
	}
	c := v.Custody(testID(1), 1)
	if c == nil || c.Pending != nil || c.Uncovered == nil || *c.Uncovered != 1<<42 || c.Report == nil || c.Report.Lost.To != 1<<41 {
		t.Errorf("partition 1: %+v", c)
	}
	if orders, err := v.Topic(Name{"default", "orders"}); err != nil || orders.Partitions[0].Generation != 2 || orders.Partitions[1].Generation != 3 {
		t.Errorf("%+v, %v", orders, err)
	}
}

// TestGoldenSnapshotWithManifest: version 5.
func TestGoldenSnapshotWithManifest(t *testing.T) {
	orders := Name{DefaultNamespace, "orders"}
	export := func(frontier, base, next int64) ExportObject {
		return ExportObject{Name: orders, ID: testID(1), Partition: 1, Generation: 2, Frontier: frontier, Object: ExportedObject{
			Base: base, Next: next, BaseSeq: uint64(base + 1), NextSeq: uint64(next + 1), Generation: 2, SegmentBytes: 100, Size: 200, StoredMs: 5,
		}}
	}
	fold := FoldObjects{
		Name: orders, ID: testID(1), Partition: 1, Generation: 2, Base: 0, Objects: 2, Through: 20, Manifest: Manifest{Next: 20, Count: 2, CRC: 0xfedcba98},
	}
	again := FoldObjects{
		Name: orders, ID: testID(1), Partition: 1, Generation: 2, From: &Manifest{First: 10, Next: 20, Count: 2, CRC: 0xfedcba98}, Base: 20, Objects: 1, Through: 30,
		Manifest: Manifest{First: 10, Base: 10, Next: 30, Count: 2, CRC: 9},
	}
	drop := DropObjects{Name: orders, ID: testID(1), Partition: 1, Below: 20}
	v := openGolden(t, "testdata/snapshot-v5.jsonl", append(goldenCommands(), export(0, 0, 10), export(10, 10, 20), export(20, 20, 30), export(30, 35, 40), fold, again, drop))
	e := v.Export(testID(1), 1)
	if first, ok := e.First(); !ok || first != 20 || e.Frontier() != 40 || len(e.Objects) != 1 || *e.Manifest != (Manifest{First: 20, Base: 10, Next: 30, Count: 2, CRC: 9}) {
		t.Errorf("partition 1 is exported as %+v", e)
	}
}

// TestGoldenSnapshot: the first version, which had no subscriptions.
func TestGoldenSnapshot(t *testing.T) {
	v := openGolden(t, "testdata/snapshot-v1.jsonl", goldenCommands())
	orders, err := v.Topic(Name{"default", "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if p := orders.Partitions[1]; p.Generation != 2 || p.Reserved != 16384 {
		t.Errorf("partition 1 is %+v", p)
	}
	if v.TopicCount() != 2 || v.Registration("b-1") != 1 || v.NextProducerID() != 1001 || v.DeletedThrough(Name{"default", "gone"}) != 1 {
		t.Errorf("restored wrongly: %d topics, registration %d, next producer id %d", v.TopicCount(), v.Registration("b-1"), v.NextProducerID())
	}
}

func checkGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%s is missing: run with -rewrite", file)
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs (%v); got:\n%s", file, err, got)
	}
}
