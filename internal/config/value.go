package config

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/leveemq/levee/internal/seglog"
)

// value is one setting inside a Config: text goes in, text comes out. What text returns, set takes.
type value interface {
	// set takes the text of a value. An error leaves the setting as it was; allowed says what would have been taken.
	set(text string) error
	text() string
	// allowed says in words what set takes, with the limits of its range.
	allowed() string
	unit() string
}

type integer interface{ ~int | ~int64 }

type boolean struct{ p *bool }

func (v boolean) unit() string    { return "boolean" }
func (v boolean) allowed() string { return "true or false" }
func (v boolean) text() string    { return strconv.FormatBool(*v.p) }

func (v boolean) set(text string) error {
	switch text {
	case "true":
		*v.p = true
	case "false":
		*v.p = false
	default:
		return errRefused
	}
	return nil
}

type path struct {
	p        *string
	required bool
}

func (v path) unit() string { return "path" }
func (v path) text() string { return *v.p }

func (v path) allowed() string {
	if v.required {
		return "a path"
	}
	return "a path, or \"\" for none"
}

func (v path) set(text string) error {
	if (v.required && text == "") || strings.ContainsRune(text, 0) {
		return errRefused
	}
	*v.p = text
	return nil
}

type address struct{ p *string }

func (v address) unit() string { return "address" }
func (v address) text() string { return *v.p }
func (v address) allowed() string {
	return "host:port with a port from 0 (any free one) to 65535; an empty host is every interface"
}

func (v address) set(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.ContainsAny(host, " \t/\\") {
		return errRefused
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return errRefused
	}
	*v.p = text
	return nil
}

// reachable is an address that others are told, or nothing.
type reachable struct{ p *string }

func (v reachable) unit() string { return "address" }
func (v reachable) text() string { return *v.p }
func (v reachable) allowed() string {
	return "host:port with a host and a port from 1 to 65535, or nothing"
}

func (v reachable) set(text string) error {
	if text != "" {
		var checked string
		if err := (address{&checked}).set(text); err != nil || strings.HasPrefix(text, ":") || strings.HasSuffix(text, ":0") {
			return errRefused
		}
	}
	*v.p = text
	return nil
}

// addresses are of servers that this broker connects to, or none.
type addresses struct{ p *string }

func (v addresses) unit() string { return "addresses" }
func (v addresses) text() string { return *v.p }
func (v addresses) allowed() string {
	return "host:port with a host and a port from 1 to 65535, several with a comma between, or nothing"
}

func (v addresses) set(text string) error {
	if text != "" {
		for part := range strings.SplitSeq(text, ",") {
			var checked string
			if err := (reachable{&checked}).set(strings.TrimSpace(part)); err != nil || checked == "" {
				return errRefused
			}
		}
	}
	*v.p = text
	return nil
}

// size is a number of bytes.
type size[T integer] struct {
	p        *T
	min, max int64
	zero     string // what 0 means where it is taken besides min to max; empty: it is not
}

func (v size[T]) unit() string    { return "size" }
func (v size[T]) text() string    { return FormatSize(int64(*v.p)) }
func (v size[T]) allowed() string { return allowedRange(FormatSize(v.min), FormatSize(v.max), v.zero) }

func (v size[T]) set(text string) error {
	n, err := ParseSize(text)
	if err != nil || !inRange(n, v.min, v.max, v.zero) {
		return errRefused
	}
	*v.p = T(n)
	return nil
}

// count is a number of things.
type count struct {
	p        *int
	min, max int64
	zero     string // as in size
}

func (v count) unit() string { return "count" }
func (v count) text() string { return strconv.Itoa(*v.p) }
func (v count) allowed() string {
	return allowedRange(strconv.FormatInt(v.min, 10), strconv.FormatInt(v.max, 10), v.zero)
}

func (v count) set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !inRange(n, v.min, v.max, v.zero) {
		return errRefused
	}
	*v.p = int(n)
	return nil
}

type duration struct {
	p        *time.Duration
	min, max time.Duration
	zero     string // as in size
}

func (v duration) unit() string { return "duration" }
func (v duration) text() string { return FormatDuration(*v.p) }
func (v duration) allowed() string {
	return allowedRange(FormatDuration(v.min), FormatDuration(v.max), v.zero)
}

func (v duration) set(text string) error {
	d, err := ParseDuration(text)
	if err != nil || !inRange(int64(d), int64(v.min), int64(v.max), v.zero) {
		return errRefused
	}
	*v.p = d
	return nil
}

// choice is one of a few words.
type choice[T comparable] struct {
	p     *T
	words []word[T]
}

type word[T comparable] struct {
	text  string
	value T
}

func (v choice[T]) unit() string { return "word" }

func (v choice[T]) text() string {
	for _, w := range v.words {
		if w.value == *v.p {
			return w.text
		}
	}
	return fmt.Sprint(*v.p)
}

func (v choice[T]) allowed() string {
	texts := make([]string, len(v.words))
	for i, w := range v.words {
		texts[i] = w.text
	}
	return "one of " + strings.Join(texts, ", ")
}

func (v choice[T]) set(text string) error {
	for _, w := range v.words {
		if w.text == text {
			*v.p = w.value
			return nil
		}
	}
	return errRefused
}

func fsyncMode(p *seglog.Mode) value {
	return choice[seglog.Mode]{p, []word[seglog.Mode]{
		{"on_commit", seglog.OnCommit}, {"periodic", seglog.Periodic}, {"none", seglog.None},
	}}
}

func tierMode(p *TierMode) value {
	return choice[TierMode]{p, []word[TierMode]{{"none", TierNone}, {"local", TierLocal}, {"shared_fs", TierSharedFS}, {"object_store", TierObjects}}}
}

// text is any text in one line. One that is secret is never shown.
type text struct {
	p      *string
	secret bool
}

func (v text) unit() string { return "text" }

func (v text) text() string {
	if v.secret && *v.p != "" {
		return notShown
	}
	return *v.p
}

const notShown = "(not shown)"

// isSecret reports whether a value is never shown.
func isSecret(v value) bool {
	t, ok := v.(text)
	return ok && t.secret
}

func (v text) allowed() string { return "one line of text" }

func (v text) set(s string) error {
	if strings.ContainsFunc(s, unicode.IsControl) || len(s) > 4096 {
		return errRefused
	}
	*v.p = s
	return nil
}

// objectPart is one part of the names of objects.
type objectPart struct{ p *string }

func (v objectPart) unit() string    { return "name" }
func (v objectPart) text() string    { return *v.p }
func (v objectPart) allowed() string { return "letters, digits, - and _, up to 63" }

func (v objectPart) set(text string) error {
	if text == "" || !isObjectPart(text) {
		return errRefused
	}
	*v.p = text
	return nil
}

func isObjectPart(s string) bool {
	return len(s) <= 63 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// objectPrefix is parts between slashes, or nothing.
type objectPrefix struct{ p *string }

func (v objectPrefix) unit() string { return "name" }
func (v objectPrefix) text() string { return *v.p }
func (v objectPrefix) allowed() string {
	return "parts of letters, digits, - and _, with / between them, or \"\" for none"
}

func (v objectPrefix) set(text string) error {
	if text != "" {
		for part := range strings.SplitSeq(text, "/") {
			if part == "" || !isObjectPart(part) {
				return errRefused
			}
		}
	}
	*v.p = text
	return nil
}

func logLevel(p *slog.Level) value {
	return choice[slog.Level]{p, []word[slog.Level]{
		{"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"warn", slog.LevelWarn}, {"error", slog.LevelError},
	}}
}

func logFormat(p *LogFormat) value {
	return choice[LogFormat]{p, []word[LogFormat]{{"text", LogText}, {"json", LogJSON}}}
}

func inRange(n, low, high int64, zero string) bool {
	return n >= low && n <= high || n == 0 && zero != ""
}

func allowedRange(low, high, zero string) string {
	s := low + " to " + high
	if zero != "" {
		s = "0 (" + zero + "), or " + s
	}
	return s
}
