package schema

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxProtoDepth is how deep messages may nest; Protobuf's own libraries stop there.
const maxProtoDepth = 100

// protoWire checks that b is a message m: every field is known and encoded as its type is, and those required are there.
func protoWire(m protoreflect.MessageDescriptor, b []byte, depth int) error {
	if depth >= maxProtoDepth {
		return fmt.Errorf("it nests deeper than %d", maxProtoDepth)
	}
	required := map[protowire.Number]bool{}
	for i := range m.RequiredNumbers().Len() {
		required[m.RequiredNumbers().Get(i)] = true
	}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("message %s: %w", m.Name(), protowire.ParseError(n))
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(number, wire, b)
		if size < 0 {
			return fmt.Errorf("message %s: field %d: %w", m.Name(), number, protowire.ParseError(size))
		}
		value := b[:size]
		b = b[size:]
		f := m.Fields().ByNumber(number)
		if f == nil {
			if m.ExtensionRanges().Has(number) {
				continue // whoever extends it knows what it is
			}
			return fmt.Errorf("message %s has no field %d", m.Name(), number)
		}
		if err := protoField(f, wire, value, depth); err != nil {
			return fmt.Errorf("field %s: %w", f.Name(), err)
		}
		delete(required, number)
	}
	for number := range required {
		return fmt.Errorf("message %s lacks the required field %s", m.Name(), m.Fields().ByNumber(number).Name())
	}
	return nil
}

var errWireType = errors.New("it is encoded as another type")

func protoField(f protoreflect.FieldDescriptor, wire protowire.Type, value []byte, depth int) error {
	want := wireType(f.Kind())
	if f.IsList() && want != protowire.BytesType && want != protowire.StartGroupType && wire == protowire.BytesType {
		packed, _ := protowire.ConsumeBytes(value)
		return protoPacked(f, want, packed)
	}
	if wire != want {
		return fmt.Errorf("%w: wire type %d, not %d", errWireType, wire, want)
	}
	switch f.Kind() {
	case protoreflect.MessageKind:
		inner, _ := protowire.ConsumeBytes(value)
		return protoWire(f.Message(), inner, depth+1)
	case protoreflect.GroupKind:
		inner, n := protowire.ConsumeGroup(f.Number(), value)
		if n < 0 {
			return protowire.ParseError(n)
		}
		return protoWire(f.Message(), inner, depth+1)
	case protoreflect.StringKind:
		text, _ := protowire.ConsumeBytes(value)
		if f.ParentFile().Syntax() != protoreflect.Proto2 && !utf8.Valid(text) {
			return errors.New("it is not UTF-8")
		}
		return nil
	case protoreflect.EnumKind:
		return protoEnum(f, value)
	}
	return nil
}

// protoPacked checks that what is packed is whole values.
func protoPacked(f protoreflect.FieldDescriptor, want protowire.Type, packed []byte) error {
	for len(packed) > 0 {
		n := protowire.ConsumeFieldValue(f.Number(), want, packed)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if f.Kind() == protoreflect.EnumKind {
			if err := protoEnum(f, packed[:n]); err != nil {
				return err
			}
		}
		packed = packed[n:]
	}
	return nil
}

func protoEnum(f protoreflect.FieldDescriptor, value []byte) error {
	v, _ := protowire.ConsumeVarint(value)
	if f.Enum().IsClosed() && f.Enum().Values().ByNumber(protoreflect.EnumNumber(v)) == nil { //nolint:gosec // an enum is 32 bits on the wire too
		return fmt.Errorf("enum %s has no value %d", f.Enum().Name(), int32(v)) //nolint:gosec // likewise
	}
	return nil
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}
