package seglog

import "time"

// Backlog is what sealed segments wait for a copy.
type Backlog struct {
	Bytes int64         // of sealed segments above what is copied
	Age   time.Duration // how long ago the oldest of them was begun
	Held  int64         // of these and those behind, what retention would have removed if there were copies
}

// Backlog returns what waits above an offset below which everything is copied.
func (l *Log) Backlog(copied int64) (b Backlog) {
	v, keep := l.view.Load(), l.live.Load().retention
	total, over := v.bytes(), true
	for i := 0; i+1 < len(v.segs); i++ {
		s := v.segs[i]
		if s.next > copied && s.next > s.BaseOffset {
			if b.Bytes == 0 {
				b.Age = max(l.age(s), 0)
			}
			b.Bytes += s.end
		}
		over = over && (keep.Bytes > 0 && total > keep.Bytes || keep.Age > 0 && l.age(v.segs[i+1]) > keep.Age)
		if over && s.next > copied {
			b.Held += s.end
		}
		total -= s.end
	}
	return b
}
