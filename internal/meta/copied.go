package meta

// CursorsOnlySince reports whether nothing but the progress of subscriptions differs from an older view: what may be
// repeated by consumers, at worst, where it is lost. It takes time for what changed, not for what there is.
func (v *View) CursorsOnlySince(old *View) bool {
	a, b := *v, *old
	for range a.subscriptions.changes(b.subscriptions, sameButActive) {
		return false
	}
	a.index, b.index = 0, 0
	a.cursors, b.cursors = tree[string, *Cursor]{}, tree[string, *Cursor]{}
	a.subscriptions, b.subscriptions = tree[string, *Subscription]{}, tree[string, *Subscription]{}
	return a == b
}

// sameButActive compares subscriptions without when they were last used, which is stored with their cursors.
func sameButActive(a, b *Subscription) bool {
	return a == b || a.TopicID == b.TopicID && a.Created == b.Created && a.Version == b.Version
}

// Same reports whether two views differ in nothing but the number of commands behind them.
func (v *View) Same(o *View) bool {
	a, b := *v, *o
	a.index, b.index = 0, 0
	return a == b
}
