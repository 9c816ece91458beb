package dispatch

import "sort"

// index is an ordered set of nodes that do not overlap: a list of small sorted pages. Finding, adding and removing cost
// two binary searches and the move of part of one page; adding behind the last and removing the first, as most do, cost
// less. A balanced tree was the alternative: it takes as much code, and several times the cache misses.
type index struct {
	pages []*page // none is empty
	free  *page
	size  int
	near  int // the page that was looked at last: most offsets come in order
}

const pageSize = 64

type page struct {
	n     int
	nodes [pageSize]*node
	next  *page // free ones
}

// end is the last offset of a page.
func (p *page) end() int64 { return p.nodes[p.n-1].to }

func (x *index) first() *node {
	if x.size == 0 {
		return nil
	}
	return x.pages[0].nodes[0]
}

func (x *index) last() *node {
	if x.size == 0 {
		return nil
	}
	p := x.pages[len(x.pages)-1]
	return p.nodes[p.n-1]
}

// seek returns where the first node lies that ends at or above an offset. There may be none: page is len(x.pages).
func (x *index) seek(off int64) (pg, at int) {
	if n := len(x.pages); n == 0 {
		return 0, 0
	} else if off <= x.pages[0].end() {
		pg = 0
	} else if off > x.pages[n-1].end() {
		return n, 0
	} else if k := x.near; k > 0 && k < n && off <= x.pages[k].end() && off > x.pages[k-1].end() {
		pg = k
	} else {
		pg = sort.Search(n, func(i int) bool { return off <= x.pages[i].end() })
		x.near = pg
	}
	p := x.pages[pg]
	if off <= p.nodes[0].to {
		return pg, 0
	}
	return pg, sort.Search(p.n, func(i int) bool { return off <= p.nodes[i].to })
}

// from returns the first node that ends at or above an offset, nil where there is none.
func (x *index) from(off int64) *node {
	pg, at := x.seek(off)
	if pg == len(x.pages) {
		return nil
	}
	return x.pages[pg].nodes[at]
}

// each visits the nodes from an offset on, until visit says no. The index must not change meanwhile.
func (x *index) each(off int64, visit func(*node) bool) {
	for pg, at := x.seek(off); pg < len(x.pages); pg, at = pg+1, 0 {
		for p := x.pages[pg]; at < p.n; at++ {
			if !visit(p.nodes[at]) {
				return
			}
		}
	}
}

func (x *index) insert(n *node) {
	x.size++
	pg, at := x.seek(n.from)
	switch {
	case len(x.pages) == 0:
		x.addPage(0)
	case pg == len(x.pages): // behind the last
		pg--
		at = x.pages[pg].n
		if at == pageSize {
			pg, at = pg+1, 0
			x.addPage(pg)
		}
	case x.pages[pg].n == pageSize:
		x.addPage(pg + 1)
		left, right := x.pages[pg], x.pages[pg+1]
		right.n = copy(right.nodes[:], left.nodes[pageSize/2:])
		clear(left.nodes[pageSize/2:])
		left.n = pageSize / 2
		if at > pageSize/2 {
			pg, at = pg+1, at-pageSize/2
		}
	}
	p := x.pages[pg]
	copy(p.nodes[at+1:p.n+1], p.nodes[at:p.n])
	p.nodes[at] = n
	p.n++
}

func (x *index) addPage(at int) {
	p := x.free
	if p == nil {
		p = &page{}
	} else {
		x.free, p.next = p.next, nil
	}
	x.pages = append(x.pages, nil)
	copy(x.pages[at+1:], x.pages[at:])
	x.pages[at] = p
}

func (x *index) remove(n *node) {
	pg, at := x.seek(n.from)
	if pg == len(x.pages) || x.pages[pg].nodes[at] != n {
		panic("dispatch: BUG: a node is not where it belongs")
	}
	x.size--
	p := x.pages[pg]
	copy(p.nodes[at:], p.nodes[at+1:p.n])
	p.n--
	p.nodes[p.n] = nil
	if p.n == 0 {
		copy(x.pages[pg:], x.pages[pg+1:])
		x.pages[len(x.pages)-1] = nil
		x.pages = x.pages[:len(x.pages)-1]
		p.next, x.free = x.free, p
	}
}
