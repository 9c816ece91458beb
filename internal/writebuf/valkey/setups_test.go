package valkey

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
	"github.com/leveemq/levee/test/servers"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// nodes starts a cluster of two servers that own one half of the slots each.
func nodes(t *testing.T) (a, b *server) {
	t.Helper()
	cluster := func() *server {
		// The bus listens at port + 10000 unless told, which may be beyond the last port.
		_, bus, _ := net.SplitHostPort(servers.FreePort(t))
		return start(t, "--cluster-enabled", "yes", "--cluster-port", bus)
	}
	a, b = cluster(), cluster()
	a.do("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	b.do("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
	_, port, _ := net.SplitHostPort(b.addr)
	a.do("CLUSTER", "MEET", "127.0.0.1", port, b.args[3])
	for _, s := range []*server{a, b} {
		s.await("the cluster to be up", func() bool {
			info := s.do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:16384")
		})
	}
	return a, b
}

func inCluster(c *Config) { c.Mode = Cluster }

func TestCluster(t *testing.T) {
	a, b := nodes(t)
	t.Run("Conformance", func(t *testing.T) {
		writebuftest.Run(t, func(t *testing.T) writebuf.Store { return openAt(t, a.addr, inCluster) })
	})
	t.Run("SlotMoves", func(t *testing.T) {
		st := a.open(inCluster)
		var id writebuf.ID
		for id = writebuftest.ID(); st.Buffer(id).(*buffer).slot > 8191; id.Partition++ {
		}
		buf := st.Buffer(id).(*buffer)
		want(t, "append", buf.Append(t.Context(), batch(1, 1, 1, 5)), nil)
		slot, to := fmt.Sprint(buf.slot), b.do("CLUSTER", "MYID")
		from := a.do("CLUSTER", "MYID")
		_, port, _ := net.SplitHostPort(b.addr)
		b.do("CLUSTER", "SETSLOT", slot, "IMPORTING", from)
		a.do("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
		a.do("MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS", buf.keys[0], buf.keys[1])
		want(t, "append while it moves", buf.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrUnavailable)
		b.do("CLUSTER", "SETSLOT", slot, "NODE", to)
		a.do("CLUSTER", "SETSLOT", slot, "NODE", to)
		untilOK(t, buf, batch(1, 1, 6, 9))
		holds(t, buf, 1, 9)
	})
}

func TestSlotOf(t *testing.T) {
	for key, slot := range map[string]uint16{"123456789": 12739, "foo": 12182, "a{foo}b": 12182} {
		if got := slotOf(key); got != slot {
			t.Errorf("slot of %q is %d, want %d", key, got, slot)
		}
	}
}

// TestSentinel: the primary is killed, and the sentinel's new one is appended to.
func TestSentinel(t *testing.T) {
	primary := start(t)
	replica := primary.replica()
	_, port, _ := net.SplitHostPort(primary.addr)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	conf := fmt.Sprintf("sentinel monitor m 127.0.0.1 %s 1\nsentinel down-after-milliseconds m 300\nsentinel failover-timeout m 2000\n", port)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	guard := &server{t: t, dir: t.TempDir(), addr: servers.FreePort(t), conf: file}
	guard.run()
	t.Cleanup(guard.kill)
	guard.await("the sentinel to know the replica", func() bool {
		return strings.Contains(guard.do("SENTINEL", "MASTERS"), "num-slaves\n1")
	})
	buf := guard.open(func(c *Config) { c.Mode, c.MasterSet = Sentinel, "m" }).Buffer(writebuftest.ID())
	want(t, "append", buf.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	replica.await("the replica to have it", func() bool { return replica.do("XLEN", buf.(*buffer).keys[0]) == "5" })
	primary.kill()
	met := untilOK(t, buf, batch(1, 1, 6, 9))
	t.Logf("%d failures until the new primary took over", len(met))
	holds(t, buf, 1, 9)
	if replica.do("XLEN", buf.(*buffer).keys[0]) != "9" {
		t.Error("the replica did not become the primary")
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{"cert": cert, "key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := net.SplitHostPort(servers.FreePort(t))
	start(t, "--tls-port", port, "--tls-cert-file", filepath.Join(dir, "cert"), "--tls-key-file", filepath.Join(dir, "key"), "--tls-auth-clients", "no")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	addr := net.JoinHostPort("127.0.0.1", port)
	buf := openAt(t, addr, func(c *Config) { c.TLS = &tls.Config{RootCAs: pool} }).Buffer(writebuftest.ID())
	want(t, "append", buf.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	holds(t, buf, 1, 5)
	other := openAt(t, addr, func(c *Config) { c.TLS = &tls.Config{RootCAs: x509.NewCertPool()} }).Buffer(writebuftest.ID())
	want(t, "append to a server nobody vouches for", other.Append(t.Context(), batch(1, 1, 1, 5)), writebuf.ErrUnavailable)
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		config func(*Config)
		want   string
	}{
		"good":           {[]string{"--appendonly", "yes"}, replicas(0), ""},
		"memory only":    {nil, replicas(0), "persistence"},
		"saves":          {[]string{"--save", "900 1"}, replicas(0), "persistence"},
		"evicts":         {[]string{"--appendonly", "yes", "--maxmemory-policy", "allkeys-lfu"}, replicas(0), "eviction"},
		"evicts expired": {[]string{"--appendonly", "yes", "--maxmemory-policy", "volatile-ttl"}, replicas(0), "eviction"},
		"no replicas":    {[]string{"--appendonly", "yes"}, replicas(2), "replicas"},
		"tells little":   {[]string{"--rename-command", "CONFIG", ""}, replicas(0), "unchecked unchecked"},
		"tells nothing":  {[]string{"--rename-command", "INFO", ""}, replicas(0), "unchecked"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := start(t, c.args...).open(c.config).Check(t.Context())
			want(t, "check", err, nil)
			var codes []string
			for _, w := range got {
				codes = append(codes, w.Code)
				t.Log(w.Text)
			}
			if strings.Join(codes, " ") != c.want {
				t.Errorf("warnings %v, want %q", codes, c.want)
			}
		})
	}
	srv := start(t)
	got, err := srv.replica().open().Check(t.Context())
	if err != nil || len(got) == 0 || got[0].Code != "replica" {
		t.Errorf("check of a replica: %v, %v", got, err)
	}
	for version, good := range map[string]bool{"4.0.14": false, "5.0.1": false, "6.0.9": false, "6.2.0": true, "7.0.15": true, "10.1": true, "": true, "x.y": true} {
		var w warnings
		if err := w.version(version); (err == nil) != good {
			t.Errorf("version %q: %v", version, err)
		}
		if told := version != "" && version != "x.y"; told != (len(w.list) == 0) {
			t.Errorf("version %q: %v", version, w.list)
		}
	}
}

// TestCheckDenied: whom the server does not let in is told that, and no list of what could not be seen.
func TestCheckDenied(t *testing.T) {
	srv := start(t, "--requirepass", "secret")
	_, err := srv.open().Check(t.Context())
	want(t, "check", err, writebuf.ErrDenied)
}

// older is a connection to a server that says it is of version 5.
type older struct {
	net.Conn
	old *atomic.Bool
}

func (c *older) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if at := bytes.Index(p[:n], []byte("redis_version:")); at >= 0 && c.old.Load() {
		p[at+len("redis_version:")] = '5'
	}
	return n, err
}

// TestUnfit: a server that cannot be a write buffer is sent nothing, until it is another one.
func TestUnfit(t *testing.T) {
	srv := start(t)
	age := &atomic.Bool{}
	age.Store(true)
	st := srv.open(func(c *Config) {
		c.Dial = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			return &older{conn, age}, err
		}
	})
	b := st.Buffer(writebuftest.ID())
	want(t, "append before anything is known", b.Append(t.Context(), batch(1, 1, 1, 5)), nil)
	_, err := st.Check(t.Context())
	want(t, "check", err, writebuf.ErrUnsupported)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 9)), writebuf.ErrUnsupported)
	failed := make(chan error, 1)
	b.Submit(t.Context(), batch(1, 1, 6, 9), func(err error) { failed <- err })
	want(t, "submit", <-failed, writebuf.ErrUnsupported)
	_, err = b.Fence(t.Context(), 2)
	want(t, "fence", err, writebuf.ErrUnsupported)
	holds(t, b, 1, 5)
	age.Store(false)
	_, err = st.Check(t.Context())
	want(t, "check of another server", err, nil)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 9)), nil)
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no address": {}, "two servers": {Addresses: []string{"a:1", "b:1"}}, "no set": {Addresses: []string{"a:1"}, Mode: Sentinel},
		"a set": {Addresses: []string{"a:1"}, MasterSet: "m"}, "a database": {Addresses: []string{"a:1"}, Mode: Cluster, Database: 1},
		"a brace": {Addresses: []string{"a:1"}, Prefix: "x{y"}, "replicas": {Addresses: []string{"a:1"}, Replicas: -1},
		"no time": {Addresses: []string{"a:1"}, Timeout: time.Nanosecond}, "mode": {Addresses: []string{"a:1"}, Mode: 9},
	} {
		_, err := Open(c, nil)
		want(t, name, err, writebuf.ErrInvalid)
	}
}

// TestMetrics: each way to fail is counted under its own name.
func TestMetrics(t *testing.T) {
	srv := start(t)
	st, err := Open(Config{Addresses: []string{srv.addr}}, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	b := st.Buffer(writebuftest.ID())
	want(t, "append", b.Append(t.Context(), batch(2, 1, 1, 5)), nil)
	want(t, "append", b.Append(t.Context(), batch(1, 1, 6, 7)), writebuf.ErrFenced)
	want(t, "append", b.Append(t.Context(), batch(2, 1, 9, 9)), writebuf.ErrLost)
	srv.kill()
	want(t, "append on a connection that was good", b.Append(t.Context(), batch(2, 1, 6, 6)), writebuf.ErrOutcomeUnknown)
	want(t, "append", b.Append(t.Context(), batch(2, 1, 6, 6)), writebuf.ErrUnavailable)
	for _, name := range []string{"fenced", "lost", "unknown", "unavailable"} {
		if n := testutil.ToFloat64(st.metrics.failures.WithLabelValues("append", name)); n != 1 {
			t.Errorf("%s: %v, want 1", name, n)
		}
	}
	if n := testutil.ToFloat64(st.metrics.entries); n != 5 {
		t.Errorf("%v entries, want 5", n)
	}
}
