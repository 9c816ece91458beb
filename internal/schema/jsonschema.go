package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// jsonSchema is a compiled JSON Schema. costs bounds what a value may cost to validate, by its depth.
type jsonSchema struct {
	root  *jsonschema.Schema
	costs []int64
}

// jsonRoot is where a definition is compiled. Nothing is ever fetched from there, nor from anywhere else.
const jsonRoot = "levee:///schema.json"

// maxSubschemas bounds what the library has to compile: it takes time by the square of it, and two seconds here.
const maxSubschemas = 20_000

// countSchemas counts what may be a schema: objects and booleans that are no data.
func countSchemas(v any) int {
	n := 0
	switch v := v.(type) {
	case bool:
		n = 1
	case []any:
		for _, e := range v {
			n += countSchemas(e)
		}
	case map[string]any:
		n = 1
		for key, e := range v {
			if !data(key) {
				n += countSchemas(e)
			}
		}
	}
	return n
}

// data reports whether what a keyword holds is values and no schemas.
func data(keyword string) bool {
	return keyword == "const" || keyword == "default" || keyword == "enum" || keyword == "examples"
}

// jsonDrafts are the meta-schemas that a definition may name; one of its own could make reading it cost anything.
var jsonDrafts = []string{
	"http://json-schema.org/draft-04/schema", "http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-07/schema",
	"https://json-schema.org/draft-04/schema", "https://json-schema.org/draft-06/schema", "https://json-schema.org/draft-07/schema",
	"https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema",
}

func parseJSONSchema(definition string, references []Reference) (string, implementation, error) {
	canonical, err := canonicalJSON(definition)
	if err != nil {
		return "", nil, err
	}
	doc, err := readJSONSchema(definition)
	if err != nil {
		return "", nil, err
	}
	loader, parts := jsonLoader{}, countSchemas(doc)
	for _, r := range references {
		if loader[r.Name], err = readJSONSchema(r.Schema.definition); err != nil {
			return "", nil, fmt.Errorf("reference %q: %w", clip(r.Name), err)
		}
		parts += countSchemas(loader[r.Name])
	}
	if parts > maxSubschemas {
		return "", nil, fmt.Errorf("it is made of more than %d schemas", maxSubschemas)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	c.UseLoader(loader)
	c.UseRegexpEngine(compilePattern)
	if err := c.AddResource(jsonRoot, doc); err != nil {
		return "", nil, errors.New(clipTo(oneLine(err), 1000))
	}
	root, err := c.Compile(jsonRoot)
	if err != nil {
		return "", nil, errors.New(clipTo(oneLine(err), 1000))
	}
	costs, err := jsonCosts(root)
	if err != nil {
		return "", nil, err
	}
	return canonical, &jsonSchema{root, costs}, nil
}

// jsonLoader has what references name. A $ref finds it by that name, or by a URI that ends in it.
type jsonLoader map[string]any

func (l jsonLoader) Load(url string) (any, error) {
	if doc, ok := l[url]; ok {
		return doc, nil
	}
	for name, doc := range l {
		if strings.HasSuffix(url, "/"+name) {
			return doc, nil
		}
	}
	return nil, fmt.Errorf("%s is not among the references", clip(url))
}

// readJSONSchema decodes a definition and refuses meta-schemas of its own and numbers that nobody could handle.
func readJSONSchema(definition string) (any, error) {
	v, err := decodeJSON([]byte(definition))
	if err != nil {
		return nil, err
	}
	return v, foreignMeta(v)
}

func foreignMeta(v any) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := foreignMeta(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for key, e := range v {
			if data(key) {
				continue
			}
			if uri, ok := e.(string); ok && key == "$schema" && !slices.Contains(jsonDrafts, strings.TrimSuffix(uri, "#")) {
				return fmt.Errorf("$schema %q is not known: use draft 4, 6, 7, 2019-09 or 2020-12", clip(uri))
			}
			if err := foreignMeta(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// decodeJSON reads one JSON value, numbers as they are written.
func decodeJSON(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is not JSON: there is nothing")
		}
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is not JSON: there is something behind the value")
	}
	return v, checkNumbers(v)
}

// checkNumbers refuses numbers whose exact value would take more room than the text they come in allows for.
func checkNumbers(v any) error {
	switch v := v.(type) {
	case json.Number:
		if _, err := v.Float64(); err != nil || len(v) > 400 || smallExponent(string(v)) {
			return fmt.Errorf("the number %s is out of range", clip(string(v)))
		}
	case []any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// smallExponent reports whether a number is written with an exponent of many digits: those that are too large are out
// of the range of a float, those below it round to zero and are not.
func smallExponent(n string) bool {
	i := strings.IndexAny(n, "eE")
	return i >= 0 && len(strings.TrimLeft(n[i+1:], "+-0")) > 3
}

// pattern is a regular expression with its size, which is what a byte of text costs.
type pattern struct {
	*regexp.Regexp
	size int
}

const maxPattern = 2000 // instructions of one regular expression

func compilePattern(text string) (jsonschema.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a pattern has more than %d bytes", maxPattern)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("%w (patterns are of RE2's syntax: there is no look-ahead and no back-reference)", err)
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > maxPattern {
		return nil, errors.New("a pattern repeats too much")
	}
	re, err := regexp.Compile(text)
	return &pattern{re, len(prog.Inst)}, err
}

func (s *jsonSchema) validate(payload []byte, _ []int) error {
	if scanNesting(string(payload)) > maxJSONDepth {
		return fmt.Errorf("it nests deeper than %d", maxJSONDepth)
	}
	v, err := decodeJSON(payload)
	if err != nil {
		return err
	}
	if err := s.affordable(v); err != nil {
		return err
	}
	return mismatch(s.root.Validate(v))
}

// mismatch says in one line what of a value does not match.
func mismatch(err error) error {
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	unit := ve.BasicOutput()
	for _, u := range unit.Errors {
		if u.Error != nil {
			return fmt.Errorf("at %s: %s", clip(orRoot(u.InstanceLocation)), clipTo(u.Error.String(), 300))
		}
	}
	if unit.Error != nil {
		return fmt.Errorf("at %s: %s", clip(orRoot(unit.InstanceLocation)), clipTo(unit.Error.String(), 300))
	}
	return errors.New(clipTo(oneLine(err), 300))
}

func orRoot(location string) string {
	if location == "" {
		return "/"
	}
	return location
}

func oneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), jsonRoot, "")
	return strings.Join(strings.Fields(text), " ")
}
