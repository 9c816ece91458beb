package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

func TestWorkqueue(t *testing.T) {
	b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, b.Dial(), &out); err != nil {
		t.Fatal(err)
	}
	// What the second consumer waits for, a second, may take longer on a busy machine: it is looked for until it has come.
	for ctx.Err() == nil && !strings.Contains(out.String(), "was given up") {
		if err := deadLetters(ctx, b.Dial(), &out); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); !strings.HasPrefix(got, "99 jobs done in ") || !strings.Contains(got, "job 13 was given up after 3 tries") {
		t.Errorf("it printed\n%s", got)
	}
}
