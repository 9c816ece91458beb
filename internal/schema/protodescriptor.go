package schema

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// descriptorBytes returns the FileDescriptorProto that a definition is the base64 of, as serializers that have no .proto
// text at hand send it. The text of a .proto file never is base64: it has braces and spaces.
func descriptorBytes(definition string) ([]byte, bool) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(definition))
	return raw, err == nil && len(raw) > 0
}

// The numbers of what a FileDescriptorProto says beside the schema itself.
const (
	descriptorName   protowire.Number = 1 // the path the file once had: here its reference decides
	descriptorSource protowire.Number = 9 // places in the text, and comments
)

// canonicalDescriptor drops what means nothing. It cuts that out of the bytes and encodes nothing anew, so that the
// fingerprint depends on no library's way of encoding.
func canonicalDescriptor(raw []byte) (string, error) {
	kept := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			return "", errDescriptor(protowire.ParseError(n))
		}
		if number != descriptorName && number != descriptorSource {
			kept = append(kept, raw[:n]...)
		}
		raw = raw[n:]
	}
	return base64.StdEncoding.EncodeToString(kept), nil
}

func errDescriptor(err error) error {
	return fmt.Errorf("it is neither a .proto file nor base64 of a file's descriptor: %s", clipTo(err.Error(), 1000))
}

// readDescriptor decodes a descriptor and makes it the file at path. What it holds was not through a parser, so that
// everything a parser would refuse is looked for here: the compiler takes it for granted.
func readDescriptor(path string, raw []byte) (*descriptorpb.FileDescriptorProto, error) {
	described := &descriptorpb.FileDescriptorProto{}
	if err := unmarshal(raw, described); err != nil {
		return nil, errDescriptor(err)
	}
	described.Name, described.SourceCodeInfo = &path, nil
	file, err := (protodesc.FileOptions{AllowUnresolvable: true}).New(described, nil)
	if err != nil {
		return nil, fmt.Errorf("its descriptor describes no file: %s", clipTo(err.Error(), 1000))
	}
	nameForJSON(described.MessageType, file.Messages())
	return described, nil
}

// nameForJSON gives fields the JSON names they have by default: generated code leaves them out of its descriptors, and the
// compiler takes what is missing for an empty name.
func nameForJSON(described []*descriptorpb.DescriptorProto, messages protoreflect.MessageDescriptors) {
	for i, m := range described {
		for j, f := range m.Field {
			f.JsonName = proto.String(messages.Get(i).Fields().Get(j).JSONName())
		}
		nameForJSON(m.NestedType, messages.Get(i).Messages())
	}
}

// Described reports whether a Protobuf definition is a descriptor and no text.
func Described(definition string) bool {
	_, ok := descriptorBytes(definition)
	return ok
}

// Same reports whether two schemas are one: they have the same fingerprint, or they are Protobuf schemas that say the
// same, one as text and the other as descriptor. What they refer to has to be the same likewise.
func (p *Parsed) Same(other *Parsed) bool {
	if p.fingerprint == other.fingerprint {
		return true
	}
	mine, theirs := p.closure(), map[string]*Parsed{}
	for _, r := range other.closure() {
		theirs[r.Name] = r.Schema
	}
	named := map[string]bool{}
	for _, r := range mine {
		named[r.Name] = true
		if there := theirs[r.Name]; there == nil || !r.Schema.alike(there) {
			return false
		}
	}
	return len(named) == len(theirs) && p.alike(other)
}

// alike is Same without a look at what the two refer to.
func (p *Parsed) alike(other *Parsed) bool {
	if p.kind != other.kind || p.canonical == other.canonical {
		return p.kind == other.kind
	}
	a, ok := p.impl.(*protoSchema)
	b, too := other.impl.(*protoSchema)
	if !ok || !too || Described(p.definition) == Described(other.definition) {
		return false
	}
	var plain [2]descriptorpb.FileDescriptorProto
	for i, s := range []*protoSchema{a, b} {
		raw, err := s.encode()
		if err != nil || unmarshal(raw, &plain[i]) != nil { // encoded and read again: options of files' own are known to the one only
			return false
		}
	}
	return proto.Equal(&plain[0], &plain[1])
}

// encode returns the descriptor of the file that was compiled.
func (s *protoSchema) encode() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(s.file))
}

// unmarshal decodes a descriptor, whose options stay bytes whatever this program has linked in.
func unmarshal(raw []byte, into *descriptorpb.FileDescriptorProto) error {
	return proto.UnmarshalOptions{RecursionLimit: maxNesting, Resolver: &protoregistry.Types{}}.Unmarshal(raw, into)
}

// Serialized returns a Protobuf schema as base64 of its FileDescriptorProto, whichever form it was read from.
func (p *Parsed) Serialized() (string, error) {
	s, ok := p.impl.(*protoSchema)
	if !ok {
		return "", errors.New("a schema of type " + string(p.kind) + " has no descriptor")
	}
	if _, ok := descriptorBytes(p.definition); ok {
		return strings.TrimSpace(p.definition), nil
	}
	raw, err := s.encode()
	if err != nil {
		return "", fmt.Errorf("encode the schema's descriptor: %w", err)
	}
	return base64.StdEncoding.EncodeToString(raw), nil
}
