package dispatch

// dueHeap has nodes by the time at which they are due, the earliest first.
type dueHeap struct{ nodes []*node }

func (h *dueHeap) len() int { return len(h.nodes) }

func (h *dueHeap) first() *node {
	if len(h.nodes) == 0 {
		return nil
	}
	return h.nodes[0]
}

func (h *dueHeap) add(n *node) {
	n.heapAt = len(h.nodes)
	h.nodes = append(h.nodes, n)
	h.up(n.heapAt)
}

func (h *dueHeap) remove(n *node) {
	at, last := n.heapAt, len(h.nodes)-1
	h.swap(at, last)
	h.nodes[last] = nil
	h.nodes = h.nodes[:last]
	n.heapAt = -1
	if at < last {
		h.up(at)
		h.down(at)
	}
}

// less orders nodes that are due at once by their offsets: what is seen does not depend on how they came in.
func (h *dueHeap) less(i, j int) bool {
	a, b := h.nodes[i], h.nodes[j]
	return a.due < b.due || a.due == b.due && a.from < b.from
}

func (h *dueHeap) swap(i, j int) {
	h.nodes[i], h.nodes[j] = h.nodes[j], h.nodes[i]
	h.nodes[i].heapAt, h.nodes[j].heapAt = i, j
}

func (h *dueHeap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *dueHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.nodes) {
			return
		}
		if child+1 < len(h.nodes) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
