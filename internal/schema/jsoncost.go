package schema

import (
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A value at depth d of a payload is looked at once for every way the schema leads there, and a schema of a few lines
// can lead there in 2^d ways. So the ways are counted beforehand, depth by depth, and a payload is validated only if all
// its values together stay within maxJSONCost.
const (
	maxJSONDepth   = 128
	maxJSONCost    = 5_000_000
	maxInPlaceCost = 1_000_000 // of one value, at any place of the schema
	countedEnough  = int64(1) << 40
)

// edges are the schemas that s applies: to the value itself, and to the values in it. Of those in most, one value meets
// one; those in all, it may meet all of.
type edges struct {
	here                      []*jsonschema.Schema
	mostMembers, allMembers   []*jsonschema.Schema
	mostElements, allElements []*jsonschema.Schema
}

func edgesOf(s *jsonschema.Schema) edges {
	var e edges
	add := func(to *[]*jsonschema.Schema, of ...*jsonschema.Schema) {
		for _, t := range of {
			if t != nil {
				*to = append(*to, t)
			}
		}
	}
	one := func(to *[]*jsonschema.Schema, v any) { // of a keyword that may be a boolean, too
		if t, ok := v.(*jsonschema.Schema); ok {
			add(to, t)
		}
	}
	add(&e.here, s.Ref, s.Not, s.If, s.Then, s.Else)
	add(&e.here, s.AllOf...)
	add(&e.here, s.AnyOf...)
	add(&e.here, s.OneOf...)
	for _, t := range s.DependentSchemas {
		add(&e.here, t)
	}
	for _, t := range s.Dependencies {
		one(&e.here, t)
	}
	for _, t := range s.Properties {
		add(&e.mostMembers, t)
	}
	for _, t := range s.PatternProperties {
		add(&e.allMembers, t)
	}
	one(&e.allMembers, s.AdditionalProperties)
	add(&e.allMembers, s.PropertyNames, s.UnevaluatedProperties)
	add(&e.mostElements, s.PrefixItems...)
	if tuple, ok := s.Items.([]*jsonschema.Schema); ok {
		add(&e.mostElements, tuple...)
	}
	one(&e.allElements, s.Items)
	one(&e.allElements, s.AdditionalItems)
	add(&e.allElements, s.Items2020, s.Contains, s.UnevaluatedItems)
	return e
}

// weight is what it costs to look at one value with s, its parts aside. A step takes up to a microsecond.
func weight(s *jsonschema.Schema) int64 {
	w := 1 + len(s.Required) + len(s.PatternProperties) + len(s.DependentRequired) + len(s.Dependencies)
	if s.Enum != nil {
		w += len(s.Enum.Values)
	}
	if p, ok := s.Pattern.(*pattern); ok {
		w += p.size / 2
	}
	for re := range s.PatternProperties {
		if p, ok := re.(*pattern); ok {
			w += p.size / 2
		}
	}
	return int64(w)
}

// costNode is a schema on its way through the count.
type costNode struct {
	weight                    int64
	here                      []*costNode
	mostMembers, allMembers   []*costNode
	mostElements, allElements []*costNode
	now, next                 int64
}

type costCount struct {
	nodes map[*jsonschema.Schema]*costNode
	order []*jsonschema.Schema // what is applied in place comes before what applies it
	open  map[*jsonschema.Schema]bool
}

// jsonCosts returns, for each depth, the most that one value there can cost.
func jsonCosts(root *jsonschema.Schema) ([]int64, error) {
	c := &costCount{nodes: map[*jsonschema.Schema]*costNode{}, open: map[*jsonschema.Schema]bool{}}
	if err := c.visitAll(root); err != nil {
		return nil, err
	}
	order := c.link()
	costs := make([]int64, maxJSONDepth+1)
	for d := range costs {
		steady := d > 0
		for _, n := range order {
			if d == 0 {
				n.next = n.weight
			} else {
				n.next = max(most(n.mostMembers)+sum(n.allMembers), most(n.mostElements)+sum(n.allElements))
			}
			for _, t := range n.here {
				n.next = min(n.next+t.next, countedEnough)
			}
			costs[d] = max(costs[d], n.next)
			steady = steady && n.next == n.now
		}
		for _, n := range order {
			n.now = n.next
		}
		if steady { // deeper it stays as it is here
			for deeper := d + 1; deeper < len(costs); deeper++ {
				costs[deeper] = costs[d]
			}
			break
		}
	}
	if costs[0] > maxInPlaceCost {
		return nil, errors.New("it applies too many schemas to one value")
	}
	return costs, nil
}

// link leads every node to those its schema applies, and returns the nodes in order.
func (c *costCount) link() []*costNode {
	all := func(of []*jsonschema.Schema) []*costNode {
		list := make([]*costNode, len(of))
		for i, s := range of {
			list[i] = c.nodes[s]
		}
		return list
	}
	order := make([]*costNode, len(c.order))
	for i, s := range c.order {
		n, e := c.nodes[s], edgesOf(s)
		n.here, n.mostMembers, n.allMembers, n.mostElements, n.allElements = all(e.here), all(e.mostMembers), all(e.allMembers), all(e.mostElements), all(e.allElements)
		order[i] = n
	}
	return order
}

// visitAll visits everything the root leads to, without recursing along values, whose schemas may form long chains.
func (c *costCount) visitAll(root *jsonschema.Schema) error {
	todo := []*jsonschema.Schema{root}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := c.visit(s, &todo, 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *costCount) visit(s *jsonschema.Schema, todo *[]*jsonschema.Schema, depth int) error {
	if c.nodes[s] != nil && !c.open[s] {
		return nil
	}
	if c.open[s] || depth > 10*maxNesting {
		return errors.New("a $ref leads back to itself without going into a value, or a chain of them is too long")
	}
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return errors.New("$dynamicRef and $recursiveRef are not supported: use $ref")
	}
	e := edgesOf(s)
	c.nodes[s] = &costNode{weight: weight(s)}
	c.open[s] = true
	for _, t := range e.here {
		if err := c.visit(t, todo, depth+1); err != nil {
			return err
		}
	}
	delete(c.open, s)
	c.order = append(c.order, s)
	for _, part := range [][]*jsonschema.Schema{e.mostMembers, e.allMembers, e.mostElements, e.allElements} {
		*todo = append(*todo, part...)
	}
	return nil
}

func most(of []*costNode) int64 {
	var most int64
	for _, n := range of {
		most = max(most, n.now)
	}
	return most
}

func sum(of []*costNode) int64 {
	var sum int64
	for _, n := range of {
		sum = min(sum+n.now, countedEnough)
	}
	return sum
}

// affordable refuses a value that would take too long to validate.
func (s *jsonSchema) affordable(v any) error {
	if left := s.afford(v, 0, maxJSONCost); left < 0 {
		return fmt.Errorf("it would take too long to validate against this schema: it is too large, or nests too deep for a schema that branches as it recurs")
	}
	return nil
}

func (s *jsonSchema) afford(v any, depth int, left int64) int64 {
	if depth > maxJSONDepth {
		return -1
	}
	cost := s.costs[depth]
	switch v := v.(type) {
	case string:
		left -= cost * int64(1+len(v)/16)
	case []any:
		left -= cost
		for i := 0; i < len(v) && left >= 0; i++ {
			left = s.afford(v[i], depth+1, left)
		}
	case map[string]any:
		left -= cost
		for name, e := range v {
			if left -= int64(len(name) / 16); left < 0 {
				break
			}
			left = s.afford(e, depth+1, left)
		}
	default:
		left -= cost
	}
	return left
}
