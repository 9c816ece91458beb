package tier

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// small returns a log with one sealed segment of a few frames of every kind.
func small(t testing.TB) *testLog { return smallOf(t, seeded(t)) }

func smallOf(t testing.TB, rng *rand.Rand) *testLog {
	l := newTestLog(t, rng)
	l.seal(12, 40)
	return l
}

// holds reports why the store is not what one export of the log's segments leaves.
func (l *testLog) holds(store objstore.Store, objects ...Object) error {
	want := make([]string, 0, len(objects))
	for i, o := range objects {
		key := o.Key(l.place)
		data, _, err := objstore.Read(context.Background(), store, key, 1<<30)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(data, l.segments[i]) || int64(len(data)) != o.Size || o.SegmentBytes != int64(len(l.segments[i])) {
			return errors.New(key + " does not hold its segment")
		}
		want = append(want, key)
	}
	if got := keys(store); !slices.Equal(got, want) {
		return errors.New("the store holds " + strings.Join(got, ", ") + ", not " + strings.Join(want, ", "))
	}
	return nil
}

func TestUploadIsAFunctionOfTheSegment(t *testing.T) {
	l, store := small(t), newTestStore()
	first := l.export(store)
	again := l.export(store)
	if _, puts := store.counts(); !slices.Equal(first, again) || puts != 1 {
		t.Errorf("%+v, then %+v, with %d puts", first, again, puts)
	}
	if err := l.holds(store, first...); err != nil {
		t.Error(err)
	}
	g := newGuard(t.Context())
	defer g.end(t.Context(), nil)
	f, err := fetchWhole(g, store, first[0].Key(l.place))
	if err != nil || f.Object != first[0] || f.SegmentCRC != checksum(l.segments[0]) || f.TopicID != l.place.TopicID || f.Partition != l.place.Partition {
		t.Errorf("%+v, %v", f, err)
	}
}

// Whatever happens to one request of an upload, the upload succeeds or fails; and when it is repeated there is one object,
// which is right.
func TestUploadMeetsEveryFault(t *testing.T) {
	faults := []error{
		objstore.ErrUnavailable, objstore.ErrThrottled, objstore.ErrDenied, objstore.ErrOutcomeUnknown, objstore.ErrNoSpace,
		objstore.ErrNotFound, objstore.ErrExists, objstore.ErrConflict, context.DeadlineExceeded,
	}
	rng := seeded(t)
	for _, op := range []string{"head", "put", "get", "answer to put"} {
		for _, cause := range faults {
			for _, times := range []int{1, 2, 100} {
				l, store := smallOf(t, rng), newTestStore()
				store.before = failing(op, times, cause)
				if rest, ok := strings.CutPrefix(op, "answer to "); ok {
					store.before, store.after = nil, failing(rest, times, cause)
				}
				ctx := t.Context()
				if times == 100 { // a get is tried again after a wait
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					cancel()
				}
				o, err := Upload(ctx, store, l.place, l.of[0])
				if err == nil {
					if err := l.holds(store, o); err != nil {
						t.Errorf("%s fails %d times with %v: reported as stored: %v", op, times, cause, err)
					}
				}
				store.set(func(s *testStore) { s.before, s.after = nil, nil })
				if o, err = Upload(t.Context(), store, l.place, l.of[0]); err != nil {
					t.Errorf("%s failed %d times with %v; then: %v", op, times, cause, err)
				} else if err := l.holds(store, o); err != nil {
					t.Errorf("%s failed %d times with %v; then: %v", op, times, cause, err)
				}
			}
		}
	}
}

// A put whose answer was lost is settled by reading back.
func TestUploadSettlesAnUnknownOutcome(t *testing.T) {
	l, store := small(t), newTestStore()
	store.after = failing("put", 1, objstore.ErrOutcomeUnknown)
	o, err := Upload(t.Context(), store, l.place, l.of[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := l.holds(store, o); err != nil {
		t.Error(err)
	}
	store = newTestStore()
	store.before = failing("put", 1, objstore.ErrOutcomeUnknown)
	if _, err := Upload(t.Context(), store, l.place, l.of[0]); fault.KindOf(err) != fault.OutcomeUnknown {
		t.Errorf("never put, and: %v", err)
	}
}

// A store that hands back other bytes than it was given is not believed; what rotted in it is replaced.
func TestUploadReadsBack(t *testing.T) {
	l := small(t)
	key := l.export(newTestStore())[0].Key(l.place)
	t.Run("damaged once on the way", func(t *testing.T) {
		store, n := newTestStore(), 0
		store.change = func(_ string, _ int64, b []byte) []byte {
			if n++; n == 1 {
				b[len(b)/2] ^= 1
			}
			return b
		}
		o, err := Upload(t.Context(), store, l.place, l.of[0])
		if err == nil {
			err = l.holds(store.Mem, o)
		}
		if err != nil {
			t.Error(err)
		}
	})
	for name, change := range map[string]func([]byte) []byte{
		"a byte":    func(b []byte) []byte { b[100] ^= 1; return b },
		"the end":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"cut short": func(b []byte) []byte { return b[:len(b)-1] },
		"empty":     func(b []byte) []byte { return b[:0] },
		"too long":  func(b []byte) []byte { return append(b, 0) },
	} {
		t.Run("damaged always: "+name, func(t *testing.T) {
			store := newTestStore()
			store.change = func(_ string, _ int64, b []byte) []byte { return change(slices.Clone(b)) }
			if o, err := Upload(t.Context(), store, l.place, l.of[0]); fault.KindOf(err) != fault.Corrupt {
				t.Errorf("%+v, %v", o, err)
			}
		})
		t.Run("damaged in the store: "+name, func(t *testing.T) {
			store := newTestStore()
			data, _, err := objstore.Read(t.Context(), exported(t, l), key, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.PutIfAbsent(t.Context(), key, objstore.Bytes(change(data))); err != nil {
				t.Fatal(err)
			}
			o, err := Upload(t.Context(), store, l.place, l.of[0])
			if err == nil {
				err = l.holds(store, o)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// An object of the right bytes with another footer is not the one.
func TestUploadReplacesAnotherFooter(t *testing.T) {
	l := small(t)
	good := exported(t, l)
	key := keys(good)[0]
	data, _, err := objstore.Read(t.Context(), good, key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ParseFooter(data[len(data)-FooterSize:], int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	f.BaseSeq, f.NextSeq = f.BaseSeq+1, f.NextSeq+1
	store := newTestStore()
	if _, err := store.PutIfAbsent(t.Context(), key, objstore.Bytes(f.Append(data[:len(data)-FooterSize]))); err != nil {
		t.Fatal(err)
	}
	o, err := Upload(t.Context(), store, l.place, l.of[0])
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(t.Context())
	defer g.end(t.Context(), nil)
	if f, err := fetchWhole(g, store, key); err != nil || f.Object != o || o.BaseSeq != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

func exported(t *testing.T, l *testLog) *testStore {
	store := newTestStore()
	l.export(store)
	return store
}

// Rot on the local disk is never exported as truth: no byte of a segment file can change unnoticed.
func TestUploadRefusesRot(t *testing.T) {
	l, store := small(t), newTestStore()
	good := l.segments[0]
	for at := range good {
		bad := slices.Clone(good)
		bad[at] ^= 1 << (at % 8)
		seg := l.of[0]
		seg.Reader = bytes.NewReader(bad)
		_, err := Upload(t.Context(), store, l.place, seg)
		var c *CorruptError
		if !errors.As(err, &c) || c.Where != seg.Name || c.Position > int64(at) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	compacted := slices.Clone(good)
	h, err := segfmt.ParseSegmentHeader(good)
	if err != nil {
		t.Fatal(err)
	}
	h.Flags = segfmt.FlagCompacted
	copy(compacted, h.Append(nil))
	seg := l.of[0]
	seg.Reader = bytes.NewReader(compacted)
	if _, err := Upload(t.Context(), store, l.place, seg); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("compacted: %v", err)
	}
	for cut := range int64(len(good)) {
		seg := l.of[0]
		seg.Size = cut
		if _, err := Upload(t.Context(), store, l.place, seg); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%d of %d bytes: %v", cut, len(good), err)
		}
	}
	if k := keys(store); len(k) != 0 {
		t.Errorf("stored %v", k)
	}
}

func TestUploadRefusesAnotherSegment(t *testing.T) {
	l, store := small(t), newTestStore()
	for name, change := range map[string]func(*Segment, *Place){
		"base":       func(s *Segment, _ *Place) { s.Base++ },
		"next":       func(s *Segment, _ *Place) { s.Next++ },
		"base seq":   func(s *Segment, _ *Place) { s.BaseSeq++ },
		"next seq":   func(s *Segment, _ *Place) { s.NextSeq-- },
		"generation": func(s *Segment, _ *Place) { s.Generation++ },
		"topic":      func(_ *Segment, p *Place) { p.TopicID[3]++ },
		"partition":  func(_ *Segment, p *Place) { p.Partition++ },
		"longer":     func(s *Segment, _ *Place) { s.Size++ },
	} {
		seg, place := l.of[0], l.place
		change(&seg, &place)
		if _, err := Upload(t.Context(), store, place, seg); fault.KindOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	seg := l.of[0]
	seg.Reader = io.NewSectionReader(failingReader{}, 0, seg.Size)
	if _, err := Upload(t.Context(), store, l.place, seg); fault.KindOf(err) != fault.IO {
		t.Errorf("unreadable: %v", err)
	}
	if k := keys(store); len(k) != 0 {
		t.Errorf("stored %v", k)
	}
}

type failingReader struct{}

func (failingReader) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

// A file that changes between the check and the upload is not stored: the store gets the checksum of what was checked.
func TestUploadRefusesWhatChangedMeanwhile(t *testing.T) {
	l, store := small(t), newTestStore()
	bad := slices.Clone(l.segments[0])
	bad[len(bad)-1] ^= 1
	_, err := upload(t.Context(), store, l.place, l.of[0], bytes.NewReader(bad), nil)
	if !errors.Is(err, objstore.ErrSource) || len(keys(store)) != 0 {
		t.Errorf("%v, stored %v", err, keys(store))
	}
}

// A frame larger than what is read at once.
func TestUploadOfALargeFrame(t *testing.T) {
	l := newTestLog(t, seeded(t))
	l.plain = true
	for len(l.items) == 0 || len(l.items[len(l.items)-1].batch) < 3*stretch {
		l.segments, l.of, l.items, l.seq, l.offset, l.generation = nil, nil, nil, 1, 0, 1
		l.seal(1, 4<<20)
	}
	l.seal(3, 100)
	store := newTestStore()
	all := l.export(store)
	c := newCold(t, store, ColdConfig{StretchBytes: 64 << 10, CacheBytes: 256 << 10})
	if err := l.follow(c.NewReader(l.place, lookup(all), 0), 1000, 1000); err != nil {
		t.Error(err)
	}
}

// The exporter dies at any step of an export, and another one goes on: one object, nothing lost, nothing committed that
// is not stored.
func TestExportCrashesAnywhere(t *testing.T) {
	steps := []string{"head", "put", "answer to put", "get", "commit", "answer to commit"}
	rng := seeded(t)
	for _, step := range steps {
		l, store := smallOf(t, rng), newTestStore()
		ctx, crash := context.WithCancel(t.Context())
		store.before = func(op, _ string) error {
			if op == step {
				crash()
				return context.Canceled
			}
			return nil
		}
		store.after = func(op, _ string) error {
			if "answer to "+op == step {
				crash()
				return context.Canceled
			}
			return nil
		}
		s := &testSource{name: "default/t", place: l.place, segments: l.of}
		s.commit = func(o Object) error {
			if err := l.holds(store.Mem, o); err != nil {
				t.Errorf("%s: committed: %v", step, err)
			}
			if step == "commit" {
				crash()
				return context.Canceled
			}
			return nil
		}
		s.answer = func() error {
			if step == "answer to commit" {
				crash()
				return context.Canceled
			}
			return nil
		}
		x, err := NewExporter(ctx, store, ExporterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		x.Wake(s)
		<-ctx.Done()
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
		crash()
		store.set(func(s *testStore) { s.before, s.after = nil, nil })
		s.mu.Lock()
		done := make(chan struct{})
		s.commit, s.answer = nil, func() error { close(done); return nil }
		s.segments, s.done = l.of, nil // also where the answer to the commit was lost
		s.mu.Unlock()
		x = newTestExporter(t, store, ExporterConfig{})
		x.Wake(s)
		<-done
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
		if err := l.holds(store, s.objects()...); err != nil || len(s.objects()) != 1 {
			t.Errorf("%s: %v, %d objects committed", step, err, len(s.objects()))
		}
	}
}

func TestFrameChainIsChecked(t *testing.T) {
	l := newTestLog(t, seeded(t))
	batch := l.batch(2, 10)
	frame := func(kind uint8, seq uint64, offset int64, generation uint32, b []byte) []byte {
		return segfmt.AppendFrame(nil, kind, 0, seq, offset, generation, b)
	}
	head := segfmt.SegmentHeader{BaseOffset: 10, BaseSeq: 5, PrevGeneration: 3, TopicID: l.place.TopicID, Partition: 7}.Append(nil)
	first := frame(segfmt.KindData, 5, 10, 3, batch)
	for name, tc := range map[string]struct {
		second []byte
		ok     bool
	}{
		"the next one":              {frame(segfmt.KindData, 6, 12, 3, batch), true},
		"a higher generation":       {frame(segfmt.KindData, 6, 12, 4, batch), true},
		"lost from here on":         {frame(segfmt.KindLost, 6, 20, 4, segfmt.LostBatch(12, 19)), true},
		"a frame is missing":        {frame(segfmt.KindData, 7, 12, 3, batch), false},
		"the same frame again":      {first, false},
		"offsets are missing":       {frame(segfmt.KindData, 6, 13, 3, batch), false},
		"an earlier generation":     {frame(segfmt.KindData, 6, 12, 2, batch), false},
		"lost from later on":        {frame(segfmt.KindLost, 6, 20, 4, segfmt.LostBatch(13, 19)), false},
		"control of another offset": {frame(segfmt.KindNoop, 6, 13, 3, segfmt.ControlBatch(nil)), false},
	} {
		file := slices.Concat(head, first, tc.second)
		_, _, err := scan(t.Context(), "file", bytes.NewReader(file), int64(len(file)), ignore)
		var c *CorruptError
		if tc.ok != (err == nil) || err != nil && (!errors.As(err, &c) || c.Position != int64(len(head)+len(first)) || c.Offset != 12) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ignore is for scans that only check.
func ignore(int64, *segfmt.Frame, []byte) error { return nil }
