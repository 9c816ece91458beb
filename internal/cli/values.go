package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leveemq/levee/internal/config"
)

// byteSize is a number of bytes, in configuration's form: 4096, 64MiB.
type byteSize int64

// UnmarshalText parses a size.
func (s *byteSize) UnmarshalText(text []byte) error {
	n, err := config.ParseSize(string(text))
	*s = byteSize(n)
	return err
}

// String prints what UnmarshalText takes.
func (s byteSize) String() string { return config.FormatSize(int64(s)) }

// duration is a duration in configuration's form: 250ms, 1h30m, 7d.
type duration time.Duration

// UnmarshalText parses a duration.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := config.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// String prints what UnmarshalText takes.
func (d duration) String() string { return config.FormatDuration(time.Duration(d)) }

// startKind is what a position is relative to.
type startKind int

const (
	startEarliest startKind = iota
	startLatest
	startOffset
	startTime
)

// position is where consuming starts: earliest, latest, an offset, or @ and a time.
type position struct {
	kind   startKind
	offset int64
	time   time.Time
}

// UnmarshalText parses earliest, latest, an offset, or @RFC3339.
func (p *position) UnmarshalText(text []byte) error {
	s := string(text)
	switch {
	case s == "earliest":
		*p = position{kind: startEarliest}
		return nil
	case s == "latest":
		*p = position{kind: startLatest}
		return nil
	case strings.HasPrefix(s, "@"):
		t, err := time.Parse(time.RFC3339Nano, s[1:])
		if err != nil {
			return fmt.Errorf("%q is not a time: write @ and a date with time and zone (@2026-11-29T18:30:00Z)", s)
		}
		*p = position{kind: startTime, time: t}
		return nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is not a position: write earliest, latest, an offset (0 and up), or @ and a time", s)
	}
	*p = position{kind: startOffset, offset: n}
	return nil
}

// String prints the position as it was written.
func (p position) String() string {
	switch p.kind {
	case startLatest:
		return "latest"
	case startOffset:
		return strconv.FormatInt(p.offset, 10)
	case startTime:
		return "@" + p.time.Format(time.RFC3339Nano)
	}
	return "earliest"
}

// unescape resolves \n, \t, \r, \0 and \\ in what a shell passes on as it is.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", fmt.Errorf("%q ends in a lone \\: write \\\\ for a backslash", s)
		}
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case '0':
			b.WriteByte(0)
		case '\\':
			b.WriteByte('\\')
		default:
			r, _ := utf8.DecodeRuneInString(s[i:])
			return "", fmt.Errorf("%q has the unknown escape \\%c: there are \\n, \\t, \\r, \\0 and \\\\", s, r)
		}
	}
	return b.String(), nil
}

// count prints 1234567 as 1,234,567.
func count[T ~int | ~int32 | ~int64 | ~uint64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	start := 0
	if s[0] == '-' {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural prints a number with its noun: "1 record", "2 records".
func plural[T ~int | ~int32 | ~int64 | ~uint64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}
