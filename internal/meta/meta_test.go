package meta

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/fault"
)

func TestParseTopic(t *testing.T) {
	long := strings.Repeat("x", MaxNameLength)
	for in, want := range map[string]string{
		"orders": "default/orders", "default/orders": "default/orders", "a/b": "a/b", "A.z_0-9": "default/A.z_0-9",
		"...": "default/...", long + "/" + long: long + "/" + long,
		"": "", "/": "", "a/": "", "/a": "", "a/b/c": "", ".": "", "..": "", "../a": "", "a/..": "", "a b": "", "a\x00": "", "ä": "", "a@1": "", long + "x": "",
	} {
		got, err := ParseTopic(in)
		if want == "" {
			if fault.KindOf(err) != fault.InvalidArgument || got != (Name{}) {
				t.Errorf("ParseTopic(%q) = %v, %v", in, got, err)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("ParseTopic(%q) = %v, %v", in, got, err)
		}
	}
}

func TestValidateOfSettingsNamesTheKey(t *testing.T) {
	err := Settings{Fsync: ptr("sometimes")}.Validate(Reliable)
	if fault.KindOf(err) != fault.InvalidArgument || fault.DetailsOf(err)["key"] != KeyFsync {
		t.Errorf("%v %v", err, fault.DetailsOf(err))
	}
	for _, part := range []string{"fsync", "sometimes", "on_commit, periodic or none"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if err := (Settings{}).Validate("sometimes"); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
	if err := (Settings{}).Validate(NonReliable); err != nil {
		t.Error(err)
	}
}

func TestIndexMustRise(t *testing.T) {
	s := NewState()
	if _, err := s.Apply(5, ReserveProducerIDs{Count: 1}); err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{4, 5} {
		if _, err := s.Apply(index, ReserveProducerIDs{Count: 1}); err == nil {
			t.Errorf("index %d was applied after 5", index)
		}
	}
	if s.View().Index() != 5 || s.View().NextProducerID() != 2 {
		t.Errorf("a wrong index changed the state")
	}
}

func TestAViewNeverChanges(t *testing.T) {
	m := NewMemory()
	name := Name{"default", "orders"}
	r, err := m.Propose(context.Background(), CreateTopic{Name: name, ID: testID(1), Partitions: 3, Dispatch: Reliable})
	if err != nil {
		t.Fatal(err)
	}
	view, topic := m.View(), r.Topic
	before, err := view.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Command{
		NewGeneration{Name: name, ID: testID(1), From: 1, To: 2, Reserved: 50},
		SetTopic{Name: name, ID: testID(1), Version: topic.Version, Settings: Settings{RetentionBytes: ptr(int64(1))}},
		CreateTopic{Name: Name{"default", "more"}, ID: testID(2), Partitions: 3, Dispatch: Reliable},
		DeleteTopic{Name: name, ID: testID(1)},
	} {
		if _, err := m.Propose(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	after, err := view.Snapshot()
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v\n%s\n%s", err, before, after)
	}
	if topic.Partitions[0].Generation != 1 || topic.Settings.RetentionBytes != nil {
		t.Errorf("a topic handed out changed: %+v", topic)
	}
}

func TestMemoryTellsWhyAndWhen(t *testing.T) {
	m := NewMemory()
	changed := m.Changed()
	if _, err := m.Propose(context.Background(), CreateNamespace{Name: "default"}); fault.KindOf(err) != fault.AlreadyExists {
		t.Error(err)
	}
	if _, err := m.Propose(context.Background(), CreateNamespace{Name: "a b"}); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Propose(ctx, CreateNamespace{Name: "a"}); fault.KindOf(err) != fault.Canceled || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	select {
	case <-changed:
		t.Error("refused commands count as changes")
	default:
	}
	if _, err := m.Propose(context.Background(), CreateNamespace{Name: "a"}); err != nil {
		t.Error(err)
	}
	<-changed
	select {
	case <-m.Changed():
		t.Error("a new channel is closed before there was a change")
	default:
	}
	if _, err := m.View().Namespace("a"); err != nil {
		t.Error(err)
	}
	for _, n := range []Name{{"b", "x"}, {"a", "x"}} {
		_, err := m.View().Topic(n)
		if fault.KindOf(err) != fault.NotFound {
			t.Error(err)
		}
		if missing := fault.DetailsOf(err); (missing["namespace"] == "b") != (n.Namespace == "b") {
			t.Errorf("%v: %v", err, missing)
		}
	}
}

func TestReadersBesideAWriter(t *testing.T) {
	m := NewMemory()
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for last := uint64(0); ; {
				v := m.View()
				if v.Index() < last {
					t.Error("a view went back")
				}
				last = v.Index()
				n := 0
				for range v.Topics("") {
					n++
				}
				if n != v.TopicCount() {
					t.Errorf("%d topics of %d", n, v.TopicCount())
				}
				select {
				case <-done:
					return
				case <-m.Changed():
				}
			}
		})
	}
	for i := range 200 {
		if _, err := m.Propose(context.Background(), CreateTopic{Name: Name{"default", fmt.Sprint("t", i)}, ID: testID(i + 1), Partitions: 1, Dispatch: Reliable}); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}

func TestSnapshotsThatAreNone(t *testing.T) {
	m := NewMemory()
	for _, c := range everyCommand()[:3] {
		if _, err := m.Propose(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	good, err := m.View().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(good, []byte("\n"))
	without := func(i int) []byte { return bytes.Join(slices.Delete(slices.Clone(lines), i, i+1), nil) }
	twice := func(i int) []byte { return bytes.Join(slices.Insert(slices.Clone(lines), i, lines[i]), nil) }
	replaced := func(old, new string) []byte { return bytes.Replace(good, []byte(old), []byte(new), 1) }
	for name, c := range map[string]struct {
		b    []byte
		kind fault.Kind
	}{
		"empty":                {nil, fault.Corrupt},
		"cut":                  {good[:len(good)-3], fault.Corrupt},
		"no header":            {without(0), fault.Corrupt},
		"no default namespace": {without(1), fault.Corrupt},
		"no topic":             {without(2), fault.Corrupt},
		"no end":               {without(3), fault.Corrupt},
		"a topic twice":        {twice(2), fault.Corrupt},
		"more behind the end":  {append(slices.Clone(good), '\n'), fault.Corrupt},
		"newer":                {replaced(`{"levee_meta":1`, `{"levee_meta":7,"shape":"round"`), fault.Unsupported},
		"newer than it says":   {replaced(`{"levee_meta":1`, `{"levee_meta":2`), fault.Corrupt},
		"older than the first": {replaced(`{"levee_meta":1`, `{"levee_meta":0`), fault.Corrupt},
		"unknown field":        {replaced(`"incarnation":1`, `"incarnation":1,"colour":"red"`), fault.Corrupt},
		"unknown line":         {replaced(`{"topic":`, `{"planet":`), fault.Corrupt},
		"two in a line":        {replaced(`{"topic":`, `{"broker":{"id":"b","registration":1},"topic":`), fault.Corrupt},
		"incarnation 0":        {replaced(`"incarnation":1`, `"incarnation":0`), fault.Corrupt},
		"no partition":         {replaced(`[[1,4096],[1,4096]]`, `[]`), fault.Corrupt},
		"half a partition":     {replaced(`[1,4096]`, `[1]`), fault.Corrupt},
		"negative offset":      {replaced(`[1,4096]`, `[1,-1]`), fault.Corrupt},
		"generation too high":  {replaced(`[1,4096]`, `[2147483648,1]`), fault.Corrupt},
		"another namespace":    {replaced(`"default/orders"`, `"other/orders"`), fault.Corrupt},
		"impossible setting":   {replaced(`"fsync":"periodic"`, `"fsync":"maybe"`), fault.Corrupt},
	} {
		s := NewState()
		if err := s.Restore(c.b); fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := NewState().Restore(good); err != nil {
		t.Error(err)
	}
}

func TestTreeAgainstAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var now tree[int, int]
	model := map[int]int{}
	type kept struct {
		tree  tree[int, int]
		model map[int]int
	}
	var old []kept
	for i := range 5000 {
		k := r.IntN(400)
		if r.IntN(3) == 0 {
			now = now.remove(k)
			delete(model, k)
		} else {
			now = now.set(k, i)
			model[k] = i
		}
		if i%500 == 0 {
			copied := map[int]int{}
			for k, v := range model {
				copied[k] = v
			}
			old = append(old, kept{now, copied})
		}
	}
	for _, o := range append(old, kept{now, model}) {
		checkTree(t, o.tree, o.model)
	}
	var sorted tree[int, int]
	for i := range 100_000 {
		sorted = sorted.set(i, i)
	}
	if h, most := sorted.root.depth(), 1.45*math.Log2(100_002); float64(h) > most {
		t.Errorf("a tree of 100,000 keys set in order is %d high, more than %.0f", h, most)
	}
}

// TestTreeWithoutPrefix compares the removal of whole subtrees with that of one key after the other.
func TestTreeWithoutPrefix(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		var now tree[string, int]
		for i := range r.IntN(500) {
			now = now.set(fmt.Sprintf("%c%c", 'a'+r.IntN(1+r.IntN(8)), 'a'+r.IntN(100)), i)
		}
		before := maps.Collect(now.all())
		for _, prefix := range []string{"a", "c", "cc", "h", "0", "z", ""} {
			want := maps.Clone(before)
			maps.DeleteFunc(want, func(key string, _ int) bool { return strings.HasPrefix(key, prefix) })
			got := withoutPrefix(now, prefix)
			checkBalance(t, got.root)
			if left := maps.Collect(got.all()); !maps.Equal(left, want) || got.len() != len(want) || !slices.IsSorted(slices.Collect(keys(got))) {
				t.Fatalf("seed %d without %q: %d of %v, want %v", seed, prefix, got.len(), left, want)
			}
		}
		if after := maps.Collect(now.all()); !maps.Equal(after, before) {
			t.Fatalf("seed %d: the tree that was cut changed", seed)
		}
		checkBalance(t, now.root)
	}
}

func keys[K cmp.Ordered, V any](t tree[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range t.all() {
			if !yield(k) {
				return
			}
		}
	}
}

// TestTreeWithoutPrefixCostsLittle: a topic with a hundred thousand cursors goes in one step.
func TestTreeWithoutPrefixCostsLittle(t *testing.T) {
	var now tree[string, int]
	for i := range 100_000 {
		now = now.set(fmt.Sprintf("%c%05d", 'a'+i%3, i), i)
	}
	if n := testing.AllocsPerRun(3, func() { withoutPrefix(now, "b") }); n > 200 {
		t.Errorf("removing 33,333 neighbours of 100,000 made %.0f allocations", n)
	}
}

func checkBalance[K cmp.Ordered, V any](t *testing.T, root *node[K, V]) {
	t.Helper()
	var balanced func(*node[K, V]) int
	balanced = func(n *node[K, V]) int {
		if n == nil {
			return 0
		}
		l, r := balanced(n.left), balanced(n.right)
		if l-r > 1 || r-l > 1 || n.height != 1+max(l, r) {
			t.Fatalf("key %v is out of balance: %d, %d, height %d", n.key, l, r, n.height)
		}
		return n.height
	}
	balanced(root)
}

func checkTree(t *testing.T, tr tree[int, int], model map[int]int) {
	t.Helper()
	if tr.len() != len(model) {
		t.Fatalf("%d keys of %d", tr.len(), len(model))
	}
	last, n := -1, 0
	for k, v := range tr.all() {
		if k <= last || model[k] != v {
			t.Fatalf("key %d after %d with %d instead of %d", k, last, v, model[k])
		}
		last, n = k, n+1
	}
	if n != len(model) {
		t.Fatalf("visited %d of %d", n, len(model))
	}
	for from := -1; from <= 401; from += 67 {
		want := 0
		for k := range model {
			if k >= from {
				want++
			}
		}
		for k := range tr.from(from) {
			if want--; k < from {
				t.Fatalf("from %d visited %d", from, k)
			}
		}
		if want != 0 {
			t.Fatalf("from %d missed %d", from, want)
		}
	}
	checkBalance(t, tr.root)
}

// BenchmarkCreate is one of 100,000 creations; all of them must take less than two seconds.
func BenchmarkCreate100000(b *testing.B) {
	commands := make([][]byte, 100_000)
	for i := range commands {
		id := testID(1)
		id[1], id[2], id[3] = byte(i>>16), byte(i>>8), byte(i)
		var err error
		if commands[i], err = Encode(CreateTopic{Name: Name{"default", fmt.Sprint("topic-", i*7919%100_000)}, ID: id, Partitions: 1, Dispatch: Reliable}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s := NewState()
		for i, c := range commands {
			if r, err := s.ApplyEncoded(uint64(i+1), c); err != nil || r.Refused != nil {
				b.Fatal(err, r.Refused)
			}
		}
	}
}

func BenchmarkSnapshot100000(b *testing.B) {
	s := NewState()
	for i := range 100_000 {
		id := testID(1)
		id[1], id[2], id[3] = byte(i>>16), byte(i>>8), byte(i)
		if _, err := s.Apply(uint64(i+1), CreateTopic{Name: Name{"default", fmt.Sprint("topic-", i)}, ID: id, Partitions: 1, Dispatch: Reliable}); err != nil {
			b.Fatal(err)
		}
	}
	snapshot := mustSnapshot(b, s)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(snapshot)))
		for b.Loop() {
			mustSnapshot(b, s)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(snapshot)))
		for b.Loop() {
			if err := NewState().Restore(snapshot); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkTopic(b *testing.B) {
	s := NewState()
	for i := range 100_000 {
		id := testID(1)
		id[1], id[2], id[3] = byte(i>>16), byte(i>>8), byte(i)
		if _, err := s.Apply(uint64(i+1), CreateTopic{Name: Name{"default", fmt.Sprint("topic-", i)}, ID: id, Partitions: 1, Dispatch: Reliable}); err != nil {
			b.Fatal(err)
		}
	}
	v, name := s.View(), Name{"default", "topic-77777"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Topic(name); err != nil {
			b.Fatal(err)
		}
	}
}
