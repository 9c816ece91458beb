package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/fault"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	day = 24 * time.Hour
)

// errRefused says that a text is not a value of its setting. The loader turns it into a problem that says what is
// allowed; it never leaves the package.
var errRefused = errors.New("not a value of this setting")

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", gib}, {"MiB", mib}, {"KiB", kib}, {"B", 1}, {"", 1}}

// ParseSize reads a number of bytes: a whole number, followed by B, KiB, MiB, GiB or TiB or nothing ("64KiB", "10 MiB",
// "1048576").
func ParseSize(text string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		digits = strings.TrimRight(digits, " ")
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64(math.MaxInt64/u.bytes) {
			break
		}
		return int64(n) * u.bytes, nil
	}
	return 0, fault.New(fault.InvalidArgument, "size %q: a whole number of bytes, or one with KiB, MiB or GiB, such as 256MiB", text)
}

// FormatSize writes n as ParseSize reads it, in the largest unit that leaves a whole number.
func FormatSize(n int64) string {
	for _, u := range sizeUnits {
		if u.bytes > 1 && n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseDuration reads a duration of Go's form, which may begin with whole days ("250ms", "1h30m", "7d", "1d12h"). It is
// never negative.
func ParseDuration(text string) (time.Duration, error) {
	bad := fault.New(fault.InvalidArgument, "duration %q: a number with a unit (ms, s, m, h, d), such as 250ms or 7d", text)
	rest, days := text, time.Duration(0)
	if digits, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64(math.MaxInt64/day) {
			return 0, bad
		}
		days, rest = time.Duration(n)*day, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || strings.HasPrefix(rest, "-") || days > math.MaxInt64-d {
		return 0, bad
	}
	return days + d, nil
}

// FormatDuration writes d as ParseDuration reads it: whole days first, no units that count zero.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := ""
	if n := d / day; n > 0 {
		s = strconv.FormatInt(int64(n), 10) + "d"
		d %= day
	}
	if d == 0 {
		return s
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return s + rest
}
