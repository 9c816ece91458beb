package schema

import (
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
)

func parse(t *testing.T, kind Type, definition string, refs ...Reference) *Parsed {
	t.Helper()
	p, err := Parse(kind, definition, refs)
	if err != nil {
		t.Fatalf("parse %s: %v", definition, err)
	}
	return p
}

func TestParseType(t *testing.T) {
	for name, want := range map[string]Type{
		"": Avro, "AVRO": Avro, "avro": Avro, "JSON": JSONSchema, "json_schema": JSONSchema, "PROTOBUF": Protobuf, "String": String, "bytes": Bytes, "number": Number, "int64": Number,
	} {
		if got, err := ParseType(name); err != nil || got != want {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if _, err := ParseType("xml"); fault.KindOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "json_schema") {
		t.Errorf("xml: %v", err)
	}
}

func TestFingerprintIgnoresWhatMeansNothing(t *testing.T) {
	const user = `syntax = "proto3"; message User { string name = 1; }`
	same := []struct {
		kind Type
		a, b string
	}{
		{Avro, `{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}`, "{ \"name\":\"A\",\n\"type\":\"record\",\"fields\":[{\"type\":\"int\",\"name\":\"x\"}]}"},
		{JSONSchema, `{"type":"object","properties":{}}`, "{\"properties\" : { }, \"type\":\"object\"}"},
		{Protobuf, user, "// who\nsyntax=\"proto3\";\n\nmessage User /* they */ {\n  string   name=1 ;\n}\n"},
	}
	for _, c := range same {
		if a, b := parse(t, c.kind, c.a), parse(t, c.kind, c.b); a.Fingerprint() != b.Fingerprint() || a.Canonical() != b.Canonical() {
			t.Errorf("%s: %s and %s differ", c.kind, a.Canonical(), b.Canonical())
		}
		if again := parse(t, c.kind, parse(t, c.kind, c.b).Canonical()); again.Fingerprint() != parse(t, c.kind, c.a).Fingerprint() {
			t.Errorf("%s: the canonical form is another schema", c.kind)
		}
	}
	differ := []struct {
		kind Type
		a, b string
	}{
		{Avro, `{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}`, `{"type":"record","name":"A","fields":[{"name":"x","type":"int","default":1}]}`},
		{JSONSchema, `{"minimum":1}`, `{"minimum":2}`},
		{Protobuf, user, `syntax = "proto3"; message User { string names = 1; }`},
		{Protobuf, user, `syntax = "proto3"; message User { string name = 1 [json_name="a b"]; }`},
	}
	for _, c := range differ {
		if parse(t, c.kind, c.a).Fingerprint() == parse(t, c.kind, c.b).Fingerprint() {
			t.Errorf("%s: %s and %s are one", c.kind, c.a, c.b)
		}
	}
	text, number := parse(t, String, ""), parse(t, Number, "")
	if text.Fingerprint() == number.Fingerprint() || !strings.HasPrefix(text.Fingerprint(), "sha256:") {
		t.Error("types do not count")
	}
}

// TestInvalid refuses definitions, and says why in words.
func TestInvalid(t *testing.T) {
	deep := func(open, close string, n int) string { return strings.Repeat(open, n) + strings.Repeat(close, n) }
	bomb := func() string { // each of 40 definitions applies the next one twice
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/a0","$defs":{`)
		for i := range 40 {
			b.WriteString(`"a` + string(rune('0'+i/10)) + string(rune('0'+i%10)) + `":{"allOf":[{"$ref":"#/$defs/a` + string(rune('0'+(i+1)/10)) + string(rune('0'+(i+1)%10)) + `"},{"$ref":"#/$defs/a` + string(rune('0'+(i+1)/10)) + string(rune('0'+(i+1)%10)) + `"}]},`)
		}
		b.WriteString(`"a40":{"type":"string"}}}`)
		return strings.Replace(b.String(), "a0\"", "a00\"", 1)
	}
	for _, c := range []struct {
		name       string
		kind       Type
		definition string
		want       string
	}{
		{"no json", Avro, `{`, "not JSON"},
		{"two values", Avro, `"int" "int"`, "behind the value"},
		{"unknown avro type", Avro, `"foo"`, "foo"},
		{"unresolved reference", Avro, `{"type":"record","name":"A","fields":[{"name":"b","type":"com.B"}]}`, "com.B"},
		{"bad default", Avro, `{"type":"record","name":"A","fields":[{"name":"b","type":"int","default":"x"}]}`, "default"},
		{"deep avro", Avro, deep(`{"type":"array","items":`, `}`, 200), "nest deeper"},
		{"bad keyword", JSONSchema, `{"type":"strin"}`, "strin"},
		{"bad pattern", JSONSchema, `{"pattern":"("}`, "missing closing )"},
		{"look-ahead", JSONSchema, `{"pattern":"(?=a)"}`, "no look-ahead"},
		{"remote reference", JSONSchema, `{"$ref":"http://example.com/other.json"}`, "not among the references"},
		{"file reference", JSONSchema, `{"$ref":"file:///etc/passwd"}`, "not among the references"},
		{"foreign meta-schema", JSONSchema, `{"$schema":"http://example.com/meta"}`, "not known"},
		{"loop in place", JSONSchema, `{"$ref":"#"}`, "leads back"},
		{"loop over two", JSONSchema, `{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}}`, "leads back"},
		{"bomb", JSONSchema, bomb(), "too many schemas"},
		{"huge number", JSONSchema, `{"minimum":1e999999}`, "out of range"},
		{"tiny number", JSONSchema, `{"multipleOf":1e-999999}`, "out of range"},
		{"too many schemas", JSONSchema, `{"anyOf":[` + strings.Repeat("true,", 20_000) + `true]}`, "more than 20000 schemas"},
		{"deep json", JSONSchema, deep(`{"not":`, `}`, 200), "nest deeper"},
		{"huge pattern", JSONSchema, `{"pattern":"(.*a.{0,500}){2}$"}`, "repeats too much"},
		{"no proto", Protobuf, `message`, "syntax error"},
		{"nothing in it", Protobuf, `syntax = "proto3";`, "no message"},
		{"unknown import", Protobuf, `syntax = "proto3"; import "other.proto"; message A {}`, "other.proto"},
		{"imports itself", Protobuf, `syntax = "proto3"; import "schema.proto"; message A {}`, "schema.proto"},
		{"deep proto", Protobuf, `syntax = "proto3";` + deep("message A {", "}", 200), "nest deeper"},
		{"not text", String, "\xff", "UTF-8"},
		{"too large", Bytes, strings.Repeat("x", MaxDefinition+1), "more than"},
		{"no such type", Type("xml"), "", "no schema type"},
	} {
		start := time.Now()
		p, err := Parse(c.kind, c.definition, nil)
		if err == nil {
			t.Errorf("%s: accepted as %.100s", c.name, p.Canonical())
			continue
		}
		if fault.KindOf(err) != fault.InvalidArgument || fault.DetailsOf(err)["reason"] != ReasonInvalid || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.want)) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s took %v", c.name, took)
		}
	}
}

func TestReferences(t *testing.T) {
	address := parse(t, Avro, `{"type":"record","name":"Address","namespace":"com","fields":[{"name":"zip","type":"string"}]}`)
	user := parse(t, Avro, `{"type":"record","name":"User","namespace":"com","fields":[{"name":"a","type":"com.Address"},{"name":"b","type":["null","Address"]}]}`, Reference{"com.Address", address})
	if err := user.Validate([]byte{2, 'x', 2, 2, 'y'}); err != nil {
		t.Errorf("avro: %v", err)
	}
	// A reference of a reference need not be named again.
	team := parse(t, Avro, `{"type":"array","items":"com.User"}`, Reference{"com.User", user})
	if err := team.Validate([]byte{2, 2, 'x', 0, 0}); err != nil {
		t.Errorf("avro, two deep: %v", err)
	}
	zip := parse(t, JSONSchema, `{"type":"string","minLength":3}`)
	for _, ref := range []string{"zip.json", "http://example.com/zip.json"} {
		s := parse(t, JSONSchema, `{"properties":{"zip":{"$ref":"`+ref+`"}}}`, Reference{ref, zip})
		if err := s.Validate([]byte(`{"zip":"12"}`)); err == nil || !strings.Contains(err.Error(), "/zip") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	based := parse(t, JSONSchema, `{"$id":"http://example.com/root.json","$ref":"zip.json"}`, Reference{"zip.json", zip})
	if err := based.Validate([]byte(`"12"`)); err == nil {
		t.Error("a reference below $id does not count")
	}
	other := parse(t, Protobuf, `syntax = "proto3"; package o; message Other { string a = 1; }`)
	uses := parse(t, Protobuf, `syntax = "proto3"; import "o/other.proto"; import "google/protobuf/timestamp.proto"; message A { o.Other other = 1; google.protobuf.Timestamp at = 2; }`,
		Reference{"o/other.proto", other})
	if err := uses.Validate([]byte{10, 3, 10, 1, 'x'}); err != nil {
		t.Errorf("protobuf: %v", err)
	}
	if user.Fingerprint() == parse(t, Avro, user.Definition(), Reference{"com.Address", parse(t, Avro, strings.Replace(address.Definition(), "zip", "pin", 1))}).Fingerprint() {
		t.Error("another reference makes no other schema")
	}
	for _, c := range []struct {
		kind Type
		refs []Reference
		want string
	}{
		{Avro, []Reference{{"a", zip}}, "is of type json_schema"},
		{JSONSchema, []Reference{{"a", zip}, {"a", based}}, "two different"},
		{String, []Reference{{"a", parse(t, String, "")}}, "refers to nothing"},
	} {
		if _, err := Parse(c.kind, `"string"`, c.refs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.kind, err, c.want)
		}
	}
}
