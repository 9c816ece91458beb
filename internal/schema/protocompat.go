package schema

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoCompare finds what a reader's file cannot make of what was written with a writer's. Messages are matched by name,
// fields by number: the wire has no names.
type protoCompare struct {
	problems []Problem
	seen     map[[2]protoreflect.FullName]bool
	w, r     protoreflect.FileDescriptor
}

func (s *protoSchema) reads(writer implementation) []Problem {
	w := writer.(*protoSchema) //nolint:forcetypeassert // Check compares equal types only
	c := &protoCompare{seen: map[[2]protoreflect.FullName]bool{}, w: w.file, r: s.file}
	c.messages("", w.file.Messages(), s.file.Messages())
	return c.problems
}

func (c *protoCompare) add(path, rule, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{path, rule, fmt.Sprintf(format, args...)})
	}
}

// messages compares the messages of a file, or those nested in a message, by name.
func (c *protoCompare) messages(path string, w, r protoreflect.MessageDescriptors) {
	for i := range w.Len() {
		wm := w.Get(i)
		if wm.IsMapEntry() {
			continue // compared as the field that it is
		}
		at := path + "/" + string(wm.Name())
		rm := r.ByName(wm.Name())
		if rm == nil {
			c.add(at, "message_removed", "message %s is gone", wm.Name())
			continue
		}
		c.message(at, wm, rm)
		c.messages(at, wm.Messages(), rm.Messages())
	}
}

func (c *protoCompare) message(path string, w, r protoreflect.MessageDescriptor) {
	key := [2]protoreflect.FullName{w.FullName(), r.FullName()}
	if c.seen[key] {
		return
	}
	c.seen[key] = true
	for i := range w.Fields().Len() {
		wf := w.Fields().Get(i)
		at := fmt.Sprintf("%s/%d", path, wf.Number())
		rf := r.Fields().ByNumber(wf.Number())
		if rf == nil {
			if o := realOneof(wf); o != nil && r.Oneofs().ByName(o.Name()) != nil {
				c.add(at, "oneof_field_removed", "field %s of oneof %s is gone: its reader would see the oneof as not set", wf.Name(), o.Name())
			}
			continue // the reader skips it
		}
		c.field(at, wf, rf)
	}
	for i := range r.Fields().Len() {
		rf := r.Fields().Get(i)
		wf := w.Fields().ByNumber(rf.Number())
		if rf.Cardinality() == protoreflect.Required && (wf == nil || wf.Cardinality() != protoreflect.Required) {
			c.add(fmt.Sprintf("%s/%d", path, rf.Number()), "required_field_added", "field %s is required to read, and not to write", rf.Name())
		}
	}
	c.oneofs(path, w, r)
}

// follows refuses fields of a newer schema under numbers and names that the older one has set aside: something else was
// once written under them.
func (s *protoSchema) follows(older implementation) []Problem {
	c := &protoCompare{}
	c.reserved("", older.(*protoSchema).file.Messages(), s.file.Messages()) //nolint:forcetypeassert // Check compares equal types only
	return c.problems
}

func (c *protoCompare) reserved(path string, older, newer protoreflect.MessageDescriptors) {
	for i := range newer.Len() {
		n := newer.Get(i)
		o := older.ByName(n.Name())
		if o == nil {
			continue
		}
		at := path + "/" + string(n.Name())
		for j := range n.Fields().Len() {
			f := n.Fields().Get(j)
			if o.ReservedRanges().Has(f.Number()) {
				c.add(fmt.Sprintf("%s/%d", at, f.Number()), "reserved_number_used", "field %s uses the number %d, which is reserved", f.Name(), f.Number())
			}
			if o.ReservedNames().Has(f.Name()) {
				c.add(fmt.Sprintf("%s/%d", at, f.Number()), "reserved_name_used", "the name %s is reserved", f.Name())
			}
		}
		c.reserved(at, o.Messages(), n.Messages())
	}
}

// realOneof returns the oneof a field is in; what proto3 makes of optional is none.
func realOneof(f protoreflect.FieldDescriptor) protoreflect.OneofDescriptor {
	o := f.ContainingOneof()
	if o == nil || o.IsSynthetic() {
		return nil
	}
	return o
}

// oneofs looks for fields that could be written together and of which the reader keeps but the last.
func (c *protoCompare) oneofs(path string, w, r protoreflect.MessageDescriptor) {
	for i := range r.Oneofs().Len() {
		o := r.Oneofs().Get(i)
		if o.IsSynthetic() {
			continue
		}
		groups := map[string][]string{} // by the writer's oneof; fields that are in none stand alone
		for j := range o.Fields().Len() {
			rf := o.Fields().Get(j)
			wf := w.Fields().ByNumber(rf.Number())
			if wf == nil {
				continue
			}
			group := fmt.Sprint(wf.Number())
			if wo := realOneof(wf); wo != nil {
				group = "oneof " + string(wo.Name())
			}
			groups[group] = append(groups[group], string(rf.Name()))
		}
		if len(groups) > 1 {
			c.add(path+"/"+string(o.Name()), "fields_moved_to_oneof", "oneof %s joins fields that may be written together: only the last of them would be read", o.Name())
		}
	}
}

func (c *protoCompare) field(path string, w, r protoreflect.FieldDescriptor) {
	if w.IsMap() != r.IsMap() {
		c.add(path, "field_kind_changed", "field %s is written as %s and read as %s", r.Name(), describeField(w), describeField(r))
		return
	}
	if w.IsMap() {
		c.field(path+"/key", w.MapKey(), r.MapKey())
		c.field(path+"/value", w.MapValue(), r.MapValue())
		return
	}
	if kindGroup(w.Kind()) != kindGroup(r.Kind()) {
		c.add(path, "field_type_changed", "field %s is written as %s and read as %s", r.Name(), describeField(w), describeField(r))
		return
	}
	c.cardinality(path, w, r)
	switch r.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		if w.Kind() != r.Kind() {
			return // reported: they are of different groups
		}
		if local(w.Message(), c.w) != local(r.Message(), c.r) {
			c.add(path, "field_named_type_changed", "field %s is written as message %s and read as %s", r.Name(), w.Message().FullName(), r.Message().FullName())
			return
		}
		if w.Message().ParentFile() != c.w || r.Message().ParentFile() != c.r { // otherwise its turn comes with its file's messages
			c.message("/"+string(r.Message().FullName()), w.Message(), r.Message())
		}
	case protoreflect.EnumKind:
		if w.Kind() == protoreflect.EnumKind {
			c.enum(path, w.Enum(), r.Enum())
		}
	}
}

// cardinality refuses to turn a list of numbers into one or back: it may be packed, which the other cannot read.
func (c *protoCompare) cardinality(path string, w, r protoreflect.FieldDescriptor) {
	if w.IsList() == r.IsList() {
		return
	}
	switch r.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return // the last one counts
	}
	c.add(path, "field_label_changed", "field %s is written as %s and read as %s", r.Name(), describeField(w), describeField(r))
}

// enum refuses values that the reader of a closed enum would not see.
func (c *protoCompare) enum(path string, w, r protoreflect.EnumDescriptor) {
	if !r.IsClosed() {
		return
	}
	for i := range w.Values().Len() {
		v := w.Values().Get(i)
		if r.Values().ByNumber(v.Number()) == nil {
			c.add(path, "enum_value_removed", "value %s = %d of the closed enum %s is not there to read", v.Name(), v.Number(), r.Name())
		}
	}
}

// local is a type's name within its file's package, so that a package may change its name; types of other packages keep
// their whole name.
func local(m protoreflect.MessageDescriptor, file protoreflect.FileDescriptor) string {
	name, pkg := string(m.FullName()), file.Package()
	if pkg == "" {
		return name
	}
	if rest, ok := strings.CutPrefix(name, string(pkg)+"."); ok {
		return rest
	}
	return name
}

// kindGroup is what kinds that read each other's bytes have in common.
func kindGroup(k protoreflect.Kind) string {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.BoolKind, protoreflect.EnumKind:
		return "varint"
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return "zigzag"
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return "fixed32"
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return "fixed64"
	case protoreflect.StringKind, protoreflect.BytesKind:
		return "bytes"
	}
	return k.String()
}

func describeField(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return "map<" + f.MapKey().Kind().String() + ", " + f.MapValue().Kind().String() + ">"
	}
	text := f.Kind().String()
	if f.IsList() {
		text = "repeated " + text
	}
	return text
}
