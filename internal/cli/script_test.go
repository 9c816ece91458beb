package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/dir"
	"github.com/leveemq/levee/internal/tier"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs every scenario in testdata, side by side in this process, so that files are named by their whole path
// ($WORK/…). Besides testscript's own commands there are
//
//	broker start [flags]       a broker on $WORK/data in this process; $LEVEE_ADDR and $LEVEE_HTTP lead to it
//	broker stop                stops it, which must end with exit code 0
//	levee args… [<file]        runs a command in-process; fails unless it exits with 0
//	exits N levee args…        fails unless it exits with N
//	until N levee args…        runs it until it exits with N
//	fill file lines length     makes a file of so many lines
//	fields name…               fails unless each line of stdout is an object with just these fields, in this order
//	crlf file                  ends its lines with \r\n
//	flip file position         inverts a byte of a file
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			name := filepath.Join(e.WorkDir, "levee.yaml")
			b, err := os.ReadFile(name)
			if err != nil {
				return nil // a script without
			}
			return os.WriteFile(name, []byte(strings.ReplaceAll(string(b), "ROOT", filepath.Join(e.WorkDir, "objects"))), 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"broker": brokerScript,
			"levee": func(ts *testscript.TestScript, neg bool, args []string) {
				code := leveeScript(ts, args)
				if (code == 0) == neg {
					ts.Fatalf("exit code %d", code)
				}
			},
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				if code := leveeScript(ts, args[2:]); neg || code != want {
					ts.Fatalf("exit code %d, not %d", code, want)
				}
			},
			"until":  untilScript,
			"awaits": awaitsScript,
			"unindex": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.Remove(filesOf(ts, args[0], ".index")[0]))
			},
			"strew": strewScript,
			"damage": func(ts *testscript.TestScript, _ bool, args []string) { // a byte of the n-th object
				name := nthObject(ts, args)
				b, err := os.ReadFile(name)
				ts.Check(err)
				b[len(b)/3] ^= 0xff
				ts.Check(os.WriteFile(name, b, 0o600))
			},
			"lose":   func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(os.Remove(nthObject(ts, args))) },
			"fields": fieldsScript,
			"fill": func(ts *testscript.TestScript, _ bool, args []string) {
				lines, err := strconv.Atoi(args[1])
				ts.Check(err)
				length, err := strconv.Atoi(args[2])
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Repeat(strings.Repeat("x", length)+"\n", lines)), 0o600))
			},
			"crlf": func(ts *testscript.TestScript, _ bool, args []string) {
				text := strings.ReplaceAll(ts.ReadFile(args[0]), "\n", "\r\n")
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			"flip": func(ts *testscript.TestScript, _ bool, args []string) {
				at, err := strconv.Atoi(args[1])
				ts.Check(err)
				b := []byte(ts.ReadFile(args[0]))
				b[at] ^= 0xff
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
			},
		},
	})
}

func brokerScript(ts *testscript.TestScript, _ bool, args []string) {
	switch args[0] {
	case "start":
		b, err := startBroker(context.Background(), ts.MkAbs("data"), args[1:]...)
		ts.Check(err)
		ts.Defer(func() { b.stop() })
		ts.Setenv("LEVEE_ADDR", b.addr)
		ts.Setenv("LEVEE_HTTP", b.http)
		running.Store(ts.Name(), b)
	case "stop":
		v, _ := running.Load(ts.Name())
		b := v.(*broker)
		if code := b.stop(); code != 0 {
			ts.Fatalf("the broker ended with %d:\n%s", code, b.log)
		}
	}
}

// running holds each script's broker: scripts run side by side.
var running sync.Map

func leveeScript(ts *testscript.TestScript, args []string) int {
	stdin := ""
	if n := len(args); n > 0 && strings.HasPrefix(args[n-1], "<") {
		stdin, args = ts.ReadFile(args[n-1][1:]), args[:n-1]
	}
	var env []string
	for _, name := range []string{"LEVEE_ADDR", "LEVEE_HTTP", "LEVEE_OUTPUT", "LEVEE_CONFIG", "LEVEE_DATA_DIR"} {
		if v := ts.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return Main(context.Background(), args, strings.NewReader(stdin), ts.Stdout(), ts.Stderr(), env)
}

func untilScript(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(20 * time.Second)
	for leveeScript(ts, args[2:]) != want {
		if time.Now().After(end) {
			ts.Fatalf("it still does not exit with %d", want)
		}
		<-tick.C
	}
}

// awaitsScript runs a command until it prints what matches.
func awaitsScript(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile(args[0])
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(20 * time.Second)
	for {
		var out, errs buffer
		Main(context.Background(), args[2:], strings.NewReader(""), &out, &errs, []string{"LEVEE_ADDR=" + ts.Getenv("LEVEE_ADDR")})
		if want.MatchString(out.String()) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no %s in\n%s%s", args[0], out.String(), errs.String())
		}
		<-tick.C
	}
}

// filesOf returns the files below a directory whose names end so, in order.
func filesOf(ts *testscript.TestScript, dir, suffix string) (all []string) {
	ts.Check(filepath.WalkDir(ts.MkAbs(dir), func(name string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasSuffix(name, suffix) {
			all = append(all, name)
		}
		return err
	}))
	if len(all) == 0 {
		ts.Fatalf("no %s below %s", suffix, dir)
	}
	return all
}

// nthObject returns the file of the n-th object in a directory.
func nthObject(ts *testscript.TestScript, args []string) string {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	return filesOf(ts, args[0], ".lvseg")[n]
}

// strewScript puts two objects into a store that is a directory: one of somebody else, and one that does not count.
func strewScript(ts *testscript.TestScript, _ bool, args []string) {
	store, err := dir.Open(dir.Config{Root: ts.MkAbs(args[0]), Exists: true})
	ts.Check(err)
	defer store.Close()
	first := filesOf(ts, args[0], ".lvseg")[0]
	key, err := filepath.Rel(ts.MkAbs(args[0]), first)
	ts.Check(err)
	place, name, ok := tier.ParseKey(key)
	if !ok {
		ts.Fatalf("%s is no key", key)
	}
	name.CRC++
	for _, key := range []string{"levee/main/mine", tier.KeyOf(place, name)} {
		_, err := store.PutIfAbsent(context.Background(), key, objstore.Bytes([]byte("x")))
		ts.Check(err)
	}
}

func fieldsScript(ts *testscript.TestScript, _ bool, args []string) {
	for _, line := range strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n") {
		d := json.NewDecoder(strings.NewReader(line))
		var got []string
		depth := 0
		name := false // the next token at depth 1 is a name
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			switch token {
			case json.Delim('{'), json.Delim('['):
				depth++
				name = depth == 1
				continue
			case json.Delim('}'), json.Delim(']'):
				depth--
			default:
				if depth == 1 && name {
					got = append(got, token.(string))
				}
			}
			if depth == 1 {
				name = !name
			}
		}
		if strings.Join(got, " ") != strings.Join(args, " ") {
			ts.Fatalf("fields are %s\nin %s", strings.Join(got, " "), line)
		}
	}
}
