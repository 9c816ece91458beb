package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

// app is one run of one command: its streams, its environment and the flags every command has.
type app struct {
	ctx            context.Context
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	env            map[string]string
	environ        []string

	model   *kong.Application
	command string // "topic create"
	conn    connFlags
	json    bool
}

func newApp(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) *app {
	a := &app{ctx: ctx, args: args, stdin: stdin, stdout: stdout, stderr: stderr, environ: env, env: map[string]string{}}
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			a.env[k] = v
		}
	}
	return a
}

// note writes one line for people to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// print writes one result: row as an object with --output json, otherwise the sentence.
func (a *app) print(row any, format string, args ...any) error {
	if a.json {
		return writeJSON(a.stdout, row)
	}
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return err
}

// writeJSON writes v as one line. Text stays as it is: <, > and & are not escaped.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows: an object each with --output json, otherwise columns under a heading.
type table struct {
	a    *app
	out  *bufio.Writer
	tab  *tabwriter.Writer
	head []string
	rows int
}

func (a *app) table(head ...string) *table {
	out := bufio.NewWriter(a.stdout)
	return &table{a: a, out: out, tab: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), head: head}
}

// row adds one; cells are its columns in text.
func (t *table) row(object any, cells ...any) error {
	if t.a.json {
		return writeJSON(t.out, object)
	}
	if t.rows == 0 {
		fmt.Fprintln(t.tab, strings.Join(t.head, "\t"))
	}
	t.rows++
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.tab, "\t")
		}
		fmt.Fprint(t.tab, c)
	}
	_, err := fmt.Fprintln(t.tab)
	return err
}

// end writes what is still held back.
func (t *table) end() error {
	if err := t.tab.Flush(); err != nil {
		return err
	}
	return t.out.Flush()
}

// isTerminal reports whether w is a character device, where a progress bar makes sense.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
