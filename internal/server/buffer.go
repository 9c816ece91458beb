package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/valkey"
)

// openBuffer opens the write buffer, if there is one. Its server need not be reachable: the broker starts without, and says so.
func (s *server) openBuffer(context.Context) error {
	c, metrics, own := &s.cfg.Valkey, valkey.NewMetrics(s.registry), partition.NewBufferMetrics(s.registry)
	s.metrics.uncovered(s.registry, s.uncovered)
	if c.Mode == config.ValkeyNone {
		return s.runUnbuffered()
	}
	if s.cfg.Tier.Mode == config.TierLocal && s.storeInside() {
		return fault.New(fault.InvalidArgument, "storage.root = %q is in the data directory: what is copied there goes from the write buffer, and would be lost with this disk; allowed: a directory on another disk, or storage.mode none", s.storeConfig().Path).With("key", "storage.root")
	}
	secured, err := bufferTLS(&c.Server)
	if err != nil {
		return err
	}
	store, err := valkey.Open(valkey.Config{
		Addresses: c.AddressList(), Mode: map[config.ValkeyMode]valkey.Mode{config.ValkeySentinel: valkey.Sentinel, config.ValkeyCluster: valkey.Cluster}[c.Mode],
		MasterSet: c.Server.MasterSet, Username: c.Server.Username, Password: c.Server.Password,
		SentinelUsername: c.Server.SentinelUsername, SentinelPassword: c.Server.SentinelPassword, TLS: secured, Database: c.Database,
		Prefix: c.Prefix, Replicas: c.Replicas, Connections: c.Connections, Timeout: c.Timeout, DialTimeout: max(c.Timeout, time.Second),
	}, metrics)
	if err != nil {
		return err
	}
	if err := s.runBuffered(); err != nil {
		return errors.Join(err, store.Close())
	}
	s.buffer = &partition.Buffer{Store: store, Timeout: c.ConfirmTimeout, Degrade: c.Degrade, KeepSegments: c.KeepSegments, Metrics: own}
	health := &bufferHealth{store: store, degrade: c.Degrade, log: s.log, first: time.Second, every: time.Minute}
	s.bufferHealth.Store(health)
	s.tasks.Go("watch the write buffer", health.watch)
	return nil
}

// uncovered returns how many partitions the metadata has as ones of which the write buffer may lack records.
func (s *server) uncovered() float64 {
	if m := s.metadata.Load(); m != nil {
		return float64(m.store.View().Uncovered())
	}
	return 0
}

// buffered says that a run on this directory had a write buffer, since when. What that holds stays there when it is switched
// off, and is then of that time.
type buffered struct {
	SinceMs int64 `json:"since_ms"` // since the epoch
}

func (*buffered) kind() string { return "buffered" }

func (*buffered) advice() string {
	return "put back a copy of it; or move it away, where valkey.mode is another than none again, or has never been"
}

func (b *buffered) check() error {
	if b.SinceMs <= 0 {
		return errors.New("since_ms is missing")
	}
	return nil
}

// runBuffered notes that there is a write buffer, before anything is stored there.
func (s *server) runBuffered() error {
	there, err := readStamp(s.fs.FS, s.dir, &buffered{})
	if err != nil || there {
		return err
	}
	return writeStamp(&reserveFS{s.fs.FS, s.reserve}, s.dir, &buffered{SinceMs: s.machine.now().UnixMilli()})
}

// runUnbuffered finds out whether what is acknowledged now is to be noted as lacking in a write buffer that may come back.
func (s *server) runUnbuffered() error {
	there, err := readStamp(s.fs.FS, s.dir, &buffered{})
	if s.unbuffered = there; there {
		s.log.Warn("earlier runs had a write buffer, and valkey.mode is none: what is acknowledged now is in the log alone until it is copied; the metadata notes for each partition that the write buffer lacks it")
	}
	return err
}

// bufferTLS returns how to connect; nil is plain text. Its errors name the setting.
func bufferTLS(c *config.ValkeyServer) (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		secured.RootCAs = x509.NewCertPool()
		if err == nil && !secured.RootCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s holds no certificate", c.CAFile)
		}
		if err != nil {
			return nil, fault.New(fault.InvalidArgument, "valkey.ca_file = %q: %w; allowed: a PEM file with at least one certificate", c.CAFile, err).With("key", "valkey.ca_file")
		}
	}
	if c.CertFile != "" {
		read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}
		if _, err := read(nil); err != nil {
			return nil, fault.New(fault.InvalidArgument, "valkey.cert_file = %q, valkey.key_file = %q: %w; allowed: a PEM certificate chain, leaf first, and its private key",
				c.CertFile, c.KeyFile, err).With("key", "valkey.cert_file")
		}
		secured.GetClientCertificate = read
	}
	return secured, nil
}

// bufferHealth asks the write buffer's server from time to time what it is, and remembers what is wrong with it.
type bufferHealth struct {
	store        writebuf.Store
	degrade      bool
	log          *slog.Logger
	first, every time.Duration // until it is asked again: after a failure, growing, and after an answer

	mu    sync.Mutex
	found []string // guarded by mu; immutable
}

// watch asks until ctx is done.
func (h *bufferHealth) watch(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for failed := h.first; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		}
		pause := h.every
		if h.ask(ctx) {
			failed = h.first
		} else {
			pause, failed = failed, min(2*failed, h.every)
		}
		due.Reset(pause)
	}
}

// ask asks once, and logs what is new. It reports whether the server answered, and can be a write buffer.
func (h *bufferHealth) ask(ctx context.Context) bool {
	warnings, err := h.store.Check(ctx)
	if ctx.Err() != nil {
		return false // the server stops
	}
	found := make([]string, 0, len(warnings)+1)
	level := slog.LevelWarn
	switch {
	case errors.Is(err, writebuf.ErrUnsupported):
		level = slog.LevelError
		found = append(found, fmt.Sprintf("the write buffer takes nothing, %s: %v; put a server in its place that can be one, or set valkey.mode to none and restart", h.meanwhile(), err))
	case err != nil:
		found = append(found, fmt.Sprintf("the write buffer does not answer, %s until it does: %v; see that its server runs, and that what begins with valkey in the configuration is right", h.meanwhile(), err))
	}
	for _, w := range warnings {
		found = append(found, fmt.Sprintf("write buffer: %s: %s", w.Code, w.Text))
	}
	before := h.problems()
	h.mu.Lock()
	h.found = found
	h.mu.Unlock()
	for _, text := range found {
		if !slices.Contains(before, text) {
			h.log.Log(ctx, level, text)
		}
	}
	if len(before) > 0 && len(found) == 0 {
		h.log.Info("the write buffer's server is as it should be")
	}
	return err == nil
}

// meanwhile says what becomes of publishes.
func (h *bufferHealth) meanwhile() string {
	if h.degrade {
		return "and records are acknowledged by the log alone (valkey.on_failure is degrade)"
	}
	return "and nothing is acknowledged (valkey.on_failure is reject)"
}

// problems returns what was wrong when it was asked last.
func (h *bufferHealth) problems() []string {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found
}

// closeBuffer ends what goes on with the write buffer, now that nothing uses it any more. A server that hangs is left after a
// while: whoever waited for it was answered.
func (s *server) closeBuffer() error {
	if s.buffer == nil {
		return nil
	}
	return s.leave("the write buffer", s.buffer.Store.Close, "what it has not confirmed is sent by the next run")
}
