//go:build mutation

package mutation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	testLimit = 3 * time.Minute // of the test itself; then it dies by its own hand
	runLimit  = 6 * time.Minute // of everything that one mutant needs, building too
)

// TestMutants puts each bug in, one after another, and demands that the test named for it fails. LEVEE_MUTANT names one
// to try alone; -v prints what each took and the test's own words.
func TestMutants(t *testing.T) {
	root := moduleRoot(t)
	chosen := mutants
	if name := os.Getenv("LEVEE_MUTANT"); name != "" {
		m, err := pick(name)
		if err != nil {
			t.Fatal(err)
		}
		chosen = []mutant{*m}
	}
	began := time.Now()
	for i := range chosen {
		m := &chosen[i]
		t.Run(m.name, func(t *testing.T) {
			start := time.Now()
			words, err := m.try(t, root)
			if err != nil {
				t.Fatalf("%v (%.1f seconds)", err, time.Since(start).Seconds())
			}
			t.Logf("noticed in %.1f seconds by %s: %s", time.Since(start).Seconds(), m.test, words)
		})
	}
	t.Logf("%d mutants in %.0f seconds", len(chosen), time.Since(began).Seconds())
}

// try runs the mutant's test against the mutant and returns what the test complained of; an error where it did not fail.
func (m *mutant) try(t *testing.T, root string) (string, error) {
	dir, _, full, err := m.target()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	overlay, err := m.overlay(t, root)
	if err != nil {
		return "", err
	}
	// What a failed test keeps for whoever looks into it goes with this directory: nobody will look into this failure.
	env := append(os.Environ(), "TMPDIR="+t.TempDir(), "LEVEE_FAULTS=")
	args := []string{"test", "-json", "-count=1", "-vet=off", "-timeout", testLimit.String(), "-run", pattern(full)}
	if m.short {
		args = append(args, "-short")
	}
	if m.process {
		binary := filepath.Join(t.TempDir(), "levee")
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", binary, "./cmd/levee")
		build.Dir, build.Env = root, append(env, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("the broker does not build: %w\n%s", err, out)
		}
		env = append(env, "LEVEE_TEST_BINARY="+binary)
	} else {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+dir)...)
	cmd.Dir, cmd.Env = root, env
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return "", fmt.Errorf("run %v: %w\n%s", cmd.Args, err, stderr.Bytes())
	}
	words, err := judge(out, full)
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return words, err
}

// pattern is what go test -run needs to run full alone.
func pattern(full string) string {
	var each []string
	for _, part := range strings.Split(full, "/") {
		each = append(each, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(each, "/")
}

// overlay writes the file with the bug, and what tells the go command to compile it in place of the one that is there.
func (m *mutant) overlay(t *testing.T, root string) (string, error) {
	text, err := m.apply(root)
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	mutated := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(mutated, text, 0o600); err != nil {
		return "", err
	}
	replace := map[string]map[string]string{"Replace": {filepath.Join(root, filepath.FromSlash(m.file)): mutated}}
	spec, err := json.Marshal(replace)
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, spec, 0o600)
}
