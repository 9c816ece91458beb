package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

const traces = `File: levee
Type: cpu
Duration: 8s, Total samples = 1000ms
-----------+-------------------------------------------------------
     600ms   internal/runtime/syscall/linux.Syscall6
             syscall.Fdatasync (inline)
             github.com/leveemq/levee/internal/seglog.(*Log).flush
             main.main
-----------+-------------------------------------------------------
      task:  publish answers
     398ms   github.com/leveemq/levee/internal/seglog.(*Log).flush
             main.main
-----------+-------------------------------------------------------
       2ms   example.org/a/b.F[go.shape.<*int>]
             main.main
-----------+-------------------------------------------------------
`

func TestStacksAreAddedUp(t *testing.T) {
	root, err := parse(strings.NewReader(traces))
	if err != nil {
		t.Fatal(err)
	}
	if root.time != time.Second {
		t.Errorf("%v altogether", root.time)
	}
	flush := root.child("main.main").child("github.com/leveemq/levee/internal/seglog.(*Log).flush")
	if flush.time != 998*time.Millisecond || flush.child("syscall.Fdatasync").time != 600*time.Millisecond {
		t.Errorf("flush %v, in it the call %v", flush.time, flush.child("syscall.Fdatasync").time)
	}
}

func TestThePictureIsSoundXML(t *testing.T) {
	root, err := parse(strings.NewReader(traces))
	if err != nil {
		t.Fatal(err)
	}
	for least, want := range map[float64]int{0.003: 5, 0: 6} { // all, main, flush, its two calls; and the narrow one
		var out bytes.Buffer
		draw(&out, root, "a < b", least)
		frames, in := 0, xml.NewDecoder(&out)
		for {
			token, err := in.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "g" {
				frames++
			}
		}
		if frames != want {
			t.Errorf("%d frames of %v and more, want %d", frames, least, want)
		}
	}
}

func TestWhatIsNoProfileIsSaid(t *testing.T) {
	for _, text := range []string{"", "File: levee\n", "-----+--\n  soon main.main\n"} {
		if _, err := parse(strings.NewReader(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestNamesAreShortened(t *testing.T) {
	for long, want := range map[string]string{
		"github.com/leveemq/levee/internal/seglog.(*Log).flush": "seglog.(*Log).flush",
		"a/b.F[example.org/c.T]":                                "b.F[example.org/c.T]",
		"main.main":                                             "main.main",
	} {
		if got := short(long); got != want {
			t.Errorf("%s: %s, want %s", long, got, want)
		}
	}
	if got := fit("seglog.Flush", 50); got != "seglog…" {
		t.Error(got)
	}
}
