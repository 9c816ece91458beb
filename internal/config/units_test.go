package config

import (
	"math"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"pgregory.net/rapid"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1": 1, "12B": 12, "4KiB": 4096, "10 MiB": 10 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40} {
		if n, err := ParseSize(text); err != nil || n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "+1", "1.5GiB", "1KB", "1k", "1 2", "9223372036854775808", "9007199254740992TiB", "0x10", " 1"} {
		if n, err := ParseSize(text); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "n")
		if back, err := ParseSize(FormatSize(n)); err != nil || back != n {
			t.Fatalf("%d is written %q and read %d, %v", n, FormatSize(n), back, err)
		}
	})
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "250ms": 250 * time.Millisecond, "7d": 7 * day, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "0d": 0} {
		if d, err := ParseDuration(text); err != nil || d != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "5", "-1s", "1d-2h", "-0s", "d", "1.5d", "1s1d", "200000d", "106751d48h", "x"} {
		if d, err := ParseDuration(text); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", 250 * time.Millisecond: "250ms", 30 * time.Second: "30s", 90 * time.Minute: "1h30m",
		time.Hour: "1h", 7 * day: "7d", 36 * time.Hour: "1d12h", time.Minute + time.Second: "1m1s"} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "d"))
		if back, err := ParseDuration(FormatDuration(d)); err != nil || back != d {
			t.Fatalf("%v is written %q and read %v, %v", d, FormatDuration(d), back, err)
		}
	})
}
