package schema

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/avro"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestValidate(t *testing.T) {
	const record = `{"type":"record","name":"A","fields":[{"name":"s","type":"string"},{"name":"u","type":["null","long"]},{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}]}`
	const object = `{"type":"object","properties":{"age":{"type":"integer","minimum":0},"name":{"type":"string","pattern":"^[a-z]+$"}},"required":["age"],"additionalProperties":false}`
	const proto2 = `syntax = "proto2"; message A { required int32 a = 1; optional string s = 2; repeated int32 r = 3; optional E e = 4; optional A inner = 5; repeated group G = 6 { optional int32 x = 1; } extensions 100 to 200; enum E { X = 0; Y = 1; } }`
	const proto3 = `syntax = "proto3"; message First { string s = 1; map<string, int32> m = 2; E e = 3; repeated E es = 4; double d = 5; fixed32 f = 6; } enum E { X = 0; }`
	for _, c := range []struct {
		kind       Type
		definition string
		payload    string
		want       string // "" where it matches
	}{
		{Bytes, "", "\xff\x00", ""},
		{String, "", "häuser", ""},
		{String, "", "\xff", "not UTF-8"},
		{Number, "", "-1.5e3", ""},
		{Number, "", " 12\n", ""},
		{Number, "", "\x00\x01\x02\x03\x04\x05\x06\x07", ""},
		{Number, "", "\xff\x01\x02\x03", ""},
		{Number, "", `"12"`, ""}, // four bytes
		{Number, "", `"1"`, "no number"},
		{Number, "", "1x", "no number"},
		{Number, "", "", "no number"},
		{Number, "", "null!", "no number"},

		{Avro, `"null"`, "", ""},
		{Avro, `"null"`, "x", "behind"},
		{Avro, `"int"`, "\x02", ""},
		{Avro, `"int"`, "\xfe\xff\xff\xff\x1f", "32 bits"},
		{Avro, `"long"`, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ""},
		{Avro, `"long"`, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "64 bits"},
		{Avro, `"boolean"`, "\x02", "no boolean"},
		{Avro, `"float"`, "abc", "ends in the middle"},
		{Avro, `"double"`, "abcdefgh", ""},
		{Avro, `"bytes"`, "\x04\xff\xfe", ""},
		{Avro, `"bytes"`, "\x06ab", "ends in the middle"},
		{Avro, `"bytes"`, "\x01ab", "ends in the middle"},
		{Avro, `"string"`, "\x02\xff", "UTF-8"},
		{Avro, `{"type":"fixed","name":"F","size":2}`, "ab", ""},
		{Avro, `{"type":"array","items":"int"}`, "\x04\x02\x04\x00", ""},
		{Avro, `{"type":"array","items":"int"}`, "\x03\x04\x02\x04\x00", ""}, // a block with its size
		{Avro, `{"type":"array","items":"int"}`, "\x04\x02\x04", "ends in the middle"},
		{Avro, `{"type":"map","values":"int"}`, "\x02\x02a\x02\x00", ""},
		{Avro, `{"type":"array","items":"null"}`, "\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "more values than"},
		{Avro, `{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]}]}`, strings.Repeat("\x02", 3000), "nests deeper"},
		{Avro, record, "\x02a\x02\x08\x02", ""},
		{Avro, record, "\x02a\x04\x08\x02", "field u: the union has no branch 2"},
		{Avro, record, "\x02a\x00\x04", "field e: enum E has no symbol 2"},
		{Avro, record, "", "field s"},

		{JSONSchema, object, `{"age":3,"name":"ab"}`, ""},
		{JSONSchema, object, `{"age":-1}`, "/age"},
		{JSONSchema, object, `{"age":1.0}`, ""},
		{JSONSchema, object, `{"age":1.5}`, "/age"},
		{JSONSchema, object, `{"name":"ab"}`, "age"},
		{JSONSchema, object, `{"age":3,"x":1}`, "x"},
		{JSONSchema, object, `{"age":3,"name":"AB"}`, "/name"},
		{JSONSchema, object, `{"age":3`, "not JSON"},
		{JSONSchema, object, `{"age":3}{}`, "behind"},
		{JSONSchema, object, ``, "not JSON"},
		{JSONSchema, `true`, `1e999999`, "out of range"},
		{JSONSchema, `true`, `1e-999999`, "out of range"},
		{JSONSchema, `true`, strings.Repeat("[", 200) + strings.Repeat("]", 200), "nests deeper"},
		{JSONSchema, `{"items":[{"type":"string"}],"additionalItems":false}`, `["a"]`, ""},
		{JSONSchema, `{"items":[{"type":"string"}],"additionalItems":false}`, `["a",1]`, "additionalItem"},
		{JSONSchema, `{"$schema":"https://json-schema.org/draft/2020-12/schema","prefixItems":[{"type":"string"}],"items":false}`, `["a",1]`, "/1"},
		{JSONSchema, `{"format":"date"}`, `"2024-02-30"`, "date"},

		{Protobuf, proto2, "\x08\x01", ""},
		{Protobuf, proto2, "", "lacks the required field a"},
		{Protobuf, proto2, "\x08\x01\x12\x01a\x18\x01\x1a\x02\x01\x02", ""}, // r, packed and not
		{Protobuf, proto2, "\x08\x01\x20\x02", "enum E has no value 2"},
		{Protobuf, proto2, "\x08\x01\x2a\x00", "field inner: message A lacks"},
		{Protobuf, proto2, "\x08\x01\x33\x08\x01\x34", ""},
		{Protobuf, proto2, "\x08\x01\x33\x10\x01\x34", "message G has no field 2"},
		{Protobuf, proto2, "\x08\x01\xa2\x06\x00", ""}, // an extension
		{Protobuf, proto2, "\x08\x01\x3a\x00", "has no field 7"},
		{Protobuf, proto2, "\x0a\x01a", "another type"},
		{Protobuf, proto2, "\x08", "message A"},
		{Protobuf, proto2, "\x08\x01\x1a\x02\x01\xff", "field r"},
		{Protobuf, proto3, "", ""},
		{Protobuf, proto3, "\x0a\x01\xff", "UTF-8"},
		{Protobuf, proto3, "\x12\x05\x0a\x01k\x10\x05", ""},
		{Protobuf, proto3, "\x12\x05\x0a\x01k\x18\x05", "has no field 3"},
		{Protobuf, proto3, "\x18\x09", ""}, // enums of proto3 are open
		{Protobuf, proto3, "\x31abcdefgh", "another type"},
	} {
		p := parse(t, c.kind, c.definition)
		err := p.Validate([]byte(c.payload))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %s, %q: %v", c.kind, c.definition, c.payload, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %s, %q: %v, want %s", c.kind, c.definition, c.payload, err, c.want)
		}
	}
}

func TestValidateMessage(t *testing.T) {
	p := parse(t, Protobuf, `syntax = "proto3"; message A { string s = 1; message B { int32 i = 1; } } message C { bool b = 1; }`)
	for _, c := range []struct {
		indexes []int
		payload string
		ok      bool
	}{
		{nil, "\x0a\x01a", true}, {[]int{0}, "\x0a\x01a", true}, {[]int{0, 0}, "\x08\x05", true}, {[]int{1}, "\x08\x01", true},
		{[]int{0, 0}, "\x0a\x01a", false}, {[]int{2}, "", false}, {[]int{0, 1}, "", false}, {[]int{-1}, "", false},
	} {
		if err := p.ValidateMessage(c.indexes, []byte(c.payload)); (err == nil) != c.ok {
			t.Errorf("%v %q: %v", c.indexes, c.payload, err)
		}
	}
}

// TestAvroWalkAgreesWithTheLibrary: what the library encodes, the walk takes.
func TestAvroWalkAgreesWithTheLibrary(t *testing.T) {
	const definition = `{"type":"record","name":"R","namespace":"n","fields":[
		{"name":"b","type":"boolean"},{"name":"i","type":"int"},{"name":"l","type":"long"},{"name":"f","type":"float"},{"name":"d","type":"double"},
		{"name":"y","type":"bytes"},{"name":"s","type":"string"},{"name":"x","type":{"type":"fixed","name":"F","size":3}},{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}},
		{"name":"a","type":{"type":"array","items":"E"}},{"name":"m","type":{"type":"map","values":["null","n.F"]}},{"name":"next","type":["null","R"]}]}`
	value := func(next any) map[string]any {
		return map[string]any{
			"b": true, "i": math.MinInt32, "l": int64(math.MinInt64), "f": float32(1), "d": 2.5, "y": []byte{0xff}, "s": "ü", "x": []byte{1, 2, 3}, "e": "B",
			"a": []any{"A", "B"}, "m": map[string]any{"k": nil, "l": []byte{1, 2, 3}}, "next": next,
		}
	}
	payload, err := avro.MustParse(definition).Encode(value(value(nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := parse(t, Avro, definition)
	if err := p.Validate(payload); err != nil {
		t.Fatal(err)
	}
	for i := range payload { // no prefix of it is whole
		if p.Validate(payload[:i]) == nil {
			t.Errorf("%d of %d bytes are taken for a value", i, len(payload))
		}
	}
}

func numbersTo(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String() + "-1"
}

// TestBombs: small schemas and payloads that would take for ever are refused in time.
func TestBombs(t *testing.T) {
	branching := `{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}},"maxProperties":1}]}`
	nested := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	deepProto := func() []byte {
		var b []byte
		for range 5000 {
			b = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
		}
		return b
	}
	for _, c := range []struct {
		name       string
		kind       Type
		definition string
		payload    string
		want       string
	}{
		{"branching recursion", JSONSchema, branching, nested, "too long"},
		{"branching recursion, a little of it", JSONSchema, branching, `{"a":{"a":{"a":1}}}`, ""},
		{"large pattern over a large text", JSONSchema, `{"pattern":"(.*a.{0,300}){2}$"}`, `"` + strings.Repeat("ab", 1<<19) + `"`, "too long"},
		{"large text", JSONSchema, `{"pattern":"^[ab]*$"}`, `"` + strings.Repeat("ab", 1<<19) + `"`, ""},
		{"many elements", JSONSchema, `{"items":{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}}`, "[" + strings.Repeat(`{"a":1},`, 100_000) + `{"a":1}]`, ""},
		{"many values to list", JSONSchema, `{"items":{"enum":[` + numbersTo(50_000) + `]}}`, "[" + strings.Repeat(`"a",`, 100_000) + `1]`, "too long"},
		{"deep messages", Protobuf, `syntax = "proto3"; message A { A a = 1; }`, string(deepProto()), "nests deeper"},
		{"items of no bytes", Avro, `{"type":"array","items":{"type":"record","name":"E","fields":[]}}`, "\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "more values"},
	} {
		start := time.Now()
		err := parse(t, c.kind, c.definition).Validate([]byte(c.payload))
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.300v, want %q", c.name, err, c.want)
		}
		took := time.Since(start)
		if took > time.Minute { // what would take for ever does not end by then either, and a slow machine is done with the others
			t.Errorf("%s took %v", c.name, took)
		}
		t.Logf("%s: %v", c.name, took)
	}
}
