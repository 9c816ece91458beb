package dispatch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios gave into their files; read the difference like code")

// TestScenarios runs testdata/*.txt. A line is an event, the indented lines behind it are its effects; # is a comment.
// The log is in memory and is read whenever the dispatcher wants that. Options are words of the form name=value.
//
//	config TYPE [ack-timeout= max= poison= base= max-backoff= fixed window= bytes= total= total-bytes= ahead= key-in-flight=
//	            max-delayed= max-span= skip-trimmed at-most-once]      a new subscription with an empty log
//	set …                         the same options, for the one there is
//	publish N [bytes= key= in=]   a batch of N records, due after a while
//	end N                         the log goes on at N; what lies before does not exist
//	join ID NAME [priority= filter= window= bytes= largest=]
//	leave, unask, beat ID · ask ID BYTES · ack RANGE… · below OFFSET
//	nack RANGE… [delay= reason= of=] · poisoned RANGE… [failed] · seek, trim OFFSET · lost RANGE…
//	pass DURATION · restart (from what is saved) · show · counts
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScenario(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s differs; got:\n%s", file, got)
			}
		})
	}
}

// script is a scenario under way.
type script struct {
	t *testing.T
	s *shell
}

func runScenario(t *testing.T, text string) string {
	var out strings.Builder
	x := &script{t: t}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, " ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		words, options := x.parse(line)
		for _, effect := range x.run(words, options) {
			out.WriteString("  " + effect + "\n")
		}
		x.s.check(t)
	}
	return out.String()
}

func (x *script) parse(line string) (words []string, options map[string]string) {
	options = map[string]string{}
	for _, word := range strings.Fields(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			options[name] = value
		} else {
			words = append(words, word)
		}
	}
	return words, options
}

func (x *script) number(word string) int64 {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		x.t.Fatalf("%q is no number", word)
	}
	return n
}

func (x *script) duration(word string) time.Duration {
	d, err := time.ParseDuration(word)
	if err != nil {
		x.t.Fatal(err)
	}
	return d
}

func (x *script) config(cfg Config, flags []string, options map[string]string) Config {
	for _, flag := range flags {
		switch flag {
		case "fixed":
			cfg.Backoff.Exponential = false
		case "skip-trimmed":
			cfg.SkipTrimmed = true
		case "at-most-once":
			cfg.AtMostOnce = true
		default:
			x.t.Fatalf("unknown option %q", flag)
		}
	}
	for name, value := range options {
		switch name {
		case "ack-timeout":
			cfg.AckTimeout = x.duration(value)
		case "max":
			cfg.MaxDeliveries = int32(x.number(value))
		case "poison":
			cfg.Poison = map[string]Poison{"dead_letter": DeadLetter, "block": Block, "drop": Drop}[value]
		case "base":
			cfg.Backoff.Base = x.duration(value)
		case "max-backoff":
			cfg.Backoff.Max = x.duration(value)
		case "window":
			cfg.Consumer.Messages = int(x.number(value))
		case "bytes":
			cfg.Consumer.Bytes = x.number(value)
		case "total":
			cfg.Total.Messages = int(x.number(value))
		case "total-bytes":
			cfg.Total.Bytes = x.number(value)
		case "ahead":
			cfg.LookAhead.Messages = int(x.number(value))
		case "key-in-flight":
			cfg.KeyInFlight = int(x.number(value))
		case "max-delayed":
			cfg.MaxDelayed = int(x.number(value))
		case "max-span":
			cfg.MaxSpan = x.number(value)
		default:
			x.t.Fatalf("unknown option %q", name)
		}
	}
	return cfg
}

func (x *script) run(words []string, options map[string]string) []string {
	kind, args := words[0], words[1:]
	switch kind {
	case "config":
		types := map[string]Type{"exclusive": Exclusive, "shared": Shared, "failover": Failover, "key_shared": KeyShared}
		cfg := Config{Type: types[args[0]], AckTimeout: time.Minute, Backoff: Backoff{200 * time.Millisecond, time.Minute, true}}
		x.s = newShell(x.config(cfg, args[1:], options))
		return nil
	case "set":
		x.s.cfg = x.config(x.s.cfg, args, options)
		return x.s.step(Event{Kind: Reconfigure, Config: &x.s.cfg})
	case "publish":
		return x.publish(args, options)
	case "end":
		x.s.end = x.number(args[0])
		return x.s.step(Event{Kind: Tick})
	case "pass":
		return x.s.pass(x.duration(args[0]))
	case "restart":
		return x.restart()
	case "show":
		return x.show()
	case "counts":
		return []string{fmt.Sprint(x.s.d.Counts(100))}
	}
	return x.s.step(x.event(kind, args, options))
}

func (x *script) publish(args []string, options map[string]string) []string {
	bytes, due := int64(10), int64(0)
	if v := options["bytes"]; v != "" {
		bytes = x.number(v)
	}
	if v := options["in"]; v != "" {
		due = x.s.now.WallMs + x.duration(v).Milliseconds()
	}
	x.s.publish(int(x.number(args[0])), bytes, options["key"], due)
	return x.s.step(Event{Kind: Tick})
}

func (x *script) event(kind string, args []string, options map[string]string) Event {
	kinds := map[string]EventKind{"join": Join, "leave": Leave, "ask": Ask, "unask": Unask, "beat": Heartbeat, "ack": Ack, "below": AckBelow,
		"nack": Nack, "poisoned": Poisoned, "seek": Seek, "trim": Trimmed, "lost": Lost}
	e := Event{Kind: kinds[kind], Delay: -1, Reason: options["reason"]}
	switch e.Kind {
	case Join, Leave, Ask, Unask, Heartbeat:
		e.Consumer = ConsumerID(x.number(args[0]))
	case AckBelow, Seek, Trimmed:
		e.Offset = x.number(args[0])
	case Ack, Nack, Poisoned, Lost:
		for _, word := range args {
			if word == "failed" {
				e.Failed = true
				continue
			}
			e.Ranges = append(e.Ranges, parseRange(x.t, word))
		}
	default:
		x.t.Fatalf("unknown event %q", kind)
	}
	if e.Kind == Ask {
		e.Bytes = x.number(args[1])
	}
	if e.Kind == Join {
		e.Member.Name = args[1]
	}
	for name, value := range options {
		switch name {
		case "priority":
			e.Member.Priority = int32(x.number(value))
		case "filter":
			e.Member.Filters = strings.Split(value, ",")
		case "window":
			e.Member.Window.Messages = int(x.number(value))
		case "bytes":
			e.Member.Window.Bytes = x.number(value)
		case "largest":
			e.Member.MaxRecordBytes = int(x.number(value))
		case "delay":
			e.Delay = x.duration(value)
		case "of":
			e.Consumer = ConsumerID(x.number(value))
		case "reason":
		default:
			x.t.Fatalf("unknown option %q", name)
		}
	}
	return e
}

// restart is a new life from what is saved, without consumers.
func (x *script) restart() []string {
	set, err := cursor.NewSet(x.s.d.Set().State())
	if err != nil {
		x.t.Fatal(err)
	}
	x.s.d = New(x.s.cfg, set, x.s.d.Counts(1000))
	return nil
}

func (x *script) show() []string {
	d := x.s.d
	st := d.Stats()
	line := fmt.Sprintf("position %d +%d", d.Set().Position(), d.Set().Span())
	for _, f := range []struct {
		name  string
		value int64
		none  int64
	}{{"in flight", st.InFlightMessages, 0}, {"bytes", st.InFlightBytes, 0}, {"redeliver", st.Redeliver, 0}, {"delayed", int64(st.Delayed), 0},
		{"blocks", int64(st.DelayedBlocks), 0}, {"ahead", st.LookAhead, 0}, {"poisoning", int64(st.Poisoning), 0}, {"blocked", st.Blocked, -1},
		{"failed", st.FailedOldest, -1}, {"ignored", st.Ignored, 0}} {
		if f.value != f.none {
			line += fmt.Sprintf(", %s %d", f.name, f.value)
		}
	}
	out := []string{line}
	d.Holders(func(h Holder) bool {
		text := fmt.Sprintf("%d %s: %d messages, %d bytes", h.ID, h.Name, h.Messages, h.Bytes)
		if !h.Active {
			text += ", standby"
		}
		out = append(out, text)
		return true
	})
	return out
}
