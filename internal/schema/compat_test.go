package schema

import (
	"slices"
	"strings"
	"testing"
)

// change is an old definition, a new one, and the rules that break in each direction; "" for none, "*" for any.
type change struct {
	name              string
	old, new          string
	backward, forward string
}

// judge checks both directions of every change, and that each definition gets along with itself.
func judge(t *testing.T, kind Type, changes []change) {
	t.Helper()
	for _, c := range changes {
		older, newer := parse(t, kind, c.old), parse(t, kind, c.new)
		for _, side := range []struct {
			mode Mode
			want string
		}{{Backward, c.backward}, {Forward, c.forward}} {
			found := Check(side.mode, newer, []*Parsed{older})
			if found == nil != (side.want == "") {
				t.Errorf("%s, %s: %v, want %q", c.name, side.mode, found, side.want)
				continue
			}
			for _, want := range strings.Fields(side.want) {
				if want != "*" && !slices.ContainsFunc(found, func(i Incompatibility) bool { return i.Rule == want }) {
					t.Errorf("%s, %s: %v, want %s", c.name, side.mode, found, want)
				}
			}
			for _, i := range found {
				if i.Direction != string(side.mode) && i.Direction != "" || i.Path == "" || i.Rule == "" || i.Detail == "" || strings.Contains(i.String(), "\n") {
					t.Errorf("%s: %+v", c.name, i)
				}
			}
		}
		for _, definition := range []string{c.old, c.new} { // past the shortcut for equal fingerprints
			a, b := parse(t, kind, definition), parse(t, kind, definition)
			if found := a.impl.reads(b.impl); found != nil {
				t.Errorf("%s: %s does not read itself: %v", c.name, definition, found)
			}
		}
	}
}

func TestModes(t *testing.T) {
	object := func(required string) *Parsed {
		return parse(t, JSONSchema, `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":[`+required+`]}`)
	}
	v1, v2, v3 := object(`"a"`), object(``), object(`"a","b"`)
	for _, c := range []struct {
		mode Mode
		next *Parsed
		olds []*Parsed
		want int
	}{
		{None, v3, []*Parsed{v1, v2}, 0},
		{Backward, v2, []*Parsed{v3, v1}, 0},
		{Backward, v1, []*Parsed{v3, v2}, 1},
		{Backward, v1, []*Parsed{v2, v3}, 0},
		{BackwardTransitive, v1, []*Parsed{v2, v3}, 1},
		{Forward, v1, []*Parsed{v3, v2}, 0},
		{Forward, v2, []*Parsed{v3, v1}, 1},
		{ForwardTransitive, v1, []*Parsed{v3, v2}, 1},
		{Full, v1, []*Parsed{v3}, 1},
		{Full, v1, []*Parsed{v3, v1}, 0},
		{FullTransitive, v1, []*Parsed{v3, v2, v1}, 2},
		{FullTransitive, v1, nil, 0},
		{Backward, parse(t, String, ""), []*Parsed{v1}, 1},
		{None, parse(t, String, ""), []*Parsed{v1}, 0},
		{Full, parse(t, String, "other"), []*Parsed{parse(t, String, "")}, 0},
	} {
		if found := Check(c.mode, c.next, c.olds); len(found) != c.want {
			t.Errorf("%s: %v, want %d", c.mode, found, c.want)
		}
	}
	for _, name := range []string{"NONE", "Backward", "full_transitive"} {
		if m, err := ParseMode(name); err != nil || !strings.EqualFold(string(m), name) {
			t.Errorf("%s: %v %v", name, m, err)
		}
	}
	if _, err := ParseMode("sideways"); err == nil {
		t.Error("sideways is a mode")
	}
}

func TestAvroCompatibility(t *testing.T) {
	record := func(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }
	enum := func(rest string) string { return record(`{"name":"e","type":{"type":"enum","name":"E",` + rest + `}}`) }
	judge(t, Avro, []change{
		{"same", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"int","doc":"x"}`), "", ""},
		{"field with a default added", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"int"},{"name":"b","type":"int","default":0}`), "", ""},
		{"field without a default added", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"int"},{"name":"b","type":"int"}`), "*", ""},
		{"field with a default removed", record(`{"name":"a","type":"int"},{"name":"b","type":"int","default":0}`), record(`{"name":"a","type":"int"}`), "", ""},
		{"field without a default removed", record(`{"name":"a","type":"int"},{"name":"b","type":"int"}`), record(`{"name":"a","type":"int"}`), "", "*"},
		{"int to long", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"long"}`), "", "*"},
		{"int to double", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"double"}`), "", "*"},
		{"int to string", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":"string"}`), "*", "*"},
		{"string to bytes", record(`{"name":"a","type":"string"}`), record(`{"name":"a","type":"bytes"}`), "", ""},
		{"made nullable", record(`{"name":"a","type":"int"}`), record(`{"name":"a","type":["null","int"]}`), "", "*"},
		{"renamed with an alias", record(`{"name":"a","type":"int"}`), record(`{"name":"b","type":"int","aliases":["a"]}`), "", "*"},
		{"record renamed", record(`{"name":"a","type":"int"}`), strings.Replace(record(`{"name":"a","type":"int"}`), `"R"`, `"S"`, 1), "*", "*"},
		{"symbol added", enum(`"symbols":["A"]`), enum(`"symbols":["A","B"]`), "", "*"},
		{"symbol removed with a default", enum(`"symbols":["A","B"],"default":"A"`), enum(`"symbols":["A"],"default":"A"`), "", ""},
		{"fixed grown", record(`{"name":"f","type":{"type":"fixed","name":"F","size":4}}`), record(`{"name":"f","type":{"type":"fixed","name":"F","size":8}}`), "*", "*"},
		{"items changed", `{"type":"array","items":"int"}`, `{"type":"array","items":"string"}`, "*", "*"},
		{"array to map", `{"type":"array","items":"int"}`, `{"type":"map","values":"int"}`, "*", "*"},
		{"branch added to a union", `["null","int"]`, `["null","int","string"]`, "", "*"},
		{"recursive", record(`{"name":"n","type":["null","R"]}`), record(`{"name":"n","type":["null","R"]},{"name":"a","type":"int","default":1}`), "", ""},
		{"decimal scale", `{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}`, `{"type":"bytes","logicalType":"decimal","precision":4,"scale":1}`, "*", "*"},
	})
	found := Check(Backward, parse(t, Avro, record(`{"name":"a","type":"int"},{"name":"b","type":"int"}`)), []*Parsed{parse(t, Avro, record(`{"name":"a","type":"int"}`))})
	if len(found) != 1 || !strings.Contains(found[0].String(), "b") || !strings.Contains(found[0].String(), "no default") {
		t.Errorf("what breaks is told as %v", found)
	}
}

func TestJSONCompatibility(t *testing.T) {
	closed := func(properties string) string {
		return `{"type":"object","additionalProperties":false,"properties":{` + properties + `}}`
	}
	open := func(properties string) string { return `{"type":"object","properties":{` + properties + `}}` }
	required := func(names string) string {
		return `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":[` + names + `]}`
	}
	const dialect = `"$schema":"https://json-schema.org/draft/2020-12/schema",`
	judge(t, JSONSchema, []change{
		{"description", `{"description":"a"}`, `{"description":"b"}`, "", ""},
		{"type widened", `{"type":"integer"}`, `{"type":"number"}`, "", "type_narrowed"},
		{"type extended", `{"type":"string"}`, `{"type":["string","null"]}`, "", "type_narrowed"},
		{"type changed", `{"type":"string"}`, `{"type":"boolean"}`, "type_narrowed", "type_narrowed"},
		{"type removed", `{"type":"string"}`, `{}`, "", "type_narrowed"},
		{"true and false", `true`, `false`, "not_allowed", ""},
		{"all types listed", `{"type":["number","string","boolean","object","array","null"]}`, `true`, "", ""},

		{"maximum raised", `{"type":"number","maximum":1}`, `{"type":"number","maximum":2}`, "", "maximum_lowered"},
		{"minimum raised", `{"type":"number","minimum":1}`, `{"type":"number","minimum":2}`, "minimum_raised", ""},
		{"exclusive", `{"type":"number","minimum":1}`, `{"type":"number","exclusiveMinimum":1}`, "minimum_raised", ""},
		{"bounds that no string has", `{"type":"string"}`, `{"type":"string","minimum":2}`, "", ""},
		{"multiple of", `{"type":"number","multipleOf":4}`, `{"type":"number","multipleOf":2}`, "", "multiple_of_changed"},
		{"integers and multiples of 1", `{"type":"integer"}`, `{"type":"integer","multipleOf":1}`, "", ""},
		{"length", `{"type":"string","minLength":1,"maxLength":5}`, `{"type":"string","minLength":2,"maxLength":6}`, "min_length_raised", "max_length_lowered"},
		{"length limited", `{"type":"string"}`, `{"type":"string","maxLength":6}`, "max_length_lowered", ""},
		{"pattern", `{"type":"string"}`, `{"type":"string","pattern":"^a"}`, "pattern_changed", ""},
		{"another pattern", `{"type":"string","pattern":"^b"}`, `{"type":"string","pattern":"^a"}`, "pattern_changed", "pattern_changed"},
		{"format", `{"type":"string"}`, `{"type":"string","format":"date"}`, "format_changed", ""},
		{"format that asserts nothing", `{` + dialect + `"type":"string"}`, `{` + dialect + `"type":"string","format":"date"}`, "", ""},

		{"enum extended", `{"enum":["a"]}`, `{"enum":["a","b"]}`, "", "value_not_allowed"},
		{"enum added", `{"type":"string"}`, `{"type":"string","enum":["a"]}`, "enum_added", ""},
		{"enum of all booleans", `{"type":"boolean"}`, `{"enum":[true,false]}`, "", ""},
		{"const to enum", `{"const":1}`, `{"enum":[1,2]}`, "", "value_not_allowed"},
		{"enum to pattern", `{"enum":["a1","a2"]}`, `{"type":"string","pattern":"^a"}`, "", "enum_added"},

		{"optional property added to an open model", open(``), open(`"a":{"type":"string"}`), "property_added_to_open_content_model", ""},
		{"unrestricted property added to an open model", open(``), open(`"a":{}`), "", ""},
		{"optional property added to a closed model", closed(``), closed(`"a":{"type":"string"}`), "", "property_removed_from_closed_content_model"},
		{"property removed from an open model", open(`"a":{"type":"string"}`), open(``), "", "property_added_to_open_content_model"},
		{"property narrowed", open(`"a":{"type":"number"}`), open(`"a":{"type":"integer"}`), "type_narrowed", ""},
		{"model closed", open(`"a":{}`), closed(`"a":{}`), "additional_properties_removed", ""},
		{"additional properties narrowed", `{"additionalProperties":{"type":"number"}}`, `{"additionalProperties":{"type":"integer"}}`, "type_narrowed", ""},
		{"property of the additional type added", `{"type":"object","additionalProperties":{"type":"string"}}`, `{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":{"type":"string"}}`, "", ""},
		{"required removed", required(`"a","b"`), required(`"a"`), "", "required_property_added"},
		{"required with a default", open(`"a":{"type":"string","default":""}`), `{"type":"object","properties":{"a":{"type":"string","default":""}},"required":["a"]}`, "", ""},
		{"required but unknown", `{"type":"object"}`, `{"type":"object","required":["a"]}`, "required_property_added", ""},
		{"number of properties", `{"type":"object","minProperties":1,"maxProperties":2}`, `{"type":"object","minProperties":2,"maxProperties":3}`, "min_properties_raised", "max_properties_lowered"},
		{"number of properties implied", required(`"a","b"`), `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a","b"],"minProperties":2}`, "", ""},
		{"pattern properties added", `{"type":"object"}`, `{"type":"object","patternProperties":{"^x":{"type":"string"}}}`, "type_narrowed", ""},
		{"pattern properties narrowed", `{"patternProperties":{"^x":{"type":"number"}}}`, `{"patternProperties":{"^x":{"type":"integer"}}}`, "type_narrowed", ""},
		{"property covered by a pattern", `{"type":"object","patternProperties":{"^x":{"type":"string"}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^x":{"type":"string"}},"properties":{"xa":{"type":"string"}},"additionalProperties":false}`, "", ""},
		{"names", `{"propertyNames":{"maxLength":3}}`, `{"propertyNames":{"maxLength":4}}`, "", "property_names_changed"},
		{"names of a closed model", closed(`"abc":{}`), `{"type":"object","propertyNames":{"maxLength":3}}`, "", "*"},
		{"dependency", `{"dependencies":{"a":["b"]}}`, `{"dependencies":{"a":["b","c"]}}`, "dependency_added", ""},
		{"dependency on what is required", `{"required":["b"]}`, `{"required":["b"],"dependencies":{"a":["b"]}}`, "", ""},
		{"dependent schema", `{` + dialect + `"dependentSchemas":{"a":{"required":["b"]}}}`, `{` + dialect + `"dependentSchemas":{"a":{"required":["b","c"]}}}`, "required_property_added", ""},
		{"nested", open(`"a":` + open(`"b":{"type":"integer"}`)), open(`"a":` + open(`"b":{"type":"number"}`)), "", "type_narrowed"},

		{"items", `{"type":"array","items":{"type":"integer"}}`, `{"type":"array","items":{"type":"number"}}`, "", "type_narrowed"},
		{"items added", `{"type":"array"}`, `{"type":"array","items":{"type":"number"}}`, "type_narrowed", ""},
		{"number of items", `{"type":"array","minItems":1}`, `{"type":"array","minItems":2}`, "min_items_raised", ""},
		{"unique", `{"type":"array"}`, `{"type":"array","uniqueItems":true}`, "unique_items_added", ""},
		{"unique but single", `{"type":"array","maxItems":1}`, `{"type":"array","uniqueItems":true,"maxItems":1}`, "", ""},
		{"tuple extended", `{"items":[{"type":"string"}],"additionalItems":false}`, `{"items":[{"type":"string"},{"type":"string"}],"additionalItems":false}`, "", "not_allowed"},
		{"tuple of 2020", `{` + dialect + `"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}`, `{` + dialect + `"prefixItems":[{"type":"string"}],"items":{"type":"number"}}`, "", "type_narrowed"},
		{"contains", `{"type":"array"}`, `{"type":"array","contains":{"type":"string"}}`, "contains_changed", ""},
		{"contains less", `{` + dialect + `"type":"array","contains":{"type":"integer"},"minContains":2}`, `{` + dialect + `"type":"array","contains":{"type":"number"}}`, "", "contains_changed"},

		{"reference in place of its target", `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"a":{"$ref":"#/definitions/s"}},"definitions":{"s":{"type":"string"}}}`, "", ""},
		{"target narrowed", `{"$ref":"#/definitions/s","definitions":{"s":{"type":["string","null"]}}}`, `{"$ref":"#/definitions/s","definitions":{"s":{"type":"string"}}}`, "type_narrowed", ""},
		{"recursive, extended", closed(`"next":{"$ref":"#"}`), closed(`"next":{"$ref":"#"},"a":{"type":"string"}`), "", "property_removed_from_closed_content_model"},
		{"recursive, narrowed", open(`"v":{"type":"number"},"next":{"$ref":"#"}`), open(`"v":{"type":"integer"},"next":{"$ref":"#"}`), "type_narrowed", ""},

		{"branch added", `{"anyOf":[{"type":"string"}]}`, `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, "", "no_branch"},
		{"anyOf in place of types", `{"type":["string","null"]}`, `{"anyOf":[{"type":"null"},{"type":"string"}]}`, "", ""},
		{"oneOf in place of types", `{"type":["string","null"]}`, `{"oneOf":[{"type":"null"},{"type":"string"}]}`, "", ""},
		{"branch of oneOf added", `{"oneOf":[{"type":"string"}]}`, `{"oneOf":[{"type":"string"},{"type":"integer"}]}`, "", "no_branch"},
		{"branch of oneOf that overlaps", `{"oneOf":[{"type":"integer"}]}`, `{"oneOf":[{"type":"integer"},{"type":"number"}]}`, "no_branch", "*"},
		{"overlap that was there", `{"oneOf":[{"type":"integer"},{"minimum":2}]}`, `{"oneOf":[{"type":"integer"},{"minimum":2}],"title":"x"}`, "", ""},
		{"variants told apart by a constant", `{"oneOf":[{"type":"object","properties":{"t":{"const":"a"}},"required":["t"]}]}`,
			`{"oneOf":[{"type":"object","properties":{"t":{"const":"a"}},"required":["t"]},{"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]}`, "", "*"},
		{"recursive variants", `{"oneOf":[{"type":"integer"},{"type":"object","properties":{"a":{"$ref":"#"}}}]}`, `{"oneOf":[{"type":"number"},{"type":"object","properties":{"a":{"$ref":"#"}}}]}`, "", "no_branch"},
		{"allOf merged", `{"allOf":[{"type":"number"},{"minimum":1}]}`, `{"type":"number","minimum":1}`, "", ""},
		{"allOf extended", `{"allOf":[{"type":"number"}]}`, `{"allOf":[{"type":"number"},{"minimum":1}]}`, "minimum_raised", ""},
		{"not", `{"not":{"type":"string"}}`, `{"not":{"type":["string","null"]}}`, "not_added", ""},
		{"not what never was", `{"type":"integer"}`, `{"type":"integer","not":{"type":"string"}}`, "", ""},
		{"if", `{"if":{"type":"string"},"then":{"maxLength":3}}`, `{"if":{"type":"string"},"then":{"maxLength":4}}`, "", "max_length_lowered"},
		{"if added", `{}`, `{"if":{"required":["a"]},"then":{"required":["b"]}}`, "required_property_added", ""},
		{"unevaluated", `{` + dialect + `"properties":{"a":{}},"unevaluatedProperties":false}`, `{` + dialect + `"properties":{"a":{},"b":{}},"unevaluatedProperties":false}`, "", "undecided"},
		{"unevaluated added", `{` + dialect + `"properties":{"a":{}}}`, `{` + dialect + `"properties":{"a":{}},"unevaluatedProperties":false}`, "undecided", ""},
	})
}

func TestProtobufCompatibility(t *testing.T) {
	v3 := func(body string) string { return `syntax = "proto3"; package p; ` + body }
	v2 := func(body string) string { return `syntax = "proto2"; ` + body }
	message := func(fields string) string { return v3(`message M { ` + fields + ` }`) }
	judge(t, Protobuf, []change{
		{"field added", message(`int32 a = 1;`), message(`int32 a = 1; string b = 2;`), "", ""},
		{"field renamed", message(`int32 a = 1;`), message(`int32 b = 1;`), "", ""},
		{"message added", message(``), v3(`message M {} message N {}`), "", "message_removed"},
		{"messages swapped", v3(`message M {} message N {}`), v3(`message N {} message M {}`), "", ""},
		{"nested message removed", message(`message I {}`), message(``), "message_removed", ""},
		{"package changed", message(`N n = 1; message N { int32 a = 1; }`), strings.Replace(message(`N n = 1; message N { int32 a = 1; }`), "package p", "package q", 1), "", ""},
		{"int32 to int64", message(`int32 a = 1;`), message(`int64 a = 1;`), "", ""},
		{"int32 to bool", message(`int32 a = 1;`), message(`bool a = 1;`), "", ""},
		{"int32 to an enum", message(`int32 a = 1;`), v3(`message M { E a = 1; } enum E { X = 0; }`), "", ""},
		{"int32 to sint32", message(`int32 a = 1;`), message(`sint32 a = 1;`), "field_type_changed", "field_type_changed"},
		{"sint32 to sint64", message(`sint32 a = 1;`), message(`sint64 a = 1;`), "", ""},
		{"fixed32 to sfixed32", message(`fixed32 a = 1;`), message(`sfixed32 a = 1;`), "", ""},
		{"fixed32 to float", message(`fixed32 a = 1;`), message(`float a = 1;`), "field_type_changed", "field_type_changed"},
		{"string to bytes", message(`string a = 1;`), message(`bytes a = 1;`), "", ""},
		{"string to a message", message(`string a = 1;`), message(`N a = 1; message N {}`), "field_type_changed", "field_type_changed message_removed"},
		{"number used again for another type", message(`int32 a = 1;`), message(`string b = 1;`), "field_type_changed", "field_type_changed"},
		{"another message", v3(`message M { A a = 1; } message A {} message B {}`), v3(`message M { B a = 1; } message A {} message B {}`), "field_named_type_changed", "field_named_type_changed"},
		{"within a message", v3(`message M { A a = 1; } message A { int32 x = 1; }`), v3(`message M { A a = 1; } message A { string x = 1; }`), "field_type_changed", "field_type_changed"},
		{"number to a list", message(`int32 a = 1;`), message(`repeated int32 a = 1;`), "field_label_changed", "field_label_changed"},
		{"string to a list", message(`string a = 1;`), message(`repeated string a = 1;`), "", ""},
		{"map to a message", message(`map<string, int32> a = 1;`), message(`repeated E a = 1; message E { string key = 1; int32 value = 2; }`), "field_kind_changed", "field_kind_changed"},
		{"value of a map", message(`map<string, int32> a = 1;`), message(`map<string, string> a = 1;`), "field_type_changed", "field_type_changed"},
		{"into a new oneof, alone", message(`int32 a = 1;`), message(`oneof o { int32 a = 1; }`), "", ""},
		{"into a new oneof, together", message(`int32 a = 1; int32 b = 2;`), message(`oneof o { int32 a = 1; int32 b = 2; }`), "fields_moved_to_oneof", ""},
		{"into a oneof there is", message(`int32 a = 1; oneof o { int32 b = 2; }`), message(`oneof o { int32 a = 1; int32 b = 2; }`), "fields_moved_to_oneof", ""},
		{"oneof extended", message(`oneof o { int32 b = 2; }`), message(`oneof o { int32 b = 2; int32 c = 3; }`), "", "oneof_field_removed"},
		{"oneof removed", message(`oneof o { int32 b = 2; }`), message(`int32 b = 2;`), "", ""},
		{"optional added", message(`int32 a = 1;`), message(`optional int32 a = 1;`), "", ""},
		{"reserved number used", message(`reserved 2; int32 a = 1;`), message(`int32 a = 1; int32 b = 2;`), "reserved_number_used", "reserved_number_used"},
		{"reserved name used", message(`reserved "b"; int32 a = 1;`), message(`int32 a = 1; int32 b = 2;`), "reserved_name_used", "reserved_name_used"},
		{"removed and reserved", message(`int32 a = 1; int32 b = 2;`), message(`reserved 2; reserved "b"; int32 a = 1;`), "", ""},
		{"open enum", v3(`message M { E e = 1; } enum E { X = 0; Y = 1; }`), v3(`message M { E e = 1; } enum E { X = 0; }`), "", ""},
		{"closed enum", v2(`message M { optional E e = 1; } enum E { X = 0; Y = 1; }`), v2(`message M { optional E e = 1; } enum E { X = 0; }`), "enum_value_removed", ""},
		{"required added", v2(`message M { optional int32 a = 1; }`), v2(`message M { required int32 a = 1; }`), "required_field_added", ""},
		{"required, new", v2(`message M {}`), v2(`message M { required int32 a = 1; }`), "required_field_added", ""},
		{"group to a message", v2(`message M { optional group G = 1 { optional int32 x = 1; } }`), v2(`message M { optional G g = 1; message G { optional int32 x = 1; } }`), "field_type_changed", "field_type_changed"},
		{"recursive", message(`M m = 1; int32 a = 2;`), message(`M m = 1; string a = 2;`), "field_type_changed", "field_type_changed"},
	})
}
