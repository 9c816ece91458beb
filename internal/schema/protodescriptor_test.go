package schema

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

const orderProto = `syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Order {
  message Item { string name = 1; repeated int32 sizes = 2; }
  int64 id = 1; map<string, Item> items = 2; oneof how { string card = 3; bool cash = 4; } google.protobuf.Timestamp at = 5; State state = 6; optional string note = 7;
}
enum State { NEW = 0; PAID = 1; }`

func serialized(t testing.TB, p *Parsed) string {
	t.Helper()
	text, err := p.Serialized()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// encode returns a definition that is the base64 of a descriptor.
func encode(t testing.TB, d *descriptorpb.FileDescriptorProto) string {
	t.Helper()
	raw, err := proto.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func decode(t testing.TB, definition string) *descriptorpb.FileDescriptorProto {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(definition)
	d := &descriptorpb.FileDescriptorProto{}
	if err == nil {
		err = proto.Unmarshal(raw, d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDescriptor: a schema means the same as text and as descriptor.
func TestDescriptor(t *testing.T) {
	for _, text := range []string{
		orderProto,
		`syntax = "proto2"; message A { required group G = 1 { optional int32 x = 1 [default = 3]; } optional E e = 2 [default = Y]; extensions 5 to 9; reserved 10; } extend A { optional string more = 5; } enum E { X = 0; Y = 1; }`,
		`edition = "2023"; message A { string s = 1 [features.field_presence = LEGACY_REQUIRED]; repeated int32 n = 2 [features.repeated_field_encoding = EXPANDED]; }`,
		`syntax = "proto3"; import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { string tag = 50001; } message A { string s = 1 [(tag) = "x"]; }`,
	} {
		asText := parse(t, Protobuf, text)
		described := parse(t, Protobuf, serialized(t, asText))
		for _, mode := range Modes() {
			if found := Check(mode, described, []*Parsed{asText}); found != nil {
				t.Errorf("%s after its text, %s: %v", text, mode, found)
			}
			if found := Check(mode, asText, []*Parsed{described}); found != nil {
				t.Errorf("%s after its descriptor, %s: %v", text, mode, found)
			}
		}
		if again := serialized(t, described); again != described.Definition() {
			t.Errorf("%s: a descriptor is answered as %s", text, again)
		}
		if got, want := decode(t, described.Canonical()), decode(t, described.Definition()); got.Name != nil || len(got.MessageType) != len(want.MessageType) {
			t.Errorf("%s: canonical form %v", text, got)
		}
		if !described.Same(asText) || !asText.Same(described) || described.Fingerprint() == asText.Fingerprint() {
			t.Errorf("%s and its descriptor are two", text)
		}
		// Neither the file's path nor places in its text make it another schema.
		other := decode(t, described.Definition())
		other.Name = proto.String("shop/order.proto")
		other.SourceCodeInfo = &descriptorpb.SourceCodeInfo{Location: []*descriptorpb.SourceCodeInfo_Location{{Path: []int32{4, 0}, Span: []int32{1, 2, 3}, LeadingComments: proto.String("who")}}}
		for _, same := range []string{encode(t, other), "\n" + described.Definition() + "\n", described.Canonical()} {
			if p := parse(t, Protobuf, same); p.Fingerprint() != described.Fingerprint() || p.Canonical() != described.Canonical() {
				t.Errorf("%s: %s is another schema", text, same)
			}
		}
		for _, m := range other.MessageType { // generated code has no JSON names
			for _, f := range m.Field {
				f.JsonName = nil
			}
		}
		if bare := parse(t, Protobuf, encode(t, other)); !bare.Same(asText) {
			t.Errorf("%s: without JSON names it is another schema", text)
		}
		other.MessageType[0].Name = proto.String("Other")
		if changed, err := Parse(Protobuf, encode(t, other), nil); err == nil && (changed.Fingerprint() == described.Fingerprint() || changed.Same(asText)) {
			t.Errorf("%s: another name makes no other schema", text)
		}
	}
	if _, err := parse(t, Avro, `"int"`).Serialized(); err == nil {
		t.Error("an Avro schema has a descriptor")
	}
}

// TestDescriptorDecides: payloads and changes are held against a descriptor as they are against text.
func TestDescriptorDecides(t *testing.T) {
	described := parse(t, Protobuf, serialized(t, parse(t, Protobuf, orderProto)))
	for _, c := range []struct {
		message []int
		payload string
		ok      bool
	}{
		{nil, "\x08\x07\x2a\x02\x08\x01", true}, {[]int{0, 0}, "\x0a\x01a\x12\x01\x05", true},
		{nil, "\x0a\x01a", false}, {[]int{0, 0}, "\x0a\x01\xff", false}, {nil, "\x40\x01", false}, {[]int{1}, "", false},
	} {
		if err := described.ValidateMessage(c.message, []byte(c.payload)); err == nil != c.ok {
			t.Errorf("%v %x: %v", c.message, c.payload, err)
		}
	}
	broken := parse(t, Protobuf, strings.Replace(orderProto, "int64 id = 1", "string id = 1", 1))
	for _, newer := range []*Parsed{broken, parse(t, Protobuf, serialized(t, broken))} {
		if found := Check(Backward, newer, []*Parsed{described}); len(found) != 1 {
			t.Errorf("a field of another type: %v", found)
		}
	}
}

// TestDescriptorReferences: text and descriptors import each other by the names of their references.
func TestDescriptorReferences(t *testing.T) {
	item := parse(t, Protobuf, `syntax = "proto3"; package o; message Item { string a = 1; }`)
	const uses = `syntax = "proto3"; import "o/item.proto"; message A { o.Item item = 1; }`
	described := parse(t, Protobuf, serialized(t, item))
	top := serialized(t, parse(t, Protobuf, uses, Reference{"o/item.proto", item}))
	other := parse(t, Protobuf, `syntax = "proto3"; package o; message Item { string a = 1; string b = 2; }`)
	whole, bare := parse(t, Protobuf, uses, Reference{"o/item.proto", item}), parse(t, Protobuf, top, Reference{"o/item.proto", described})
	if !whole.Same(bare) || !bare.Same(whole) {
		t.Error("descriptors that refer to descriptors are not the same as text that refers to text")
	}
	if changed := parse(t, Protobuf, top, Reference{"o/item.proto", other}); whole.Same(changed) || changed.Same(whole) {
		t.Error("another reference makes no other schema")
	}
	for _, definition := range []string{uses, top} {
		for _, reference := range []*Parsed{item, described} {
			p := parse(t, Protobuf, definition, Reference{"o/item.proto", reference})
			if err := p.Validate([]byte("\x0a\x03\x0a\x01x")); err != nil {
				t.Error(err)
			}
			if err := p.Validate([]byte("\x0a\x02\x08\x01")); err == nil {
				t.Error("what a reference describes is not looked at")
			}
		}
		if _, err := Parse(Protobuf, definition, []Reference{{"o/other.proto", described}}); err == nil || !strings.Contains(err.Error(), "o/item.proto") {
			t.Errorf("a missing reference: %v", err)
		}
	}
}

func TestInvalidDescriptor(t *testing.T) {
	file := func(change func(m *descriptorpb.DescriptorProto)) string {
		d := decode(t, serialized(t, parse(t, Protobuf, `syntax = "proto3"; message A { message B {} B b = 1; string s = 2; }`)))
		change(d.MessageType[0])
		return encode(t, d)
	}
	deep := file(func(m *descriptorpb.DescriptorProto) {
		for range 200 {
			inner := &descriptorpb.DescriptorProto{Name: proto.String("C")}
			m.NestedType = append(m.NestedType, inner)
			m = inner
		}
	})
	raw := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	for _, c := range []struct{ name, definition, want string }{
		{"other bytes", raw([]byte("no descriptor at all")), "neither a .proto file nor base64"},
		{"cut short", raw([]byte{0x22, 0x7f, 0x0a}), "neither a .proto file nor base64"},
		{"cut short inside", raw([]byte{0x22, 0x02, 0x0a, 0x7f}), "neither a .proto file nor base64"},
		{"nothing in it", encode(t, &descriptorpb.FileDescriptorProto{Syntax: proto.String("proto3"), Package: proto.String("a")}), "no message"},
		{"no name", file(func(m *descriptorpb.DescriptorProto) { m.Name = nil }), "name"},
		{"bad name", file(func(m *descriptorpb.DescriptorProto) { m.Name = proto.String("a b") }), "name"},
		{"number zero", file(func(m *descriptorpb.DescriptorProto) { m.Field[0].Number = proto.Int32(0) }), "number"},
		{"number twice", file(func(m *descriptorpb.DescriptorProto) { m.Field[1].Number = proto.Int32(1) }), "conflicting fields"},
		{"no such oneof", file(func(m *descriptorpb.DescriptorProto) { m.Field[0].OneofIndex = proto.Int32(7) }), "oneof"},
		{"negative oneof", file(func(m *descriptorpb.DescriptorProto) { m.Field[0].OneofIndex = proto.Int32(-1) }), "oneof"},
		{"no such kind", file(func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Type = descriptorpb.FieldDescriptorProto_Type(99).Enum()
		}), "cannot resolve type"},
		{"no such type", file(func(m *descriptorpb.DescriptorProto) { m.Field[0].TypeName = proto.String(".A.Z") }), "A.Z"},
		{"unknown import", encode(t, &descriptorpb.FileDescriptorProto{Dependency: []string{"other.proto"}, MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("A")}}}), "other.proto"},
		{"imports itself", encode(t, &descriptorpb.FileDescriptorProto{Dependency: []string{protoRoot}, MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("A")}}}), protoRoot},
		{"deep", deep, "recursion"},
		{"nameless messages", raw(bytes.Repeat([]byte{0x22, 0}, 390_000)), "name"},
		{"nameless fields", raw(append([]byte{0x22, 0xe0, 0xcd, 0x2f}, bytes.Repeat([]byte{0x12, 0}, 390_000)...)), "name"},
	} {
		start := time.Now()
		p, err := Parse(Protobuf, c.definition, nil)
		if err == nil {
			t.Errorf("%s: accepted as %.100s", c.name, p.Canonical())
			continue
		}
		if fault.KindOf(err) != fault.InvalidArgument || fault.DetailsOf(err)["reason"] != ReasonInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.500v, want %s", c.name, err, c.want)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s took %v", c.name, took)
		}
	}
}
