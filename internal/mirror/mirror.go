// Package mirror owns keeping a write buffer's copy of a log: it follows the log, appends its frames to the buffer in order,
// and says through which ordinal the buffer has everything. It never changes the log, never reads a frame, and never decides
// what a broker does while the buffer is away. Invariant: what it calls confirmed the buffer has answered for, without a
// hole from the floor on.
package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
)

// Source is the log. It is used from one goroutine at a time.
type Source interface {
	// Frames returns frames from an ordinal on, up to about maxBytes but at least one where there is one; none at the end.
	// Its error has kind trimmed where the log does not have the first of them any more. They may be in what memory returns
	// for a number of bytes, as often as it is asked; that is used again once the buffer has answered. nil: in new memory.
	Frames(from uint64, maxBytes int, memory func(size int) []byte) ([]writebuf.Entry, error)
	// First and Last are the ordinals of the oldest frame and of the newest one that may be copied; Last is First-1 where
	// there is none.
	First() uint64
	Last() uint64
	// Floor is the first ordinal that the buffer has to hold. It may only rise.
	Floor() uint64
	// Changed returns a channel that is closed at the next change. Look at the log after the call, then wait.
	Changed() <-chan struct{}
}

// Config is what a mirror needs to know. Source, Buffer, Generation and Tasks are required.
type Config struct {
	Name       string // of the log, for people
	Source     Source
	Buffer     writebuf.Buffer
	Generation uint32 // the log's owner's
	// Same reports whether a frame in the buffer is the log's; nil: where it has the same bytes.
	Same func(a, b []byte) bool
	// Refill, unless nil, is called before the buffer is filled with frames that it may have had: whoever finds it half filled
	// has to know that it is. Its error is one of the attempt.
	Refill   func(ctx context.Context) error
	Patience time.Duration // without progress for that long it counts as stalled; default 5 s
	Tasks    *task.Group   // runs it; outlives it
	// Notify, unless nil, is called after every change of State and of the log, and after every attempt, from one goroutine
	// at a time. It must not wait.
	Notify func(State)
	Logger *slog.Logger // nil: silent
}

// State is where a mirror stands.
type State struct {
	// Confirmed: the buffer has every frame from the floor through this ordinal. It goes back where the buffer lost frames.
	Confirmed uint64
	// Head is how the frame at Confirmed begins, up to HeadBytes of it; nil where it was confirmed before this mirror began.
	Head []byte
	// Ready: what the buffer holds was compared with the log since the start, or since it lost frames, and has caught up since.
	Ready bool
	Lag   uint64 // how many frames were not confirmed, when that was looked at last
	// Stalled: frames wait to be confirmed, and for Patience none was.
	Stalled bool
	// Err is why the last attempt failed; nil after one that succeeded. With Fenced it is final.
	Err    error
	Fenced bool // another owner writes to the buffer, with a higher generation
}

// HeadBytes is how much of a frame State.Head has.
const HeadBytes = 128

// Bounds of what is on its way to the buffer.
const (
	pageBytes   = 1 << 20
	windowBytes = 8 << 20
	windowPages = 64
)

// The pause after a failure: the first, and the longest.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Mirror follows one log. It is safe for concurrent use.
type Mirror struct {
	cfg  Config
	life task.Life
	done chan struct{} // closed once it runs no more

	answered chan struct{} // has room for one: something was answered
	poked    chan struct{} // has room for one: Poke was called

	mu    sync.Mutex
	state State         // guarded by mu
	wake  chan struct{} // guarded by mu; closed at the next change of state; nil: nobody waits
	pages []*page       // guarded by mu; on their way, oldest first

	// What follows is the runner's own.
	next    uint64 // the first that was not sent
	floor   uint64 // the lowest that the buffer is to hold, as it was told
	flying  int    // bytes on their way
	joined  bool   // the buffer was compared with the log
	doubted bool   // the buffer has other frames than the log somewhere
	since   time.Time
	pause   time.Duration
	warned  bool
	trimmed bool // below floor
}

// page is one append on its way.
type page struct {
	first, last uint64
	bytes       int
	head        []byte // of the last frame
	memory      memory // of the frames
	answered    bool
	err         error
}

// New returns a mirror that does nothing before Start.
func New(cfg Config) *Mirror {
	if cfg.Same == nil {
		cfg.Same = bytes.Equal
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 5 * time.Second
	}
	m := &Mirror{cfg: cfg, done: make(chan struct{}), answered: make(chan struct{}, 1), poked: make(chan struct{}, 1), since: time.Now()}
	m.life.Parent = cfg.Tasks.Context()
	return m
}

// Start follows the log until Stop, or until it is fenced. It returns false where Tasks takes nothing any more. It is called
// once.
func (m *Mirror) Start() bool {
	return m.cfg.Tasks.Go("mirror", func(context.Context) error { m.run(&m.life); return nil })
}

// Stop ends one that was started and waits for that: then nothing of it is on its way to the buffer, and Notify is called no more.
func (m *Mirror) Stop() {
	m.life.End(context.Canceled)
	<-m.done
}

// Poke has it look at the floor again, and try at once where it pauses after a failure.
func (m *Mirror) Poke() {
	tap(m.poked)
}

// tap puts a token into a channel with room for one.
func tap(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// State returns where it stands.
func (m *Mirror) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Wait returns nil once everything through an ordinal is confirmed; otherwise that it was fenced, or why ctx ended.
func (m *Mirror) Wait(ctx context.Context, through uint64) error {
	for {
		m.mu.Lock()
		s := m.state
		if s.Confirmed >= through {
			m.mu.Unlock()
			return nil
		}
		if m.wake == nil {
			m.wake = make(chan struct{})
		}
		wake := m.wake
		m.mu.Unlock()
		if s.Fenced {
			return s.Err
		}
		select {
		case <-wake:
		case <-m.done:
			return fault.New(fault.Unavailable, "%s: it is not copied to the write buffer any more: the log was closed", m.cfg.Name)
		case <-ctx.Done():
			if s.Err != nil {
				return fmt.Errorf("%s: the write buffer has not confirmed it: %w (%w)", m.cfg.Name, context.Cause(ctx), s.Err)
			}
			return fmt.Errorf("%s: the write buffer has not confirmed it: %w", m.cfg.Name, context.Cause(ctx))
		}
	}
}

// set changes the state and tells who wants to know.
func (m *Mirror) set(change func(*State)) {
	m.mu.Lock()
	before := m.state
	change(&m.state)
	s := m.state
	same := before.Confirmed == s.Confirmed && before.Ready == s.Ready && before.Stalled == s.Stalled && before.Fenced == s.Fenced && (before.Err == nil) == (s.Err == nil)
	var wake chan struct{}
	if !same {
		wake, m.wake = m.wake, nil
	}
	m.mu.Unlock()
	if same {
		return
	}
	if wake != nil {
		close(wake)
	}
	m.tell(s)
}

func (m *Mirror) tell(s State) {
	if m.cfg.Notify != nil {
		m.cfg.Notify(s)
	}
}

// run is the only goroutine that sends.
func (m *Mirror) run(ctx context.Context) {
	defer close(m.done)
	defer m.land()
	for {
		changed := m.cfg.Source.Changed()
		err := m.step(ctx)
		m.tell(m.State())
		if m.State().Fenced || !m.rest(ctx, changed, err) {
			return
		}
	}
}

// step does all there is to do now.
func (m *Mirror) step(ctx context.Context) error {
	err := m.advance(ctx)
	if err == nil {
		if m.idle() { // what is on its way yet may fail as the last attempt did
			m.pause, m.warned = 0, false
			m.set(func(s *State) { s.Err = nil })
		}
		return nil
	}
	m.land() // what was sent behind it fails too, or was stored after all
	if errors.Is(err, writebuf.ErrFenced) {
		err = fault.New(fault.Fenced, "%s: another broker has taken it over, and owns its write buffer: %w", m.cfg.Name, err)
		m.set(func(s *State) { s.Fenced, s.Err = true, err })
		m.log().Error("fenced: another broker writes to the write buffer; nothing is acknowledged here any more", "err", err)
		return err
	}
	var lost *writebuf.LostError
	switch {
	case errors.As(err, &lost):
		m.log().Warn("the write buffer has lost frames, and is filled again from the log", "from_seq", lost.Next, "err", err)
		m.set(func(s *State) { s.Ready, s.Confirmed, s.Head = false, min(s.Confirmed, lost.Next-1), nil })
		m.joined, m.warned, m.doubted = false, true, m.doubted || lost.Reset
	case errors.Is(err, writebuf.ErrCorrupt):
		m.joined, m.doubted = false, true
	case fault.KindOf(err) == fault.Trimmed:
		m.joined = false // retention has removed what was not copied
	}
	m.set(func(s *State) { s.Err = err })
	if !m.warned && ctx.Err() == nil {
		m.warned = true
		m.log().Warn("the write buffer does not take what the log has; it is tried again until it does", "err", err)
	}
	return err
}

// idle reports whether nothing is on its way to the buffer.
func (m *Mirror) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pages) == 0
}

// advance joins, sends what fits, and takes in what was answered.
func (m *Mirror) advance(ctx context.Context) error {
	if !m.joined {
		if err := m.join(ctx); err != nil {
			return err
		}
		m.joined = true
	}
	for {
		if err := m.collect(); err != nil {
			return err
		}
		sent, err := m.send(ctx)
		if err != nil {
			return err
		}
		if sent == 0 {
			break
		}
	}
	return m.trim(ctx)
}

// join makes the buffer one that goes on with the log: its generation is the log's owner's, and what it holds is what the
// log holds, from the floor on.
func (m *Mirror) join(ctx context.Context) error {
	src, buf := m.cfg.Source, m.cfg.Buffer
	st, err := buf.Bounds(ctx)
	if err != nil && !errors.Is(err, writebuf.ErrForgotten) {
		return err
	}
	floor, last := max(src.Floor(), src.First(), 1), src.Last()
	// A server that has forgotten everything shows it only until it is told a generation.
	told := m.cfg.Refill != nil && last >= floor && !(err == nil && st.Known && st.Whole())
	if told {
		if err := m.cfg.Refill(ctx); err != nil {
			return err
		}
	}
	if _, err := buf.Fence(ctx, m.cfg.Generation); err != nil {
		return err
	}
	if st, err = buf.Bounds(ctx); err != nil {
		return err
	}
	fits := !m.doubted && st.Known && st.Whole() && st.Floor <= floor && st.Last+1 >= floor && st.Last <= last
	if fits && st.Count > 0 && st.Last >= src.First() {
		if fits, err = m.alike(ctx, st.Last); err != nil {
			return err
		}
	}
	m.floor = floor
	if refill := m.cfg.Refill; refill != nil && !told && last >= floor && (!fits || st.Last < last) {
		if err := refill(ctx); err != nil {
			return err
		}
	}
	if !fits {
		if st.Known && st.Last > 0 {
			m.log().Warn("the write buffer does not hold what the log does, and is filled again from it", "floor", st.Floor, "last", st.Last, "count", st.Count, "log_floor", floor, "log_last", last)
		}
		m.set(func(s *State) { s.Confirmed, s.Head, s.Ready = floor-1, nil, false }) // before, since its outcome may stay unknown
		if err := buf.Reset(ctx, m.cfg.Generation); err != nil {
			return err
		}
		m.next, m.doubted = floor, false
	} else {
		m.next = max(st.Last+1, floor)
		m.trimmed = st.Floor < floor
	}
	through := m.next - 1
	m.set(func(s *State) {
		s.Confirmed, s.Head, s.Ready, s.Lag = through, nil, through >= last, last-min(last, through)
	})
	return nil
}

// alike reports whether the buffer's newest entry is the log's frame.
func (m *Mirror) alike(ctx context.Context, seq uint64) (bool, error) {
	has, err := m.cfg.Buffer.Read(ctx, seq, writebuf.Limit{Entries: 1})
	if errors.Is(err, writebuf.ErrMissing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	want, err := m.cfg.Source.Frames(seq, 1, nil)
	if err != nil {
		return false, err
	}
	return len(has) > 0 && len(want) > 0 && has[0].Seq == want[0].Seq && m.cfg.Same(has[0].Frame, want[0].Frame), nil
}

// send submits pages while there is room, and returns how many.
func (m *Mirror) send(ctx context.Context) (sent int, err error) {
	for last := m.cfg.Source.Last(); m.next <= last && m.room(); sent++ {
		var mem memory
		entries, err := m.cfg.Source.Frames(m.next, pageBytes, mem.take)
		if err != nil {
			mem.give()
			return sent, err
		}
		for n := len(entries); n > 0 && entries[n-1].Seq > last; n-- {
			entries = entries[:n-1]
		}
		if len(entries) == 0 {
			mem.give()
			return sent, nil
		}
		newest := entries[len(entries)-1]
		p := &page{first: m.next, last: newest.Seq, head: bytes.Clone(newest.Frame[:min(len(newest.Frame), HeadBytes)]), memory: mem}
		for _, e := range entries {
			p.bytes += len(e.Frame)
		}
		m.mu.Lock()
		m.pages = append(m.pages, p)
		m.mu.Unlock()
		m.flying += p.bytes
		m.next = p.last + 1
		m.cfg.Buffer.Submit(ctx, writebuf.Batch{Generation: m.cfg.Generation, Floor: m.floor, Entries: entries}, func(err error) {
			m.mu.Lock()
			p.answered, p.err = true, err
			m.mu.Unlock()
			tap(m.answered)
		})
	}
	return sent, nil
}

func (m *Mirror) room() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pages) < windowPages && m.flying < windowBytes
}

// take takes the oldest page off the window and takes in what became of it; nil where none is on its way, or it was not
// answered yet. What is confirmed behind one that failed is not: it may go on from what is not there. failed says that an
// attempt has failed, which this is then the end of, and no success.
func (m *Mirror) take(failed bool) *page {
	m.mu.Lock()
	if len(m.pages) == 0 || !m.pages[0].answered {
		m.mu.Unlock()
		return nil
	}
	p := m.pages[0]
	m.pages = m.pages[1:]
	next := p.first == m.state.Confirmed+1
	m.mu.Unlock()
	m.flying -= p.bytes
	p.memory.give() // the buffer does not keep it once it has answered
	if p.err == nil && next {
		m.since = time.Now()
		last := m.cfg.Source.Last()
		m.set(func(s *State) {
			s.Confirmed, s.Head, s.Stalled, s.Lag = p.last, p.head, false, last-min(last, p.last)
			s.Ready = s.Ready || p.last >= last
			if !failed {
				s.Err = nil
			}
		})
	}
	return p
}

// collect takes in what was answered, in order, up to the first that failed.
func (m *Mirror) collect() error {
	for p := m.take(false); p != nil; p = m.take(false) {
		if p.err != nil {
			m.next = min(m.next, p.first)
			return p.err
		}
		m.pause, m.warned = 0, false
	}
	return nil
}

// land waits for everything on its way to be answered: the buffer answers within its own time-out. What failed is sent
// again from the first that did.
func (m *Mirror) land() {
	for !m.idle() {
		if m.take(true) == nil {
			<-m.answered
		}
	}
	m.next = m.State().Confirmed + 1
}

// trim removes what the buffer need not hold any more.
func (m *Mirror) trim(ctx context.Context) error {
	if floor := m.cfg.Source.Floor(); floor > m.floor {
		m.floor, m.trimmed = min(floor, m.State().Confirmed+1), true
	}
	if !m.trimmed || m.State().Confirmed+1 < m.floor {
		return nil
	}
	if err := m.cfg.Buffer.Trim(ctx, m.cfg.Generation, m.floor); err != nil {
		return err
	}
	m.trimmed = false
	return nil
}

// rest waits until there is something to do, or after a failure for the pause. It returns false where it is to end.
func (m *Mirror) rest(ctx context.Context, changed <-chan struct{}, failed error) bool {
	var retry, stall <-chan time.Time
	answered := m.answered
	before := m.State()
	behind := before.Confirmed < m.cfg.Source.Last()
	if failed != nil {
		m.pause = min(max(2*m.pause, firstPause), lastPause)
		timer := time.NewTimer(m.pause/2 + rand.N(m.pause/2+1)) //nolint:gosec // spreads retries
		defer timer.Stop()
		retry, changed, answered = timer.C, nil, nil
	}
	if behind && !before.Stalled {
		timer := time.NewTimer(max(time.Until(m.since.Add(m.cfg.Patience)), 0))
		defer timer.Stop()
		stall = timer.C
	}
	for waiting := true; waiting; {
		select {
		case <-stall: // also in a pause: who waits is to hear of it in time
			stall = nil
			m.set(func(s *State) { s.Stalled = true })
		case <-changed:
			waiting = false
		case <-answered:
			waiting = false
		case <-m.poked:
			waiting = false
		case <-retry:
			waiting = false
		case <-ctx.Done():
			return false
		}
	}
	if !behind {
		m.since = time.Now() // what came just now begins to wait now
	}
	return true
}

func (m *Mirror) log() *slog.Logger { return obs.Logger(m.cfg.Logger).With("log", m.cfg.Name) }
