package config

import (
	"fmt"
	"net"
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
}
