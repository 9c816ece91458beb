package tier

import "time"

// Retention says how long objects are kept. Zero fields are no limit.
type Retention struct {
	Bytes int64         // of all objects of a partition
	Age   time.Duration // since an object was recorded
}

// Limits reports whether there is any limit.
func (r Retention) Limits() bool { return r.Bytes > 0 || r.Age > 0 }

// Expired returns how many of a partition's n objects, which at returns oldest first, are not kept any more: always the
// oldest, and never the newest, which says how far the partition is exported. One of which it is not known when it was
// recorded is as old as the one behind it.
func (r Retention) Expired(n int, at func(i int) Object, now time.Time) int {
	total := int64(0)
	if r.Bytes > 0 {
		for i := range n {
			total += at(i).Size
		}
	}
	expired := 0
	for i := range n - 1 {
		o := at(i)
		over := r.Bytes > 0 && total > r.Bytes
		old := r.Age > 0 && o.StoredMs > 0 && now.Sub(time.UnixMilli(o.StoredMs)) > r.Age
		switch {
		case over || old:
			expired = i + 1
		case o.StoredMs > 0 || r.Age <= 0:
			return expired
		}
		total -= o.Size
	}
	return expired
}

// Due returns when the oldest of a partition's objects will be too old; zero where none ever will.
func (r Retention) Due(all []Object) time.Time {
	if r.Age > 0 && len(all) > 1 {
		for i := range all {
			if ms := all[i].StoredMs; ms > 0 {
				return time.UnixMilli(ms).Add(r.Age)
			}
		}
	}
	return time.Time{}
}
