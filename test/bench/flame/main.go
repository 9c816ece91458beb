// Command flame draws the call stacks of a CPU profile as a flame graph: one SVG that needs nothing else. It owns the
// picture; what a profile is, go tool pprof knows, whose text it reads. It never fetches or changes a profile. Invariant:
// a frame is as wide as the share of the time that it and what it called took, and what is too narrow is left out, not
// added to anything else.
//
//	go tool pprof -traces -unit ms PROFILE | flame -title WORDS >PROFILE.svg
package main

import (
	"bufio"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	title := flag.String("title", "CPU profile", "words above the picture")
	least := flag.Float64("least", 0.3, "percent of the time below which a frame is left out")
	flag.Parse()
	root, err := parse(os.Stdin)
	if err == nil {
		out := bufio.NewWriter(os.Stdout)
		draw(out, root, *title, *least/100)
		err = out.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flame:", err)
		os.Exit(1)
	}
}

// node is a function as called from one stack.
type node struct {
	name     string
	time     time.Duration // with what it called
	children map[string]*node
}

func (n *node) child(name string) *node {
	c := n.children[name]
	if c == nil {
		c = &node{name: name}
		if n.children == nil {
			n.children = map[string]*node{}
		}
		n.children[name] = c
	}
	return c
}

// sorted returns the children in the order of their names, so that graphs of two runs can be compared.
func (n *node) sorted() []*node {
	var all []*node
	for _, c := range n.children {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return all
}

// parse reads what go tool pprof -traces prints: stacks between lines of dashes, the leaf first, with the time before it.
func parse(r io.Reader) (*node, error) {
	root := &node{name: "all"}
	var stack []string
	var spent time.Duration
	add := func() {
		at := root
		at.time += spent
		for _, name := range slices.Backward(stack) {
			at = at.child(name)
			at.time += spent
		}
		stack, spent = stack[:0], 0
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	began := false
	for in.Scan() {
		line := in.Text()
		if strings.HasPrefix(line, "-----") {
			add()
			began = true
			continue
		}
		name := strings.TrimSpace(line)
		if !began || name == "" {
			continue // what the profile is of
		}
		if len(stack) == 0 && spent == 0 {
			if strings.Contains(name, ":  ") {
				continue // a label of the stack
			}
			value, rest, ok := strings.Cut(name, " ")
			d, err := time.ParseDuration(value)
			if !ok || err != nil {
				return nil, fmt.Errorf("%q is not a time and a function", name)
			}
			spent, name = d, strings.TrimSpace(rest)
		}
		stack = append(stack, strings.TrimSuffix(name, " (inline)"))
	}
	add()
	if err := in.Err(); err != nil {
		return nil, err
	}
	if root.time <= 0 {
		return nil, fmt.Errorf("no stack with a time")
	}
	return root, nil
}

// Measures of the picture in pixels.
const (
	width     = 1200.0
	margin    = 10.0
	rowHeight = 16
	head      = 40
	letter    = 6.2 // a letter of the font
)

type drawing struct {
	out   io.Writer
	total time.Duration
	least float64
	base  float64 // of the lowest row
}

// draw writes the picture with the callers below and what they call above.
func draw(out io.Writer, root *node, title string, least float64) {
	rows := depth(root, time.Duration(least*float64(root.time)))
	height := head + rows*rowHeight + int(margin)
	d := drawing{out: out, total: root.time, least: least, base: float64(height) - margin - rowHeight}
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-family="monospace" font-size="10">`+"\n", width, height)
	fmt.Fprintf(out, `<rect width="%.0f" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(out, `<text x="%.0f" y="22" font-size="14">%s: %.2f s of CPU; frames below %.1f %% are left out</text>`+"\n",
		margin, html.EscapeString(title), root.time.Seconds(), least*100)
	d.frame(root, margin, 0)
	fmt.Fprintln(out, "</svg>")
}

// depth returns how many rows the frames above least make.
func depth(n *node, least time.Duration) int {
	most := 0
	for _, c := range n.children {
		if c.time >= least {
			most = max(most, depth(c, least))
		}
	}
	return most + 1
}

func (d drawing) frame(n *node, x float64, row int) {
	share := float64(n.time) / float64(d.total)
	if share < d.least {
		return
	}
	w, y := share*(width-2*margin), d.base-float64(row*rowHeight)
	name := html.EscapeString(n.name)
	fmt.Fprintf(d.out, `<g><title>%s %.1f%%</title><rect x="%.1f" y="%.0f" width="%.1f" height="15" fill="%s"/>`, name, share*100, x, y, w, colour(n.name))
	if label := fit(short(n.name), w); label != "" {
		fmt.Fprintf(d.out, `<text x="%.1f" y="%.0f">%s</text>`, x+2, y+11, html.EscapeString(label))
	}
	fmt.Fprintln(d.out, "</g>")
	for _, c := range n.sorted() {
		d.frame(c, x, row+1)
		x += float64(c.time) / float64(d.total) * (width - 2*margin)
	}
}

// short leaves the path of a function's package away.
func short(name string) string {
	args := strings.IndexAny(name, "[(") // type arguments have paths of their own
	if args < 0 {
		args = len(name)
	}
	return name[strings.LastIndex(name[:args], "/")+1:]
}

func fit(label string, w float64) string {
	letters := int((w - 4) / letter)
	switch {
	case letters < 3:
		return ""
	case len(label) <= letters:
		return label
	}
	return label[:letters-1] + "…"
}

// colour tells whose code a frame is.
func colour(name string) string {
	for _, c := range []struct{ prefix, colour string }{
		{"github.com/leveemq/levee", "#f2a65a"}, {"google.golang.org/grpc", "#8fb8de"}, {"golang.org/x/net", "#8fb8de"},
		{"runtime", "#d0d0d0"}, {"syscall", "#e08283"}, {"internal/runtime/syscall", "#e08283"},
	} {
		if rest, ok := strings.CutPrefix(name, c.prefix); ok && (rest == "" || strings.ContainsAny(rest[:1], "./")) {
			return c.colour
		}
	}
	return "#c9dfa5"
}
