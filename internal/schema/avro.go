package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/avro"
)

// avroSchema is an Avro schema. The library reads definitions and compares them; payloads are walked here, because to
// decode one only to throw the values away costs many times the payload in memory.
type avroSchema struct {
	compiled *avro.Schema
	root     *avroNode
}

func parseAvro(definition string, references []Reference) (string, implementation, error) {
	canonical, err := canonicalJSON(definition)
	if err != nil {
		return "", nil, err
	}
	var cache avro.SchemaCache
	for _, r := range references {
		if _, err := cache.Parse(r.Schema.definition); err != nil {
			return "", nil, fmt.Errorf("reference %q: %w", clip(r.Name), err)
		}
	}
	compiled, err := cache.Parse(definition)
	if err != nil {
		return "", nil, err
	}
	b := avroBuilder{named: map[string]*avroNode{}}
	root, err := b.build(compiled.Root(), "")
	if err != nil {
		return "", nil, err
	}
	return canonical, &avroSchema{compiled, root}, nil
}

func (s *avroSchema) validate(payload []byte, _ []int) error {
	w := avroWalk{left: payload, budget: avroBudget(len(payload))}
	if err := w.value(s.root, 0); err != nil {
		return fmt.Errorf("at byte %d: %w", len(payload)-len(w.left), err)
	}
	if len(w.left) > 0 {
		return fmt.Errorf("there are %d bytes behind the value", len(w.left))
	}
	return nil
}

func (s *avroSchema) reads(writer implementation) []Problem {
	err := avro.CheckCompatibility(writer.(*avroSchema).compiled, s.compiled) //nolint:forcetypeassert // Check compares equal types only
	if err == nil {
		return nil
	}
	var ce *avro.CompatibilityError
	if !errors.As(err, &ce) {
		return []Problem{{"/", "incompatible", err.Error()}}
	}
	detail := ce.Detail
	if ce.ReaderType != "" || ce.WriterType != "" {
		detail = fmt.Sprintf("%s: written as %s, read as %s", ce.Detail, orNothing(ce.WriterType), orNothing(ce.ReaderType))
	}
	path := ce.Path
	if path == "" {
		path = "/"
	}
	return []Problem{{path, "reader_writer_mismatch", detail}}
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// canonicalJSON writes a JSON text with its keys sorted and without spaces. Numbers stay as they are written.
func canonicalJSON(text string) (string, error) {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", fmt.Errorf("it is not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("it is not JSON: there is something behind the value")
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("write JSON: %w", err)
	}
	return string(bytes.TrimRight(out.Bytes(), "\n")), nil
}
