package dispatch

import (
	"hash/fnv"
	"slices"
	"sort"
)

// key is a key that has records in the index.
type key struct {
	hash     uint64
	text     string
	named    bool  // text is known
	refs     int   // nodes that have it
	queue    queue // its records that no consumer holds, but delayed ones
	inFlight int
	holder   *consumer // of those in flight

	owner *consumer // as of the membership change owned
	owned uint64
	home  *consumer // in whose list of keys it is; nil: none
	head  *node     // that stands for it there
	class int       // which list
}

// keys are the keys, and the ring that says whose each is: a consumer has pointsEach points on it, so that what it
// leaves is shared by all others, and what it takes comes from all others.
type keys struct {
	byHash  map[uint64]*key
	points  []point
	free    []*key
	scratch []*key
}

type point struct {
	at uint64
	c  *consumer
}

const pointsEach = 64

func (ks *keys) init() { ks.byHash = map[uint64]*key{} }

func (ks *keys) get(it *Item) *key {
	k := ks.byHash[it.Key]
	if k == nil {
		if last := len(ks.free) - 1; last >= 0 {
			k, ks.free = ks.free[last], ks.free[:last]
		} else {
			k = &key{}
		}
		k.hash = it.Key
		ks.byHash[it.Key] = k
	}
	k.learn(it)
	return k
}

// learn takes in the text of a key.
func (k *key) learn(it *Item) {
	if !k.named && it.KeyText != nil {
		k.text, k.named = string(it.KeyText), true
		k.owned = 0
	}
}

const maxFreeKeys = 1024

// drop forgets a key that has no records any more.
func (ks *keys) drop(k *key) {
	if k.refs > 0 || ks.byHash[k.hash] != k {
		return
	}
	delete(ks.byHash, k.hash)
	nodes := k.queue.nodes[:0]
	*k = key{}
	if len(ks.free) < maxFreeKeys && cap(nodes) <= 64 {
		k.queue.nodes = nodes
		ks.free = append(ks.free, k)
	}
}

// mix spreads hashes that differ little.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// place puts the consumers on the ring. Where they are depends on their names alone.
func (ks *keys) place(order []*consumer) {
	ks.points = ks.points[:0]
	for _, c := range order {
		h := fnv.New64a()
		h.Write([]byte(c.m.Name))
		seed := h.Sum64()
		for i := range uint64(pointsEach) {
			ks.points = append(ks.points, point{mix(seed + i*0x9e3779b97f4a7c15), c})
		}
	}
	slices.SortFunc(ks.points, func(a, b point) int {
		if a.at != b.at {
			if a.at < b.at {
				return -1
			}
			return 1
		}
		if a.c.m.Name < b.c.m.Name {
			return -1
		}
		return 1
	})
}

// find returns the first consumer on the ring, from the key on, that wants it and takes a record of that size. large
// says that there would be one but for the size.
func (ks *keys) find(k *key, filters bool, size int64) (c *consumer, large bool) {
	if filters && !k.named {
		return nil, false
	}
	at := mix(k.hash)
	start := sort.Search(len(ks.points), func(i int) bool { return ks.points[i].at >= at })
	var last *consumer
	for i := range ks.points {
		c := ks.points[(start+i)%len(ks.points)].c
		if c == last || filters && !c.wants(k.text) {
			continue
		}
		if last = c; c.takes(size) {
			return c, false
		}
		large = true
	}
	return nil, large
}

// reroute finds out who may be handed the next record of a key, if anybody.
func (d *stock) reroute(k *key) {
	n := k.queue.first()
	if n == nil || n.place != placeReady || d.cfg.KeyInFlight > 0 && k.inFlight >= d.cfg.KeyInFlight {
		d.unroute(k)
		return // it holds back the others
	}
	if k.owned != d.steps || d.members.limit > 0 {
		var large bool
		k.owner, large = d.keys.find(k, d.members.filter > 0, n.bytes)
		k.owned = d.steps
		if large && k.owner == nil {
			d.detach(n)
			d.poison(n, ReasonTooLarge)
			return
		}
	}
	if k.owner == nil || k.inFlight > 0 && k.holder != k.owner {
		d.unroute(k)
		return
	}
	class := 1
	if n.count > 0 {
		class = 0
	}
	if k.home == k.owner && k.head == n && k.class == class {
		return // as most often: a record came behind, or one was settled
	}
	d.unroute(k)
	k.home, k.head, k.class = k.owner, n, class
	k.home.keyed[class].insert(n)
	d.routed++
}

func (d *stock) unroute(k *key) {
	if k.home != nil {
		k.home.keyed[k.class].remove(k.head)
		k.home, k.head = nil, nil
		d.routed--
	}
}

// rerouteAll is reroute for every key, in the order of their first records.
func (d *stock) rerouteAll() {
	if len(d.keys.byHash) == 0 {
		return
	}
	d.steps++
	all := d.keys.scratch[:0]
	seen := make(map[*key]bool, len(d.keys.byHash))
	d.held.each(0, func(n *node) bool {
		if n.key != nil && !seen[n.key] {
			seen[n.key] = true
			all = append(all, n.key)
		}
		return true
	})
	for _, k := range all {
		d.unroute(k)
	}
	for _, k := range all {
		if k.refs > 0 {
			d.reroute(k)
		}
	}
	clear(all)
	d.keys.scratch = all
}

// queue is nodes by offset; most are added behind and taken in front.
type queue struct {
	nodes []*node
	start int
}

func (q *queue) first() *node {
	if q.start == len(q.nodes) {
		return nil
	}
	return q.nodes[q.start]
}

func (q *queue) find(off int64) int {
	if last := len(q.nodes) - 1; last < q.start || q.nodes[last].from < off {
		return last + 1
	}
	return q.start + sort.Search(len(q.nodes)-q.start, func(i int) bool { return q.nodes[q.start+i].from >= off })
}

func (q *queue) insert(n *node) {
	at := q.find(n.from)
	if at == q.start && at > 0 {
		q.start--
		q.nodes[q.start] = n
		return
	}
	q.nodes = slices.Insert(q.nodes, at, n)
}

func (q *queue) remove(n *node) {
	at := q.start // as most often
	if at >= len(q.nodes) || q.nodes[at] != n {
		at = q.find(n.from)
	}
	if at >= len(q.nodes) || q.nodes[at] != n {
		panic("dispatch: BUG: a node is not in the queue of its key")
	}
	if at > q.start {
		q.nodes = slices.Delete(q.nodes, at, at+1)
		return
	}
	q.nodes[at] = nil
	if q.start++; q.start == len(q.nodes) {
		q.nodes, q.start = q.nodes[:0], 0
	} else if q.start >= 64 && q.start*2 > len(q.nodes) {
		kept := copy(q.nodes, q.nodes[q.start:])
		clear(q.nodes[kept:])
		q.nodes, q.start = q.nodes[:kept], 0
	}
}
