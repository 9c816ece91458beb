package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// plain is a type without a definition worth reading.
type plain struct{ kind Type }

// parsePlain takes whatever is written as the definition: nothing, or a description for people.
func parsePlain(t Type, definition string, references []Reference) (string, implementation, error) {
	if len(references) > 0 {
		return "", nil, fmt.Errorf("type %s refers to nothing", t)
	}
	return strings.TrimSpace(definition), plain{t}, nil
}

func (p plain) validate(payload []byte, _ []int) error {
	switch p.kind {
	case String:
		if !utf8.Valid(payload) {
			return errors.New("it is not UTF-8 text")
		}
	case Number:
		if len(payload) != 4 && len(payload) != 8 && !number(payload) {
			return errors.New("it is no number: want one as JSON writes it, or 4 or 8 bytes of a binary one")
		}
	}
	return nil
}

// number reports whether b is a number as JSON writes it, with spaces around it or without.
func number(b []byte) bool {
	var n json.Number
	if len(b) > 1000 || json.Unmarshal(b, &n) != nil {
		return false
	}
	text := strings.TrimLeft(string(b), " \t\r\n")
	return text[0] != '"' && text[0] != 'n' // json.Number takes null, and numbers within quotes
}

func (p plain) reads(implementation) []Problem { return nil }
