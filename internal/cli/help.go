package cli

import (
	"fmt"
	"reflect"
	"strings"
)

// manual is the long part of a command's help: text, an example, and the fields of what --output json prints.
type manual struct {
	text    string
	example string // commands, one a line
	rows    string // what one object is: "one object a topic"; empty where there are none
	row     any    // a zero value of it
}

// String lays the manual out for kong, which takes go/doc's conventions: indented lines stay as they are.
func (m manual) String() string {
	var b strings.Builder
	b.WriteString(m.text)
	b.WriteString("\n\nExample:\n\n" + indent(m.example))
	if m.row != nil {
		fmt.Fprintf(&b, "\n\nWith --output json: %s, with\n\n%s", m.rows, indent(fieldTable(reflect.TypeOf(m.row))))
	}
	return b.String()
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}

// fieldTable describes the fields of a row in two columns.
func fieldTable(t reflect.Type) string {
	lines, width := fieldLines(t, ""), 0
	for _, l := range lines {
		width = max(width, len(l.name))
	}
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%-*s  %s\n", width, l.name, l.doc)
	}
	return b.String()
}

type fieldLine struct{ name, doc string }

// fieldLines returns the fields that have a doc tag. Those of structs inside follow with their name in front.
func fieldLines(t reflect.Type, prefix string) []fieldLine {
	var lines []fieldLine
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			lines = append(lines, fieldLines(f.Type, prefix)...)
			continue
		}
		if doc := f.Tag.Get("doc"); doc != "" {
			lines = append(lines, fieldLine{prefix + name, doc})
			continue
		}
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			lines = append(lines, fieldLines(inner, prefix+name+".")...)
		}
	}
	return lines
}
