package history

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// everything records one of each thing that a history may have, and is checked without a finding.
func everything(h *History) {
	h.Topic(TopicInfo{Topic: "ns/a", Incarnation: 3, Fsync: FsyncPeriodic, Interval: time.Second, Retention: true, Compacted: true})
	p := h.Producer(ProducerInfo{Client: `odd "client" é`, Topic: "ns/a", Incarnation: 3, Idempotent: true})
	q := h.Producer(ProducerInfo{Topic: "ns/a", Incarnation: 3, Ordered: true, Mortal: true})
	a, b, c := p.Begin(0), p.BeginKey(1, "key"), p.BeginFunc(func(v Value) int32 { return v.Seq % 2 })
	h.End(a, OK, 1000, true, nil)
	h.End(b, Unknown, 0, false, errors.New("cut off\n"))
	h.End(c, Fail, 0, false, errors.New("full"))
	d := q.Begin(-1)
	h.Placed(d, 1)
	h.End(d, OK, 0, false, nil)
	q.Begin(0)
	q.Gone()
	h.Fault("power", h.Now(), Cost{CostUnsynced, time.Minute})
	h.Synced("ns/a", 3, 1)
	h.Copied("ns/a", 3, 1, 1)
	for range 2 {
		r := h.Reading("ns/a", 3, 0, "broker 1", 0)
		r.Told(Trimmed, 0, 899)
		r.Told(Control, 900, 999)
		r.Record(1000, a)
		r.Told(Lost, 1001, 1100)
		r.Told(Compacted, 1101, 1102)
		r.End(1103)
		r = h.Reading("ns/a", 3, 1, "", -1)
		r.Record(0, d)
		r.Record(1, b)
		r.End(2)
	}
	h.Reading("ns/a", 3, 1, "tier", 0).Record(0, d)
	s := h.Subscriber(SubscriptionInfo{Subscription: "s", Topic: "ns/a", Incarnation: 3, Partition: 1, Order: OrderKey})
	h.Heal("s")
	s.Deliver("c1", 0, d, "", 1)
	s.Deliver("c1", 1, b, "key", 2)
	s.Told("c1", Trimmed, 2, 7)
	s.Ack("c1", 0, h.Now(), OK)
	m := h.Metadata(MetadataInfo{Client: "x", Op: Create, Topic: "ns/a", Settings: "fsync"})
	m.End(OK, MetadataResult{Incarnation: 3, Revision: 9})
	h.Metadata(MetadataInfo{Client: "x", Op: Describe, Topic: "ns/a", Local: true}).End(OK, MetadataResult{Exists: true, Incarnation: 3, Settings: "fsync"})
	h.Metadata(MetadataInfo{Client: "x", Op: List}).End(OK, MetadataResult{Topics: []string{"ns/a"}})
	h.Metadata(MetadataInfo{Client: "x", Op: Settings, Topic: "ns/a", Settings: "other"}).End(Fail, MetadataResult{Error: "quota"})
	h.Metadata(MetadataInfo{Client: "x", Op: Delete, Topic: "ns/a"})
}

func written(t *testing.T, h *History) string {
	t.Helper()
	var out bytes.Buffer
	if err := h.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func reread(t *testing.T, text string) *History {
	t.Helper()
	h, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v of:\n%s", err, text)
	}
	return h
}

// sortedLines drops what depends on the moment of writing.
func sortedLines(text string) []string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.HasPrefix(l, `{"op":"end"`) })
	slices.Sort(lines)
	return slices.Compact(lines)
}

func TestRoundTrip(t *testing.T) {
	h := New()
	var streamed bytes.Buffer
	h.Stream(&streamed)
	everything(h)
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	text := written(t, h)
	for _, op := range Ops {
		if !strings.Contains(text, `{"op":"`+op+`"`) {
			t.Errorf("no %s in:\n%s", op, text)
		}
	}
	want := h.Check(Options{})
	if !want.OK() || want.Counts.Acked != 2 || want.Counts.Orphaned != 1 || want.Counts.Deliveries != 2 {
		t.Fatalf("got %+v", want)
	}
	for name, saved := range map[string]string{"written": text, "streamed": streamed.String()} {
		again := reread(t, saved)
		if got := sortedLines(written(t, again)); !slices.Equal(got, sortedLines(text)) {
			t.Errorf("%s history is now\n%s\nand was\n%s", name, strings.Join(got, "\n"), text)
		}
		got := again.Check(Options{})
		if got.Took, want.Took = 0, 0; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// TestCutOff reads a file that was being written when its writer died: any prefix of it is a history.
func TestCutOff(t *testing.T) {
	h := New()
	var out bytes.Buffer
	h.Stream(&out)
	everything(h)
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < out.Len(); n += 11 {
		again, err := Read(bytes.NewReader(out.Bytes()[:n]))
		if err != nil {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		if r := again.Check(Options{Only: []int{CheckOffsets, CheckCopies, CheckOrder, CheckHoles, CheckInvented}}); !r.OK() {
			t.Errorf("the first %d bytes: %v", n, r.Violations)
		}
	}
}

func TestRead(t *testing.T) {
	const client = `{"op":"client","producer":0,"topic":"t"}` + "\n"
	const begin = `{"op":"read-begin","reading":0,"topic":"t","from":0}` + "\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", ""},
		"unknown fields":    {`{"op":"topic","topic":"t","colour":"green"}` + "\n", ""},
		"empty lines":       {client + "\n\n" + begin, ""},
		"long line":         {`{"op":"topic","topic":"` + strings.Repeat("t", 1<<18) + `"}` + "\n" + client, ""},
		"cut off":           {client + `{"op":"publ`, ""},
		"not JSON":          {client + "{\n" + client, "line 2: "},
		"unknown operation": {client + `{"op":"dance"}`, `line 2: operation "dance" is not known`},
		"unknown outcome":   {client + `{"op":"publish","value":"0/0","outcome":"maybe"}`, `line 2: outcome "maybe"`},
		"unknown producer":  {`{"op":"publish","value":"0/0"}`, "line 1: no line says what producer 0 is like"},
		"gone producer":     {`{"op":"gone","producer":1}`, "line 1: no line says what producer 1 is like"},
		"producers":         {client + client, "line 2: producer 0 comes where 1 should"},
		"no value":          {client + `{"op":"publish"}`, "line 2: a publish without a value"},
		"not a value":       {client + `{"op":"publish","value":"zero"}` + "\n", `value "zero" is not producer/seq`},
		"far value":         {client + `{"op":"publish","value":"0/2000000000"}`, "line 2: value 0/2000000000 comes where 0/0 should"},
		"no reading":        {`{"op":"read","reading":0,"offset":0,"value":"0/0"}`, "line 1: reading 0 has not begun"},
		"reading twice":     {begin + begin, "line 2: reading 0 comes where 1 should"},
		"read no value":     {begin + `{"op":"read","reading":0,"offset":0}`, "line 2: a read without a value"},
		"told nonsense":     {begin + `{"op":"told","reading":0,"kind":"news"}`, `line 2: told "news"`},
		"no subscription":   {`{"op":"deliver","subscription":"s","topic":"t","value":"0/0"}`, `line 1: no line says what subscription "s" of t is like`},
		"no such order":     {`{"op":"subscribe","subscription":"s","topic":"t","order":"some"}`, `line 1: order "some"`},
		"no such cost":      {`{"op":"fault","may_lose":"everything"}`, `line 1: a fault may lose "everything"`},
		"no such call":      {`{"op":"create","call":5,"topic":"t"}`, "line 1: call 5 comes where 0 should"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// failing is a writer that fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteErrors(t *testing.T) {
	h := New()
	h.Stream(failing{})
	p := h.Producer(ProducerInfo{Topic: "t"})
	for range 2000 {
		h.End(p.Begin(0), OK, 0, false, nil)
	}
	if err := h.Flush(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Flush: %v", err)
	}
	if err := h.Write(failing{}); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Write: %v", err)
	}
}

// TestConcurrent records from many goroutines while others check and write.
func TestConcurrent(t *testing.T) {
	h := New()
	var streamed bytes.Buffer
	h.Stream(&streamed)
	var end struct {
		sync.Mutex
		next int64
		log  []Value
	}
	var wg sync.WaitGroup
	for range 8 {
		p := h.Producer(ProducerInfo{Topic: "t", Idempotent: true})
		wg.Go(func() {
			for range 500 {
				v := p.Begin(0)
				end.Lock()
				o := int64(len(end.log))
				end.log = append(end.log, v)
				end.Unlock()
				h.End(v, OK, o, false, nil)
			}
		})
	}
	read := func() {
		r := h.Reading("t", 0, 0, "a", 0)
		end.Lock()
		seen := end.log[:len(end.log):len(end.log)]
		end.Unlock()
		for o, v := range seen {
			r.Record(int64(o), v)
		}
		r.End(int64(len(seen)))
	}
	for range 2 {
		wg.Go(func() {
			for range 20 {
				read()
				if r := h.Check(Options{}); !r.OK() {
					t.Errorf("nothing is wrong, and it found %v", r.Violations)
				}
			}
		})
	}
	wg.Wait()
	read()
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]*History{"live": h, "streamed": reread(t, streamed.String()), "written": reread(t, written(t, h))} {
		if r := h.Check(Options{AllRead: true}); !r.OK() || r.Counts.Acked != 4000 || r.Counts.Records != 4000 {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}
