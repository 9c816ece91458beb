package valkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/writebuf"
)

// Check implements writebuf.Store. In a cluster it asks each node that owns keys. After ErrUnsupported every change is
// refused with the same, until a Check finds another server.
func (s *Store) Check(ctx context.Context) ([]writebuf.Warning, error) {
	all, err := s.check(ctx)
	switch {
	case err == nil:
		s.unfit.Store(nil)
	case errors.Is(err, writebuf.ErrUnsupported):
		s.unfit.Store(&err)
	}
	return all, s.count("check", err)
}

func (s *Store) check(ctx context.Context) ([]writebuf.Warning, error) {
	addresses := []string{""}
	if s.cfg.Mode == Cluster {
		var err error
		if addresses, err = s.slots.nodes(ctx, s); err != nil {
			return nil, fmt.Errorf("check write buffer: %w", err)
		}
	}
	var all []writebuf.Warning
	for _, address := range addresses {
		at := cmp.Or(address, strings.Join(s.cfg.Addresses, ","))
		n, err := s.node(address)
		if err != nil {
			return nil, fmt.Errorf("check write buffer %s: %w", at, err)
		}
		warnings, err := s.checkNode(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("check write buffer %s: %w", at, err)
		}
		for _, w := range warnings {
			if len(addresses) > 1 {
				w.Text = at + ": " + w.Text
			}
			all = append(all, w)
		}
	}
	return all, nil
}

func (s *Store) checkNode(ctx context.Context, n *node) ([]writebuf.Warning, error) {
	w := &warnings{}
	info, err := s.info(ctx, n, "server", "replication", "persistence")
	if err != nil {
		return nil, err
	}
	if info == nil {
		w.add("unchecked", "the server does not tell what it is (INFO): see that its version is 6.2 or newer and that it keeps an append-only file")
	} else if err := w.version(info["redis_version"]); err != nil {
		return nil, err
	}
	switch have, err := strconv.Atoi(info["connected_slaves"]); {
	case info["role"] != "" && info["role"] != "master":
		w.add("replica", "the server is a replica (role %s) and takes no writes: name the primary", info["role"])
	case info != nil && s.cfg.Replicas > 0 && (err != nil || have < s.cfg.Replicas):
		w.add("replicas", "%s replicas are connected and %d must confirm each append: appends will not be confirmed until they are there", info["connected_slaves"], s.cfg.Replicas)
	}
	policy, err := s.setting(ctx, n, "maxmemory-policy")
	if err != nil {
		return nil, err
	}
	w.policy(policy)
	save, err := s.setting(ctx, n, "save")
	if err != nil {
		return nil, err
	}
	if info != nil {
		w.persistence(info["aof_enabled"], save)
	}
	return w.list, nil
}

// info returns what the server tells of itself; nil where it does not.
func (s *Store) info(ctx context.Context, n *node, sections ...string) (map[string]string, error) {
	info := map[string]string{}
	for _, section := range sections {
		msg, err := s.ask(ctx, n, "INFO", section)
		if forbids(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := msg.ToString()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[k] = v
			}
		}
	}
	return info, nil
}

// forbids reports that a server does not know, or does not allow, a command to whom it has let in.
func forbids(err error) bool { return errors.Is(err, writebuf.ErrRefused) || begins(err, "NOPERM ") }

// setting returns what a setting is set to, "" where the server has none of the name, and notTold where it does not tell.
func (s *Store) setting(ctx context.Context, n *node, name string) (string, error) {
	msg, err := s.ask(ctx, n, "CONFIG", "GET", name)
	if forbids(err) {
		return notTold, nil
	}
	if err != nil {
		return "", err
	}
	values, err := msg.AsStrMap()
	if err != nil {
		return notTold, nil //nolint:nilerr // an answer of another form tells nothing either
	}
	return values[name], nil
}

const notTold = "\x00"

type warnings struct{ list []writebuf.Warning }

func (w *warnings) add(code, format string, args ...any) {
	w.list = append(w.list, writebuf.Warning{Code: code, Text: fmt.Sprintf(format, args...)})
}

// policy warns of what evicts keys. The volatile policies take keys that expire, which only the records of deleted
// partitions do; but a server that is shared may be full of them, and then they are no better than noeviction.
func (w *warnings) policy(policy string) {
	switch {
	case policy == notTold:
		w.add("unchecked", "the server does not tell its maxmemory-policy: see that it is noeviction")
	case strings.HasPrefix(policy, "allkeys-"):
		w.add("eviction", "maxmemory-policy is %s: the server throws whole partitions away when it is full. Set it to noeviction", policy)
	case strings.HasPrefix(policy, "volatile-"):
		w.add("eviction", "maxmemory-policy is %s: the server may forget that a topic was deleted. Set it to noeviction", policy)
	}
}

func (w *warnings) persistence(aof, save string) {
	switch {
	case aof == "1":
	case save == notTold:
		w.add("unchecked", "the server keeps no append-only file and does not tell whether it saves: a restart of it may lose what was confirmed")
	case save == "":
		w.add("persistence", "the server keeps nothing on disk (appendonly no, save empty): a restart of it loses what was confirmed")
	default:
		w.add("persistence", "the server saves only from time to time (appendonly no, save %q): a restart of it loses what was confirmed since", save)
	}
}

// version refuses what lacks streams (5.0), or trims and reads by id as the scripts do (6.2).
func (w *warnings) version(version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	switch {
	case errA != nil || errB != nil:
		w.add("unchecked", "the server says that its version is %q: see that it does what 6.2 does", version)
	case a < 5:
		return fmt.Errorf("%w: version %s has no streams: 6.2 or newer is needed", writebuf.ErrUnsupported, version)
	case a < 6 || a == 6 && b < 2:
		return fmt.Errorf("%w: version %s has no XTRIM MINID and no exclusive XRANGE: 6.2 or newer is needed", writebuf.ErrUnsupported, version)
	}
	return nil
}
