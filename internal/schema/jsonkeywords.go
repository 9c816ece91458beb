package schema

import (
	"math/big"
	"slices"
	"sort"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// numbers compares what is demanded of numbers.
func numbers(path string, w conj, r *jsonschema.Schema) []Problem {
	var found []Problem
	bound := func(rule string, limit *big.Rat, open bool, sign int, inclusive, exclusive func(*jsonschema.Schema) *big.Rat) {
		if limit == nil {
			return
		}
		within := w.has(func(p *jsonschema.Schema) bool {
			if b := inclusive(p); b != nil {
				if d := b.Cmp(limit) * sign; d > 0 || d == 0 && !open {
					return true
				}
			}
			b := exclusive(p)
			return b != nil && b.Cmp(limit)*sign >= 0
		})
		if !within {
			found = append(found, problem(path, rule, "numbers beyond %s may be written, and may not be read", limit.RatString())...)
		}
	}
	lowest := func(p *jsonschema.Schema) *big.Rat { return p.Minimum }
	above := func(p *jsonschema.Schema) *big.Rat { return p.ExclusiveMinimum }
	highest := func(p *jsonschema.Schema) *big.Rat { return p.Maximum }
	below := func(p *jsonschema.Schema) *big.Rat { return p.ExclusiveMaximum }
	bound("minimum_raised", r.Minimum, false, 1, lowest, above)
	bound("minimum_raised", r.ExclusiveMinimum, true, 1, lowest, above)
	bound("maximum_lowered", r.Maximum, false, -1, highest, below)
	bound("maximum_lowered", r.ExclusiveMaximum, true, -1, highest, below)
	if m := r.MultipleOf; m != nil && m.Sign() != 0 {
		whole := func(of *big.Rat) bool { return of != nil && new(big.Rat).Quo(of, m).IsInt() }
		if !w.has(func(p *jsonschema.Schema) bool { return whole(p.MultipleOf) }) && (w.kinds&kFraction != 0 || !whole(big.NewRat(1, 1))) {
			found = append(found, problem(path, "multiple_of_changed", "numbers that are no multiples of %s may be written, and may not be read", m.RatString())...)
		}
	}
	return found
}

// bounds compares a count that has a least and a most.
func bounds(path, what string, w conj, r *jsonschema.Schema, least, most func(*jsonschema.Schema) *int, atLeast int) []Problem {
	var found []Problem
	if b := least(r); b != nil && *b > max(w.atLeast(least), atLeast) {
		found = problem(path, "min_"+what+"_raised", "fewer than %d may be written, and may not be read", *b)
	}
	if b := most(r); b != nil {
		if m := w.atMost(most); m < 0 || m > *b {
			found = append(found, problem(path, "max_"+what+"_lowered", "more than %d may be written, and may not be read", *b)...)
		}
	}
	return found
}

// texts compares what is demanded of strings.
func texts(path string, w conj, r *jsonschema.Schema) []Problem {
	found := bounds(path, "length", w, r, func(p *jsonschema.Schema) *int { return p.MinLength }, func(p *jsonschema.Schema) *int { return p.MaxLength }, 0)
	if r.Pattern != nil && !w.has(func(p *jsonschema.Schema) bool { return p.Pattern != nil && p.Pattern.String() == r.Pattern.String() }) {
		found = append(found, problem(path, "pattern_changed", "strings are read that match %s, and the writer's need not: patterns are compared as texts", clip(r.Pattern.String()))...)
	}
	if f := r.Format; f != nil && r.DraftVersion < 2019 && !w.has(func(p *jsonschema.Schema) bool { return p.Format != nil && p.Format.Name == f.Name }) {
		found = append(found, problem(path, "format_changed", "strings of the format %s are read, and the writer's need not be", clip(f.Name))...)
	}
	return found
}

// arrays compares what is demanded of arrays.
func (c *jsonCompare) arrays(path string, w conj, r *jsonschema.Schema) []Problem {
	most := func(p *jsonschema.Schema) *int { return p.MaxItems }
	found := bounds(path, "items", w, r, func(p *jsonschema.Schema) *int { return p.MinItems }, most, 0)
	longest := w.atMost(most)
	if r.UniqueItems && !(longest >= 0 && longest <= 1) && !w.has(func(p *jsonschema.Schema) bool { return p.UniqueItems }) {
		found = append(found, problem(path, "unique_items_added", "equal elements may be written, and may not be read")...)
	}
	described := prefix(r)
	for _, p := range w.parts {
		described = max(described, prefix(p))
	}
	for i := 0; i <= described; i++ { // the last one stands for all that follow
		if longest >= 0 && i >= longest {
			break
		}
		for _, s := range elementOf(r, i) {
			found = append(found, c.check(path+"/items", w.element(i), s)...)
		}
	}
	if r.Contains != nil && !c.contains(w, r) {
		found = append(found, problem(path+"/contains", "contains_changed", "arrays may be written that do not contain what is demanded to be read, or too much of it")...)
	}
	if u := r.UnevaluatedItems; u != nil && (u.Bool == nil || !*u.Bool) &&
		!w.has(func(p *jsonschema.Schema) bool {
			return p.UnevaluatedItems != nil && prefix(p) == prefix(r) && c.holds(conjOf(p.UnevaluatedItems), u)
		}) {
		found = append(found, problem(path+"/unevaluatedItems", "undecided", "it cannot be decided what unevaluatedItems refuses")...)
	}
	return found
}

// contains reports whether the writer's arrays contain enough of what the reader wants, and not too much.
func (c *jsonCompare) contains(w conj, r *jsonschema.Schema) bool {
	least := 1
	if r.MinContains != nil {
		least = *r.MinContains
	}
	if least == 0 && r.MaxContains == nil {
		return true
	}
	return w.has(func(p *jsonschema.Schema) bool {
		if p.Contains == nil {
			return false
		}
		has := 1
		if p.MinContains != nil {
			has = *p.MinContains
		}
		if has < least || least > 0 && !c.holds(conjOf(p.Contains), r.Contains) {
			return false
		}
		return r.MaxContains == nil || p.MaxContains != nil && *p.MaxContains <= *r.MaxContains && c.holds(conjOf(r.Contains), p.Contains)
	})
}

// objects compares what is demanded of objects.
func (c *jsonCompare) objects(path string, w conj, r *jsonschema.Schema) []Problem {
	needed := map[string]bool{}
	for _, p := range w.parts {
		for _, name := range p.Required {
			needed[name] = true
		}
	}
	found := bounds(path, "properties", w, r,
		func(p *jsonschema.Schema) *int { return p.MinProperties }, func(p *jsonschema.Schema) *int { return p.MaxProperties }, len(needed))
	for _, name := range r.Required {
		if s := r.Properties[name]; !needed[name] && (s == nil || !hasDefault(s)) {
			found = append(found, problem(member(path, name), "required_property_added", "the property %q may be missing as written, and is required to be read, without a default", clip(name))...)
		}
	}
	found = append(found, c.members(path, w, r)...)
	found = append(found, c.rest(path, w, r)...)
	found = append(found, c.dependencies(path, w, r)...)
	if n := r.PropertyNames; n != nil && !c.names(w, n) {
		found = append(found, problem(path+"/propertyNames", "property_names_changed", "properties may be written whose names may not be read")...)
	}
	if u := r.UnevaluatedProperties; u != nil && (u.Bool == nil || !*u.Bool) && !c.unevaluated(w, r, u) {
		found = append(found, problem(path+"/unevaluatedProperties", "undecided", "it cannot be decided what unevaluatedProperties refuses")...)
	}
	return found
}

func hasDefault(s *jsonschema.Schema) bool {
	return slices.ContainsFunc(conjOf(s).parts, func(p *jsonschema.Schema) bool { return p.Default != nil })
}

func member(path, name string) string {
	return path + "/properties/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(name))
}

// members compares the properties that either side names.
func (c *jsonCompare) members(path string, w conj, r *jsonschema.Schema) []Problem {
	named := map[string]bool{}
	for name := range r.Properties {
		named[name] = true
	}
	for _, p := range w.parts {
		for name := range p.Properties {
			named[name] = true
		}
	}
	names := make([]string, 0, len(named))
	for name := range named {
		names = append(names, name)
	}
	sort.Strings(names)
	var found []Problem
	for _, name := range names {
		written := w.member(name)
		if written.kinds == 0 {
			continue // it is never written
		}
		_, own := r.Properties[name]
		for _, s := range memberOf(r, name) {
			broken := c.check(member(path, name), written, s)
			switch {
			case len(broken) == 0:
			case own && len(written.parts) == 0:
				broken = problem(member(path, name), "property_added_to_open_content_model", "the writer does not know the property %q and allows anything under its name, which need not be what is read", clip(name))
			case !own && s.Bool != nil:
				broken = problem(member(path, name), "property_removed_from_closed_content_model", "the property %q is written, and no other properties than those listed may be read", clip(name))
			}
			found = append(found, broken...)
		}
	}
	return found
}

// rest compares properties that neither side names: by pattern, and those that no pattern matches.
func (c *jsonCompare) rest(path string, w conj, r *jsonschema.Schema) []Problem {
	type source struct {
		name    string
		written conj
	}
	var sources []source
	for _, p := range w.parts {
		for re, s := range p.PatternProperties {
			sources = append(sources, source{re.String(), conjOf(s)})
		}
	}
	sort.Slice(sources, func(i, j int) bool { return sources[i].name < sources[j].name })
	sources = append(sources, source{"", w.additional()})
	compare := func(at, reader string, s *jsonschema.Schema) (found []Problem) {
		same := slices.ContainsFunc(sources, func(o source) bool { return o.name == reader && reader != "" })
		for _, o := range sources {
			if o.written.kinds == 0 || same && o.name != reader {
				continue
			}
			if reader == "" && o.name != "" && readsPattern(r, o.name) {
				continue // compared under that pattern
			}
			broken := c.check(at, o.written, s)
			if len(broken) > 0 && s.Bool != nil {
				broken = problem(at, "additional_properties_removed", "properties that neither side lists may be written, and may not be read")
			}
			found = append(found, broken...)
		}
		return found
	}
	var found []Problem
	for re, s := range r.PatternProperties {
		found = append(found, compare(path+"/patternProperties/"+clip(re.String()), re.String(), s)...)
	}
	for _, s := range orBool(r.AdditionalProperties) {
		found = append(found, compare(path+"/additionalProperties", "", s)...)
	}
	return found
}

func readsPattern(r *jsonschema.Schema, text string) bool {
	for re := range r.PatternProperties {
		if re.String() == text {
			return true
		}
	}
	return false
}

// dependencies compares what the presence of one property demands.
func (c *jsonCompare) dependencies(path string, w conj, r *jsonschema.Schema) []Problem {
	var found []Problem
	for name, needs := range neededWith(r) {
		if w.member(name).kinds == 0 {
			continue
		}
		for _, need := range needs {
			met := w.requires(need) || need == name || w.has(func(p *jsonschema.Schema) bool { return slices.Contains(neededWith(p)[name], need) })
			if !met {
				found = append(found, problem(member(path, name), "dependency_added", "%q may be written without %q, and may not be read without it", clip(name), clip(need))...)
			}
		}
	}
	for name, s := range schemasWith(r) {
		with := w
		for _, p := range w.parts {
			if own := schemasWith(p)[name]; own != nil {
				with = with.with(own)
			}
		}
		if w.member(name).kinds != 0 {
			found = append(found, c.check(path+"/dependentSchemas/"+clip(name), with, s)...)
		}
	}
	return found
}

func neededWith(s *jsonschema.Schema) map[string][]string {
	if len(s.Dependencies) == 0 {
		return s.DependentRequired
	}
	all := map[string][]string{}
	for name, v := range s.Dependencies {
		if list, ok := v.([]string); ok {
			all[name] = list
		}
	}
	return all
}

func schemasWith(s *jsonschema.Schema) map[string]*jsonschema.Schema {
	if len(s.Dependencies) == 0 {
		return s.DependentSchemas
	}
	all := map[string]*jsonschema.Schema{}
	for name, v := range s.Dependencies {
		if t, ok := v.(*jsonschema.Schema); ok {
			all[name] = t
		}
	}
	return all
}

// names reports whether every name the writer may use is one the reader admits.
func (c *jsonCompare) names(w conj, reader *jsonschema.Schema) bool {
	written := conj{kinds: kString}
	for _, p := range w.parts {
		if p.PropertyNames != nil {
			written = written.with(p.PropertyNames)
		}
	}
	if c.holds(written, reader) {
		return true
	}
	// A writer that lists all its properties can be tried name by name.
	return w.additional().kinds == 0 && !w.has(func(p *jsonschema.Schema) bool {
		if len(p.PatternProperties) > 0 {
			return true
		}
		for name := range p.Properties {
			if w.member(name).kinds != 0 && reader.Validate(name) != nil {
				return true
			}
		}
		return false
	})
}

// unevaluated reports whether what the reader leaves unevaluated is unevaluated, and refused alike, by the writer.
func (c *jsonCompare) unevaluated(w conj, r, refused *jsonschema.Schema) bool {
	known := map[string]bool{}
	for _, p := range conjOf(r).parts {
		if p.AdditionalProperties != nil {
			return true
		}
		evaluated(p, known)
	}
	return w.has(func(p *jsonschema.Schema) bool {
		if p.UnevaluatedProperties == nil || !c.holds(conjOf(p.UnevaluatedProperties), refused) {
			return false
		}
		written := map[string]bool{}
		for _, q := range inPlace(p, nil) {
			if q.AdditionalProperties != nil {
				return false
			}
			evaluated(q, written)
		}
		for name := range written {
			if !known[name] {
				return false
			}
		}
		return true
	})
}

// evaluated adds the names and patterns of properties that a schema's own keywords look at.
func evaluated(s *jsonschema.Schema, to map[string]bool) {
	for name := range s.Properties {
		to["="+name] = true
	}
	for re := range s.PatternProperties {
		to["~"+re.String()] = true
	}
}

// inPlace lists every schema that s may apply to the value that s is applied to, itself included.
func inPlace(s *jsonschema.Schema, all []*jsonschema.Schema) []*jsonschema.Schema {
	if slices.Contains(all, s) {
		return all
	}
	all = append(all, s)
	for _, t := range edgesOf(s).here {
		all = inPlace(t, all)
	}
	return all
}
