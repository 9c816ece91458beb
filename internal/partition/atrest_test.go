package partition

import (
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
)

// What is not exported is exposed while its log is closed, too: one that was unloaded says what it said open, and one that
// cannot be opened says what is in its files.
func TestClosedLogsAreExposed(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	store := objstore.NewMem()
	w.runTiered(store, seglog.Retention{}, func(p *Partition) {
		if _, ok := p.Exposure(); ok {
			t.Error("something is known of a partition that nobody has tried")
		}
		for i := range 40 {
			mustAppend(t, p, strings.Repeat("x", 1000)+numbered(int64(i)))
		}
		exportAll(t, w, p)
		open, ok := p.Exposure()
		if !ok || open.Bytes == 0 || open.Copied == 0 {
			t.Fatalf("while it is open: %+v, %v", open, ok)
		}
		if err := p.Unload(t.Context()); err != nil {
			t.Fatal(err)
		}
		closed, ok := p.Exposure()
		if !ok || closed.Bytes != open.Bytes || closed.Copied != open.Copied || closed.Age < open.Age || closed.Age > open.Age+time.Minute {
			t.Errorf("unloaded it says %+v, %v, and said %+v", closed, ok, open)
		}
		var b Backlog
		b.Add(p)
		if b.Exposed != open.Bytes || b.Bytes != 0 || b.Partitions != 0 {
			t.Errorf("it counts as %+v", b)
		}
		name := p.logConfig().Dir + "/" + segfmt.FileName(0, segfmt.LogSuffix)
		f, err := w.fs.Open(name, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("no header"), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Ready(t.Context()); err == nil {
			t.Fatal("a damaged log was opened")
		}
		if broken, ok := p.Exposure(); !ok || broken.Bytes != open.Bytes {
			t.Errorf("where it cannot be opened it says %+v, %v, and said %+v", broken, ok, open)
		}
	})
}
