package schema

import (
	"math/big"
	"reflect"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// sameSchemas remembers which schemas of two definitions are known to demand the same, keyword by keyword.
type sameSchemas map[[2]*jsonschema.Schema]bool

// annotations are the fields of a compiled schema that demand nothing.
var annotations = map[string]bool{
	"Location": true, "ID": true, "Anchor": true, "DynamicAnchor": true, "RecursiveAnchor": true, "Title": true, "Description": true, "Default": true, "Comment": true,
	"ReadOnly": true, "WriteOnly": true, "Examples": true, "Deprecated": true, "ContentEncoding": true, "ContentMediaType": true, "ContentSchema": true, "Extensions": true,
}

// same reports whether a and b have the same keywords with the same values. Schemas that lead back to themselves are the
// same if nothing tells them apart.
func (k sameSchemas) same(a, b *jsonschema.Schema) bool {
	pair := [2]*jsonschema.Schema{a, b}
	if known, ok := k[pair]; ok {
		return known
	}
	assumed := map[[2]*jsonschema.Schema]bool{}
	equal := k.schemas(a, b, assumed)
	if equal {
		for p := range assumed {
			k[p] = true
		}
	}
	k[pair] = equal
	return equal
}

func (k sameSchemas) schemas(a, b *jsonschema.Schema, assumed map[[2]*jsonschema.Schema]bool) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	pair := [2]*jsonschema.Schema{a, b}
	if known, ok := k[pair]; ok {
		return known
	}
	if assumed[pair] {
		return true
	}
	assumed[pair] = true
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		f := va.Type().Field(i)
		if !f.IsExported() || annotations[f.Name] {
			continue
		}
		if !k.values(va.Field(i), vb.Field(i), assumed) {
			k[pair] = false // whatever was assumed: assumptions only ever help
			return false
		}
	}
	return true
}

func (k sameSchemas) values(a, b reflect.Value, assumed map[[2]*jsonschema.Schema]bool) bool {
	if a.Type() != b.Type() {
		return false
	}
	if a.Kind() == reflect.Interface {
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return k.values(a.Elem(), b.Elem(), assumed)
	}
	switch va := a.Interface().(type) {
	case *jsonschema.Schema:
		return k.schemas(va, b.Interface().(*jsonschema.Schema), assumed) //nolint:forcetypeassert // of the same type
	case *jsonschema.Format:
		vb := b.Interface().(*jsonschema.Format) //nolint:forcetypeassert // of the same type
		return va == vb || va != nil && vb != nil && va.Name == vb.Name
	case *big.Rat:
		vb := b.Interface().(*big.Rat) //nolint:forcetypeassert // of the same type
		return va == vb || va != nil && vb != nil && va.Cmp(vb) == 0
	case map[jsonschema.Regexp]*jsonschema.Schema:
		return k.patterns(va, b.Interface().(map[jsonschema.Regexp]*jsonschema.Schema), assumed) //nolint:forcetypeassert // of the same type
	case jsonschema.Regexp:
		return va.String() == b.Interface().(jsonschema.Regexp).String() //nolint:forcetypeassert // of the same type
	}
	return k.composites(a, b, assumed)
}

// composites compares what is made of other values, and everything that is none.
func (k sameSchemas) composites(a, b reflect.Value, assumed map[[2]*jsonschema.Schema]bool) bool {
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		if a.Elem().Kind() == reflect.Struct {
			return reflect.DeepEqual(a.Interface(), b.Interface()) // an Enum
		}
		return k.values(a.Elem(), b.Elem(), assumed)
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !k.values(a.Index(i), b.Index(i), assumed) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for _, key := range a.MapKeys() {
			other := b.MapIndex(key)
			if !other.IsValid() || !k.values(a.MapIndex(key), other, assumed) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func (k sameSchemas) patterns(a, b map[jsonschema.Regexp]*jsonschema.Schema, assumed map[[2]*jsonschema.Schema]bool) bool {
	if len(a) != len(b) {
		return false
	}
	byText := map[string]*jsonschema.Schema{}
	for re, s := range b {
		byText[re.String()] = s
	}
	for re, s := range a {
		if other := byText[re.String()]; other == nil || !k.schemas(s, other, assumed) {
			return false
		}
	}
	return true
}
