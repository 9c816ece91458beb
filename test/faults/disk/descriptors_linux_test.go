package disk

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// TestDescriptorLimit gives a broker 256 descriptors and takes them all, with files and with connections: what it cannot
// do it refuses with a typed error, and once connections go it does everything again. Nothing acknowledged is lost.
func TestDescriptorLimit(t *testing.T) {
	const limit = 256
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	if err := unix.Prlimit(s.b.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
		t.Fatal(err)
	}
	kept := map[string][]string{}
	var names []string
	for i := range 60 {
		name := fmt.Sprintf("t-%d", i)
		s.mustCreate(name, faults.Modes[i%3])
		names = append(names, name)
		kept[name] = s.mustPublish(name, "before")
	}
	rounds := faults.Amount(3, 1, 20)
	refused := map[string]int{}
	for n := range rounds {
		crowd := takeDescriptors(s, limit)
		for i, name := range names {
			value := fmt.Sprintf("during-%d-%d", n, i)
			// Two do not fit a segment, so the next one has to be opened.
			_, err := s.publish(name, value+string(make([]byte, 40<<10)))
			kind, _ := kindOf(err)
			switch kind {
			case "":
				kept[name] = append(kept[name], value+string(make([]byte, 40<<10)))
			case kindIO, client.KindUnavailable, client.KindExhausted:
				refused[kind]++
			default:
				t.Errorf("a publish without a descriptor to spare: %v", err)
			}
		}
		created := s.create(fmt.Sprintf("new-%d", n), "")
		if kind, retriable := kindOf(created); created != nil {
			if refused["create: "+kind]++; !retriable {
				t.Errorf("a topic without a descriptor to spare: %v", created)
			}
		}
		for _, c := range crowd {
			_ = c.Close()
		}
		s.await("rid of the connections", func() bool { return s.b.Descriptors() < limit-20 })
		for _, name := range names {
			kept[name] = append(kept[name], s.mustPublish(name, fmt.Sprintf("after-%d", n))...)
		}
		s.holds("with descriptors again", names[n], kept[names[n]]) // by a new connection
		s.mustCreate(fmt.Sprintf("newer-%d", n), "")
		if created == nil { // it could not be opened, which its next use tries again
			s.await("able to open it", func() bool { _, err := s.publish(fmt.Sprintf("new-%d", n), "x"); return err == nil })
		}
	}
	if p := s.problems(); p != "" {
		t.Errorf("there are descriptors again, and health says %q", p)
	}
	s.b.Kill()
	s.start()
	for _, name := range names {
		s.holds("after a crash", name, kept[name])
	}
	s.stop(0)
	t.Logf("%d rounds; refused: %v", rounds, refused)
}

// takeDescriptors opens connections until the broker has no descriptor left.
func takeDescriptors(s *site, limit int) (crowd []net.Conn) {
	s.t.Helper()
	for range 2 * limit {
		c, err := net.Dial("tcp", s.b.GRPC)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = c.Close() })
		crowd = append(crowd, c)
	}
	s.await("out of descriptors", func() bool { return s.b.Descriptors() >= limit })
	return crowd
}
