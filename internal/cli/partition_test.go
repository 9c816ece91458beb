package cli

import "testing"

func TestSplitPartition(t *testing.T) {
	for name, want := range map[string]struct {
		topic     string
		partition int32
	}{
		"orders": {"orders", -1}, "orders/0": {"orders", 0}, "shop/orders": {"shop/orders", -1}, "shop/orders/12": {"shop/orders", 12},
		"shop/0/3": {"shop/0", 3}, "shop/007": {"shop/007", -1}, "shop/-1": {"shop/-1", -1}, "shop/99999999999": {"shop/99999999999", -1}, "": {"", -1}, "/": {"/", -1},
	} {
		if topic, partition := splitPartition(name); topic != want.topic || partition != want.partition {
			t.Errorf("%q: got %q, %d", name, topic, partition)
		}
	}
}
