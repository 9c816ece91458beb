package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// jsonCompare decides whether every value that a writer's schema admits is one that a reader's schema admits, too. It
// may say no where a yes is the truth and cannot be shown by the rules here, never yes where it is no; with two
// exceptions, which the field's usage demands: a property may become required if it has a default, and schemas that
// lead back to themselves are taken to hold unless something is found that breaks them.
type jsonCompare struct {
	affordable func(any) bool
	same       sameSchemas
	steps      int
	open       map[string]int // comparisons under way, by depth: those are assumed to hold
	lowest     int            // the outermost open comparison that the last one relied on
	done       map[string]compared
}

// compared is what came of a comparison, and where it was made.
type compared struct {
	path  string
	found []Problem
}

// at returns what was found, as found elsewhere.
func (d compared) at(path string) []Problem {
	if path == d.path {
		return d.found
	}
	moved := slices.Clone(d.found)
	for i := range moved {
		moved[i].Path = path + strings.TrimPrefix(moved[i].Path, d.path)
	}
	return moved
}

// maxCompareSteps bounds a comparison; beyond it, it is undecided. It takes a second or two.
const maxCompareSteps = 100_000

func (s *jsonSchema) reads(writer implementation) []Problem {
	w := writer.(*jsonSchema) //nolint:forcetypeassert // Check compares equal types only
	c := &jsonCompare{
		affordable: func(v any) bool { return s.affordable(v) == nil && w.affordable(v) == nil },
		same:       sameSchemas{}, open: map[string]int{}, done: map[string]compared{}, lowest: noAssumption,
	}
	found := c.check("#", conjOf(w.root), s.root)
	var unique []Problem
	for _, p := range found {
		if !slices.Contains(unique, p) && len(unique) < maxProblems {
			unique = append(unique, p)
		}
	}
	return unique
}

const noAssumption = 1 << 30

func problem(path, rule, format string, args ...any) []Problem {
	return []Problem{{path, rule, fmt.Sprintf(format, args...)}}
}

// check returns why not every value of w is one of r.
func (c *jsonCompare) check(path string, w conj, r *jsonschema.Schema) []Problem {
	if c.steps += 1 + (len(w.parts)+len(w.nots))/8; c.steps > maxCompareSteps {
		return problem(path, "too_complex", "the schemas are too complex to be compared")
	}
	key := compareKey(w, r)
	if found, ok := c.done[key]; ok {
		return found.at(path)
	}
	if depth, ok := c.open[key]; ok {
		c.lowest = min(c.lowest, depth)
		return nil
	}
	if len(c.open) > 10*maxNesting {
		return problem(path, "too_complex", "the schemas nest too deep to be compared")
	}
	depth := len(c.open)
	outer := c.lowest
	c.lowest = noAssumption
	c.open[key] = depth
	found := c.direct(path, w, r)
	if len(found) > 0 {
		found = c.split(path, w, r, found)
	}
	delete(c.open, key)
	if c.lowest >= depth { // it relied on nothing but itself
		c.done[key] = compared{path, found}
		c.lowest = noAssumption
	}
	c.lowest = min(c.lowest, outer)
	return found
}

func compareKey(w conj, r *jsonschema.Schema) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%p %d", r, w.kinds)
	for _, p := range w.parts {
		fmt.Fprintf(&b, " %p", p)
	}
	for _, n := range w.nots {
		fmt.Fprintf(&b, " !%p", n)
	}
	return b.String()
}

// direct compares without looking into the writer's alternatives.
func (c *jsonCompare) direct(path string, w conj, r *jsonschema.Schema) []Problem {
	if w.kinds == 0 {
		return nil
	}
	var found []Problem
	for _, part := range conjOf(r).parts {
		found = append(found, c.part(path, w, part)...)
		if len(found) > maxProblems {
			break
		}
	}
	return found
}

// split compares each of the writer's alternatives on its own: each is narrower than the whole.
func (c *jsonCompare) split(path string, w conj, r *jsonschema.Schema, whole []Problem) []Problem {
	branches, exclusive, rest := w.union()
	if len(branches) == 0 {
		return whole
	}
	var found []Problem
	for i, b := range branches {
		one := rest.with(b)
		if exclusive {
			for j, other := range branches {
				if j != i {
					one = one.except(other)
				}
			}
		}
		found = append(found, c.check(path, one, r)...)
		if len(found) > maxProblems {
			break
		}
	}
	return found
}

// holds is check for a question whose answer is only one of several that would do.
func (c *jsonCompare) holds(w conj, r *jsonschema.Schema) bool { return len(c.check("#", w, r)) == 0 }

// part compares with one schema's own keywords.
func (c *jsonCompare) part(path string, w conj, r *jsonschema.Schema) []Problem {
	if w.has(func(p *jsonschema.Schema) bool { return c.same.same(p, r) }) {
		return nil
	}
	if r.Bool != nil {
		if *r.Bool {
			return nil
		}
		return problem(path, "not_allowed", "%s is written, and no value is allowed to be read", w.kinds)
	}
	if values, ok := w.listed(c.affordable); ok {
		return c.values(path, values, r)
	}
	var found []Problem
	rk := kindsOf(r)
	if lost := w.kinds &^ rk; lost != 0 {
		found = problem(path, "type_narrowed", "%s is written and %s is read", w.kinds, rk)
		if w = w.only(rk); w.kinds == 0 {
			return found
		}
	}
	found = append(found, c.enum(path, w, r)...)
	if w.kinds&kNumber != 0 {
		found = append(found, numbers(path, w, r)...)
	}
	if w.kinds&kString != 0 {
		found = append(found, texts(path, w, r)...)
	}
	if w.kinds&kArray != 0 {
		found = append(found, c.arrays(path, w, r)...)
	}
	if w.kinds&kObject != 0 {
		found = append(found, c.objects(path, w, r)...)
	}
	if len(r.AnyOf) > 0 {
		found = append(found, c.union(path, w, "anyOf", r.AnyOf, false)...)
	}
	if len(r.OneOf) > 0 {
		found = append(found, c.union(path, w, "oneOf", r.OneOf, true)...)
	}
	if r.Not != nil && !c.excluded(w, r.Not) {
		found = append(found, problem(path+"/not", "not_added", "it cannot be shown that nothing is written that not refuses to read")...)
	}
	return append(found, c.conditions(path, w, r)...)
}

// values tries the values the writer lists.
func (c *jsonCompare) values(path string, values []any, r *jsonschema.Schema) []Problem {
	var found []Problem
	for _, v := range values {
		if err := r.Validate(v); err != nil {
			found = append(found, problem(path, "value_not_allowed", "%s may be written, and may not be read (%s)", show(v), mismatch(err))...)
			if len(found) > 10 {
				break
			}
		}
	}
	return found
}

// enum refuses to list values where the writer does not.
func (c *jsonCompare) enum(path string, w conj, r *jsonschema.Schema) []Problem {
	var listed []any
	switch {
	case r.Const != nil:
		listed = []any{*r.Const}
	case r.Enum != nil:
		listed = r.Enum.Values
	default:
		return nil
	}
	if w.kinds&^(kNull|kBoolean) == 0 {
		var all []any
		for _, v := range []any{nil, true, false} {
			if _, boolean := v.(bool); boolean && w.kinds&kBoolean != 0 || !boolean && w.kinds&kNull != 0 {
				all = append(all, v)
			}
		}
		return c.values(path, all, &jsonschema.Schema{Enum: r.Enum, Const: r.Const})
	}
	return problem(path, "enum_added", "any %s may be written, and only %s may be read", w.kinds, show(listed))
}

// union looks for a branch of the reader that admits all of w, and for one for each kind where none admits all.
func (c *jsonCompare) union(path string, w conj, keyword string, branches []*jsonschema.Schema, exclusive bool) []Problem {
	for i, b := range branches { // most branches of most versions did not change
		if w.has(func(p *jsonschema.Schema) bool { return c.same.same(p, b) }) && (!exclusive || len(c.alone(path, w, branches, i)) == 0) {
			return nil
		}
	}
	var closest []Problem
	for i, b := range branches {
		found := c.check(fmt.Sprintf("%s/%s/%d", path, keyword, i), w, b)
		if len(found) == 0 && exclusive {
			found = c.alone(path, w, branches, i)
		}
		if len(found) == 0 {
			return nil
		}
		if closest == nil || len(found) < len(closest) {
			closest = found
		}
	}
	if alternatives, _, _ := w.union(); len(alternatives) > 0 {
		return problem(path, "no_branch", "no branch of %s admits all that is written", keyword) // they are compared one by one next
	}
	var found []Problem
	several := false
	for _, k := range apart {
		if one := w.only(k); one.kinds != 0 && one.kinds != w.kinds {
			several = true
			found = append(found, c.union(path, one, keyword, branches, exclusive)...)
		}
	}
	if several {
		return found
	}
	return problem(path, "no_branch", "%s may be written for which %s has no branch; the closest differs at %s: %s: %s", w.kinds, keyword, closest[0].Path, closest[0].Rule, closest[0].Detail)
}

// alone makes sure that no other branch of a oneOf admits what the one chosen does.
func (c *jsonCompare) alone(path string, w conj, branches []*jsonschema.Schema, chosen int) []Problem {
	for i, other := range branches {
		if i != chosen && !c.excluded(w, other) {
			return problem(fmt.Sprintf("%s/oneOf/%d", path, i), "ambiguous_branch", "what matches branch %d may match branch %d of oneOf, too, which refuses it", chosen, i)
		}
	}
	return nil
}

// excluded reports whether no value of w is one of s, as far as that can be shown.
func (c *jsonCompare) excluded(w conj, s *jsonschema.Schema) bool {
	if slices.ContainsFunc(w.nots, func(n *jsonschema.Schema) bool { return c.same.same(n, s) }) || c.disjoint(w, conjOf(s), 0) {
		return true
	}
	// What s admits, n admits, and no value of w is one of n.
	return slices.ContainsFunc(w.nots, func(n *jsonschema.Schema) bool { return c.holds(conjOf(s), n) })
}

// disjoint reports whether a and b have no value in common.
func (c *jsonCompare) disjoint(a, b conj, depth int) bool {
	if c.steps++; c.steps > maxCompareSteps || depth > maxNesting {
		return false
	}
	common := a.kinds & b.kinds
	if common == 0 {
		return true
	}
	for _, pair := range [][2]conj{{a, b}, {b, a}} {
		if values, ok := pair[0].listed(c.affordable); ok {
			return !slices.ContainsFunc(values, func(v any) bool {
				return !pair[1].has(func(p *jsonschema.Schema) bool { return p.Validate(v) != nil })
			})
		}
		if branches, _, rest := pair[0].union(); len(branches) > 0 {
			return !slices.ContainsFunc(branches, func(b *jsonschema.Schema) bool {
				return !c.disjoint(rest.with(b), pair[1], depth+1)
			})
		}
	}
	if common != kObject {
		return false
	}
	for _, pair := range [][2]conj{{a, b}, {b, a}} {
		for _, p := range pair[0].parts {
			for _, name := range p.Required {
				if pair[1].member(name).kinds == 0 || pair[1].requires(name) && c.disjoint(a.member(name), b.member(name), depth+1) {
					return true
				}
			}
		}
	}
	return false
}

// conditions compares if, then and else.
func (c *jsonCompare) conditions(path string, w conj, r *jsonschema.Schema) []Problem {
	if r.If == nil || r.Then == nil && r.Else == nil {
		return nil
	}
	then, otherwise := w.with(r.If), w.except(r.If)
	for _, p := range w.parts {
		if p.If != nil && c.holds(conjOf(p.If), r.If) && c.holds(conjOf(r.If), p.If) {
			then, otherwise = then.with(p.Then), otherwise.with(p.Else)
		}
	}
	var found []Problem
	if r.Then != nil {
		found = append(found, c.check(path+"/then", then, r.Then)...)
	}
	if r.Else != nil {
		found = append(found, c.check(path+"/else", otherwise, r.Else)...)
	}
	return found
}
