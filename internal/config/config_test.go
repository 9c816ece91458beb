package config

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "levee.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEveryKeyIsDocumented(t *testing.T) {
	seen, flags := map[string]bool{}, map[string]bool{}
	for _, k := range table(Default()) {
		if seen[k.name] || k.flag != "" && flags[k.flag] {
			t.Errorf("%s: the key or its flag is there twice", k.name)
		}
		seen[k.name], flags[k.flag] = true, true
		if len(k.help) < 20 || !strings.HasSuffix(k.help, ".") || strings.ContainsAny(k.help, "|\n") {
			t.Errorf("%s: help %q", k.name, k.help)
		}
		if k.unit() == "" || k.value.allowed() == "" {
			t.Errorf("%s has no unit, or does not say what it allows", k.name)
		}
		if k.value.text() != k.def {
			t.Errorf("%s: the default is written %q and reads back %q", k.name, k.def, k.value.text())
		}
	}
	for _, name := range []string{"storage.segment_bytes", "storage.index_interval", "storage.fsync_interval", "storage.records_per_read"} {
		if !seen[name] {
			t.Errorf("no key %s", name)
		}
	}
}

func TestDefaults(t *testing.T) {
	c := Default()
	if c.Listen.GRPC != "127.0.0.1:6650" || c.Listen.HTTP != "127.0.0.1:9040" || c.DataDir != "./levee-data" || c.Insecure || c.TLS.Enabled() {
		t.Errorf("%+v", c)
	}
	s := c.Storage
	if s.Fsync != seglog.OnCommit || s.FsyncInterval != 250*time.Millisecond || s.SegmentBytes != 256<<20 || s.IndexInterval != 4096 ||
		s.RecordsPerRead != 10_000 || s.ProducerExpiry != 7*24*time.Hour || s.RetentionBytes != 0 || s.RetentionAge != 0 {
		t.Errorf("%+v", s)
	}
	if c.Limits.RecordBytes != 10<<20 || c.Limits.Connections != 10_000 {
		t.Errorf("%+v", c.Limits)
	}
}

func TestLaterSourcesWinAndAreNamed(t *testing.T) {
	file := write(t, "data_dir: /file\nlisten:\n  grpc: \"127.0.0.1:1\"\n  http: 127.0.0.1:2\nstorage:\nlog: # nothing below\n")
	c, err := Load(LoadOptions{
		File:  file,
		Env:   []string{"LEVEE_LISTEN_GRPC=127.0.0.1:3", "LEVEE_LISTEN_HTTP=127.0.0.1:4", "LEVEE_LOG_LEVEL=", "OTHER=1", "LEVEE_STORAGE_FSYNC=none"},
		Flags: map[string]string{"listen.grpc": "127.0.0.1:5"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"data_dir":      {"/file", file + ":1"},
		"listen.grpc":   {"127.0.0.1:5", "flag --grpc"},
		"listen.http":   {"127.0.0.1:4", "environment LEVEE_LISTEN_HTTP"},
		"storage.fsync": {"none", "environment LEVEE_STORAGE_FSYNC"},
		"log.level":     {"info", "default"},
	}
	for _, e := range c.Entries() {
		if w, ok := want[e.Key]; ok && (e.Value != w[0] || e.Origin != w[1]) {
			t.Errorf("%s = %q from %q, want %q from %q", e.Key, e.Value, e.Origin, w[0], w[1])
		}
		delete(want, e.Key)
	}
	if len(want) > 0 {
		t.Errorf("no entries for %v", want)
	}
	if c.Origin("listen.grpc").Source != FromFlag || c.Origin("nothing").Source != FromDefault {
		t.Error("origins")
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	file := write(t, "storage:\n  fsync: sometimes\n  fsink: none\n  segment_bytes: 12parsecs\nlimits:\n  batch_bytes: 1MiB\ninsecure: yes\n")
	_, err := Load(LoadOptions{
		File:  file,
		Env:   []string{"LEVEE_LISTEN_GRPC=0.0.0.0:6650", "LEVEE_STORAGE_RETENTION_AGE=-1s", "LEVEE_LIMITS_FOO=1"},
		Flags: map[string]string{"limits.connections": "0", "data_dir": ""},
	})
	var bad *Invalid
	if !errors.As(err, &bad) || fault.KindOf(err) != fault.InvalidArgument {
		t.Fatalf("got %v", err)
	}
	got := map[string]Problem{}
	for _, p := range bad.Problems {
		got[p.Key] = p
	}
	for _, key := range []string{"storage.fsync", "storage.fsink", "storage.segment_bytes", "insecure", "listen.grpc",
		"storage.retention_age", "limits.connections", "data_dir", "limits.record_bytes", ""} {
		if _, ok := got[key]; !ok {
			t.Errorf("no problem about %q in\n%v", key, err)
		}
	}
	if len(bad.Problems) != 10 {
		t.Errorf("%d problems", len(bad.Problems))
	}
	if p := got["storage.fsync"]; p.Value != "sometimes" || p.Origin.Line != 2 || !strings.Contains(p.Message, "on_commit, periodic, none") ||
		!strings.Contains(p.Source, ">  2 |   fsync: sometimes") || !strings.Contains(p.Source, "^") {
		t.Errorf("%+v\n%s", p, p.Source)
	}
	if p := got["storage.fsink"]; !strings.Contains(p.Message, "did you mean storage.fsync?") || p.Origin.Line != 3 || !strings.Contains(p.Source, "^") {
		t.Errorf("%+v", p)
	}
	if d := fault.DetailsOf(err); len(d) != 10 || !strings.Contains(d["limits.connections"], "1 to 1000000") {
		t.Errorf("%v", d)
	}
	for _, p := range bad.Problems {
		if p.Key != "" && !strings.Contains(err.Error(), p.Key) {
			t.Errorf("the text does not name %s:\n%v", p.Key, err)
		}
	}
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags map[string]string
		key   string // of the one problem; empty: none
	}{
		{"loopback", map[string]string{"listen.grpc": "[::1]:0", "listen.http": "localhost:0"}, ""},
		{"beyond loopback", map[string]string{"listen.http": "192.0.2.1:80"}, "listen.http"},
		{"every interface", map[string]string{"listen.grpc": ":6650"}, "listen.grpc"},
		{"a name", map[string]string{"listen.grpc": "broker.example:6650"}, "listen.grpc"},
		{"plain text is wanted", map[string]string{"listen.http": "0.0.0.0:80", "insecure": "true"}, ""},
		{"TLS", map[string]string{"listen.http": "0.0.0.0:80", "tls.cert": "c", "tls.key": "k", "tls.client_ca": "ca"}, ""},
		{"no key", map[string]string{"tls.cert": "c"}, "tls.key"},
		{"no certificate", map[string]string{"tls.key": "k"}, "tls.cert"},
		{"authority alone", map[string]string{"tls.client_ca": "ca"}, "tls.client_ca"},
		{"one port twice", map[string]string{"listen.http": "127.0.0.1:6650"}, "listen.http"},
		{"one port through every interface", map[string]string{"listen.http": "0.0.0.0:6650", "insecure": "true"}, "listen.http"},
		{"free ports", map[string]string{"listen.http": "127.0.0.1:0", "listen.grpc": "127.0.0.1:0"}, ""},
		{"record above batch", map[string]string{"limits.record_bytes": "16MiB"}, "limits.record_bytes"},
		{"decompressed below batch", map[string]string{"limits.decompressed_bytes": "15MiB"}, "limits.decompressed_bytes"},
		{"too little in flight", map[string]string{"limits.in_flight_bytes": "1MiB"}, "limits.in_flight_bytes"},
		{"partitions", map[string]string{"limits.partitions": "10"}, "limits.topic_partitions"},
		{"index above segment", map[string]string{"storage.segment_bytes": "64KiB", "storage.index_interval": "128KiB"}, "storage.index_interval"},
		{"a store in the data directory", map[string]string{"storage.mode": "local"}, ""},
		{"a store elsewhere", map[string]string{"storage.mode": "shared_fs", "storage.root": "/mnt/x"}, ""},
		{"a store nowhere", map[string]string{"storage.mode": "shared_fs"}, "storage.root"},
		{"a directory for nothing", map[string]string{"storage.root": "/mnt/x"}, "storage.root"},
		{"a bucket", map[string]string{"storage.mode": "object_store", "object_store.kind": "s3", "object_store.bucket": "b"}, ""},
		{"a bucket of no kind", map[string]string{"storage.mode": "object_store"}, "object_store.kind"},
		{"a bucket for nothing", map[string]string{"object_store.bucket": "b"}, "object_store.kind"},
		{"no write buffer", map[string]string{"valkey.replicas": "2"}, ""},
		{"a server for nothing", map[string]string{"valkey.addresses": "a:1"}, "valkey.mode"},
		{"a password for nothing", map[string]string{"valkey.password": "x"}, "valkey.mode"},
		{"a server", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1"}, ""},
		{"no server", map[string]string{"valkey.mode": "single"}, "valkey.addresses"},
		{"two servers", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1,b:1"}, "valkey.addresses"},
		{"sentinels", map[string]string{"valkey.mode": "sentinel", "valkey.addresses": "a:1, b:1", "valkey.master_set": "m", "valkey.sentinel_password": "x"}, ""},
		{"sentinels of nobody", map[string]string{"valkey.mode": "sentinel", "valkey.addresses": "a:1"}, "valkey.master_set"},
		{"a name without sentinels", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.master_set": "m"}, "valkey.master_set"},
		{"a password without sentinels", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.sentinel_password": "x"}, "valkey.sentinel_username"},
		{"a cluster", map[string]string{"valkey.mode": "cluster", "valkey.addresses": "a:1,b:1"}, ""},
		{"a cluster's database", map[string]string{"valkey.mode": "cluster", "valkey.addresses": "a:1", "valkey.database": "1"}, "valkey.database"},
		{"authorities without TLS", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.ca_file": "x"}, "valkey.tls"},
		{"half a certificate", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.tls": "true", "valkey.cert_file": "x"}, "valkey.cert_file"},
		{"segments without objects", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.keep_segments": "3"}, ""},
		{"segments beside objects", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.keep_segments": "3", "storage.mode": "local"}, "valkey.keep_segments"},
		{"too little time", map[string]string{"valkey.mode": "single", "valkey.addresses": "a:1", "valkey.confirm_timeout": "100ms"}, "valkey.confirm_timeout"},
		{"a bucket and a directory", map[string]string{"storage.mode": "object_store", "object_store.kind": "s3", "storage.root": "/mnt/x"}, "storage.root"},
	} {
		cfg, err := Load(LoadOptions{Flags: c.flags})
		if err == nil {
			err = cfg.Validate()
		}
		var bad *Invalid
		switch {
		case c.key == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.key != "" && (!errors.As(err, &bad) || len(bad.Problems) != 1 || bad.Problems[0].Key != c.key):
			t.Errorf("%s: want one problem about %s, got %v", c.name, c.key, err)
		case c.key != "" && !strings.Contains(err.Error(), "allowed: "):
			t.Errorf("%s: does not say what is allowed: %v", c.name, err)
		}
	}
}

func TestValkey(t *testing.T) {
	c, err := Load(LoadOptions{Flags: map[string]string{
		"valkey.mode": "sentinel", "valkey.addresses": "a:1, [::1]:2,c.example:3", "valkey.master_set": "m", "valkey.on_failure": "degrade",
		"valkey.replicas": "1", "valkey.timeout": "300ms", "valkey.confirm_timeout": "2s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	v := &c.Valkey
	if got := strings.Join(v.AddressList(), " "); got != "a:1 [::1]:2 c.example:3" {
		t.Errorf("addresses %s", got)
	}
	if v.Mode != ValkeySentinel || v.Server.MasterSet != "m" || !v.Degrade || v.Replicas != 1 || v.Timeout != 300*time.Millisecond || v.ConfirmTimeout != 2*time.Second ||
		v.Connections != 2 || v.Prefix != "levee" || v.KeepSegments != 0 {
		t.Errorf("%+v", v)
	}
	for _, bad := range []string{"a", "a:0", ":1", "a:1,", "a:1;b:2", ",", "a:1,,b:1"} {
		if _, err := Load(LoadOptions{Flags: map[string]string{"valkey.mode": "cluster", "valkey.addresses": bad}}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// Secrets are taken and shown to nobody.
func TestSecrets(t *testing.T) {
	cfg, err := Load(LoadOptions{
		Flags: map[string]string{
			"storage.mode": "object_store", "object_store.kind": "s3", "object_store.bucket": "b",
			"valkey.mode": "sentinel", "valkey.addresses": "a:1", "valkey.master_set": "m",
		},
		Env: []string{"LEVEE_OBJECT_STORE_SECRET_KEY=hush", "LEVEE_VALKEY_PASSWORD=hush", "LEVEE_VALKEY_SENTINEL_PASSWORD=hush"},
	})
	if err != nil || cfg.ObjectStore.SecretKey != "hush" || cfg.Valkey.Server.Password != "hush" || cfg.Valkey.Server.SentinelPassword != "hush" {
		t.Fatalf("%+v, %v", cfg, err)
	}
	for _, s := range cfg.Entries() {
		if strings.Contains(s.Value, "hush") {
			t.Errorf("%s shows %s", s.Key, s.Value)
		}
	}
	file := filepath.Join(t.TempDir(), "levee.yaml")
	if err := os.WriteFile(file, []byte("object_store:\n  secret_key: \"hush\\u0001\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []LoadOptions{{Env: []string{"LEVEE_OBJECT_STORE_SECRET_KEY=hush\x01"}}, {File: file}} {
		if _, err := Load(o); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "object_store.secret_key") {
			t.Errorf("%v", err)
		}
	}
}

func TestFileForms(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"comments", "# nothing\n", ""},
		{"null", "---\n", ""},
		{"empty section", "storage:\n", ""},
		{"flow", "listen: {grpc: '127.0.0.1:0', http: \"127.0.0.1:0\"}\n", ""},
		{"list", "- a\n- b\n", "name: value"},
		{"scalar", "hello\n", "name: value"},
		{"section as value", "storage: 3\n", "name: value"},
		{"value as section", "data_dir:\n  a: b\n", "not a plain value"},
		{"list as value", "data_dir: [a]\n", "not a plain value"},
		{"no value", "data_dir:\n", "has no value"},
		{"alias", "data_dir: &a x\ntls:\n  cert: *a\n", "not a plain value"},
		{"tag", "data_dir: !!str x\n", "not a plain value"},
		{"block", "data_dir: |\n  x\n", "not a plain value"},
		{"merge", "storage:\n  <<: {fsync: none}\n", "a plain name"},
		{"twice", "data_dir: a\ndata_dir: b\n", "already defined"},
		{"dotted", "listen.grpc: 127.0.0.1:1\n", "nest it"},
		{"two documents", "data_dir: a\n---\ndata_dir: b\n", "second document"},
		{"broken", "storage: {fsync: none\n", "^"},
		{"tab", "storage:\n\tfsync: none\n", "^"},
		{"number key", "1: 2\n", "a plain name"},
	} {
		_, err := Load(LoadOptions{File: write(t, c.text)})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: want %q, got %v", c.name, c.want, err)
		}
		if err != nil && !strings.Contains(err.Error(), "levee.yaml:") {
			t.Errorf("%s: the error does not name file and line: %v", c.name, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if err := Check(missing); fault.KindOf(err) != fault.InvalidArgument || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing file: %v", err)
	}
	if err := Check(write(t, "log: {level: debug}\n")); err != nil {
		t.Error(err)
	}
}

func TestEnvironmentOfOthersIsLeftAlone(t *testing.T) {
	c, err := Load(LoadOptions{Env: []string{
		"LEVEE_PORT=tcp://10.0.0.1:6650", "LEVEE_PORT_6650_TCP_ADDR=10.0.0.1", "LEVEE_SERVICE_HOST=10.0.0.1", "LEVEE_HEADLESS_SERVICE_PORT_GRPC=1",
		"LEVEE_ADDR=127.0.0.1:1", "LEVEE_HTTP=127.0.0.1:2", "LEVEE_TOKEN_FILE=x", "LEVEE_TLS_CA=ca.pem", "LEVEE_BIN=/bin/levee", "LEVEE_DATA_DIR=a", "LEVEE_DATA_DIR=b",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0], "LEVEE_BIN") {
		t.Errorf("warnings: %q", w)
	}
	if c.DataDir != "b" {
		t.Errorf("data_dir = %q", c.DataDir)
	}
	for _, e := range []string{"LEVEE_DATADIR=x", "LEVEE_STORAGE_SYNC_MODE=none"} {
		if _, err := Load(LoadOptions{Env: []string{e}}); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v", e, err)
		}
	}
	if _, err := Load(LoadOptions{Flags: map[string]string{"listen.grcp": "x"}}); err == nil || !strings.Contains(err.Error(), "did you mean listen.grpc?") {
		t.Errorf("unknown flag: %v", err)
	}
}

func TestValidateSeesChanges(t *testing.T) {
	c := Default()
	c.Listen.HTTP = ":80"
	var bad *Invalid
	if err := c.Validate(); !errors.As(err, &bad) || len(bad.Problems) != 1 || bad.Problems[0].Value != ":80" {
		t.Errorf("got %v", err)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	Log{Level: slog.LevelWarn, Format: LogJSON}.Logger(&b).Info("no")
	Log{Level: slog.LevelWarn, Format: LogJSON}.Logger(&b).Warn("yes")
	Log{}.Logger(&b).Info("text")
	if s := b.String(); strings.Contains(s, "no") || !strings.Contains(s, `"msg":"yes"`) || !strings.Contains(s, "msg=text") {
		t.Errorf("%s", s)
	}
}
