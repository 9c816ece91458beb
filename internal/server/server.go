package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/listener/admin"
	"github.com/leveemq/levee/internal/listener/grpc"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/prometheus/client_golang/prometheus"
)

// Options are what a server is given besides its configuration. The zero value is silent.
type Options struct {
	Logger      *slog.Logger
	Version     string          // of this program, for metrics and clients
	OnListening func(Addresses) // called once, when both listeners take connections; must not block
	OnReady     func()          // called once, when every partition was tried; must not block
}

// Addresses are where the listeners really listen: host:port, with the port that was free where the configuration
// says 0.
type Addresses struct {
	GRPC string
	HTTP string
}

// Run runs a broker until ctx is done, and stops it then: it returns nil when that ended cleanly. An error before that
// says why the broker could not start or go on; everything that was started is stopped again when Run returns.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	limit, known := maxDescriptors()
	warn(cfg, obs.Logger(o.Logger), limit, known)
	return newServer(cfg, o, vfs.OS{}, thisMachine()).run(ctx)
}

// spareDescriptors are for what is neither a segment nor a connection.
const spareDescriptors = 256

// warn logs what this machine does not allow although the settings do.
func warn(cfg *config.Config, log *slog.Logger, descriptors int64, known bool) {
	wanted := int64(cfg.Storage.OpenFiles) + 2*int64(cfg.Limits.Connections) + spareDescriptors
	if known && wanted > descriptors {
		log.Warn("this process may not open as many files and connections as its settings allow: raise the limit (ulimit -n, LimitNOFILE=), or lower storage.open_files or limits.connections",
			"limit", descriptors, "wanted", wanted)
	}
}

// server is one broker and all around it. start and stop, and what they call, run one after the other on the goroutine
// of Run; they alone touch the fields that are not made by newServer.
//
// size: the composition root has one field a part
type server struct {
	cfg      *config.Config
	options  Options
	log      *slog.Logger
	fs       *watchedFS
	machine  machine
	registry *prometheus.Registry // this server's own: two in one process do not meet
	metrics  *metrics
	status   *status
	tasks    *task.Group // ends with the stop, or when one of its tasks fails; not with ctx: a stop has an order
	ending   *task.Group // does the end of the stop, which can hang as the disk can

	flushes *alarm // goes off when a flush below the data directory fails

	certificates *certificates
	dir          string // the data directory, absolute
	lock         io.Closer
	claim        *claim
	runID        metatier.ID // of this process
	reserve      *reserve
	metadata     atomic.Pointer[metadata]
	store        objstore.Store // nil: none
	keeper       atomic.Pointer[metatier.Keeper]
	confirmer    atomic.Pointer[metatier.Confirmer]
	tier         *partition.Tier   // nil: none
	buffer       *partition.Buffer // nil: none
	unbuffered   bool              // there is none, and may have been one
	bufferHealth atomic.Pointer[bufferHealth]
	lostChanges  atomic.Pointer[string] // what this start's take-over did not find of the metadata, in words; nil: nothing is known to miss
	broker       atomic.Pointer[broker.Broker]
	endBroker    context.CancelFunc
	http         *admin.Server
	grpc         *grpc.Server
	listening    Addresses
}

func newServer(cfg *config.Config, o Options, fs vfs.FS, m machine) *server {
	s := &server{
		cfg: cfg, options: o, log: obs.Logger(o.Logger), machine: m, registry: prometheus.NewRegistry(),
		status: &status{}, tasks: task.NewGroup(context.Background()), ending: task.NewGroup(context.Background()), flushes: newAlarm(),
	}
	s.fs = &watchedFS{FS: fs, failed: s.onFailedFlush}
	s.runID = metatier.ID(m.newID())
	s.metrics = newMetrics(s.registry, o.Version)
	return s
}

func (s *server) run(ctx context.Context) error {
	err := s.start(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case <-s.tasks.Context().Done(): // a part failed; stop returns its error
		}
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil // asked to stop while starting
	}
	return errors.Join(err, s.stop())
}

// step is one thing to do at a start: doing says which, for whoever asks meanwhile.
type step struct {
	doing string
	do    func(context.Context) error
}

// start brings everything up. After an error, what came up is left to stop.
func (s *server) start(ctx context.Context) error {
	began := s.machine.now()
	for _, st := range []step{
		{"reading the certificates", s.loadCertificates}, // what needs no disk comes first, and leaves none changed
		{"locking the data directory", s.lockDataDir},
		{"opening the HTTP listener", s.listenHTTP}, // first of the listeners: it tells how far the rest is
		{"finding out how the last run ended", s.claimDataDir},
		{"reserving room for the metadata", s.holdReserve},
		{"opening the write buffer", s.openBuffer},
		{"opening the object store", s.openStore},
		{"finding out whose the cluster's data is", s.takeOver},
		{"recovering the metadata", s.openMetadata}, // no log is opened before the last run was judged
		{"finding out whether the cluster's data is still this broker's", s.keepMetadata},
		{"finding out whether the write buffer is still this broker's", s.confirmMetadata},
		{"counting this start in the metadata", s.register},
		{"preparing copies of sealed segments", s.openTier},
		{"opening partitions", s.startBroker}, // goes on in the background
		{"opening the gRPC listener", s.listenGRPC},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.status.starting(st.doing)
		if err := st.do(ctx); err != nil {
			return err
		}
	}
	s.status.started()
	s.log.Info("listening", "grpc", s.listening.GRPC, "http", s.listening.HTTP, "broker", s.claim.identity.Broker,
		"data_dir", s.dir, "version", s.options.Version, "took", s.machine.now().Sub(began).Round(time.Millisecond))
	if s.options.OnListening != nil {
		s.options.OnListening(s.listening)
	}
	s.tasks.Go("follow the start", s.followStart)
	return nil
}

// stop brings down what start brought up. The order: no more work comes in, the work there is gets done, everything is
// flushed, that is written down, and only then may another process have the directory.
func (s *server) stop() error {
	s.status.draining()
	began := s.machine.now()
	patience, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	if s.grpc != nil {
		s.grpc.Drain(patience)
	}
	report := s.stopBroker(patience)
	if s.http != nil && s.http.Shutdown(patience) != nil {
		s.log.Warn("HTTP clients were cut off", "drain_timeout", s.cfg.DrainTimeout)
	}
	s.tasks.Stop()
	err := s.end(patience, report)
	s.log.Info("stopped", "took", s.machine.now().Sub(began).Round(time.Millisecond), "clean", err == nil)
	return err
}

// lastPatience is how long a stop whose time is over waits on for the metadata and the run file to be written.
const lastPatience = 5 * time.Second

// end waits for everything that runs, closes the metadata and writes down how the run ended. Where the disk hangs it
// gives up: the process has to end then, which alone ends what still waits for the disk, and releases the lock no sooner.
// The run stays one that did not end: that is what it is.
func (s *server) end(patience context.Context, report *broker.DrainReport) error {
	if report != nil && len(report.Hung) > 0 {
		return fault.New(fault.Stopped, "stopped, but not cleanly: logs still waited for the disk when drain_timeout was over, and were left: %q; the next start reads them again", report.Hung)
	}
	ended := make(chan error, 1)
	s.ending.Go("end the run", func(context.Context) error {
		failed := errors.Join(s.tasks.Wait(), s.closeStore()) // every listener and the broker have returned
		metadataErr := errors.Join(s.closeMetadata(), s.closeBuffer())
		runErr := s.endClaim(report, metadataErr)
		ended <- errors.Join(failed, metadataErr, runErr, s.unlock())
		return nil
	})
	select {
	case err := <-ended:
		return errors.Join(err, s.ending.Wait())
	case <-patience.Done():
	}
	last := time.NewTimer(lastPatience)
	defer last.Stop()
	select {
	case err := <-ended:
		return errors.Join(err, s.ending.Wait())
	case <-last.C:
	}
	return fault.New(fault.Stopped, "stopped, but not cleanly: the disk below %s did not get done in time, and was left: %q; the next start reads everything again", s.dir, s.hanging())
}

// followStart tells when every partition was tried, and writes down when the crash before this run has had its last
// consequence.
func (s *server) followStart(ctx context.Context) error {
	b := s.broker.Load()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	ready, settled := false, s.claim.verdict.crash == seglog.CleanStop
	for {
		if !ready && b.Ready() == nil {
			ready = true
			s.log.Info("ready", "problems", len(b.Problems()))
			if s.options.OnReady != nil {
				s.options.OnReady()
			}
			tick.Reset(time.Second) // what is left may take a repair by hand
		}
		if !settled && b.Recovered() {
			settled = true
			if err := s.claim.settled(); err != nil {
				// The next start only assumes the worse.
				s.log.Warn("could not record that the crash of an earlier run is dealt with", "err", err)
			}
		}
		if ready && settled {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
