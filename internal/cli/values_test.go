package cli

import (
	"testing"
	"time"
)

func TestPositions(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"earliest", "earliest"}, {"latest", "latest"}, {"0", "0"}, {"9223372036854775807", "9223372036854775807"},
		{"@2026-11-29T18:30:00Z", "@2026-11-29T18:30:00Z"}, {"@2026-11-29T18:30:00.25+02:00", "@2026-11-29T18:30:00.25+02:00"},
		{"", ""}, {"-1", ""}, {"1.5", ""}, {"oldest", ""}, {"@yesterday", ""}, {"@2026-11-29", ""}, {"9223372036854775808", ""},
	} {
		var p position
		err := p.UnmarshalText([]byte(c.in))
		switch {
		case c.out == "" && err == nil:
			t.Errorf("%q was taken as %v", c.in, p)
		case c.out != "" && (err != nil || p.String() != c.out):
			t.Errorf("%q: got %v, %v", c.in, p, err)
		}
	}
}

func TestSizesAndDurationsTakeUnits(t *testing.T) {
	var s byteSize
	if err := s.UnmarshalText([]byte("64MiB")); err != nil || s != 64<<20 || s.String() != "64MiB" {
		t.Errorf("got %d (%s), %v", s, s, err)
	}
	if err := s.UnmarshalText([]byte("64MB")); err == nil {
		t.Error("64MB was taken, although it is not said which of two sizes it is")
	}
	var d duration
	if err := d.UnmarshalText([]byte("7d12h")); err != nil || time.Duration(d) != 180*time.Hour || d.String() != "7d12h" {
		t.Errorf("got %s, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("-1s")); err == nil {
		t.Error("-1s was taken")
	}
}

func TestUnescape(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{`a\tb\n`, "a\tb\n"}, {`\\n`, `\n`}, {`\0`, "\x00"}, {``, ``}, {`plain ü`, `plain ü`}, {`\r`, "\r"},
	} {
		if got, err := unescape(c.in); err != nil || got != c.out {
			t.Errorf("%q: got %q, %v", c.in, got, err)
		}
	}
	for _, bad := range []string{`\`, `a\`, `\x41`, `\ü`} {
		if got, err := unescape(bad); err == nil {
			t.Errorf("%q was taken as %q", bad, got)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 12345678: "12,345,678", -100: "-100"} {
		if got := count(n); got != want {
			t.Errorf("%d: got %s", n, got)
		}
	}
	if plural(1, "record") != "1 record" || plural(0, "record") != "0 records" || plural(1000, "record") != "1,000 records" {
		t.Error("plural is wrong")
	}
}
