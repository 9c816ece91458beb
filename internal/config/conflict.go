package config

import (
	"fmt"
	"net"
	"strings"
)

// conflicts returns what is wrong with values that are each allowed by themselves.
func (c *Config) conflicts() []Problem {
	var out []Problem
	refuse := func(key, format string, args ...any) {
		p := Problem{Key: key, Origin: c.origins[key], Message: fmt.Sprintf(format, args...)}
		for _, k := range table(c) {
			if k.name == key {
				p.Value = k.value.text()
			}
		}
		out = append(out, p)
	}
	c.listenConflicts(refuse)
	c.sizeConflicts(refuse)
	c.valkeyConflicts(refuse)
	return out
}

func (c *Config) listenConflicts(refuse func(key, format string, args ...any)) {
	if c.TLS.Cert != "" && c.TLS.Key == "" {
		refuse("tls.key", "is empty while tls.cert is %q; allowed: the PEM file with that certificate's private key", c.TLS.Cert)
	}
	if c.TLS.Cert == "" && c.TLS.Key != "" {
		refuse("tls.cert", "is empty while tls.key is %q; allowed: the PEM file with that key's certificate", c.TLS.Key)
	}
	if c.TLS.Cert == "" && c.TLS.ClientCA != "" {
		refuse("tls.client_ca", "needs TLS; allowed: set tls.cert and tls.key as well, or leave it empty")
	}
	for _, l := range []struct{ key, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.http", c.Listen.HTTP}} {
		if !Loopback(l.addr) && !c.TLS.Enabled() && !c.Insecure {
			refuse(l.key, "other machines could connect in plain text; allowed: a loopback address such as 127.0.0.1, or tls.cert and tls.key, or insecure: true if plain text is wanted")
		}
	}
	if overlap(c.Listen.GRPC, c.Listen.HTTP) {
		refuse("listen.http", "is where listen.grpc listens (%s); allowed: another port, or 0 for any free one", c.Listen.GRPC)
	}
}

// overlap reports whether two listeners would want the same port of the same interface.
func overlap(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	if portA != portB || portA == "0" {
		return false
	}
	all := func(host string) bool {
		ip := net.ParseIP(host)
		return host == "" || ip != nil && ip.IsUnspecified()
	}
	return hostA == hostB || all(hostA) || all(hostB)
}

func (c *Config) sizeConflicts(refuse func(key, format string, args ...any)) {
	l, s := &c.Limits, &c.Storage
	// A record alone in a batch takes the batch header and a few lengths besides itself.
	if l.RecordBytes+kib > l.BatchBytes {
		refuse("limits.record_bytes", "a record has to fit a batch; allowed: at most limits.batch_bytes less 1KiB, %s", FormatSize(int64(l.BatchBytes-kib)))
	}
	if l.DecompressedBytes < l.BatchBytes {
		refuse("limits.decompressed_bytes", "allowed: at least limits.batch_bytes, %s", FormatSize(int64(l.BatchBytes)))
	}
	if l.InFlightBytes < int64(l.BatchBytes) {
		refuse("limits.in_flight_bytes", "no batch of limits.batch_bytes could be taken; allowed: at least %s", FormatSize(int64(l.BatchBytes)))
	}
	if l.TopicPartitions > l.Partitions {
		refuse("limits.topic_partitions", "allowed: at most limits.partitions, %d", l.Partitions)
	}
	if s.IndexInterval > s.SegmentBytes {
		refuse("storage.index_interval", "allowed: at most storage.segment_bytes, %s", FormatSize(s.SegmentBytes))
	}
	switch t := &c.Tier; {
	case t.Mode == TierSharedFS && t.Root == "":
		refuse("storage.root", "storage.mode is shared_fs; allowed: a directory that is there")
	case t.Root != "" && t.Mode != TierLocal && t.Mode != TierSharedFS:
		refuse("storage.root", "storage.mode is neither local nor shared_fs; allowed: nothing")
	case t.Mode == TierObjects && c.ObjectStore.Kind == "":
		refuse("object_store.kind", "storage.mode is object_store; allowed: s3, gcs, azure")
	case t.Mode != TierObjects && c.ObjectStore != (ObjectStore{}):
		refuse("object_store.kind", "storage.mode is not object_store, which what begins with object_store is for; allowed: nothing")
	}
}

func (c *Config) valkeyConflicts(refuse func(key, format string, args ...any)) {
	v := &c.Valkey
	s := &v.Server
	if v.Mode == ValkeyNone {
		if *s != (ValkeyServer{}) {
			refuse("valkey.mode", "is none, and other settings say where a server is and how to get there; allowed: single, sentinel, cluster, or none without them")
		}
		return
	}
	switch n := len(v.AddressList()); {
	case n == 0:
		refuse("valkey.addresses", "valkey.mode is not none; allowed: host:port")
	case n > 1 && v.Mode == ValkeySingle:
		refuse("valkey.addresses", "valkey.mode is single; allowed: one address")
	}
	switch {
	case v.Mode == ValkeySentinel && s.MasterSet == "":
		refuse("valkey.master_set", "valkey.mode is sentinel; allowed: the name of the primary at the sentinels")
	case v.Mode != ValkeySentinel && s.MasterSet != "":
		refuse("valkey.master_set", "valkey.mode is not sentinel; allowed: nothing")
	}
	if v.Mode != ValkeySentinel && (s.SentinelUsername != "" || s.SentinelPassword != "") {
		refuse("valkey.sentinel_username", "valkey.mode is not sentinel; allowed: no name and no password at the sentinels")
	}
	if v.Mode == ValkeyCluster && v.Database != 0 {
		refuse("valkey.database", "valkey.mode is cluster; allowed: 0")
	}
	if !s.TLS && (s.CAFile != "" || s.CertFile != "" || s.KeyFile != "") {
		refuse("valkey.tls", "files of certificates are given; allowed: true, or none of them")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		refuse("valkey.cert_file", "a certificate and its key go together; allowed: both valkey.cert_file and valkey.key_file, or neither")
	}
	if v.KeepSegments > 0 && c.Tier.Mode != TierNone {
		refuse("valkey.keep_segments", "storage.mode is not none: what object storage has goes from the write buffer; allowed: 0")
	}
	if v.ConfirmTimeout < v.Timeout {
		refuse("valkey.confirm_timeout", "allowed: at least valkey.timeout, %s", FormatDuration(v.Timeout))
	}
}

// AddressList returns the addresses, one by one.
func (v *Valkey) AddressList() []string {
	var list []string
	for part := range strings.SplitSeq(v.Server.Addresses, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}
