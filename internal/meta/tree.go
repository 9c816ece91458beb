package meta

import (
	"cmp"
	"iter"
	"strings"
)

// tree is an ordered map that is never changed: set and remove return a new tree that shares all but the path they
// touched, so a View costs nothing to keep and the next one O(log n) to make. It is an AVL tree; a copied Go map would
// make a hundred thousand creations quadratic, and a hash trie would not be in order. The zero tree is empty.
type tree[K cmp.Ordered, V any] struct {
	root *node[K, V]
	size int
}

type node[K cmp.Ordered, V any] struct {
	left, right *node[K, V]
	height      int
	key         K
	value       V
}

func (t tree[K, V]) len() int { return t.size }

func (t tree[K, V]) get(key K) (value V, ok bool) {
	for n := t.root; n != nil; {
		switch c := cmp.Compare(key, n.key); {
		case c == 0:
			return n.value, true
		case c < 0:
			n = n.left
		default:
			n = n.right
		}
	}
	return value, false
}

// from visits the entries with keys at or above key, in order.
func (t tree[K, V]) from(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.ascend(&key, yield) }
}

// all visits every entry in order.
func (t tree[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.ascend(nil, yield) }
}

func (n *node[K, V]) ascend(from *K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if from != nil && n.key < *from {
		return n.right.ascend(from, yield)
	}
	if !n.left.ascend(from, yield) || !yield(n.key, n.value) {
		return false
	}
	return n.right.ascend(nil, yield) // everything to the right is above from as well
}

func (t tree[K, V]) set(key K, value V) tree[K, V] {
	root, added := t.root.set(key, value)
	if added {
		t.size++
	}
	t.root = root
	return t
}

func (t tree[K, V]) remove(key K) tree[K, V] {
	if _, ok := t.get(key); !ok {
		return t
	}
	return tree[K, V]{root: t.root.remove(key), size: t.size - 1}
}

func (n *node[K, V]) set(key K, value V) (*node[K, V], bool) {
	if n == nil {
		return &node[K, V]{height: 1, key: key, value: value}, true
	}
	c := *n
	var added bool
	switch o := cmp.Compare(key, n.key); {
	case o == 0:
		c.key, c.value = key, value
		return &c, false
	case o < 0:
		c.left, added = n.left.set(key, value)
	default:
		c.right, added = n.right.set(key, value)
	}
	if !added {
		return &c, false
	}
	return c.balance(), true
}

// remove removes a key that is there.
func (n *node[K, V]) remove(key K) *node[K, V] {
	c := *n
	switch o := cmp.Compare(key, n.key); {
	case o < 0:
		c.left = n.left.remove(key)
	case o > 0:
		c.right = n.right.remove(key)
	case n.left == nil:
		return n.right
	case n.right == nil:
		return n.left
	default:
		next := n.right
		for next.left != nil {
			next = next.left
		}
		c.key, c.value = next.key, next.value
		c.right = n.right.remove(next.key)
	}
	return c.balance()
}

// withoutPrefix returns t without the keys that begin with prefix. What it keeps it keeps in whole subtrees, so it makes
// O(log n) nodes however many go.
func withoutPrefix[V any](t tree[string, V], prefix string) tree[string, V] {
	gone := 0
	for key := range t.from(prefix) {
		if !strings.HasPrefix(key, prefix) {
			break
		}
		gone++
	}
	if gone == 0 {
		return t
	}
	below := func(key string) bool { return key < prefix }
	through := func(key string) bool { return key < prefix || strings.HasPrefix(key, prefix) }
	return tree[string, V]{root: joinTwo(t.root.first(below), t.root.rest(through)), size: t.size - gone}
}

// first returns the keys for which it holds; where it does not, it holds for no higher one.
func (n *node[K, V]) first(holds func(K) bool) *node[K, V] {
	switch {
	case n == nil:
		return nil
	case holds(n.key):
		return join(n.left, n, n.right.first(holds))
	}
	return n.left.first(holds)
}

// rest returns the keys for which it does not hold; as first.
func (n *node[K, V]) rest(holds func(K) bool) *node[K, V] {
	switch {
	case n == nil:
		return nil
	case holds(n.key):
		return n.right.rest(holds)
	}
	return join(n.left.rest(holds), n, n.right)
}

// joinTwo joins two trees, all keys of l below those of r.
func joinTwo[K cmp.Ordered, V any](l, r *node[K, V]) *node[K, V] {
	if r == nil {
		return l
	}
	least := r
	for least.left != nil {
		least = least.left
	}
	return join(l, least, r.remove(least.key))
}

// join makes one tree of l, the entry of middle, and r, whose keys are in this order. The lower one becomes part of the
// taller one where that has a subtree of its height: no node of both but those on the way there is copied.
func join[K cmp.Ordered, V any](l, middle, r *node[K, V]) *node[K, V] {
	switch d := l.depth() - r.depth(); {
	case d > 1:
		c := *l
		c.right = join(l.right, middle, r)
		return c.balance()
	case d < -1:
		c := *r
		c.left = join(l, middle, r.left)
		return c.balance()
	}
	c := &node[K, V]{left: l, right: r, key: middle.key, value: middle.value}
	c.measure()
	return c
}

func (n *node[K, V]) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}

// balance restores the AVL invariant at n, which must not be shared yet; it copies the children it turns.
func (n *node[K, V]) balance() *node[K, V] {
	switch d := n.left.depth() - n.right.depth(); {
	case d > 1:
		l := *n.left
		if l.left.depth() < l.right.depth() {
			n.left = l.turnLeft()
		}
		return n.turnRight()
	case d < -1:
		r := *n.right
		if r.right.depth() < r.left.depth() {
			n.right = r.turnRight()
		}
		return n.turnLeft()
	}
	n.measure()
	return n
}

func (n *node[K, V]) measure() { n.height = 1 + max(n.left.depth(), n.right.depth()) }

func (n *node[K, V]) turnRight() *node[K, V] {
	top := *n.left
	n.left, top.right = top.right, n
	n.measure()
	top.measure()
	return &top
}

func (n *node[K, V]) turnLeft() *node[K, V] {
	top := *n.right
	n.right, top.left = top.left, n
	n.measure()
	top.measure()
	return &top
}

// changes visits, in order, the keys at which t and old differ: that only one of them has, or with values of which equal
// says no. What they share is skipped as a whole, so versions that few changes lie between cost O(log n) a change.
func (t tree[K, V]) changes(old tree[K, V], equal func(a, b V) bool) iter.Seq[K] {
	return func(yield func(K) bool) {
		var a, b walk[K, V]
		a.push(t.root)
		b.push(old.root)
		for {
			x, y := a.next(), b.next()
			switch {
			case x == nil && y == nil:
				return
			case x != nil && y != nil && x.whole && y.whole && x.node == y.node:
				a.pop()
				b.pop()
			case x != nil && x.whole && (y == nil || !y.whole || x.height >= y.height): // the taller one, to come to what they share
				a.open()
			case y != nil && y.whole:
				b.open()
			case y == nil || x != nil && x.key < y.key:
				if !yield(a.pop().key) {
					return
				}
			case x == nil || y.key < x.key:
				if !yield(b.pop().key) {
					return
				}
			default:
				if x, y := a.pop(), b.pop(); !equal(x.value, y.value) && !yield(x.key) {
					return
				}
			}
		}
	}
}

// walk is what is left of a tree to visit, the next last.
type walk[K cmp.Ordered, V any] []step[K, V]

// step is one node, or with whole everything below it, too.
type step[K cmp.Ordered, V any] struct {
	*node[K, V]
	whole bool
}

func (w *walk[K, V]) push(n *node[K, V]) {
	if n != nil {
		*w = append(*w, step[K, V]{n, true})
	}
}

// next returns the next step, or nil. It is valid until the walk changes.
func (w walk[K, V]) next() *step[K, V] {
	if len(w) == 0 {
		return nil
	}
	return &w[len(w)-1]
}

func (w *walk[K, V]) pop() step[K, V] {
	s := (*w)[len(*w)-1]
	*w = (*w)[:len(*w)-1]
	return s
}

// open replaces a whole subtree, which must be next, by its parts.
func (w *walk[K, V]) open() {
	n := w.pop().node
	w.push(n.right)
	*w = append(*w, step[K, V]{n, false})
	w.push(n.left)
}
