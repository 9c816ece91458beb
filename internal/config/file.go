package config

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/printer"
	"github.com/goccy/go-yaml/token"
)

// file takes the settings of a YAML file: mappings nested as keys are dotted, scalars as values. Nothing else of YAML
// is taken (no lists, anchors, tags or second document), so that every value has exactly one line to point at.
func (l *loader) file(name string, text []byte) {
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		p := Problem{Origin: Origin{Source: FromFile, Where: name, Line: 1}, Message: err.Error()}
		var ye yaml.Error
		if errors.As(err, &ye) {
			p.Message = ye.GetMessage()
			if tk := ye.GetToken(); tk != nil {
				p.Origin.Line, p.Source = tk.Position.Line, excerpt(tk)
			}
		}
		l.problem(p)
		return
	}
	seen := false
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		if seen {
			l.refuse(name, "", doc.Body.GetToken(), "a second document: one file holds one configuration")
			continue
		}
		seen = true
		l.mapping(name, "", doc.Body)
	}
}

// mapping takes the settings of one section; prefix is "" or ends in a dot.
func (l *loader) mapping(file, prefix string, n ast.Node) {
	m, ok := n.(ast.MapNode)
	if !ok {
		what := strings.TrimSuffix(prefix, ".")
		l.refuse(file, what, n.GetToken(), "allowed: settings, one a line as \"name: value\"")
		return
	}
	for it := m.MapRange(); it.Next(); {
		at := it.Key().GetToken()
		if it.Key().Type() != ast.StringType {
			l.refuse(file, prefix+at.Value, at, "allowed: a plain name of a setting")
			continue
		}
		name := prefix + at.Value
		switch k, isKey := l.byName[name]; {
		case strings.Contains(at.Value, "."): // else one setting could be there in two forms
			l.refuse(file, name, at, "allowed: names without dots; nest it, a section for every dot")
		case isKey:
			l.scalar(file, k, at, it.Value())
		case !l.sections[name]:
			l.refuse(file, name, at, "there is no such setting"+didYouMean(nearest(name, l.names())))
		case it.Value().Type() != ast.NullType: // a section with all its lines commented out
			l.mapping(file, name+".", it.Value())
		}
	}
}

func (l *loader) scalar(file string, k key, at *token.Token, n ast.Node) {
	from := Origin{Source: FromFile, Where: file, Line: at.Position.Line}
	switch n.Type() {
	case ast.StringType, ast.IntegerType, ast.FloatType, ast.BoolType:
		tk := n.GetToken()
		l.set(k, tk.Value, from, func() string { return excerpt(tk) })
	case ast.NullType:
		l.refuse(file, k.name, at, "has no value: write one, or remove the line; allowed: "+k.value.allowed())
	default:
		l.refuse(file, k.name, n.GetToken(), "is not a plain value; allowed: "+k.value.allowed())
	}
}

func (l *loader) refuse(file, key string, at *token.Token, message string) {
	l.problem(Problem{Key: key, Origin: Origin{Source: FromFile, Where: file, Line: at.Position.Line}, Message: message, Source: excerpt(at)})
}

func (l *loader) names() []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(l.byName)), maps.Keys(l.sections))
}

// excerpt returns the lines around a token, with a caret below it.
func excerpt(tk *token.Token) string {
	var p printer.Printer
	return strings.TrimRight(p.PrintErrorToken(tk, false), "\n ")
}
