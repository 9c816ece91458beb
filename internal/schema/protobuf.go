package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// protoSchema is a .proto file, which was read from its text or from its descriptor, with everything it imports.
type protoSchema struct {
	file protoreflect.FileDescriptor
}

// protoRoot is the path a definition is compiled under; nothing can import it.
const protoRoot = "schema.proto"

func parseProtobuf(definition string, references []Reference) (string, implementation, error) {
	sources := map[string]string{}
	for _, r := range references {
		if r.Name == protoRoot {
			return "", nil, fmt.Errorf("a reference may not have the name %s", protoRoot)
		}
		sources[r.Name] = r.Schema.definition
	}
	canonical, root, err := readRoot(definition)
	if err != nil {
		return "", nil, err
	}
	find := func(path string) (protocompile.SearchResult, error) {
		if path == protoRoot {
			return root, nil
		}
		source, ok := sources[path]
		if !ok {
			return protocompile.SearchResult{}, protoregistry.NotFound
		}
		return protoSource(path, source)
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(find)), MaxParallelism: 1}
	files, err := compiler.Compile(context.Background(), protoRoot)
	if err != nil {
		var bug protocompile.PanicError
		if errors.As(err, &bug) {
			return "", nil, errors.New("it cannot be compiled")
		}
		return "", nil, errors.New(clipTo(err.Error(), 1000))
	}
	file, err := indexed(files[0], &protoregistry.Files{})
	if err != nil {
		return "", nil, err
	}
	if file.Messages().Len() == 0 && file.Enums().Len() == 0 {
		return "", nil, errors.New("it defines no message")
	}
	return canonical, &protoSchema{file}, nil
}

// readRoot returns a definition's canonical form and what the compiler makes a file of, whichever form it has.
func readRoot(definition string) (canonical string, root protocompile.SearchResult, err error) {
	if root, err = protoSource(protoRoot, definition); err != nil {
		return "", root, err
	}
	if raw, ok := descriptorBytes(definition); ok {
		canonical, err = canonicalDescriptor(raw)
		return canonical, root, err
	}
	return canonicalProto(definition), root, nil
}

// protoSource is what the compiler makes the file at path of.
func protoSource(path, definition string) (protocompile.SearchResult, error) {
	if raw, ok := descriptorBytes(definition); ok {
		described, err := readDescriptor(path, raw)
		return protocompile.SearchResult{Proto: described}, err
	}
	return protocompile.SearchResult{Source: strings.NewReader(definition)}, nil
}

// indexed turns a compiled file, with what it imports, into one that finds fields and messages without going through all
// of them.
func indexed(file protoreflect.FileDescriptor, known *protoregistry.Files) (protoreflect.FileDescriptor, error) {
	if there, err := known.FindFileByPath(file.Path()); err == nil {
		return there, nil
	}
	for i := range file.Imports().Len() {
		if _, err := indexed(file.Imports().Get(i).FileDescriptor, known); err != nil {
			return nil, err
		}
	}
	made, err := protodesc.NewFile(protodesc.ToFileDescriptorProto(file), known)
	if err != nil {
		return nil, err
	}
	return made, known.RegisterFile(made)
}

// canonicalProto drops comments and spaces that separate nothing.
func canonicalProto(text string) string {
	var out strings.Builder
	word := false
	scanProto(text, func(token string) {
		w := wordByte(token[0])
		if w && word {
			out.WriteByte(' ')
		}
		out.WriteString(token)
		word = w
	})
	return out.String()
}

func wordByte(c byte) bool {
	return c == '_' || c == '.' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// scanProto calls yield with each token: a word or number, a string with its quotes, or one other character.
func scanProto(text string, yield func(token string)) {
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f':
			i++
		case strings.HasPrefix(text[i:], "//"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return
			}
			i += end
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return
			}
			i += end + 4
		case c == '"' || c == '\'':
			end := i + 1
			for end < len(text) && text[end] != c {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(text))
			yield(text[i:end])
			i = end
		case wordByte(c):
			end := i + 1
			for end < len(text) && wordByte(text[end]) {
				end++
			}
			yield(text[i:end])
			i = end
		default:
			yield(text[i : i+1])
			i++
		}
	}
}

// message finds the message that the indexes lead to; none lead to the first.
func (s *protoSchema) message(indexes []int) (protoreflect.MessageDescriptor, error) {
	if len(indexes) == 0 {
		indexes = []int{0}
	}
	messages := s.file.Messages()
	var found protoreflect.MessageDescriptor
	for _, i := range indexes {
		if i < 0 || i >= messages.Len() {
			return nil, fmt.Errorf("the schema has no message %v", indexes)
		}
		found = messages.Get(i)
		messages = found.Messages()
	}
	return found, nil
}

func (s *protoSchema) validate(payload []byte, indexes []int) error {
	m, err := s.message(indexes)
	if err != nil {
		return err
	}
	return protoWire(m, payload, 0)
}
