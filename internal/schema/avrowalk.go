package schema

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/twmb/avro"
)

// avroNode is a type as the walk over a payload needs it.
type avroNode struct {
	kind     string
	name     string
	fields   []avroField
	item     *avroNode // of an array or map
	branches []*avroNode
	size     int // of a fixed; how many symbols an enum has
}

type avroField struct {
	name string
	node *avroNode
}

// avroBuilder turns the library's description of a schema, in which a named type stands where it is defined and is a
// name everywhere else, into a graph.
type avroBuilder struct {
	named map[string]*avroNode
}

// build makes the node of n, which stands in the namespace within.
func (b *avroBuilder) build(n *avro.SchemaNode, within string) (*avroNode, error) {
	switch n.Type {
	case "null", "boolean", "int", "long", "float", "double", "bytes", "string":
		return &avroNode{kind: n.Type}, nil
	case "array", "map":
		of := n.Items
		if n.Type == "map" {
			of = n.Values
		}
		item, err := b.build(of, within)
		return &avroNode{kind: n.Type, item: item}, err
	case "union":
		node := &avroNode{kind: "union"}
		for i := range n.Branches {
			branch, err := b.build(&n.Branches[i], within)
			if err != nil {
				return nil, err
			}
			node.branches = append(node.branches, branch)
		}
		return node, nil
	case "fixed":
		return b.define(n, &avroNode{kind: "fixed", size: n.Size}), nil
	case "enum":
		return b.define(n, &avroNode{kind: "enum", size: len(n.Symbols)}), nil
	case "record", "error":
		node := b.define(n, &avroNode{kind: "record"})
		for i := range n.Fields {
			child, err := b.build(&n.Fields[i].Type, namespaceOf(node.name))
			if err != nil {
				return nil, err
			}
			node.fields = append(node.fields, avroField{n.Fields[i].Name, child})
		}
		return node, nil
	}
	for _, name := range []string{within + "." + n.Type, n.Type} {
		if node, ok := b.named[name]; ok {
			return node, nil
		}
	}
	return nil, fmt.Errorf("type %q is not defined", clip(n.Type))
}

// define makes a named type known under its full name.
func (b *avroBuilder) define(n *avro.SchemaNode, node *avroNode) *avroNode {
	node.name = n.Name
	if n.Namespace != "" && !strings.Contains(n.Name, ".") {
		node.name = n.Namespace + "." + n.Name
	}
	b.named[node.name] = node
	return node
}

func namespaceOf(name string) string {
	return name[:max(strings.LastIndexByte(name, '.'), 0)]
}

// avroWalk reads one value. budget bounds the values it visits: items without any bytes could be claimed by the
// billion otherwise.
type avroWalk struct {
	left   []byte
	budget int
}

// maxDepth bounds how deep a payload may nest, for every type.
const maxDepth = 500

func avroBudget(payload int) int { return 1<<16 + 16*payload }

var errShort = errors.New("the payload ends in the middle of a value")

func (w *avroWalk) value(n *avroNode, depth int) error {
	if w.budget--; w.budget < 0 {
		return errors.New("it claims more values than its bytes can hold")
	}
	if depth > maxDepth {
		return fmt.Errorf("it nests deeper than %d", maxDepth)
	}
	switch n.kind {
	case "null":
		return nil
	case "boolean":
		b, err := w.take(1)
		if err == nil && b[0] > 1 {
			err = fmt.Errorf("%d is no boolean", b[0])
		}
		return err
	case "int":
		_, err := w.varint(true)
		return err
	case "long":
		_, err := w.varint(false)
		return err
	case "float":
		_, err := w.take(4)
		return err
	case "double":
		_, err := w.take(8)
		return err
	case "bytes":
		_, err := w.counted()
		return err
	case "string":
		return w.text()
	case "fixed":
		_, err := w.take(n.size)
		return err
	}
	return w.compound(n, depth)
}

func (w *avroWalk) compound(n *avroNode, depth int) error {
	switch n.kind {
	case "enum":
		i, err := w.varint(true)
		if err == nil && (i < 0 || i >= int64(n.size)) {
			err = fmt.Errorf("enum %s has no symbol %d", n.name, i)
		}
		return err
	case "union":
		i, err := w.varint(false)
		if err != nil {
			return err
		}
		if i < 0 || i >= int64(len(n.branches)) {
			return fmt.Errorf("the union has no branch %d", i)
		}
		return w.value(n.branches[i], depth+1)
	case "array", "map":
		return w.blocks(n, depth)
	}
	for i := range n.fields {
		if err := w.value(n.fields[i].node, depth+1); err != nil {
			return fmt.Errorf("field %s: %w", n.fields[i].name, err)
		}
	}
	return nil
}

// blocks reads the blocks of an array or map: a count, negative where the block's size follows, then the items.
func (w *avroWalk) blocks(n *avroNode, depth int) error {
	for {
		count, err := w.varint(false)
		if err != nil || count == 0 {
			return err
		}
		if count < 0 {
			if count = -count; count < 0 {
				return errors.New("a block has an impossible number of items")
			}
			if size, err := w.varint(false); err != nil || size < 0 {
				return errors.New("a block has an impossible size")
			}
		}
		for ; count > 0; count-- {
			if n.kind == "map" {
				if err := w.text(); err != nil {
					return err
				}
			}
			if err := w.value(n.item, depth+1); err != nil {
				return err
			}
		}
	}
}

func (w *avroWalk) take(n int) ([]byte, error) {
	if n > len(w.left) {
		return nil, errShort
	}
	b := w.left[:n]
	w.left = w.left[n:]
	return b, nil
}

func (w *avroWalk) counted() ([]byte, error) {
	n, err := w.varint(false)
	if err != nil {
		return nil, err
	}
	if n < 0 || n > int64(len(w.left)) {
		return nil, errShort
	}
	return w.take(int(n))
}

func (w *avroWalk) text() error {
	b, err := w.counted()
	if err == nil && !utf8.Valid(b) {
		err = errors.New("a string is not UTF-8")
	}
	return err
}

// varint reads a zigzag integer of 64 bits, or of 32.
func (w *avroWalk) varint(narrow bool) (int64, error) {
	var u uint64
	for i := range w.left {
		b := w.left[i]
		if i == 9 && b > 1 {
			return 0, errors.New("an integer has more than 64 bits")
		}
		u |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			w.left = w.left[i+1:]
			v := int64(u>>1) ^ -int64(u&1)      //nolint:gosec // zigzag
			if narrow && v != int64(int32(v)) { //nolint:gosec // that is the question
				return 0, errors.New("an int has more than 32 bits")
			}
			return v, nil
		}
	}
	return 0, errShort
}
