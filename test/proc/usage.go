package proc

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that the process has in use now, and had at most. It needs /proc.
func (b *Broker) Memory() (now, most int64) {
	b.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.PID()))
	b.needsProc(err)
	for _, line := range strings.Split(string(text), "\n") {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
		switch name {
		case "VmRSS":
			now = n << 10
		case "VmHWM":
			most = n << 10
		}
	}
	if now == 0 || most == 0 {
		b.t.Fatalf("no memory in %q", text)
	}
	return now, most
}

// Descriptors returns how many files and connections the process has open. It needs /proc.
func (b *Broker) Descriptors() int {
	b.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.PID()))
	b.needsProc(err)
	return len(entries)
}

// needsProc skips a test where the system has no /proc.
func (b *Broker) needsProc(err error) {
	b.t.Helper()
	if err == nil {
		return
	}
	if runtime.GOOS != "linux" {
		b.t.Skipf("needs /proc: %v", err)
	}
	b.t.Fatal(err)
}

// Goroutines returns how many goroutines the process has, and all of them as text.
func (b *Broker) Goroutines() (n int, text string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.HTTP+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := HTTP.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		b.t.Fatalf("%s: %v", res.Status, err)
	}
	if _, err := fmt.Sscanf(string(body), "goroutine profile: total %d", &n); err != nil {
		b.t.Fatalf("%v in %.100q", err, body)
	}
	return n, string(body)
}
