package schema

import (
	"encoding/base64"
	"testing"
)

// FuzzParse: no definition makes reading it panic or hang, and what was read gets along with itself.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"type":"record","name":"A","fields":[{"name":"x","type":["null","A"]},{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}}]}`,
		`{"type":"object","properties":{"a":{"$ref":"#"}},"oneOf":[{"minimum":1},{"type":"string","pattern":"^a"}]}`,
		`syntax = "proto3"; message A { A a = 1; map<string, A> m = 2; oneof o { int32 i = 3; } } enum E { X = 0; }`,
		`syntax = "proto2"; message A { required group G = 1 { optional int32 x = 1 [default = 3]; } extensions 5; }`, `"int"`, ``, `[`,
	} {
		for kind := range uint8(len(Types())) {
			f.Add(kind, seed)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, definition string) {
		getsAlong(t, Types()[int(kind)%len(Types())], definition)
	})
}

// FuzzDescriptor is FuzzParse for the bytes of descriptors.
func FuzzDescriptor(f *testing.F) {
	for _, text := range []string{
		orderProto, `syntax = "proto2"; message A { required group G = 1 { optional int32 x = 1 [default = 3]; } extensions 5; reserved 8; } extend A { optional string s = 5; }`,
		`edition = "2023"; message A { string s = 1 [features.field_presence = LEGACY_REQUIRED]; }`, `syntax = "proto3"; import public "google/protobuf/any.proto"; service S { rpc R(A) returns (stream A); } message A { reserved "x"; }`,
	} {
		p, err := Parse(Protobuf, text, nil)
		if err != nil {
			f.Fatal(err)
		}
		raw, ok := descriptorBytes(serialized(f, p))
		if !ok {
			f.Fatal("no bytes")
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		getsAlong(t, Protobuf, base64.StdEncoding.EncodeToString(raw))
	})
}

func getsAlong(t *testing.T, kind Type, definition string) {
	p, err := Parse(kind, definition, nil)
	if err != nil {
		return
	}
	again, err := Parse(p.Type(), p.Definition(), nil)
	if err != nil || again.Fingerprint() != p.Fingerprint() {
		t.Fatalf("%q reads otherwise the second time: %v", definition, err)
	}
	if canonical, err := Parse(p.Type(), p.Canonical(), nil); err != nil || canonical.Fingerprint() != p.Fingerprint() {
		t.Fatalf("%q: its canonical form %q is another schema: %v", definition, p.Canonical(), err)
	}
	if found := again.impl.reads(p.impl); found != nil {
		t.Fatalf("%q does not read itself: %v", definition, found)
	}
	if p.Type() == Protobuf {
		described, err := p.Serialized()
		if err != nil {
			t.Fatalf("%q has no descriptor: %v", definition, err)
		}
		other, err := Parse(Protobuf, described, nil)
		if err != nil || other.impl.reads(p.impl) != nil || p.impl.reads(other.impl) != nil {
			t.Fatalf("%q and its descriptor %s do not get along: %v", definition, described, err)
		}
	}
	_ = p.Validate([]byte(definition))
}

// FuzzValidate: no payload makes a check panic or hang.
func FuzzValidate(f *testing.F) {
	schemas := []*Parsed{}
	for kind, definition := range map[Type]string{
		Avro: `{"type":"record","name":"A","fields":[{"name":"x","type":["null","A"]},{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}},
			{"name":"m","type":{"type":"map","values":{"type":"array","items":"null"}}},{"name":"f","type":{"type":"fixed","name":"F","size":2}},{"name":"s","type":"string"}]}`,
		JSONSchema: `{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"items":{"$ref":"#"},"uniqueItems":true},{"type":"string","pattern":"^(a|b)*$"},{"multipleOf":0.1}],"if":{"type":"array"},"then":{"contains":{"type":"integer"}}}`,
		Protobuf:   `syntax = "proto2"; message A { optional A a = 1; repeated E e = 2; repeated group G = 3 { required string s = 1; } repeated fixed32 f = 4; } enum E { X = 0; }`,
		Number:     "", String: "",
	} {
		p, err := Parse(kind, definition, nil)
		if err != nil {
			f.Fatal(err)
		}
		schemas = append(schemas, p)
	}
	for _, seed := range []string{"", "\x00", `{"a":[1,2,{"a":"b"}]}`, "\x0a\x02\x0a\x00", "\x13\x0a\x01s\x14", "\x02\x00\x00\x02\x02a\x04\x00\x00ab\x02x", "1e400"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, payload []byte) {
		for _, p := range schemas {
			_ = p.Validate(payload)
		}
	})
}
