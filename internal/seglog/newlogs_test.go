package seglog

import (
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/prometheus/client_golang/prometheus"
)

// TestFullDiskRefusesNewLogs covers LOG-06: on a full disk a log does not come to exist by halves. Its first append is
// refused, counted, and leaves nothing; logs beside it are read as before; and the same log takes the same append once
// there is room.
func TestFullDiskRefusesNewLogs(t *testing.T) {
	fs := vfs.NewMem()
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpReserve {
			return vfs.ErrNoSpace // no log has room set aside
		}
		return nil
	})
	reg := prometheus.NewRegistry()
	cfg := testConfig(fs)
	cfg.Metrics = NewMetrics(reg)
	beside := mustOpen(t, cfg)
	mustAppend(t, beside, batch(t, noProducer, "kept"))
	cfg.Dir = "/data/new"
	fresh := mustOpen(t, cfg)
	before := metric(t, reg, "levee_storage_full_total")
	fs.SetSpace(0)
	for i := range 3 {
		if err := appendErr(fresh, batch(t, noProducer, "first")); fault.KindOf(err) != fault.NoSpace {
			t.Fatalf("a new log on a full disk: %v", err)
		}
		if err := appendErr(beside, batch(t, noProducer, "more")); fault.KindOf(err) != fault.NoSpace {
			t.Fatalf("an append on a full disk: %v", err)
		}
		if got := metric(t, reg, "levee_storage_full_total") - before; got != float64(2*(i+1)) {
			t.Fatalf("%v refusals counted after %d", got, 2*(i+1))
		}
		if infos, _ := fs.List(cfg.Dir); len(infos) != 0 {
			t.Fatalf("the refused creation left %v", infos)
		}
	}
	if got := readAll(t, beside, 0); len(got) != 1 {
		t.Fatalf("%d records read on a full disk", len(got))
	}
	if b := fresh.Bounds(); b.End != 0 || b.Segments != 0 {
		t.Fatalf("%+v", b)
	}
	fs.SetSpace(-1)
	for l, want := range map[*Log]int64{fresh: 0, beside: 1} {
		if r := mustAppend(t, l, batch(t, noProducer, "with room")); r.Offset != want {
			t.Fatalf("%+v", r)
		}
		mustClose(t, l)
	}
}

// metric returns a counter's value.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
