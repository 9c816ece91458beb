package vfs

import (
	"errors"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mayFail is must for goroutines of a test.
func mayFail(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func wantAnyErr(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s succeeded", what)
	}
}

// open opens a file until the end of the test.
func open(t *testing.T, fsys FS, name string, create bool) File {
	t.Helper()
	f, err := fsys.Open(name, create)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, f File, off int64, data string) {
	t.Helper()
	_, err := f.WriteAt([]byte(data), off)
	must(t, err)
}

// put makes a file with that content, and syncs nothing.
func put(t *testing.T, fsys FS, name, data string) {
	t.Helper()
	f, err := fsys.Open(name, true)
	must(t, err)
	must(t, f.Truncate(0))
	write(t, f, 0, data)
	must(t, f.Close())
}

// putSynced makes a durable file.
func putSynced(t *testing.T, fsys FS, name, data string) {
	t.Helper()
	must(t, WriteFileAtomic(fsys, name, []byte(data)))
}

func sizeOf(t *testing.T, f File) int64 {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	return size
}

// readAll reads an open file from the start.
func readAll(t *testing.T, f File) []byte {
	t.Helper()
	p := make([]byte, sizeOf(t, f))
	_, err := f.ReadAt(p, 0)
	must(t, err)
	return p
}

func wantContent(t *testing.T, fsys FS, name, want string) {
	t.Helper()
	got, err := ReadFile(fsys, name, 1<<30)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v, want %q", name, got, err, want)
	}
}

func wantGone(t *testing.T, fsys FS, name string) {
	t.Helper()
	if ok, err := Exists(fsys, name); ok || err != nil {
		t.Errorf("%s exists: %v, %v", name, ok, err)
	}
}
