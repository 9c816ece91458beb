package meta

import (
	"encoding/hex"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// DefaultNamespace always exists and cannot be deleted; a topic name without a namespace is in it.
const DefaultNamespace = "default"

// MaxNameLength is the longest a namespace's or a topic's own name may be, in bytes.
const MaxNameLength = 200

// Name is a topic's full name. Names are compared byte for byte, never by prefix. The zero Name names nothing.
type Name struct {
	Namespace string
	Topic     string
}

// ParseTopic reads "namespace/topic", or "topic" in the default namespace. Its errors are invalid_argument.
func ParseTopic(s string) (Name, error) {
	namespace, topic, qualified := strings.Cut(s, "/")
	if !qualified {
		namespace, topic = DefaultNamespace, s
	}
	n := Name{Namespace: namespace, Topic: topic}
	if err := n.Validate(); err != nil {
		return Name{}, err
	}
	return n, nil
}

// String returns "namespace/topic".
func (n Name) String() string { return n.Namespace + "/" + n.Topic }

// Validate returns an invalid_argument error that names the part at fault and what is allowed.
func (n Name) Validate() error {
	if err := checkPart("namespace", n.Namespace); err != nil {
		return err
	}
	if err := checkPart("topic name", n.Topic); err != nil {
		return err
	}
	return nil
}

// MarshalText writes the full name, also where the namespace is the default one. It refuses what UnmarshalText would:
// what is stored must be readable.
func (n Name) MarshalText() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return []byte(n.String()), nil
}

// UnmarshalText reads a full name; it refuses one without a namespace, since stored names always have it.
func (n *Name) UnmarshalText(b []byte) error {
	s := string(b)
	if !strings.Contains(s, "/") {
		return fault.New(fault.InvalidArgument, "topic name %q has no namespace: write namespace/topic", s)
	}
	parsed, err := ParseTopic(s)
	if err != nil {
		return err
	}
	*n = parsed
	return nil
}

// ValidateNamespace returns an invalid_argument error where s cannot be a namespace's name.
func ValidateNamespace(s string) error {
	if err := checkPart("namespace", s); err != nil {
		return err
	}
	return nil
}

// checkPart says what is wrong with one part of a name. Its nil is no nil error: callers must check before they return.
func checkPart(what, s string) *fault.Error {
	allowed := "1 to 200 of the characters A-Z a-z 0-9 . _ -, and not \".\" or \"..\""
	bad := func(problem string) *fault.Error {
		shown := s
		if len(shown) > MaxNameLength {
			shown = shown[:MaxNameLength] + "…"
		}
		return fault.New(fault.InvalidArgument, "%s %q %s: allowed are %s", what, shown, problem, allowed).With("key", what)
	}
	switch {
	case s == "":
		return bad("is empty")
	case len(s) > MaxNameLength:
		return bad("is too long")
	case s == "." || s == "..":
		return bad("names a directory")
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' {
			continue
		}
		return bad("has a character that is not allowed")
	}
	return nil
}

// partitionOf reports whether the topic's own name has the form X-part-N, by which some clients name partition N of
// topic X, and returns X. Only the last such suffix counts; N is any run of digits.
func partitionOf(topic string) (base string, ok bool) {
	const infix = "-part-"
	i := strings.LastIndex(topic, infix)
	if i <= 0 || i+len(infix) == len(topic) {
		return "", false
	}
	for _, c := range []byte(topic[i+len(infix):]) {
		if c < '0' || c > '9' {
			return "", false
		}
	}
	return topic[:i], true
}

// TopicID names one incarnation of a topic: random, chosen by whoever creates it, and never used twice.
// The zero TopicID names none.
type TopicID [16]byte

// String returns 32 lower-case hexadecimal digits.
func (id TopicID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText writes what String returns.
func (id TopicID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (id *TopicID) UnmarshalText(b []byte) error {
	var parsed TopicID
	if len(b) != 2*len(id) {
		return fault.New(fault.InvalidArgument, "topic id %q must be %d hexadecimal digits", b, 2*len(id))
	}
	if _, err := hex.Decode(parsed[:], b); err != nil {
		return fault.New(fault.InvalidArgument, "topic id %q must be hexadecimal: %w", b, err)
	}
	*id = parsed
	return nil
}
