// Package schema owns what a schema means: how its definition is read, which payloads it admits, and whether another
// one may follow it. It is pure: no I/O, no clock, no goroutine of its own, and it looks nothing up, so that whatever a
// definition refers to is handed in with it. Invariant: whatever definition or payload it is given, it answers within
// bounded time and memory, and what it cannot decide it reports as incompatible.
package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/leveemq/levee/internal/fault"
)

// Type is the language a definition is written in.
type Type string

// The types there are.
const (
	Bytes      Type = "bytes"       // anything
	String     Type = "string"      // UTF-8 text
	Number     Type = "number"      // a number as JSON writes it, or 4 or 8 bytes of a binary one
	JSONSchema Type = "json_schema" // JSON that satisfies a JSON Schema
	Avro       Type = "avro"        // Avro's binary encoding
	Protobuf   Type = "protobuf"    // the wire format of one message of a .proto file
)

// Types returns all types.
func Types() []Type { return []Type{Avro, JSONSchema, Protobuf, String, Number, Bytes} }

// typeNames has what clients call the types, in lower case.
var typeNames = map[string]Type{
	"bytes": Bytes, "string": String, "number": Number, "int64": Number, "json": JSONSchema, "json_schema": JSONSchema, "jsonschema": JSONSchema,
	"avro": Avro, "protobuf": Protobuf, "proto": Protobuf,
}

// ParseType reads the name of a type in any of its spellings. The empty name is Avro.
func ParseType(name string) (Type, error) {
	if name == "" {
		return Avro, nil
	}
	if t, ok := typeNames[strings.ToLower(name)]; ok {
		return t, nil
	}
	return "", fault.New(fault.InvalidArgument, "there is no schema type %q: use avro, json_schema, protobuf, string, number or bytes", clip(name)).With("reason", ReasonInvalid)
}

// ReasonInvalid is the detail "reason" of errors about a definition that is none.
const ReasonInvalid = "invalid_schema"

// Bounds of what is accepted. A definition within them is read in well under a second.
const (
	MaxDefinition = 1 << 20 // bytes of one definition
	maxTotal      = 4 << 20 // bytes of a definition with everything it refers to
	maxReferences = 200     // schemas that one refers to, directly or not
	maxNesting    = 100     // brackets open at once in a definition
)

// Reference is another schema that a definition uses, and the name it uses for it: for Avro the full name of a type,
// for JSON Schema the URI of a $ref, for Protobuf the path of an import.
type Reference struct {
	Name   string
	Schema *Parsed
}

// Parsed is a schema that was read. It is immutable and safe for concurrent use.
type Parsed struct {
	kind        Type
	definition  string
	canonical   string
	fingerprint string
	references  []Reference
	impl        implementation
}

// implementation is what each type knows of its own.
type implementation interface {
	validate(payload []byte, message []int) error
	// reads lists why data written with writer, which is of the same type, could not be read with the receiver.
	reads(writer implementation) []Problem
}

// Problem is one thing that breaks.
type Problem struct {
	Path   string // where in the reader's schema
	Rule   string // stable name in snake case
	Detail string // in words
}

// Parse reads a definition. Its errors are of kind invalid_argument and say what is wrong with the definition.
func Parse(t Type, definition string, references []Reference) (*Parsed, error) {
	p := &Parsed{kind: t, definition: definition, references: references}
	if err := p.bounded(); err != nil {
		return nil, err
	}
	var err error
	switch t {
	case Avro:
		p.canonical, p.impl, err = parseAvro(definition, p.closure())
	case JSONSchema:
		p.canonical, p.impl, err = parseJSONSchema(definition, p.closure())
	case Protobuf:
		p.canonical, p.impl, err = parseProtobuf(definition, p.closure())
	case Bytes, String, Number:
		p.canonical, p.impl, err = parsePlain(t, definition, references)
	default:
		err = fmt.Errorf("there is no schema type %q", t)
	}
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "invalid %s schema: %w", t, err).With("reason", ReasonInvalid)
	}
	p.fingerprint = p.identify()
	return p, nil
}

// bounded refuses what is too large to be read, before anything recursive looks at it.
func (p *Parsed) bounded() error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.InvalidArgument, "invalid %s schema: "+format, append([]any{p.kind}, args...)...).With("reason", ReasonInvalid)
	}
	if len(p.definition) > MaxDefinition {
		return refuse("it has %d bytes, more than %d", len(p.definition), MaxDefinition)
	}
	if !utf8.ValidString(p.definition) {
		return refuse("it is not UTF-8")
	}
	if depth := nesting(p.kind, p.definition); depth > maxNesting {
		return refuse("its brackets nest deeper than %d", maxNesting)
	}
	total := len(p.definition)
	closure := p.closure()
	if len(closure) > maxReferences {
		return refuse("it refers to more than %d others", maxReferences)
	}
	byName := map[string]string{}
	for _, r := range closure {
		if r.Schema.kind != p.kind {
			return refuse("the reference %q is of type %s", clip(r.Name), r.Schema.kind)
		}
		if other, ok := byName[r.Name]; ok && other != r.Schema.fingerprint {
			return refuse("the name %q refers to two different schemas", clip(r.Name))
		}
		byName[r.Name] = r.Schema.fingerprint
		total += len(r.Schema.definition)
	}
	if total > maxTotal {
		return refuse("with what it refers to it has %d bytes, more than %d", total, maxTotal)
	}
	return nil
}

// closure lists everything p refers to, each once, what is referred to before what refers to it.
func (p *Parsed) closure() []Reference {
	var all []Reference
	type key struct{ name, fingerprint string }
	seen := map[key]bool{}
	var visit func([]Reference)
	visit = func(references []Reference) {
		for _, r := range references {
			k := key{r.Name, r.Schema.fingerprint}
			if seen[k] || len(all) > maxReferences {
				continue
			}
			seen[k] = true
			visit(r.Schema.references)
			all = append(all, r)
		}
	}
	visit(p.references)
	return all
}

// identify makes the fingerprint: what two schemas have in common exactly if they are the same one.
func (p *Parsed) identify() string {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:", len(s)); _, _ = io.WriteString(h, s) } // no part can run into the next
	part(string(p.kind))
	part(p.canonical)
	for _, r := range p.references {
		part(r.Name)
		part(r.Schema.fingerprint)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Type returns the schema's type.
func (p *Parsed) Type() Type { return p.kind }

// Definition returns what the schema was read from.
func (p *Parsed) Definition() string { return p.definition }

// Canonical returns the definition without what means nothing: spaces, and the order of keys or comments, by type.
func (p *Parsed) Canonical() string { return p.canonical }

// Fingerprint returns "sha256:" and the hash of type, canonical form and references.
func (p *Parsed) Fingerprint() string { return p.fingerprint }

// Validate returns nil where the payload is one that the schema describes, otherwise what does not match. For Protobuf
// it is the first message of the file.
func (p *Parsed) Validate(payload []byte) error { return p.impl.validate(payload, nil) }

// ValidateMessage is Validate for the Protobuf message that the indexes lead to: the first counts the file's messages,
// each further one those nested in the one before.
func (p *Parsed) ValidateMessage(indexes []int, payload []byte) error {
	return p.impl.validate(payload, indexes)
}

// nesting returns how many brackets are open at once at most. It leaves strings out, and comments where there are some.
func nesting(t Type, text string) int {
	if t != Protobuf {
		return scanNesting(text)
	}
	deepest := 0
	depth := 0
	scanProto(text, func(token string) {
		switch token[0] {
		case '{', '[', '(', '<':
			depth++
			deepest = max(deepest, depth)
		case '}', ']', ')', '>':
			depth--
		}
	})
	return deepest
}

func scanNesting(text string) int {
	depth, deepest := 0, 0
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// clip shortens what a client sent for a message.
func clip(s string) string { return clipTo(s, 100) }

func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
