package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	good = `{"op":"client","producer":0,"topic":"t"}
{"op":"publish","value":"0/0","topic":"t","partition":0,"offset":0,"start":1,"end":2,"outcome":"ok"}
{"op":"read-begin","reading":0,"topic":"t","from":0,"start":3}
{"op":"read","reading":0,"offset":0,"value":"0/0"}
{"op":"read-end","reading":0,"next":1,"end":4}
`
	lost = `{"op":"client","producer":0,"topic":"t"}
{"op":"publish","value":"0/0","topic":"t","partition":0,"offset":0,"start":1,"end":2,"outcome":"ok"}
{"op":"read-begin","reading":0,"topic":"t","from":0,"start":3}
{"op":"read-end","reading":0,"next":0,"end":4}
`
	twice = `{"op":"create","call":0,"topic":"t","start":1,"end":2,"outcome":"ok","incarnation":1}
{"op":"create","call":1,"topic":"t","start":3,"end":4,"outcome":"ok","incarnation":2}
`
)

// checked runs the command on files with these texts.
func checked(t *testing.T, flags []string, texts ...string) (code int, out, errs string) {
	t.Helper()
	for i, text := range texts {
		name := filepath.Join(t.TempDir(), string(rune('a'+i)))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, name)
	}
	var stdout, stderr strings.Builder
	code = run(flags, strings.NewReader(good), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		texts []string
		code  int
		out   string
		errs  string
	}{
		"good":         {nil, []string{good}, exitOK, ": ok: 1 publishes (1 acknowledged", ""},
		"stdin":        {[]string{"-"}, nil, exitOK, "-: ok: 1 publishes", ""},
		"lost":         {nil, []string{good, lost}, exitViolations, "check 1: t@0 partition 0: value 0/0 was acknowledged at offset 0 and is lost", ""},
		"other checks": {[]string{"-checks", "2, 5"}, []string{lost}, exitOK, ": ok", ""},
		"metadata":     {nil, []string{twice}, exitViolations, "check 7: topic t: its 2 metadata operations do not fit into any order", ""},
		"no time":      {[]string{"-metadata-time", "1ns"}, []string{twice}, exitUndecided, "not decided: topic t", ""},
		"nonsense":     {nil, []string{"nonsense\n"}, exitUsage, "", "read history: line 1: "},
		"both":         {nil, []string{"nonsense\n", lost, "nonsense\n"}, exitViolations, "is lost", "read history: line 1: "},
		"no file":      {nil, nil, exitUsage, "", "name at least one file"},
		"absent file":  {[]string{"absent"}, nil, exitUsage, "", "absent"},
		"no flag":      {[]string{"-colour"}, []string{good}, exitUsage, "", "-colour"},
		"no check":     {[]string{"-checks", "9"}, []string{good}, exitUsage, "", `"9" is not a check: 1 to 8 are`},
		"help":         {[]string{"--help"}, nil, exitOK, "", "Examples:\n  go run ./test/history/check history.jsonl"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := checked(t, c.flags, c.texts...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("exit code %d, want %d\n%s\nwant %q\n%s\nwant %q", code, c.code, out, c.out, errs, c.errs)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	code, out, _ := checked(t, []string{"-json"}, good, lost)
	var reports []map[string]any
	for line := range strings.Lines(out) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v of %s", err, line)
		}
		reports = append(reports, r)
	}
	if code != exitViolations || len(reports) != 2 || reports[0]["ok"] != true || reports[1]["ok"] != false {
		t.Errorf("exit code %d, %s", code, out)
	}
	if v := reports[1]["violations"].([]any); len(v) != 1 || v[0].(map[string]any)["check"] != 1.0 {
		t.Errorf("got violations %v, want one of check 1", v)
	}
}

func TestManyViolations(t *testing.T) {
	text := `{"op":"client","producer":0,"topic":"t"}` + "\n" + `{"op":"read-begin","reading":0,"topic":"t","from":0,"start":3}` + "\n"
	for range 25 {
		text += `{"op":"read","reading":0,"offset":0,"value":"0/7"}` + "\n"
	}
	_, out, _ := checked(t, []string{"-checks", "5"}, text)
	if strings.Count(out, "\n") != 22 || !strings.Contains(out, "check 5: and 4 more") || !strings.Contains(out, ": 24 violations") {
		t.Errorf("got %d lines:\n%s", strings.Count(out, "\n"), out)
	}
}
