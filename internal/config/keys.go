package config

import (
	"strings"
	"time"

	"github.com/leveemq/levee/internal/meta"
)

// key is one row of the table: a setting, its documentation, and its place in one Config.
type key struct {
	name  string // "listen.grpc"
	flag  string // "grpc"; empty: there is no flag
	def   string // in the canonical text of its value
	help  string // one or two sentences
	value value
}

// env returns the environment variable that sets k.
func (k key) env() string {
	return "LEVEE_" + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

func (k key) unit() string { return k.value.unit() }

// maxBatch is a round number below the largest batch that a log takes, 64 MiB less the 16 bytes in front of it.
const maxBatch = 63 * mib

const forever = 36500 * day

// table returns every setting there is, bound to c. Files, variables, flags, checks, `levee config show` and
// docs/configuration.md all come from it: a setting that is not here does not exist.
func table(c *Config) []key {
	rows := append(general(c), limits(&c.Limits)...)
	rows = append(rows, topics(&c.Storage)...)
	rows = append(rows, storage(&c.Storage)...)
	return append(rows,
		key{"log.level", "", "info", "The least important lines that are logged.", logLevel(&c.Log.Level)},
		key{"log.format", "", "text", "Log lines as key=value text, or as one JSON object each.", logFormat(&c.Log.Format)},
		key{"drain_timeout", "", "30s", "How long a stop waits for clients to leave and for what they sent to be answered. Afterwards connections are cut; what was acknowledged is flushed in any case.",
			duration{&c.DrainTimeout, time.Millisecond, time.Hour, "cut at once"}},
	)
}

func general(c *Config) []key {
	return []key{
		{"data_dir", "data-dir", "./levee-data", "The directory of everything durable. It is made when it is not there, and locked while a broker runs on it.",
			path{&c.DataDir, true}},
		{"listen.grpc", "grpc", "127.0.0.1:6650", "Where clients connect (gRPC).", address{&c.Listen.GRPC}},
		{"listen.http", "http", "127.0.0.1:9040", "Health, metrics, profiles, and topics and records as JSON (HTTP).", address{&c.Listen.HTTP}},
		{"listen.profiles", "", "false", "Serve profiles of the process (/debug/pprof/) where other machines can connect, too. On loopback they always are.", boolean{&c.Listen.Profiles}},
		{"danube.advertise", "", "", "The address, host:port, that clients of Danube are told to connect to. Empty: the one each of them used already.", reachable{&c.Danube.Advertise}},
		{"danube.auto_create", "", "true", "Make the topic where a client of Danube produces to one that does not exist.", boolean{&c.Danube.AutoCreate}},
		{"insecure", "", "false", "Listen in plain text where other machines can connect. Without it, an address that is not loopback needs tls.cert and tls.key.",
			boolean{&c.Insecure}},
		{"tls.cert", "tls-cert", "", "PEM file with this broker's certificate chain, leaf first. Set, every listener speaks TLS.", path{&c.TLS.Cert, false}},
		{"tls.key", "tls-key", "", "PEM file with the private key of tls.cert.", path{&c.TLS.Key, false}},
		{"tls.client_ca", "", "", "PEM file with certificate authorities. Set, a client must present a certificate that one of them signed (mutual TLS), on every listener.",
			path{&c.TLS.ClientCA, false}},
	}
}

func limits(l *Limits) []key {
	return []key{
		{"limits.record_bytes", "", "10MiB", "Largest record: key, value and headers together.", size[int]{&l.RecordBytes, kib, maxBatch, ""}},
		{"limits.batch_bytes", "", "16MiB", "Largest batch of records, as it is sent.", size[int]{&l.BatchBytes, 2 * kib, maxBatch, ""}},
		{"limits.decompressed_bytes", "", "64MiB", "Largest batch of records, once it is decompressed.", size[int]{&l.DecompressedBytes, 2 * kib, gib, ""}},
		{"limits.in_flight_bytes", "", "256MiB", "Batches that were taken and are not yet answered, of all publishers together. Beyond it publishers wait.",
			size[int64]{&l.InFlightBytes, 2 * kib, 1 << 40, ""}},
		{"limits.connections", "", "10000", "Connections open at once, on each listener. More are refused.", count{&l.Connections, 1, 1_000_000, ""}},
		{"limits.subscribers", "", "10000", "Subscribers open at once. More are refused.", count{&l.Subscribers, 1, 1_000_000, ""}},
		{"limits.topic_partitions", "", "1024", "Partitions of one topic.", count{&l.TopicPartitions, 1, meta.MaxPartitions, ""}},
		{"limits.partitions", "", "20000", "Partitions of all topics together.", count{&l.Partitions, 1, 1_000_000, ""}},
		{"limits.subscription_span", "", "16777216", "How many offsets above one that is not settled a subscription hands out. Beyond it, it waits until that one is.", count{&l.SubscriptionSpan, 4096, 16384 * 4096, ""}},
		{"limits.subscriber_ring_bytes", "", "16MiB", "Non-reliable topics: what may wait for one subscriber. A subscriber that is slower than that loses records, and is told how many.",
			size[int]{&l.RingBytes, kib, gib, ""}},
		{"limits.subscriber_ring_batches", "", "4096", "The same limit, counted in batches.", count{&l.RingBatches, 1, 1 << 20, ""}},
	}
}

func topics(s *Storage) []key {
	return []key{
		{"storage.fsync", "", "on_commit", "Default of topics. on_commit: acknowledged once it is on the device. periodic: acknowledged once it is written, flushed within storage.fsync_interval. none: flushed when the operating system likes.",
			fsyncMode(&s.Fsync)},
		{"storage.fsync_interval", "", "250ms", "Default of topics. periodic only: how long written records may wait for their flush.", duration{&s.FsyncInterval, time.Millisecond, meta.MaxFsyncIntervalMs * time.Millisecond, ""}},
		{"storage.segment_bytes", "", "256MiB", "Default of topics. Size at which a log begins its next file.", size[int64]{&s.SegmentBytes, meta.MinSegmentBytes, meta.MaxSegmentBytes, ""}},
		{"storage.retention_bytes", "", "0", "Default of topics. A partition that is larger loses its oldest segments.", size[int64]{&s.RetentionBytes, 1, 1 << 50, "no limit"}},
		{"storage.retention_age", "", "0", "Default of topics. Segments that were sealed longer ago are removed; the one that is written to stays.", duration{&s.RetentionAge, time.Millisecond, forever, "no limit"}},
	}
}

func storage(s *Storage) []key {
	return []key{
		{"storage.retention_check", "", "30s", "How often retention is applied.", duration{&s.RetentionCheck, 100 * time.Millisecond, day, ""}},
		{"storage.index_interval", "", "4KiB", "Spacing of the entries of a segment's index. Smaller finds an offset faster and takes more space.",
			size[int64]{&s.IndexInterval, 512, 16 * mib, ""}},
		{"storage.records_per_read", "", "10000", "Most records that one read of a log returns.", count{&s.RecordsPerRead, 1, 10_000_000, ""}},
		{"storage.bytes_per_read", "", "1MiB", "Most bytes that one read of a log returns; one batch is returned in any case.", size[int]{&s.BytesPerRead, kib, 64 * mib, ""}},
		{"storage.producer_expiry", "", "7d", "Idempotent producers that were idle for so long are forgotten.", duration{&s.ProducerExpiry, time.Minute, forever, ""}},
		{"storage.open_files", "", "4096", "Segment files kept open at once, of all partitions together.", count{&s.OpenFiles, 16, 1_000_000, ""}},
		{"storage.open_parallel", "", "0", "Partitions opened side by side at start.", count{&s.OpenParallel, 1, 1024, "eight times the number of cores"}},
		{"storage.verify_all_on_open", "", "false", "Read every segment in full at start, not only the newest of each partition.", boolean{&s.VerifyAllOnOpen}},
		{"storage.repair_checksum_tail", "", "false", "Cut a damaged batch at the end of a log that would otherwise be refused. What is cut is kept in salvage/.", boolean{&s.RepairChecksumTail}},
		{"storage.strict_start", "", "false", "A partition that cannot be opened stops the start. Without it, that partition alone is unavailable.", boolean{&s.StrictStart}},
	}
}
