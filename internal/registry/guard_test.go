package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/record"
)

func makeTopic(t *testing.T, store meta.Store, name string) (meta.Name, meta.TopicID) {
	t.Helper()
	n, err := meta.ParseTopic(name)
	if err != nil {
		t.Fatal(err)
	}
	id := meta.TopicID{byte(len(name)), 1}
	if _, err := store.Propose(context.Background(), meta.CreateTopic{Name: n, ID: id, Partitions: 1, Dispatch: meta.Reliable}); err != nil {
		t.Fatal(err)
	}
	return n, id
}

func batch(t *testing.T, records ...record.Record) []byte {
	t.Helper()
	b := record.NewBuilder(record.Zstd)
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func value(s string) record.Record { return record.Record{Value: []byte(s)} }

func withHeader(id, s string) record.Record {
	return record.Record{Value: []byte(s), Headers: []record.Header{{Key: "a", Value: []byte("b")}, {Key: HeaderSchemaID, Value: []byte(id)}}}
}

func framed(id uint32, s string) record.Record {
	return record.Record{Value: append(binary.BigEndian.AppendUint32([]byte{0}, id), s...)}
}

func TestGuard(t *testing.T) {
	r, store := open(t)
	ctx := context.Background()
	v1 := register(t, r, "user", Spec{Definition: userV1})
	v2 := register(t, r, "user", Spec{Definition: userV2})
	foreign := register(t, r, "other", Spec{Definition: `"int"`})
	proto := register(t, r, "proto", Spec{Type: "protobuf", Definition: `syntax = "proto3"; message A { string s = 1; message B { int32 i = 1; } } message C {}`})
	name, id := makeTopic(t, store, "default/users")
	protoName, protoID := makeTopic(t, store, "default/protos")

	if g := r.Guard(name, id); g != nil {
		t.Fatal("a topic without a policy has a guard")
	}
	set := func(n meta.Name, s TopicSchema) {
		t.Helper()
		if err := r.SetTopicSchema(ctx, n.String(), s); err != nil {
			t.Fatal(err)
		}
	}
	set(name, TopicSchema{Subject: "user", Policy: "ENFORCE", Validate: true})
	set(protoName, TopicSchema{Subject: "proto", Policy: "enforce", Validate: true})
	const ann, annAged = "\x06ann", "\x06ann\x04"
	users, protos := r.Guard(name, id), r.Guard(protoName, protoID)
	for i, c := range []struct {
		guard *Guard
		rec   record.Record
		want  string // of what does not match
	}{
		{users, value(annAged), ""},
		{users, value(ann), "field age"},
		{users, record.Record{Key: []byte("k")}, ""}, // a tombstone
		{users, value(""), "field name"},
		{users, withHeader(fmt.Sprint(v1.ID), ann), ""},
		{users, withHeader(fmt.Sprint(v2.ID), ann), "field age"},
		{users, withHeader(fmt.Sprint(foreign.ID), "\x02"), "names schema 3, which no version of subject"},
		{users, withHeader("99", ann), "names schema 99"},
		{users, withHeader("x", ann), "is no number"},
		{users, framed(uint32(v1.ID), ann), ""},
		{users, framed(uint32(v2.ID), annAged), ""},
		{users, framed(uint32(v2.ID), ann), "field age"},
		{users, framed(uint32(foreign.ID), "\x02"), "names schema 3"},
		{users, framed(99, annAged), "bytes behind the value"}, // there is no such schema, so it is not framed
		{protos, value("\x0a\x01a"), ""},
		{protos, withHeader(fmt.Sprint(proto.ID), "\x0a\x01a"), ""},
		{protos, framed(uint32(proto.ID), "\x00\x0a\x01a"), ""},
		{protos, framed(uint32(proto.ID), "\x02\x00\x0a\x01a"), ""},
		{protos, framed(uint32(proto.ID), "\x04\x00\x00\x08\x01"), ""},
		{protos, framed(uint32(proto.ID), "\x02\x02"), ""},
		{protos, framed(uint32(proto.ID), "\x02\x02\x0a\x01a"), "has no field 1"},
		{protos, framed(uint32(proto.ID), "\x02\x04"), "has no message"},
		{protos, framed(uint32(proto.ID), ""), "which message"},
		{protos, framed(uint32(proto.ID), "\x01"), "which message"},
		{protos, framed(uint32(proto.ID), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "which message"},
	} {
		err := c.guard.Check(batch(t, record.Record{Key: []byte("k")}, c.rec), 7)
		if c.want == "" {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			continue
		}
		refused(t, err, fault.InvalidArgument, "schema_mismatch")
		if d := fault.DetailsOf(err); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "nothing was written") ||
			d["partition"] != "7" || d["record"] != "1" || d["topic"] != c.guard.topic || d["subject"] != c.guard.policy.Subject {
			t.Errorf("%d: %v %v, want %s", i, err, d, c.want)
		}
	}
	if err := users.Check([]byte("garbage"), 0); fault.KindOf(err) != fault.InvalidArgument {
		t.Errorf("garbage: %v", err)
	}

	// Without validation only what a record names counts.
	set(name, TopicSchema{Subject: "user", Policy: "enforce"})
	names := r.Guard(name, id)
	if names.Is(users) || !names.Is(r.Guard(name, id)) {
		t.Error("guards are not told apart")
	}
	if err := names.Check(batch(t, value("anything"), framed(uint32(v1.ID), "anything")), 0); err != nil {
		t.Errorf("names only: %v", err)
	}
	refused(t, names.Check(batch(t, framed(uint32(foreign.ID), ann)), 0), fault.InvalidArgument, "schema_mismatch")

	// What is deleted is not to be written any more.
	if _, err := r.DeleteVersion(ctx, "user", 1, false); err != nil {
		t.Fatal(err)
	}
	refused(t, names.Check(batch(t, withHeader(fmt.Sprint(v1.ID), ann)), 0), fault.InvalidArgument, "schema_mismatch")
	set(name, TopicSchema{Subject: "nobody", Policy: "enforce"})
	if err := r.Guard(name, id).Check(batch(t, value(ann)), 0); err == nil || !strings.Contains(err.Error(), "has no version") {
		t.Errorf("a subject that is not there: %v", err)
	}
	set(name, TopicSchema{Subject: "user", Policy: "none"})
	if r.Guard(name, id) != nil {
		t.Error("policy none has a guard")
	}
}

func TestWarn(t *testing.T) {
	var log bytes.Buffer
	store := meta.NewMemory()
	timeless := func(_ []string, a slog.Attr) slog.Attr { // some milliseconds look like the values
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	r := New(Config{Store: store, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: timeless}))})
	register(t, r, "n", Spec{Type: "json", Definition: `{"type":"integer","maximum":5}`})
	name, id := makeTopic(t, store, "default/t")
	if err := r.SetTopicSchema(context.Background(), "default/t", TopicSchema{Subject: "n", Policy: "warn", Validate: true}); err != nil {
		t.Fatal(err)
	}
	g := r.Guard(name, id)
	for range 3 {
		if err := g.Check(batch(t, value("1"), value("777"), value("888")), 2); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "partition=2 record=1") || strings.Contains(log.String(), "777") {
		t.Errorf("%d lines: %s", lines, log.String())
	}
	if checked, wrong := counted(t, r.metrics.checked), counted(t, r.metrics.mismatched.WithLabelValues("warn")); checked != 9 || wrong != 6 {
		t.Errorf("%v checked, %v mismatched", checked, wrong)
	}
}

func TestTopicSchema(t *testing.T) {
	store := meta.NewMemory()
	var told []string
	r := New(Config{Store: store, PolicyChanged: func(n meta.Name) { told = append(told, n.String()) }})
	ctx := context.Background()
	_, err := r.TopicSchema("default/t")
	refused(t, err, fault.NotFound, "")
	refused(t, r.SetTopicSchema(ctx, "default/t", TopicSchema{Subject: "s", Policy: "warn"}), fault.NotFound, "")
	makeTopic(t, store, "default/t")
	if got, err := r.TopicSchema("default/t"); err != nil || got != (TopicSchema{Policy: "none"}) {
		t.Errorf("%+v %v", got, err)
	}
	refused(t, r.SetTopicSchema(ctx, "default/t", TopicSchema{Policy: "warn"}), fault.InvalidArgument, "")
	if err := r.SetTopicSchema(ctx, "default/t", TopicSchema{Subject: "s", Policy: "sometimes"}); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
	if err := r.SetTopicSchema(ctx, "default/t", TopicSchema{Subject: "s", Policy: "Warn", Validate: true, SchemaID: 5}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.TopicSchema("default/t"); err != nil || got != (TopicSchema{Subject: "s", Policy: "warn", Validate: true}) {
		t.Errorf("%+v %v", got, err)
	}
	v := register(t, r, "s", Spec{Type: "string"})
	if got, err := r.TopicSchema("default/t"); err != nil || got.SchemaID != v.ID {
		t.Errorf("%+v %v", got, err)
	}
	if err := r.SetTopicSchema(ctx, "default/t", TopicSchema{}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.TopicSchema("default/t"); err != nil || got != (TopicSchema{Policy: "none"}) {
		t.Errorf("%+v %v", got, err)
	}
	if fmt.Sprint(told) != "[default/t default/t]" {
		t.Errorf("told of %v", told)
	}
}
