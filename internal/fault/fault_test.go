package fault

import (
	"context"
	"fmt"
	"testing"
)

func TestEveryKindHasOneRow(t *testing.T) {
	seen := map[string]Kind{}
	for _, k := range All() {
		name := k.Row().Name
		if name == "" {
			t.Errorf("kind %d has no row", k)
			continue
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%q names kinds %d and %d", name, other, k)
		}
		seen[name] = k
		if k.Row().GRPC == 0 || k.Row().HTTP == 0 || k.Row().Kafka == 0 || k.Row().Exit == 0 {
			t.Errorf("%s: a failure must not map to a success code: %+v", name, k.Row())
		}
		if back, ok := ByName(name); !ok || back != k {
			t.Errorf("ByName(%q) = %v, %v", name, back, ok)
		}
	}
	if Kind(200).Row().Name != "internal" {
		t.Error("an unknown kind must read as internal")
	}
}

func TestKindOf(t *testing.T) {
	base := New(Trimmed, "offset %d is gone", 3).With("oldest", 7)
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{base, Trimmed},
		{fmt.Errorf("read orders/0: %w", base), Trimmed},
		{New(IO, "write x: %w", context.Canceled), IO},
		{fmt.Errorf("wait: %w", context.Canceled), Canceled},
		{context.DeadlineExceeded, Timeout},
		{fmt.Errorf("plain"), Internal},
	} {
		if got := KindOf(c.err); got != c.want {
			t.Errorf("KindOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
	if d := DetailsOf(fmt.Errorf("x: %w", base)); d["oldest"] != "7" || Format(d) != "oldest=7" {
		t.Errorf("details lost: %v", d)
	}
}
