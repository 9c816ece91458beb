package server

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// tell sends one command to a server of Redis' protocol, and returns its answer's first line.
func tell(t *testing.T, addr string, args ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := fmt.Sprintf("*%d\r\n", len(args))
	for _, a := range args {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(answer[:n]), "\r\n")
	return line
}

// TestHoleInTheMetadata: a broker with an empty disk that finds a change missing in the write buffer's copy of the metadata
// serves what came before it, and says in /readyz and in the log what may be missing and what to do, until it is restarted.
func TestHoleInTheMetadata(t *testing.T) {
	mini := miniredis.RunT(t)
	changes := map[string]string{"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "5s"}
	r := up(t, settings(t, t.TempDir(), changes))
	at := map[string]uint64{}
	for _, topic := range []string{"a", "b", "c"} {
		createTopic(t, r.broker.Load(), topic, "on_commit")
		at[topic] = r.metadata.Load().store.View().Index()
	}
	last := r.confirmer.Load()
	if err := last.Confirm(at["c"]); err != nil {
		t.Fatal(err)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	end, err := mini.DB(0).Stream(fmt.Sprintf("levee:{%x/0}:s", metadataID()))
	if err != nil || len(end) == 0 {
		t.Fatalf("%d entries, %v", len(end), err)
	}
	if got := tell(t, mini.Addr(), "XDEL", fmt.Sprintf("levee:{%x/0}:s", metadataID()), fmt.Sprintf("%d-0", at["b"])); got != ":1" {
		t.Fatalf("XDEL: %q", got)
	}

	dir := t.TempDir()
	r = up(t, settings(t, dir, changes))
	newest, _, _ := strings.Cut(end[len(end)-1].ID, "-")
	words := fmt.Sprintf("had lost changes of it, from entry %d on: up to entry %s none counts", at["b"], newest)
	told := func() bool {
		_, h := readyz(t, r)
		return slices.ContainsFunc(h.Problems, func(p string) bool {
			return strings.Contains(p, words) && strings.Contains(p, "topics that were created") && strings.Contains(p, "levee topic list")
		})
	}
	if !told() {
		_, h := readyz(t, r)
		t.Errorf("/readyz says %q", h.Problems)
	}
	if !strings.Contains(r.lines.String(), words) {
		t.Error("the log does not say it")
	}
	var names []string
	for topic := range r.view().Topics("") {
		names = append(names, topic.Name.Topic)
	}
	if !slices.Equal(names, []string{"a"}) {
		t.Errorf("there are %q", names)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	r = up(t, settings(t, dir, changes))
	if told() {
		t.Error("it is still said after a restart")
	}
}
