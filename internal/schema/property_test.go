package schema

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// jsonText draws a JSON value of a small world, so that schemas and values meet.
func jsonText(t *rapid.T, depth int) any {
	kinds := 6
	if depth <= 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]any{nil, true, false}).Draw(t, "constant")
	case 1:
		return rapid.IntRange(-2, 4).Draw(t, "integer")
	case 2:
		return rapid.SampledFrom([]any{0.5, 1.5, 2.5}).Draw(t, "fraction")
	case 3:
		return rapid.SampledFrom([]any{"", "a", "b", "ab", "aab"}).Draw(t, "string")
	case 4:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, jsonText(t, depth-1))
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(t, "size") {
		object[rapid.SampledFrom([]string{"a", "b", "c", "xa"}).Draw(t, "name")] = jsonText(t, depth-1)
	}
	return object
}

// drawSchema draws a schema of nearly every keyword there is.
func drawSchema(t *rapid.T, depth int) any {
	if depth <= 0 {
		return rapid.SampledFrom([]any{
			true, false, map[string]any{"type": "integer"}, map[string]any{"type": "number"}, map[string]any{"type": "string"}, map[string]any{"type": []any{"string", "null"}},
			map[string]any{"const": "a"}, map[string]any{"enum": []any{1, "a", nil}}, map[string]any{"$ref": "#/definitions/d"},
		}).Draw(t, "leaf")
	}
	s := map[string]any{}
	if rapid.Bool().Draw(t, "typed") {
		s["type"] = rapid.SampledFrom([]any{"object", "object", "array", "string", "integer", "number", []any{"object", "null"}, []any{"array", "object"}, "boolean"}).Draw(t, "type")
	}
	name := func() string { return rapid.SampledFrom([]string{"a", "b", "c", "xa"}).Draw(t, "name") }
	sub := func() any { return drawSchema(t, depth-1) }
	subs := func() []any {
		list := []any{sub()}
		for range rapid.IntRange(0, 1).Draw(t, "more") {
			list = append(list, sub())
		}
		return list
	}
	small := func() int { return rapid.IntRange(0, 3).Draw(t, "small") }
	keywords := []func(){
		func() { s["minimum"] = small() }, func() { s["maximum"] = small() }, func() { s["exclusiveMinimum"] = small() }, func() { s["multipleOf"] = 1 + small() },
		func() { s["minLength"] = small() }, func() { s["maxLength"] = small() }, func() { s["pattern"] = "^a" },
		func() { s["minItems"] = small() }, func() { s["maxItems"] = small() }, func() { s["uniqueItems"] = true }, func() { s["items"] = sub() },
		func() { s["items"] = subs(); s["additionalItems"] = sub() }, func() { s["contains"] = sub() },
		func() { s["required"] = []any{name()} }, func() { s["properties"] = map[string]any{name(): sub()} }, func() { s["properties"] = map[string]any{name(): sub(), "a": sub()} },
		func() { s["additionalProperties"] = sub() }, func() { s["additionalProperties"] = false }, func() { s["patternProperties"] = map[string]any{"^x": sub()} },
		func() { s["minProperties"] = small() }, func() { s["maxProperties"] = small() }, func() { s["propertyNames"] = map[string]any{"maxLength": 1 + small()} },
		func() { s["dependencies"] = map[string]any{name(): []any{name()}} }, func() { s["dependencies"] = map[string]any{name(): sub()} },
		func() { s["anyOf"] = subs() }, func() { s["oneOf"] = subs() }, func() { s["allOf"] = subs() }, func() { s["not"] = sub() },
		func() { s["if"], s["then"] = sub(), sub() }, func() { s["if"], s["else"] = sub(), sub() }, func() { s["enum"] = []any{1, "a", nil, map[string]any{"a": 1}} },
	}
	for range rapid.IntRange(0, 4).Draw(t, "keywords") {
		rapid.SampledFrom(keywords).Draw(t, "keyword")()
	}
	return s
}

func text(t *rapid.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// drawDefinition draws a whole definition; its leaves may refer to #/definitions/d, which may refer to itself below a property.
func drawDefinition(t *rapid.T) string {
	s, ok := drawSchema(t, 3).(map[string]any)
	if !ok {
		s = map[string]any{}
	}
	s["definitions"] = map[string]any{"d": map[string]any{"type": rapid.SampledFrom([]string{"object", "string"}).Draw(t, "d"), "properties": map[string]any{"a": map[string]any{"$ref": "#/definitions/d"}}}}
	return text(t, s)
}

// mutate changes a little of a schema, so that old and new often get along.
func mutate(t *rapid.T, v any) any {
	object, ok := v.(map[string]any)
	if !ok || len(object) == 0 {
		return drawSchema(t, 1)
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	name := rapid.SampledFrom(sorted(names)).Draw(t, "keyword to change")
	switch old := object[name].(type) {
	case map[string]any:
		if len(old) > 0 && (name == "properties" || name == "patternProperties" || name == "definitions") {
			inner := make([]string, 0, len(old))
			for n := range old {
				inner = append(inner, n)
			}
			n := rapid.SampledFrom(sorted(inner)).Draw(t, "property to change")
			if name != "definitions" {
				old[n] = mutate(t, old[n])
			}
			return object
		}
		if name != "dependencies" {
			object[name] = mutate(t, old)
		}
	case float64:
		object[name] = old + 1
	case []any:
		switch name {
		case "anyOf", "oneOf":
			object[name] = append(old, drawSchema(t, 1))
		case "required":
			delete(object, name)
		}
	default:
		delete(object, name)
	}
	return object
}

// TestJSONCompatibilityIsSound: where a new schema may follow an old one, no value of the old one is refused by the new.
func TestJSONCompatibilityIsSound(t *testing.T) {
	compatible, tried, matched := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		oldText := drawDefinition(t)
		var newText string
		if rapid.Bool().Draw(t, "related") {
			var v any
			if err := json.Unmarshal([]byte(oldText), &v); err != nil {
				t.Fatal(err)
			}
			newText = text(t, mutate(t, v))
		} else {
			newText = drawDefinition(t)
		}
		older, err := Parse(JSONSchema, oldText, nil)
		if err != nil {
			t.Skip(err)
		}
		newer, err := Parse(JSONSchema, newText, nil)
		if err != nil {
			t.Skip(err)
		}
		if again, err := Parse(JSONSchema, oldText, nil); err != nil || again.impl.reads(older.impl) != nil {
			t.Fatalf("%s does not read itself: %v %v", oldText, err, again.impl.reads(older.impl))
		}
		tried++
		if newer.impl.reads(older.impl) != nil {
			return
		}
		compatible++
		for range 30 {
			value := text(t, jsonText(t, 3))
			if older.Validate([]byte(value)) != nil {
				continue
			}
			matched++
			if err := newer.Validate([]byte(value)); err != nil {
				t.Fatalf("%s was written with\n%s\nand cannot be read with\n%s\n%v", value, oldText, newText, err)
			}
		}
	})
	t.Logf("%d of %d pairs compatible, %d values tried", compatible, tried, matched)
	if compatible < tried/20 || matched < tried/20 {
		t.Errorf("too few: %d of %d pairs are compatible, %d values matched", compatible, tried, matched)
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
