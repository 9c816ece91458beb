package bytes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// tally counts how cases ended, by kind of file.
type tally map[kind]map[outcome]int

func (c tally) add(k kind, how outcome) {
	if c[k] == nil {
		c[k] = map[outcome]int{}
	}
	c[k][how]++
}

func (c tally) log(t *testing.T, what string, began time.Time) {
	t.Helper()
	total, lines := 0, []string{}
	for k, byHow := range c {
		n, parts := 0, []string{}
		for how, count := range byHow {
			n += count
			parts = append(parts, fmt.Sprintf("%d %s", count, how))
		}
		slices.Sort(parts)
		lines = append(lines, fmt.Sprintf("  %s: %d cases: %s", k, n, strings.Join(parts, ", ")))
		total += n
	}
	slices.Sort(lines)
	t.Logf("%s: %d cases in %.1f seconds\n%s", what, total, time.Since(began).Seconds(), strings.Join(lines, "\n"))
}

// TestDamagedFiles prepares two data directories with a real broker, one that it stopped on cleanly and one that it was
// killed on, and damages copies of them.
func TestDamagedFiles(t *testing.T) {
	masters := prepare(t)
	t.Run("rot", func(t *testing.T) {
		for _, ma := range masters[:faults.Amount(2, 1, 2)] {
			t.Run(ma.name, func(t *testing.T) { rots(t, ma) })
		}
	})
	t.Run("whole files", func(t *testing.T) {
		for _, ma := range masters[faults.Amount(0, 1, 0):] {
			t.Run(ma.name, func(t *testing.T) { wholeFiles(t, ma) })
		}
	})
	t.Run("while running", func(t *testing.T) { whileRunning(t, masters[0]) })
}

// rots damages every kind of file at random: on the real binary, many topics' files at once, and what the whole broker
// depends on one by one.
func rots(t *testing.T, ma *master) {
	began, rng, count := time.Now(), faults.Seeded(t), tally{}
	each := faults.Amount(10, 2, 100) // of a kind, in each of two directories
	draw := func(kinds []kind) (list []*damage) {
		for range each {
			for _, k := range kinds {
				if len(ma.kinds[k]) == 0 {
					continue // a short run has no older snapshot
				}
				file := ma.kinds[k][rng.IntN(len(ma.kinds[k]))]
				list = append(list, rot(rng, k, file, ma.files[file]))
			}
		}
		return list
	}
	batches(t, ma, append(draw(topicKinds), draw(idleKinds)...), count)
	for _, k := range append(slices.Clone(metaKinds), stampKinds...) {
		stops(t, ma, draw([]kind{k}), count)
	}
	count.log(t, "rot after "+ma.name, began)
}

// none says which damages there are not, and why.
var none = map[kind]map[string]string{
	oldSnapshot: {"from yesterday": "a snapshot never changes, and there is no older one"},
	identity:    {"from yesterday": "it has been the same since the directory was made"},
	reserve:     {"from yesterday": "it holds nothing"},
	deleted:     {"from yesterday": "it is removed whatever it holds"},
	salvage:     {"from yesterday": "it never changes"},
}

// wholeFiles does to a file of every kind what can happen to one as a whole.
func wholeFiles(t *testing.T, ma *master) {
	began, rng, count := time.Now(), faults.Seeded(t), tally{}
	inBatches := append(slices.Clone(topicKinds), idleKinds...)
	var together []*damage
	kinds := slices.Concat(inBatches, stampKinds)
	if faults.Amount(1, 0, 1) == 1 { // a start for each: a short run leaves these to rot
		kinds = append(kinds, metaKinds...)
	}
	for _, k := range kinds {
		var alone []*damage
		for _, what := range sideDamages {
			if none[k][what] != "" || len(ma.kinds[k]) == 0 {
				continue
			}
			d := ma.anySide(rng, k, what)
			switch {
			case d == nil && faults.Amount(0, 1, 0) == 1: // there is less in a short run
			case d == nil:
				t.Errorf("%s: no file of this kind can be %s", k, what)
			case slices.Contains(inBatches, k):
				together = append(together, d)
			default:
				alone = append(alone, d)
			}
		}
		if n := faults.Amount(5, 1, 5); len(alone) > n {
			rng.Shuffle(len(alone), func(i, j int) { alone[i], alone[j] = alone[j], alone[i] })
			alone = alone[:n]
		}
		stops(t, ma, alone, count)
	}
	batches(t, ma, together, count)
	count.log(t, "whole files after "+ma.name, began)
}

// anySide does one damage to some file of the kind; nil where it can happen to none.
func (ma *master) anySide(rng *rand.Rand, k kind, what string) *damage {
	list := ma.kinds[k]
	for _, i := range rng.Perm(len(list)) {
		if d := ma.side(k, list[i], what); d != nil {
			return d
		}
	}
	return nil
}

// batches applies damages to one directory after another, at most one to what belongs together, and looks at each.
func batches(t *testing.T, ma *master, list []*damage, count tally) {
	t.Helper()
	for n := 0; len(list) > 0; n++ {
		var now, later []*damage
		taken := map[string]bool{}
		for _, d := range list {
			if owner := path.Dir(d.file); taken[owner] && !slices.Contains(idleKinds, d.kind) || taken[d.file] {
				later = append(later, d)
			} else {
				taken[owner], taken[d.file] = true, true
				now = append(now, d)
			}
		}
		list = later
		t.Run(strconv.Itoa(n), func(t *testing.T) { together(t, ma, now, count) })
	}
}

// together starts a broker on a directory with damages that have nothing to do with each other, and heals them after.
func together(t *testing.T, ma *master, list []*damage, count tally) {
	dir := ma.checkOut(t)
	verdicts := map[*part]*verdict{}
	by := map[*part]*damage{}
	for _, d := range list {
		d.apply(t, dir)
		for _, p := range ma.parts {
			if was := ma.files.log(p.dir()); p.dir() == path.Dir(d.file) {
				is := was
				if d.tmp == nil {
					is = was.with(path.Base(d.file), d.now)
				}
				v := judge(was, is, false)
				v.watch(d)
				verdicts[p], by[p] = &v, d
			}
		}
	}
	before := loadDir(t, dir)
	s := start(t, dir)
	ended := s.checkAll(ma, verdicts)
	s.emptied(dir)
	s.stop()
	after := loadDir(t, dir)
	for _, d := range list {
		how := full
		for p := range by {
			if by[p] == d {
				how = ended[p]
				if verdicts[p].first > ma.complete(p).first {
					how = shortened
				}
			}
		}
		count.add(d.kind, how)
	}
	for _, p := range ma.parts {
		for _, w := range kept(before, after, p.dir(), verdicts[p]) {
			t.Errorf("%s: %s", p, w)
		}
	}
	for _, w := range kept(before, after, metadataLog, nil) {
		t.Errorf("metadata: %s", w)
	}
	if !t.Failed() && faults.Amount(1, 0, 1) == 1 {
		for _, d := range list {
			if d.kind != deleted { // which is gone for good
				d.heal(t, dir, ma.files[d.file])
			}
		}
		s = start(t, dir)
		s.checkAll(ma, nil)
		s.stop()
	}
	discard(t, dir, list...)
}

// emptied waits until the data of the deleted topic is gone, whatever it looked like.
func (s *served) emptied(dir string) {
	s.t.Helper()
	s.b.Await("rid of the deleted topic", func() bool {
		entries, err := filepath.Glob(filepath.Join(dir, ".deleted", "*"))
		return err == nil && len(entries) == 0
	})
}

// kept says which bytes of a log are gone, besides those that were cut by right and are kept aside.
func kept(before, after files, dir string, v *verdict) (wrong []string) {
	was, is := before.log(dir), after.log(dir)
	for _, s := range was.segments {
		old, now := was.files[s], is.files[s]
		old = old[:written(old, 0)] // what is behind is nobody's
		switch {
		case v != nil && v.removed == s:
		case now == nil:
			wrong = append(wrong, s+" is gone")
		case len(now) >= len(old) && bytes.Equal(now[:len(old)], old):
		case v != nil && v.refused == nil && v.cut > 0 && s == was.active():
			end := len(old) - int(v.cut)
			if len(now) < end || !bytes.Equal(now[:end], old[:end]) {
				wrong = append(wrong, fmt.Sprintf("%s was cut to %d bytes, not %d", s, len(now), end))
			}
			aside := fmt.Sprintf("%s/%s-at-%d", strings.Replace(strings.TrimPrefix(dir, metadataLog), "topics/", "salvage/", 1), s, end)
			if dir == metadataLog {
				aside = "salvage" + aside
			}
			if got := after[aside]; !bytes.Equal(got, old[end:]) && len(bytes.Trim(old[end:], "\x00")) > 0 {
				wrong = append(wrong, fmt.Sprintf("%s does not hold what was cut: %x, want %x", aside, got, old[end:]))
			}
		default:
			wrong = append(wrong, s+" has changed")
		}
	}
	return wrong
}

// stops damages what the broker as a whole depends on, one file after the other. Where the start is refused it says why,
// leaves everything as it is, and putting the file back makes all serve again.
func stops(t *testing.T, ma *master, list []*damage, count tally) {
	t.Helper()
	dir, refused := "", 0
	for _, d := range list {
		t.Run(strings.NewReplacer(" ", "-", "/", "_", "'", "").Replace(string(d.kind)+" "+d.what), func(t *testing.T) {
			if dir == "" {
				dir, refused = ma.checkOut(t), 0
			}
			d.apply(t, dir)
			at := ma.refusal(d)
			if at == nil {
				count.add(d.kind, starts(t, ma, dir, d))
			} else {
				count.add(d.kind, noStart)
				refuses(t, ma, dir, d, at)
				d.heal(t, dir, ma.files[d.file])
				if refused++; refused%faults.Amount(10, 10, 1) != 0 && d != list[len(list)-1] && !t.Failed() {
					return // the next one has the same directory
				}
				s := start(t, dir)
				s.checkAll(ma, nil)
				s.stop()
			}
			discard(t, dir, d)
			dir = ""
		})
	}
}

// refusal says whether the damage must stop the start, and which byte of which file is to be named then; -1: only the file.
func (ma *master) refusal(d *damage) *place {
	was := ma.files.log(metadataLog)
	whole := d.tmp != nil || d.now == nil || slices.Contains(sideDamages, d.what) && d.what != "empty"
	switch d.kind {
	case identity, run, registration:
		if whole { // what another broker or an earlier run wrote is a file like any other
			return nil
		}
		return &place{d.file, -1}
	case metaSealed, metaActive, metaMark:
		is := was
		if d.tmp == nil {
			is = was.with(path.Base(d.file), d.now)
		}
		v := judge(was, is, true)
		if v.refused != nil {
			return &place{path.Join(metadataLog, v.refused.file), v.refused.pos}
		}
		newest := path.Base(ma.kinds[newSnapshot][0])
		if seq, _ := strconv.ParseUint(newest[:20], 10, 64); seq+1 < baseSeq(is.files[is.segments[0]]) {
			return &place{"raft/snapshot/" + newest, -1}
		}
	}
	return nil
}

// refuses wants a start that ends at once, says why, and changes nothing.
func refuses(t *testing.T, ma *master, dir string, d *damage, at *place) {
	t.Helper()
	before := loadDir(t, dir)
	b := proc.Launch(t, dir, proc.Options{})
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-b.Exited():
		case <-tick.C:
			if strings.Contains(b.Printed(), "msg=listening") {
				t.Fatalf("it starts, and must not: %s", d)
			}
			continue
		}
		tick.Stop()
		break
	}
	code := b.Wait()
	said := b.Printed()
	corrupt := !strings.Contains(said, "this program knows version")
	if want := map[bool]int{true: 3, false: 1}[corrupt]; code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	file := dir + "/" + at.file
	named := strings.Contains(said, file)
	if at.pos != -1 {
		m := regexp.MustCompile(regexp.QuoteMeta(file) + `: byte (\d+)`).FindStringSubmatch(said)
		pos := int64(-1)
		if m != nil {
			pos, _ = strconv.ParseInt(m[1], 10, 64)
		}
		named = m != nil && (pos == at.pos || at.pos == inHeader && pos < segmentHeader)
	}
	if !named {
		t.Errorf("it does not name %s, byte %d:\n%s", file, at.pos, said)
	}
	but := []string{"LOCK"}
	if strings.HasPrefix(d.file, "raft/") { // by then it is known how the last run ended
		but = append(but, "run")
		if state, text := proc.RunFile(t, dir); ma.killed() && state == "clean" && strings.Contains(text, `"unsettled":""`) {
			t.Errorf("the crash before is forgotten: %s", text)
		}
	}
	if wrong := compare(before, loadDir(t, dir), but...); wrong != "" {
		t.Errorf("a start that was refused changed files: %s", wrong)
	}
}

func (ma *master) killed() bool { return ma.name != "a clean stop" }

// starts wants a start that makes do with the damage.
func starts(t *testing.T, ma *master, dir string, d *damage) outcome {
	t.Helper()
	before := loadDir(t, dir)
	s := start(t, dir)
	if (d.kind == newSnapshot || d.kind == oldSnapshot) && d.now != nil && d.tmp == nil && !strings.Contains(s.said, dir+"/"+d.file) {
		t.Errorf("the log does not say that %s is damaged:\n%s", d.file, s.said)
	}
	if slices.Contains(metaKinds, d.kind) && faults.Amount(1, 1, 0) == 1 {
		s.checkEnds(ma)
	} else {
		s.checkAll(ma, nil)
	}
	s.stop()
	after := loadDir(t, dir)
	how := full
	var v *verdict
	if d.kind == metaActive && d.tmp == nil {
		was := ma.files.log(metadataLog)
		cut := judge(was, was.with(path.Base(d.file), d.now), true)
		v, how = &cut, repaired
	}
	for _, p := range ma.parts {
		for _, w := range kept(before, after, p.dir(), nil) {
			t.Errorf("%s: %s", p, w)
		}
	}
	for _, w := range kept(before, after, metadataLog, v) {
		t.Errorf("metadata: %s", w)
	}
	return how
}

// whileRunning turns bits of files that are open, or may be read any time, under a broker that runs.
func whileRunning(t *testing.T, ma *master) {
	began, rng, count := time.Now(), faults.Seeded(t), tally{}
	dir := ma.checkOut(t)
	for _, name := range ma.kinds[sealedLog] {
		replace(t, dir, name, ma.files[name]) // no link any more: it is written to
	}
	s := start(t, dir)
	for round := range faults.Amount(5, 1, 50) {
		verdicts := map[*part]*verdict{}
		var list []*damage
		for i, p := range ma.parts {
			if rng.IntN(2) == 0 {
				continue
			}
			d, v := ma.turn(rng, p, []kind{sealedLog, offsetIndex, timeIndex}[(i+round)%3])
			patch(t, dir, d.file, d.now)
			verdicts[p] = v
			list = append(list, d)
		}
		ended := s.checkAll(ma, verdicts)
		for _, d := range list {
			for p := range verdicts {
				if p.dir() == path.Dir(d.file) {
					count.add(d.kind, ended[p])
				}
			}
			patch(t, dir, d.file, ma.files[d.file])
		}
		s.checkAll(ma, nil)
		if t.Failed() {
			discard(t, dir, list...)
			break
		}
	}
	s.stop()
	discard(t, dir)
	count.log(t, "bits turned under a running broker", began)
}

// turn draws a bit of some file of a partition, and says what reading must make of it.
func (ma *master) turn(rng *rand.Rand, p *part, k kind) (*damage, *verdict) {
	var own []string
	for _, name := range ma.kinds[k] {
		if path.Dir(name) == p.dir() {
			own = append(own, name)
		}
	}
	file := own[rng.IntN(len(own))]
	was := ma.files[file]
	d := &damage{kind: k, file: file, now: slices.Clone(was)}
	least := 0
	if k == sealedLog {
		least = segmentHeader // which is read when a log is opened
	}
	at := least + rng.IntN(len(was)-least)
	d.now[at] ^= 1 << rng.IntN(8)
	d.what = fmt.Sprintf("byte %d turned", at)
	v := ma.complete(p)
	v.watch(d)
	if k == sealedLog {
		index := ma.files[strings.TrimSuffix(file, ".log")+".index"]
		v.conceal(frames(was), positions(index), was, d.now, path.Base(file))
	}
	return d, v
}

// watch has lookups go where an index is damaged.
func (v *verdict) watch(d *damage) {
	if d.kind == offsetIndex || d.kind == timeIndex {
		v.look = baseOf(strings.TrimSuffix(path.Base(d.file), path.Ext(d.file)))
	}
}

// patch writes over a file in place.
func patch(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(name)), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
