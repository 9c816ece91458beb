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

// What was acknowledged durably does not come again after the broker was killed, and everything else does.
func TestStream(t *testing.T) {
	dir := filepath.Join(proc.Dir(t), "data")
	b := proc.Start(t, dir, proc.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var first, second strings.Builder
	c := b.Dial()
	if err := publish(ctx, c, 10); err != nil {
		t.Fatal(err)
	}
	if err := follow(ctx, c, 4, &first); err != nil {
		t.Fatal(err)
	}
	b.Kill()
	b = proc.Start(t, dir, proc.Options{})
	if err := follow(ctx, b.Dial(), 6, &second); err != nil {
		t.Fatal(err)
	}
	if got := first.String(); !strings.HasPrefix(got, "partition 0: active: true\npayment 0: total 1\n") || !strings.HasSuffix(got, "payment 3: total 10\n") {
		t.Errorf("the first printed\n%s", got)
	}
	if got := second.String(); !strings.HasPrefix(got, "partition 0: active: true\npayment 4: total 5\n") || !strings.HasSuffix(got, "payment 9: total 45\n") {
		t.Errorf("the second printed\n%s", got)
	}
}
