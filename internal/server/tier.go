package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/open"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
)

// openStore names the store that sealed segments and the metadata are copied to, if there is one. Its first use opens it.
func (s *server) openStore(context.Context) error {
	if s.cfg.Tier.Mode == config.TierNone {
		return nil
	}
	where := s.storeConfig()
	if err := where.Validate(); err != nil {
		return err
	}
	s.store = objstore.NewLate(func() (objstore.Store, error) { return open.Store(context.Background(), where) })
	return nil
}

// openTier prepares copying sealed segments to the store, if there is one, and reading them back. It need not be reachable:
// the broker serves what it has, and copies once it is.
func (s *server) openTier(context.Context) error {
	c, metrics, store := &s.cfg.Tier, tier.NewMetrics(s.registry), s.store
	if store == nil {
		return nil
	}
	cold, err := tier.NewCold(context.Background(), store, tier.ColdConfig{CacheBytes: c.CacheBytes, Metrics: metrics, Logger: s.log})
	if err != nil {
		return err
	}
	exporter, err := tier.NewExporter(context.Background(), store, tier.ExporterConfig{Parallel: c.Parallel, BytesPerSec: c.BytesPerSec, Metrics: metrics, Logger: s.log})
	if err != nil {
		return errors.Join(err, cold.Close())
	}
	owned := ownedStore{store, &s.keeper}
	remover := tier.NewRemover(context.Background(), owned, metrics, s.log)
	s.tier = &partition.Tier{Store: owned, Cold: cold, Exporter: exporter, Remover: remover, Metrics: metrics, Prefix: c.Prefix, Cluster: c.Cluster, SealAge: c.SealAge, Inside: s.storeInside(), MetadataCopied: s.metadataCopied}
	return nil
}

// metadataCopied waits until the metadata's copy in the store has a change, where there is a copy.
func (s *server) metadataCopied(ctx context.Context, index uint64) error {
	k := s.keeper.Load()
	if k == nil {
		return nil
	}
	return k.Await(ctx, index)
}

// ownedStore is a store that deletes only while its objects are this broker's: one that was paused, and was taken over
// meanwhile, must not delete what its metadata says, for that is not the cluster's any more.
type ownedStore struct {
	objstore.Store
	keeper *atomic.Pointer[metatier.Keeper]
}

// Delete implements objstore.Store.
func (o ownedStore) Delete(ctx context.Context, key string) error {
	k := o.keeper.Load()
	if k == nil {
		return fault.New(fault.Unavailable, "delete %s: it is not known yet whose the objects are", key)
	}
	if err := k.MayDelete(ctx); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return o.Store.Delete(ctx, key)
}

// storeConfig says which store it is.
func (s *server) storeConfig() open.Config {
	t, o := &s.cfg.Tier, &s.cfg.ObjectStore
	switch t.Mode {
	case config.TierSharedFS:
		return open.Config{Kind: open.SharedFS, Path: t.Root}
	case config.TierObjects:
		return open.Config{
			Kind: o.Kind, Bucket: o.Bucket, Endpoint: o.Endpoint, Region: o.Region, PathStyle: o.PathStyle, CAFile: o.CAFile, Account: o.Account,
			AccessKey: o.AccessKey, SecretKey: o.SecretKey, SessionToken: o.SessionToken, CredentialsFile: o.CredentialsFile, Anonymous: o.Anonymous,
		}
	}
	root := t.Root
	if root == "" {
		root = s.dir + "/" + tierDir
	}
	return open.Config{Kind: open.Local, Path: root}
}

// storeInside reports whether the store is in the data directory.
func (s *server) storeInside() bool {
	where := s.storeConfig()
	return where.Kind == open.Local && (where.Path == s.dir || strings.HasPrefix(where.Path, s.dir+"/"))
}

// closeStore ends what goes on with the store, now that the broker has stopped; what changed last in the metadata is copied
// before. A store that hangs is left after a while: nothing here depends on what was not copied.
func (s *server) closeStore() error {
	if s.store == nil {
		return nil
	}
	return s.leave("the object store", s.leaveStore, "what was being copied is copied by the next run")
}

// leave closes something whose other end may hang. It is left after a while; otherwise says what that leaves to do.
func (s *server) leave(what string, closing func() error, otherwise string) error {
	var closer task.Group
	ended := make(chan error, 1)
	closer.Go("leave "+what, func(context.Context) error {
		ended <- closing()
		return nil
	})
	last := time.NewTimer(lastPatience)
	defer last.Stop()
	select {
	case err := <-ended:
		return errors.Join(err, closer.Wait())
	case <-last.C:
		s.log.Warn(what + " does not answer, and is left; " + otherwise)
		return nil
	}
}

func (s *server) leaveStore() error {
	var errs []error
	if k := s.keeper.Load(); k != nil {
		patience, cancel := context.WithTimeout(context.Background(), lastPatience/2)
		defer cancel()
		errs = append(errs, k.Stop(patience))
	}
	if s.tier != nil {
		errs = append(errs, s.tier.Exporter.Stop(), s.tier.Remover.Stop(), s.tier.Cold.Close())
	}
	return errors.Join(append(errs, s.store.Close())...)
}
