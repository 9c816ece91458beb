package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/vfs"
)

// How long a removal that failed waits for its next try: not long where it only found no room, for there may be some any
// moment, and there is more once it has been done.
const (
	retryRemoval = 30 * time.Second
	retryFull    = time.Second
)

// remover takes the data of deleted topics off the disk, also of those that an earlier run had not finished with. One
// goroutine runs it.
type remover struct {
	fs      vfs.FS // what it changes goes through this: Config.Housekeeping
	layout  datadir.Layout
	store   meta.Store
	topics  *registry
	end     func(meta.Name) *topic // ends the handles of an incarnation that is gone: Broker.sync
	tier    *partition.Tier
	buffer  *partition.Buffer
	metrics *metrics
	logger  *slog.Logger
	wake    chan struct{} // one slot: there may be something to do

	mu      sync.Mutex
	problem string // guarded by mu; why the newest attempt failed; "" where nothing is the matter
}

// kick tells the remover that there may be something to do. It never blocks.
func (r *remover) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Problem says why data of a deleted topic could not be removed; "" where nothing is the matter.
func (r *remover) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// Run removes what there is to remove until ctx is done.
func (r *remover) Run(ctx context.Context) error {
	for {
		problem, pause := "", retryRemoval
		for d := range r.store.View().Deletions() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			err := classify(r.remove(ctx, d))
			r.tell(ctx, d, err)
			if fault.KindOf(err) == fault.NoSpace {
				pause = retryFull
			}
			if err != nil {
				problem = fmt.Sprintf("the data of %s, deleted, could not be removed yet: %v", d.Name, err)
			}
		}
		r.mu.Lock()
		r.problem = problem
		r.mu.Unlock()
		r.closeRest(ctx)
		var again <-chan time.Time
		if problem != "" {
			again = time.After(pause)
		}
		select {
		case <-r.wake:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remove takes one deleted incarnation off the disk and then out of the metadata. Every step may be repeated, so a crash
// between two of them is made good by starting over: the data is either at its place, whole, or set aside.
func (r *remover) remove(ctx context.Context, d *meta.Deletion) error {
	if t := r.topics.get(d.Name); t != nil && t.ID == d.ID {
		r.end(d.Name)
	}
	if t := r.topics.retired(d.ID); t != nil {
		if err := t.close(ctx); err != nil {
			return err
		}
		for _, p := range t.parts { // what is stored after the objects were deleted would stay
			if err := p.StopExporting(ctx); err != nil {
				return err
			}
		}
		r.topics.forget(d.ID)
	}
	from, aside := r.layout.Topic(d.Name, d.Incarnation), r.layout.Aside(d.ID)
	if there, err := vfs.Exists(r.layout.FS, from); err != nil {
		return err
	} else if there {
		if err := r.setAside(from, aside); err != nil {
			return err
		}
	}
	if there, err := vfs.Exists(r.layout.FS, aside); err != nil {
		return err
	} else if there {
		if err := vfs.Discard(ctx, r.fs, aside); err != nil {
			return err
		}
		if err := r.fs.SyncDir(path.Dir(aside)); err != nil {
			return err
		}
	}
	if err := r.tier.DeleteTopic(ctx, d.ID); err != nil {
		return err
	}
	if err := r.buffer.DeleteTopic(ctx, d.ID, d.Partitions); err != nil {
		return err
	}
	if _, err := r.store.Propose(ctx, meta.TopicPurged{Name: d.Name, Incarnation: d.Incarnation}); err != nil {
		return err
	}
	r.metrics.purgedTopics.Inc()
	return nil
}

// classify gives an error of the file system the kind that is logged.
func classify(err error) error {
	if errors.Is(err, vfs.ErrNoSpace) && fault.KindOf(err) == fault.Internal {
		return fault.New(fault.NoSpace, "the disk is full: %w", err)
	}
	return err
}

// setAside moves a topic's directory to where nothing serves it, durably.
func (r *remover) setAside(from, aside string) error {
	fsys := r.fs
	if err := vfs.MkdirSync(fsys, path.Dir(aside)); err != nil {
		return err
	}
	// Something is there already when an earlier attempt moved the directory and a power loss kept both names of it.
	if err := vfs.RemoveAll(fsys, aside); err != nil {
		return err
	}
	if err := fsys.Rename(from, aside); err != nil {
		return err
	}
	if err := fsys.SyncDir(path.Dir(aside)); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(from))
}

// closeRest closes topics whose incarnation has ended without a deletion to be carried out here.
func (r *remover) closeRest(ctx context.Context) {
	for _, t := range r.topics.allRetired() {
		pending := false
		for d := range r.store.View().Deletions() {
			pending = pending || d.ID == t.ID
		}
		if !pending && t.close(ctx) == nil {
			r.topics.forget(t.ID)
		}
	}
}

func (r *remover) tell(ctx context.Context, d *meta.Deletion, err error) {
	switch {
	case err == nil:
		r.logger.Info("data of a deleted topic removed", "topic", d.Name.String(), "incarnation", d.Incarnation)
	case ctx.Err() == nil:
		r.logger.Warn("data of a deleted topic could not be removed; it is tried again", "topic", d.Name.String(),
			"incarnation", d.Incarnation, "kind", fault.KindOf(err).String(), "err", err)
	}
}
