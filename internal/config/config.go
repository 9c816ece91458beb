// Package config owns the broker's settings: their keys, units, ranges and defaults, and where each value came from.
// It reads a file, the environment and flags; it never opens anything the settings point to, and nothing below
// internal/server imports it. Invariant: a Config that Load returned has passed every check, and every key of it is
// one row of the table in keys.go.
package config

import (
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/leveemq/levee/internal/seglog"
)

// Config is the whole configuration of one broker. Load makes it; it is not changed afterwards.
type Config struct {
	DataDir      string // where everything durable lives
	Listen       Listen
	Insecure     bool // plain text beyond loopback is wanted
	TLS          TLS
	Danube       Danube
	Limits       Limits
	Storage      Storage
	Tier         Tier
	ObjectStore  ObjectStore
	Valkey       Valkey
	Log          Log
	DrainTimeout time.Duration // how long a stop may wait for clients; what is queued is flushed in any case

	origins  map[string]Origin // by key
	warnings []string
}

// Listen holds the addresses of the listeners, host:port each. Port 0 takes a free one.
type Listen struct {
	GRPC     string
	HTTP     string
	Profiles bool // serve profiles where other machines can reach HTTP, too
}

// Danube says how clients of Danube are served, on the gRPC port.
type Danube struct {
	Advertise  string // host:port that they are told to connect to; empty: where each has connected already
	AutoCreate bool   // a producer of a topic that does not exist makes it
}

// TLS names the PEM files of the listeners' certificates. All empty: the listeners speak plain text.
type TLS struct {
	Cert     string // this broker's certificate chain, leaf first
	Key      string // its private key
	ClientCA string // not empty: clients must present a certificate that one of these signed
}

// Enabled reports whether the listeners speak TLS.
func (t TLS) Enabled() bool { return t.Cert != "" }

// Limits bound what clients can make the broker hold.
type Limits struct {
	RecordBytes       int   // one record
	BatchBytes        int   // one encoded batch
	DecompressedBytes int   // one batch after decompression
	InFlightBytes     int64 // batches taken and not yet answered, whole broker
	Connections       int   // open at once, per listener
	Subscribers       int   // open at once, whole broker
	TopicPartitions   int   // of one topic
	Partitions        int   // of all topics
	SubscriptionSpan  int   // offsets above what is not settled that a subscription hands out
	RingBytes         int   // waiting for one subscriber of a non-reliable topic
	RingBatches       int   // the same, counted in batches
}

// Storage says how logs are kept. The first five are the defaults of topics that do not set their own.
type Storage struct {
	Fsync          seglog.Mode
	FsyncInterval  time.Duration // periodic only
	SegmentBytes   int64
	RetentionBytes int64         // per partition; 0: no limit
	RetentionAge   time.Duration // 0: no limit

	RetentionCheck     time.Duration
	IndexInterval      int64 // bytes between entries of a sparse index
	RecordsPerRead     int
	BytesPerRead       int
	ProducerExpiry     time.Duration
	OpenFiles          int // segment files kept open at once
	OpenParallel       int // partitions opened side by side at start; 0: eight times the cores
	VerifyAllOnOpen    bool
	RepairChecksumTail bool
	StrictStart        bool // a partition that cannot be opened stops the start
}

// Tier says where sealed segments are copied to, and read from once logs have let go of them.
type Tier struct {
	Mode        TierMode
	Root        string // TierLocal: empty is the data directory's storage/; TierSharedFS
	Prefix      string // of every key
	Cluster     string // second part of every key
	SealAge     time.Duration
	Parallel    int   // exports at a time
	BytesPerSec int64 // of all exports together; 0: no limit
	CacheBytes  int64 // of what was read of objects
}

// TierMode is the kind of place that sealed segments are copied to.
type TierMode uint8

// The kinds of place.
const (
	TierNone     TierMode = iota // logs alone
	TierLocal                    // a directory of this machine
	TierSharedFS                 // a directory that several machines mount
	TierObjects                  // ObjectStore
)

// ObjectStore says where objects are with TierObjects, and how to get there.
type ObjectStore struct {
	Kind            string // s3, gcs, azure
	Bucket          string // azure: the container
	Endpoint        string // empty: the provider's own
	Region          string
	PathStyle       bool
	CAFile          string
	Account         string
	AccessKey       string
	SecretKey       string
	SessionToken    string
	CredentialsFile string
	Anonymous       bool
}

// Valkey says which server holds what is only in logs yet, and what happens while it does not.
type Valkey struct {
	Mode           ValkeyMode
	Server         ValkeyServer
	Database       int
	Prefix         string        // of every key
	Replicas       int           // how many must have a change before it counts
	Timeout        time.Duration // how long replicas may take; an answer may take twice as long
	Connections    int           // for changes, to each server
	Degrade        bool          // acknowledge what it does not have, once the metadata says so; false: refuse
	KeepSegments   int           // without object storage: how many sealed segments stay in it; 0: what the topic keeps
	ConfirmTimeout time.Duration // how long a publish waits for it
}

// ValkeyServer says where the servers are, and who this broker is there.
type ValkeyServer struct {
	Addresses        string // host:port, with commas between
	MasterSet        string // the primary's name at the sentinels
	Username         string
	Password         string
	SentinelUsername string
	SentinelPassword string
	TLS              bool
	CAFile           string // empty: the system's authorities
	CertFile         string
	KeyFile          string
}

// ValkeyMode says how the servers act together.
type ValkeyMode uint8

// The modes.
const (
	ValkeyNone     ValkeyMode = iota // there is none
	ValkeySingle                     // one primary, with replicas or without
	ValkeySentinel                   // the addresses are of sentinels
	ValkeyCluster
)

// Log says what is logged and how.
type Log struct {
	Level  slog.Level
	Format LogFormat
}

// LogFormat is the form of a log line.
type LogFormat uint8

// The forms of a log line.
const (
	LogText LogFormat = iota // key=value
	LogJSON                  // one object a line
)

// Logger returns a logger that writes to w as l says.
func (l Log) Logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: l.Level}
	if l.Format == LogJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// LoadOptions says where settings come from. A later source wins: defaults, File, Env, Flags.
type LoadOptions struct {
	File  string            // YAML; empty: no file
	Env   []string          // "NAME=value", as os.Environ returns it; nil: no environment
	Flags map[string]string // by key ("listen.grpc"), only those that were given
}

// Load puts the settings together and checks them. Its error is an *Invalid that lists every problem at once, or, when
// the file cannot be read at all, one of kind invalid_argument.
func Load(o LoadOptions) (*Config, error) {
	l := newLoader()
	if o.File != "" {
		text, err := os.ReadFile(o.File)
		if err != nil {
			return nil, invalidFile(o.File, err)
		}
		l.file(o.File, text)
	}
	l.environment(o.Env)
	l.flags(o.Flags)
	return l.finish()
}

// Default returns the configuration without file, environment and flags.
func Default() *Config {
	c, err := newLoader().finish()
	if err != nil {
		panic("config: the defaults are refused: " + err.Error())
	}
	return c
}

// Check loads file alone and returns what Load would refuse about it.
func Check(file string) error {
	_, err := Load(LoadOptions{File: file})
	return err
}

// Validate returns what is wrong with values that contradict each other, as an *Invalid. Load has done it; it is for a
// Config that was changed since, as tests do.
func (c *Config) Validate() error {
	if problems := c.conflicts(); len(problems) > 0 {
		return &Invalid{Problems: problems}
	}
	return nil
}

// Warnings returns what looks like a mistake but is not refused, a sentence each.
func (c *Config) Warnings() []string { return c.warnings }

// Origin returns where the value of a key came from. An unknown key reads as a default.
func (c *Config) Origin(key string) Origin { return c.origins[key] }

// Entry is one setting as people see it.
type Entry struct {
	Key     string
	Value   string // in force
	Default string
	Unit    string // "size", "duration", "count", "path", …: see docs/configuration.md
	Origin  string // "default", "levee.yaml:12", "environment LEVEE_DATA_DIR" or "flag --data-dir"
	Env     string // the environment variable of this key
	Flag    string // the flag of this key, without dashes; empty where there is none
	Help    string
}

// Entries returns every setting, in the order of the documentation.
func (c *Config) Entries() []Entry {
	ks := table(c)
	out := make([]Entry, len(ks))
	for i, k := range ks {
		out[i] = Entry{
			Key: k.name, Value: k.value.text(), Default: k.def, Unit: k.unit(), Origin: c.origins[k.name].String(),
			Env: k.env(), Flag: k.flag, Help: k.help,
		}
	}
	return out
}

// Loopback reports whether only this machine can reach a listener at addr (host:port). A host name other than
// localhost counts as reachable from elsewhere: what it resolves to is not known here.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
