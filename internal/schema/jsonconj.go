package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// kinds is a set of JSON types. Numbers are two of them, so that integers are a part of numbers.
type kinds uint8

const (
	kNull kinds = 1 << iota
	kBoolean
	kInteger
	kFraction
	kString
	kArray
	kObject
	kNumber = kInteger | kFraction
	kAll    = kNull | kBoolean | kNumber | kString | kArray | kObject
)

// kindNames is in the order messages list them; a number covers an integer.
var kindNames = []struct {
	kinds kinds
	name  string
}{{kNull, "null"}, {kBoolean, "boolean"}, {kNumber, "number"}, {kInteger, "integer"}, {kString, "string"}, {kArray, "array"}, {kObject, "object"}}

// apart lists the kinds that a comparison tells apart when a whole does not fit into one branch.
var apart = []kinds{kNull, kBoolean, kNumber, kString, kArray, kObject}

func (k kinds) String() string {
	if k == kAll {
		return "any type"
	}
	var names []string
	for _, n := range kindNames {
		if k&n.kinds == n.kinds {
			names = append(names, n.name)
			k &^= n.kinds
		}
	}
	if k&kFraction != 0 {
		names = append(names, "fraction")
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, " or ")
}

func kindsOf(s *jsonschema.Schema) kinds {
	if s.Bool != nil && !*s.Bool {
		return 0
	}
	if s.Types == nil {
		return kAll
	}
	var k kinds
	for _, name := range s.Types.ToStrings() {
		for _, n := range kindNames {
			if n.name == name {
				k |= n.kinds
			}
		}
	}
	return k
}

// conj is a set of values: those that every part admits, that are of one of the kinds, and that none of nots admits. The
// parts are taken by their own keywords: what they refer to, and what their allOf lists, are parts beside them.
type conj struct {
	parts []*jsonschema.Schema
	kinds kinds
	nots  []*jsonschema.Schema
}

// everything is the conj of one schema.
func conjOf(schemas ...*jsonschema.Schema) conj {
	c := conj{kinds: kAll}
	for _, s := range schemas {
		c = c.with(s)
	}
	return c
}

// with returns the values of c that s admits, too.
func (c conj) with(s *jsonschema.Schema) conj {
	out := conj{parts: slices.Clip(c.parts), kinds: c.kinds, nots: slices.Clip(c.nots)}
	seen := map[*jsonschema.Schema]bool{}
	for _, p := range c.parts {
		seen[p] = true
	}
	var add func(s *jsonschema.Schema)
	add = func(s *jsonschema.Schema) {
		if s == nil || seen[s] {
			return
		}
		seen[s] = true
		out.parts = append(out.parts, s)
		out.kinds &= kindsOf(s)
		if s.Not != nil {
			out.nots = append(out.nots, s.Not)
		}
		add(s.Ref)
		for _, t := range s.AllOf {
			add(t)
		}
	}
	add(s)
	return out
}

// except returns the values of c that s does not admit.
func (c conj) except(s *jsonschema.Schema) conj {
	c.nots = append(slices.Clip(c.nots), s)
	return c
}

// only returns the values of c that are of one of the kinds.
func (c conj) only(k kinds) conj {
	c.kinds &= k
	return c
}

// union returns the first anyOf or oneOf of the parts, and c without it.
func (c conj) union() (branches []*jsonschema.Schema, exclusive bool, rest conj) {
	for i, p := range c.parts {
		if len(p.AnyOf) == 0 && len(p.OneOf) == 0 {
			continue
		}
		bare := *p
		if branches = p.AnyOf; len(branches) > 0 {
			bare.AnyOf = nil
		} else {
			branches, exclusive = p.OneOf, true
			bare.OneOf = nil
		}
		rest = c
		rest.parts = slices.Clone(c.parts)
		rest.parts[i] = &bare
		return branches, exclusive, rest
	}
	return nil, false, c
}

// listed returns the values of c where some part lists them, and whether one does.
func (c conj) listed(affordable func(any) bool) (values []any, ok bool) {
	for _, p := range c.parts {
		switch {
		case p.Const != nil:
			values, ok = []any{*p.Const}, true
		case p.Enum != nil && (!ok || len(p.Enum.Values) < len(values)):
			values, ok = p.Enum.Values, true
		}
	}
	if !ok || len(values) > maxListed {
		return nil, false
	}
	var kept []any
	for _, v := range values {
		if !affordable(v) {
			return nil, false
		}
		admitted := kindOf(v)&c.kinds != 0
		for _, p := range c.parts {
			admitted = admitted && p.Validate(v) == nil
		}
		for _, n := range c.nots {
			admitted = admitted && n.Validate(v) != nil
		}
		if admitted {
			kept = append(kept, v)
		}
	}
	return kept, true
}

// kindOf returns the kind of a value as decodeJSON reads it; a number may be of both of its kinds.
func kindOf(v any) kinds {
	switch v.(type) {
	case nil:
		return kNull
	case bool:
		return kBoolean
	case string:
		return kString
	case []any:
		return kArray
	case map[string]any:
		return kObject
	}
	return kNumber
}

// maxListed bounds how many values are tried one by one.
const maxListed = 10_000

// member returns what c admits as the value of a property.
func (c conj) member(name string) conj {
	out := conj{kinds: kAll}
	for _, p := range c.parts {
		for _, s := range memberOf(p, name) {
			out = out.with(s)
		}
	}
	return out
}

var nothing = &jsonschema.Schema{Bool: new(bool)}

// memberOf returns what one schema's own keywords demand of a property.
func memberOf(p *jsonschema.Schema, name string) []*jsonschema.Schema {
	var found []*jsonschema.Schema
	if s, ok := p.Properties[name]; ok {
		found = append(found, s)
	}
	for re, s := range p.PatternProperties {
		if re.MatchString(name) {
			found = append(found, s)
		}
	}
	if len(found) > 0 {
		return found
	}
	return orBool(p.AdditionalProperties)
}

// orBool reads a keyword that is a schema, a boolean or missing.
func orBool(v any) []*jsonschema.Schema {
	switch v := v.(type) {
	case *jsonschema.Schema:
		if v != nil {
			return []*jsonschema.Schema{v}
		}
	case bool:
		if !v {
			return []*jsonschema.Schema{nothing}
		}
	}
	return nil
}

// additional returns what c admits as the value of a property that no part names and no pattern matches.
func (c conj) additional() conj {
	out := conj{kinds: kAll}
	for _, p := range c.parts {
		for _, s := range orBool(p.AdditionalProperties) {
			out = out.with(s)
		}
	}
	return out
}

// prefix returns how many elements one schema describes one by one.
func prefix(p *jsonschema.Schema) int {
	if tuple, ok := p.Items.([]*jsonschema.Schema); ok {
		return len(tuple)
	}
	return len(p.PrefixItems)
}

// elementOf returns what one schema's own keywords demand of the element at i.
func elementOf(p *jsonschema.Schema, i int) []*jsonschema.Schema {
	if tuple, ok := p.Items.([]*jsonschema.Schema); ok {
		if i < len(tuple) {
			return tuple[i : i+1]
		}
		return orBool(p.AdditionalItems)
	}
	if s, ok := p.Items.(*jsonschema.Schema); ok && s != nil {
		return []*jsonschema.Schema{s}
	}
	if i < len(p.PrefixItems) {
		return p.PrefixItems[i : i+1]
	}
	if p.Items2020 != nil {
		return []*jsonschema.Schema{p.Items2020}
	}
	return nil
}

func (c conj) element(i int) conj {
	out := conj{kinds: kAll}
	for _, p := range c.parts {
		for _, s := range elementOf(p, i) {
			out = out.with(s)
		}
	}
	return out
}

// has reports whether any part has the property that f looks for.
func (c conj) has(f func(*jsonschema.Schema) bool) bool { return slices.ContainsFunc(c.parts, f) }

// atLeast returns the largest of what the parts have of a lower bound, -1 for none.
func (c conj) atLeast(bound func(*jsonschema.Schema) *int) int {
	best := -1
	for _, p := range c.parts {
		if b := bound(p); b != nil {
			best = max(best, *b)
		}
	}
	return best
}

// atMost returns the smallest of what the parts have of an upper bound, -1 for none.
func (c conj) atMost(bound func(*jsonschema.Schema) *int) int {
	best := -1
	for _, p := range c.parts {
		if b := bound(p); b != nil && (best < 0 || *b < best) {
			best = *b
		}
	}
	return best
}

// requires reports whether every object in c has the property.
func (c conj) requires(name string) bool {
	return c.has(func(p *jsonschema.Schema) bool { return slices.Contains(p.Required, name) })
}

// show writes a value for a message.
func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return clip(string(b))
}
