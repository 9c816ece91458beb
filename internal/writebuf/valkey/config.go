package valkey

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Mode says how the addresses act together.
type Mode uint8

// The modes.
const (
	Single   Mode = iota // one primary, with replicas or without
	Sentinel             // the addresses are of sentinels, which know the primary
	Cluster              // each node owns a part of the keys
)

// Config says where the server is and how much it must hold.
type Config struct {
	Addresses []string // host:port
	Mode      Mode
	MasterSet string // for Sentinel: the primary's name there

	Username, Password                 string
	SentinelUsername, SentinelPassword string
	TLS                                *tls.Config // nil: none
	Database                           int         // not in a cluster

	Prefix      string        // before every key; default "levee"
	Replicas    int           // how many must have a change before it is confirmed
	Connections int           // for changes, to each node; default 2
	Timeout     time.Duration // how long replicas may take; an answer may take twice as long. Default 1 s
	DialTimeout time.Duration // default 1 s

	// Dial connects; nil means the network.
	Dial func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error)
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "levee"
	}
	if c.Connections == 0 {
		c.Connections = 2
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = time.Second
	}
	return c
}

// Validate returns all that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	say := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	say(len(c.Addresses) == 0, "no address")
	say(c.Mode > Cluster, "mode %d", c.Mode)
	say((c.Mode == Sentinel) != (c.MasterSet != ""), "the primary's name at the sentinels goes with mode sentinel")
	say(c.Mode == Single && len(c.Addresses) > 1, "%d addresses of one server", len(c.Addresses))
	say(c.Mode == Cluster && c.Database != 0, "a cluster has database 0 only")
	say(c.Database < 0, "database %d", c.Database)
	say(strings.ContainsAny(c.Prefix, "{} \r\n"), "prefix %q holds a brace or a space", c.Prefix)
	say(c.Replicas < 0, "%d replicas", c.Replicas)
	say(c.Connections < 0, "%d connections", c.Connections)
	say(c.Timeout < 0 || c.Timeout > 0 && c.Timeout < time.Millisecond, "time-out of %v", c.Timeout)
	say(c.DialTimeout < 0, "time-out of %v to connect", c.DialTimeout)
	return errors.Join(errs...)
}
