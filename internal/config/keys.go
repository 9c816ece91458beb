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
	rows = append(rows, tiers(&c.Tier)...)
	rows = append(rows, objectStore(&c.ObjectStore)...)
	rows = append(rows, valkey(&c.Valkey)...)
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

func tiers(t *Tier) []key {
	return []key{
		{"storage.mode", "", "none", "Where sealed segments are copied to, so that the log may let go of them and records outlive its disk. none: nowhere. local: a directory of this machine. shared_fs: a directory that several machines mount. object_store: a bucket, see object_store.kind.",
			tierMode(&t.Mode)},
		{"storage.root", "", "", "local and shared_fs: the directory. shared_fs needs it, and it must be there; empty with local: storage/ in data_dir.", path{&t.Root, false}},
		{"storage.prefix", "", "levee", "What the names of all objects begin with.", objectPrefix{&t.Prefix}},
		{"storage.cluster", "", "main", "What stands behind the prefix: clusters that share a place need different ones.", objectPart{&t.Cluster}},
		{"storage.seal_age", "", "10m", "A segment that holds records and was begun so long ago is sealed and copied, however small it is: it bounds in time what is only in the log.",
			duration{&t.SealAge, time.Second, day, ""}},
		{"storage.export_parallel", "", "4", "Segments copied at a time.", count{&t.Parallel, 1, 1000, ""}},
		{"storage.export_rate", "", "0", "Bytes a second of all copies together.", size[int64]{&t.BytesPerSec, 64 * kib, 1 << 40, "no limit"}},
		{"storage.cold_cache_bytes", "", "64MiB", "Memory for what was read of copies.", size[int64]{&t.CacheBytes, 4 * mib, 1 << 40, ""}},
	}
}

func objectStore(o *ObjectStore) []key {
	return []key{
		{"object_store.kind", "", "", "With storage.mode object_store: s3 (and whatever speaks its protocol), gcs or azure.", choice[string]{&o.Kind, []word[string]{{"", ""}, {"s3", "s3"}, {"gcs", "gcs"}, {"azure", "azure"}}}},
		{"object_store.bucket", "", "", "The bucket, which has to exist; azure: the container.", text{&o.Bucket, false}},
		{"object_store.endpoint", "", "", "URL of the service. Empty: the provider's own.", text{&o.Endpoint, false}},
		{"object_store.region", "", "", "s3: the bucket's region.", text{&o.Region, false}},
		{"object_store.path_style", "", "false", "s3: the bucket stands in the path of URLs and not in the host's name, as most services of one's own want it.", boolean{&o.PathStyle}},
		{"object_store.ca_file", "", "", "s3: PEM file with the authorities that signed the service's certificate.", path{&o.CAFile, false}},
		{"object_store.account", "", "", "azure: the storage account.", text{&o.Account, false}},
		{"object_store.access_key", "", "", "s3: id of the key. Without keys they are looked for where the provider's tools look.", text{&o.AccessKey, false}},
		{"object_store.secret_key", "", "", "s3: the key; azure: the account's key. Better in the environment than in a file.", text{&o.SecretKey, true}},
		{"object_store.session_token", "", "", "s3: what belongs to a key that is lent.", text{&o.SessionToken, true}},
		{"object_store.credentials_file", "", "", "gcs: file with the service account's key.", path{&o.CredentialsFile, false}},
		{"object_store.anonymous", "", "false", "gcs: send no credentials at all, as to an emulator.", boolean{&o.Anonymous}},
	}
}

func valkey(v *Valkey) []key {
	s := &v.Server
	return []key{
		{"valkey.mode", "", "none", "How the Valkey or Redis servers act together that hold every record until object storage has it, so that it outlives the broker's disk. none: there are none, and records are acknowledged by the log alone. single: one primary. sentinel: the addresses are of sentinels, which name the primary. cluster: a cluster.",
			choice[ValkeyMode]{&v.Mode, []word[ValkeyMode]{{"none", ValkeyNone}, {"single", ValkeySingle}, {"sentinel", ValkeySentinel}, {"cluster", ValkeyCluster}}}},
		{"valkey.addresses", "", "", "Where they are; with single one address.", addresses{&s.Addresses}},
		{"valkey.master_set", "", "", "sentinel: the primary's name there.", text{&s.MasterSet, false}},
		{"valkey.username", "", "", "The user of its access lists; empty: the default one.", text{&s.Username, false}},
		{"valkey.password", "", "", "The password. Better in the environment than in a file.", text{&s.Password, true}},
		{"valkey.sentinel_username", "", "", "The user at the sentinels.", text{&s.SentinelUsername, false}},
		{"valkey.sentinel_password", "", "", "The password at the sentinels.", text{&s.SentinelPassword, true}},
		{"valkey.tls", "", "false", "Connect with TLS, also to sentinels.", boolean{&s.TLS}},
		{"valkey.ca_file", "", "", "PEM file with the authorities that signed the servers' certificates; empty: the system's.", path{&s.CAFile, false}},
		{"valkey.cert_file", "", "", "PEM file with the certificate that this broker shows. It is read again for every connection.", path{&s.CertFile, false}},
		{"valkey.key_file", "", "", "PEM file with the private key of valkey.cert_file.", path{&s.KeyFile, false}},
		{"valkey.database", "", "0", "The number of the database; a cluster has 0 only.", count{&v.Database, 0, 1 << 20, ""}},
		{"valkey.prefix", "", "levee", "What every key begins with. Brokers that share a server need different ones: two with the same take each other's partitions.", objectPart{&v.Prefix}},
		{"valkey.replicas", "", "0", "How many replicas must have a record before it is acknowledged.", count{&v.Replicas, 0, 100, ""}},
		{"valkey.timeout", "", "1s", "How long replicas may take to confirm. An answer, and what is sent for it, may take twice as long; then the connection is given up.", duration{&v.Timeout, 10 * time.Millisecond, time.Minute, ""}},
		{"valkey.connections", "", "2", "Connections that carry records, to each server.", count{&v.Connections, 1, 64, ""}},
		{"valkey.on_failure", "", "reject", "While the write buffer does not confirm. reject: publishes fail, or end with an unknown outcome, and nothing is acknowledged that it does not have. degrade: they are acknowledged by the log alone, once the metadata says from which offset on a lost disk loses records. Without an object store that is known nowhere else: after a lost disk, every partition waits for an operator.",
			choice[bool]{&v.Degrade, []word[bool]{{"reject", false}, {"degrade", true}}}},
		{"valkey.keep_segments", "", "0", "Only where storage.mode is none: how many sealed segments of a partition stay in the write buffer. Older ones are then lost with the broker's disk.", count{&v.KeepSegments, 1, 1_000_000, "all that the topic's retention keeps"}},
		{"valkey.confirm_timeout", "", "5s", "How long a publish waits for the write buffer before its outcome is unknown.", duration{&v.ConfirmTimeout, 10 * time.Millisecond, 10 * time.Minute, ""}},
	}
}
