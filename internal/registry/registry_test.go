package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	userV1 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}`
	userV2 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0}]}`
	userV3 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0},{"name":"mail","type":"string"}]}`
)

func open(t *testing.T) (*Registry, *meta.Memory) {
	t.Helper()
	store := meta.NewMemory()
	return New(Config{Store: store, Registerer: prometheus.NewRegistry(), Now: func() time.Time { return time.UnixMilli(1000) }}), store
}

func register(t *testing.T, r *Registry, subject string, s Spec) Version {
	t.Helper()
	v, _, err := r.Register(context.Background(), subject, s)
	if err != nil {
		t.Fatalf("register under %s: %v", subject, err)
	}
	return v
}

// refused demands an error of that kind and reason.
func refused(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind || fault.DetailsOf(err)["reason"] != reason {
		t.Errorf("%v (%v, %v), want %v, %s", err, fault.KindOf(err), fault.DetailsOf(err), kind, reason)
	}
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func TestRegister(t *testing.T) {
	r, _ := open(t)
	ctx := context.Background()
	v, created, err := r.Register(ctx, "user", Spec{Definition: userV1, CreatedBy: "me", Description: "d", Tags: []string{"a"}})
	if err != nil || !created || v.ID != 1 || v.Version != 1 || v.Type != "avro" || v.Subject != "user" || v.CreatedMs != 1000 || v.CreatedBy != "me" || v.Description != "d" || !slices.Equal(v.Tags, []string{"a"}) {
		t.Fatalf("%+v %v %v", v, created, err)
	}
	again, created, err := r.Register(ctx, "user", Spec{Type: "AVRO", Definition: " " + userV1})
	if err != nil || created || again.ID != 1 || again.Version != 1 || again.Definition != userV1 {
		t.Errorf("the same again: %+v %v %v", again, created, err)
	}
	if v := register(t, r, "user", Spec{Definition: userV2}); v.ID != 2 || v.Version != 2 {
		t.Errorf("%+v", v)
	}
	if v := register(t, r, "other", Spec{Definition: userV2}); v.ID != 2 || v.Version != 1 {
		t.Errorf("the same schema elsewhere: %+v", v)
	}
	_, _, err = r.Register(ctx, "user", Spec{Definition: userV3})
	refused(t, err, fault.InvalidArgument, "incompatible")
	for _, word := range []string{"version 2", "mail", "no default", "backward"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %s", err, word)
		}
	}
	_, _, err = r.Register(ctx, "user", Spec{Definition: `{"type":"nothing"}`})
	refused(t, err, fault.InvalidArgument, "invalid_schema")
	_, _, err = r.Register(ctx, "user", Spec{Type: "xml", Definition: "x"})
	refused(t, err, fault.InvalidArgument, "invalid_schema")
	_, _, err = r.Register(ctx, "", Spec{Definition: userV1})
	refused(t, err, fault.InvalidArgument, "invalid_subject")
	if v := register(t, r, "tidy", Spec{Type: "JSON", Definition: ` { "type" : "string" } `, Normalize: true}); v.Definition != `{"type":"string"}` || v.Type != "json_schema" {
		t.Errorf("normalized: %+v", v)
	}
	if n := counted(t, r.metrics.registered); n != 4 {
		t.Errorf("%v versions counted", n)
	}
	if n := counted(t, r.metrics.incompatible); n != 1 {
		t.Errorf("%v refusals counted", n)
	}
}

// TestRegisterSideBySide: however many register at once, each version was compatible with the one before.
func TestRegisterSideBySide(t *testing.T) {
	r, _ := open(t)
	const writers = 12
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			// Each adds a field of its own without a default: none may follow another.
			_, _, errs[i] = r.Register(context.Background(), "s", Spec{Definition: fmt.Sprintf(`{"type":"record","name":"R","fields":[{"name":"f%d","type":"int"}]}`, i)})
		}()
	}
	wg.Wait()
	accepted := 0
	for _, err := range errs {
		if err == nil {
			accepted++
		} else {
			refused(t, err, fault.InvalidArgument, "incompatible")
		}
	}
	if versions, err := r.Versions("s", All); accepted != 1 || err != nil || len(versions) != 1 {
		t.Errorf("%d accepted, %v %v", accepted, versions, err)
	}
}

// moving lets the subject change between the decision and the proposal, as often as told.
type moving struct {
	*meta.Memory
	times int
	move  func()
}

func (m *moving) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if m.times > 0 {
		m.times--
		m.move()
	}
	return m.Memory.Propose(ctx, c)
}

func TestRegisterDecidesAgain(t *testing.T) {
	store := &moving{Memory: meta.NewMemory()}
	r, other := New(Config{Store: store}), New(Config{Store: store.Memory})
	register(t, r, "s", Spec{Definition: userV1})
	store.times, store.move = 1, func() { register(t, other, "s", Spec{Definition: userV2}) }
	_, _, err := r.Register(context.Background(), "s", Spec{Definition: `{"type":"record","name":"User","fields":[]}`})
	if err != nil {
		t.Fatal(err)
	}
	store.times, store.move = 1, func() {
		register(t, other, "s", Spec{Definition: `{"type":"record","name":"User","fields":[{"name":"x","type":"int","default":1}]}`})
	}
	_, _, err = r.Register(context.Background(), "s", Spec{Definition: `{"type":"record","name":"User","fields":[{"name":"x","type":"string","default":""}]}`})
	refused(t, err, fault.InvalidArgument, "incompatible") // it was compatible when it was decided first
	n := 0
	store.times, store.move = 1000, func() {
		n++
		mode := []string{"none", "full"}[n%2]
		if err := other.SetCompatibility(context.Background(), "s", mode); err != nil {
			t.Error(err)
		}
	}
	_, _, err = r.Register(context.Background(), "s", Spec{Definition: `{"type":"record","name":"User","fields":[],"doc":"new"}`})
	if fault.KindOf(err) != fault.Conflict || n < conflictRetries {
		t.Errorf("after %d moves: %v", n, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := r.Register(ctx, "s", Spec{Definition: `{"type":"record","name":"User","fields":[],"doc":"new"}`}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestCheck(t *testing.T) {
	r, _ := open(t)
	ctx := context.Background()
	if problems, err := r.Check(ctx, "user", Spec{Definition: userV1}, Against{}); err != nil || problems != nil {
		t.Errorf("no subject: %v %v", problems, err)
	}
	_, err := r.Check(ctx, "user", Spec{Definition: userV1}, Against{Version: 1})
	refused(t, err, fault.NotFound, "subject_not_found")
	register(t, r, "user", Spec{Definition: userV1})
	register(t, r, "user", Spec{Definition: userV2})
	for _, c := range []struct {
		definition string
		against    Against
		problems   int
	}{
		{userV3, Against{}, 1}, {userV3, Against{Mode: "FORWARD"}, 0}, {userV3, Against{Mode: "none"}, 0}, {userV3, Against{Mode: "full_transitive"}, 2},
		{userV3, Against{Version: 1}, 1}, {userV3, Against{Version: Latest}, 1}, {userV1, Against{}, 0}, {userV3, Against{Version: Latest, Mode: "backward_transitive"}, 1},
	} {
		if problems, err := r.Check(ctx, "user", Spec{Definition: c.definition}, c.against); err != nil || len(problems) != c.problems {
			t.Errorf("%+v: %v %v, want %d", c.against, problems, err, c.problems)
		}
	}
	_, err = r.Check(ctx, "user", Spec{Definition: userV1}, Against{Version: 7})
	refused(t, err, fault.NotFound, "version_not_found")
	_, err = r.Check(ctx, "user", Spec{Definition: userV1}, Against{Version: -2})
	refused(t, err, fault.InvalidArgument, "invalid_version")
	_, err = r.Check(ctx, "user", Spec{Definition: userV1}, Against{Mode: "sideways"})
	refused(t, err, fault.InvalidArgument, "invalid_compatibility")
}

func TestCompatibility(t *testing.T) {
	r, _ := open(t)
	ctx := context.Background()
	is := func(subject, want string) {
		t.Helper()
		if got, err := r.Compatibility(subject, true); err != nil || got != want {
			t.Errorf("%q: %s %v, want %s", subject, got, err, want)
		}
	}
	is("", "backward")
	is("s", "backward")
	for _, set := range [][2]string{{"", "FORWARD"}, {"s", "Full_Transitive"}} {
		if err := r.SetCompatibility(ctx, set[0], set[1]); err != nil {
			t.Fatal(err)
		}
	}
	is("", "forward")
	is("s", "full_transitive")
	is("t", "forward")
	_, err := r.Compatibility("t", false)
	refused(t, err, fault.NotFound, "compatibility_not_set")
	refused(t, r.SetCompatibility(ctx, "s", "sideways"), fault.InvalidArgument, "invalid_compatibility")
	if err := r.SetCompatibility(ctx, "s", ""); err != nil {
		t.Fatal(err)
	}
	is("s", "forward")
	if subjects := r.Subjects(All); len(subjects) != 0 {
		t.Errorf("a mode alone makes a subject: %v", subjects)
	}
}

func TestLookupAndDelete(t *testing.T) {
	r, _ := open(t)
	ctx := context.Background()
	_, err := r.Version("user", 1, All)
	refused(t, err, fault.NotFound, "subject_not_found")
	_, err = r.Schema(1)
	refused(t, err, fault.NotFound, "schema_not_found")
	register(t, r, "user", Spec{Definition: userV1})
	register(t, r, "user", Spec{Definition: userV2})
	register(t, r, "copy", Spec{Definition: userV1})
	v, err := r.Version("user", Latest, Live)
	if err != nil || v.Version != 2 || v.ID != 2 || v.Definition != userV2 {
		t.Errorf("latest: %+v %v", v, err)
	}
	_, err = r.Version("user", 3, Live)
	refused(t, err, fault.NotFound, "version_not_found")
	_, err = r.Version("user", 0, Live)
	refused(t, err, fault.InvalidArgument, "invalid_version")
	if v, err := r.Lookup(ctx, "user", Spec{Definition: userV1}, Live); err != nil || v.Version != 1 {
		t.Errorf("lookup: %+v %v", v, err)
	}
	_, err = r.Lookup(ctx, "user", Spec{Definition: userV3}, Live)
	refused(t, err, fault.NotFound, "schema_not_found")
	uses := func(id uint64, show Show) string {
		list, err := r.Uses(id, show)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, u := range list {
			text = append(text, fmt.Sprintf("%s/%d", u.Subject, u.Version))
		}
		return strings.Join(text, " ")
	}
	if got := uses(1, Live); got != "copy/1 user/1" {
		t.Errorf("uses: %s", got)
	}

	_, err = r.DeleteVersion(ctx, "user", 1, true)
	refused(t, err, fault.Conflict, "version_not_deleted")
	if n, err := r.DeleteVersion(ctx, "user", Latest, false); err != nil || n != 2 {
		t.Errorf("delete latest: %d %v", n, err)
	}
	_, err = r.DeleteVersion(ctx, "user", 2, false)
	refused(t, err, fault.NotFound, "version_deleted")
	_, err = r.Version("user", 2, Live)
	refused(t, err, fault.NotFound, "version_not_found")
	if v, err := r.Version("user", Latest, All); err != nil || v.Version != 2 || !v.Deleted {
		t.Errorf("deleted latest: %+v %v", v, err)
	}
	if list, err := r.Versions("user", Deleted); err != nil || len(list) != 1 || list[0].Version != 2 {
		t.Errorf("deleted versions: %v %v", list, err)
	}
	if got := uses(2, Live); got != "" {
		t.Errorf("uses of a deleted version: %s", got)
	}
	// Its compatibility no longer counts, its number does, and its id is the same again.
	if v := register(t, r, "user", Spec{Definition: userV2}); v.Version != 3 || v.ID != 2 {
		t.Errorf("after deletion: %+v", v)
	}
	_, err = r.DeleteSubject(ctx, "user", true)
	refused(t, err, fault.Conflict, "subject_not_deleted")
	if n, err := r.DeleteSubject(ctx, "user", false); err != nil || !slices.Equal(n, []int32{1, 3}) {
		t.Errorf("delete subject: %v %v", n, err)
	}
	_, err = r.DeleteSubject(ctx, "user", false)
	refused(t, err, fault.NotFound, "subject_deleted")
	_, err = r.Versions("user", Live)
	refused(t, err, fault.NotFound, "subject_not_found")
	names := func(show Show) (names []string) {
		for _, s := range r.Subjects(show) {
			names = append(names, s.Name)
		}
		return names
	}
	if live, all, deleted := names(Live), names(All), names(Deleted); fmt.Sprint(live, all, deleted) != "[copy] [copy user] [user]" {
		t.Errorf("subjects: %v %v %v", live, all, deleted)
	}
	if n, err := r.DeleteSubject(ctx, "user", true); err != nil || !slices.Equal(n, []int32{1, 2, 3}) {
		t.Errorf("for good: %v %v", n, err)
	}
	if v := register(t, r, "user", Spec{Definition: userV2}); v.Version != 4 {
		t.Errorf("numbers come again: %+v", v)
	}
	count := 0
	if err := r.Schemas(Live, func(Version) bool { count++; return true }); err != nil || count != 2 {
		t.Errorf("%d schemas, %v", count, err)
	}
}

func TestReferences(t *testing.T) {
	r, _ := open(t)
	ctx := context.Background()
	const address = `{"type":"record","name":"Address","fields":[{"name":"zip","type":"string"}]}`
	const person = `{"type":"record","name":"Person","fields":[{"name":"home","type":"Address"}]}`
	refs := []Reference{{Name: "Address", Subject: "address", Version: 1}}
	_, _, err := r.Register(ctx, "person", Spec{Definition: person, References: refs})
	refused(t, err, fault.InvalidArgument, "invalid_schema")
	register(t, r, "address", Spec{Definition: address})
	_, _, err = r.Register(ctx, "person", Spec{Definition: person})
	refused(t, err, fault.InvalidArgument, "invalid_schema")
	v := register(t, r, "person", Spec{Definition: person, References: refs})
	if !slices.Equal(v.References, refs) {
		t.Errorf("%+v", v)
	}
	if ids, err := r.ReferencedBy("address", Latest); err != nil || !slices.Equal(ids, []uint64{v.ID}) {
		t.Errorf("referenced by %v %v", ids, err)
	}
	_, err = r.DeleteVersion(ctx, "address", 1, false)
	refused(t, err, fault.Conflict, "referenced")
	if _, err := r.DeleteSubject(ctx, "person", false); err != nil {
		t.Fatal(err)
	}
	if ids, err := r.ReferencedBy("address", 1); err != nil || len(ids) != 0 {
		t.Errorf("referenced by %v %v", ids, err)
	}
	if _, err := r.DeleteVersion(ctx, "address", 1, false); err != nil {
		t.Fatal(err)
	}
	// What is registered stays readable by a registry that has nothing cached.
	fresh := New(Config{Store: r.store})
	view := r.store.View()
	s, err := view.Schema(v.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.load(view, s, 0); err != nil {
		t.Errorf("load: %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	r, _ := open(t)
	for i := range cachedSchemas + 10 {
		register(t, r, fmt.Sprint("s", i), Spec{Type: "string", Definition: fmt.Sprint(i)})
	}
	if n := len(r.parsed.entries); n != cachedSchemas || len(r.parsed.order) != n {
		t.Errorf("%d entries", n)
	}
	if r.parsed.get(1) != nil || r.parsed.get(cachedSchemas+10) == nil {
		t.Error("not the oldest goes")
	}
}
