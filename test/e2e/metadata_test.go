package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
	"github.com/leveemq/levee/test/servers"
)

// What the metadata of a broker is found again from.
var metadataCopies = map[string]func(t *testing.T, dir string) map[string]string{
	"object store": func(t *testing.T, dir string) map[string]string {
		root := filepath.Join(dir, "objects")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		return map[string]string{"LEVEE_STORAGE_MODE": "shared_fs", "LEVEE_STORAGE_ROOT": root}
	},
	"write buffer": func(t *testing.T, dir string) map[string]string {
		return map[string]string{"LEVEE_VALKEY_MODE": "single", "LEVEE_VALKEY_ADDRESSES": redisServer(t, dir)}
	},
}

// redisServer starts a redis-server of the test's own, and returns its address.
func redisServer(t *testing.T, dir string) string {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no redis-server")
	}
	addr := servers.FreePort(t)
	_, port, _ := net.SplitHostPort(addr)
	c := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "yes")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return addr
}

// A broker that is killed and whose directory is deleted finds topics, namespaces, subscriptions, cursors and schemas
// again; the directory as it was before does not start any more.
func TestMetadataOutlivesTheDirectory(t *testing.T) {
	for name, copies := range metadataCopies {
		t.Run(name, func(t *testing.T) {
			dir := proc.Dir(t)
			x := &tiered{t: t, dir: filepath.Join(dir, "data"), env: copies(t, dir)}
			x.start()
			x.levee(nil, "namespace", "create", "other")
			for i := range 5 {
				x.create(fmt.Sprint("other/t", i), client.Settings{})
			}
			x.create("read", client.Settings{})
			schema := filepath.Join(dir, "schema.avsc")
			if err := os.WriteFile(schema, []byte(`{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}`), 0o644); err != nil {
				t.Fatal(err)
			}
			if r := x.levee(nil, "schema", "register", "numbers", schema, "--http", x.HTTP); r.Code != 0 {
				t.Fatalf("%+v", r)
			}
			x.publish("read", 0, 10)
			sub, err := x.client.Subscribe(x.ctx, "read", "reader", client.SubscriptionConfig{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				m, err := sub.Next(x.ctx)
				if err != nil {
					t.Fatal(err)
				}
				m.Ack()
			}
			if err := sub.Close(x.ctx); err != nil {
				t.Fatal(err)
			}
			x.Await("the cursor to be copied", func() bool {
				return !strings.Contains(string(x.http("GET", "/metrics", "", nil).body), "levee_storage_metadata_lag_seconds ") ||
					strings.Contains(string(x.http("GET", "/metrics", "", nil).body), "levee_storage_metadata_lag_seconds 0\n")
			})
			x.Kill()
			x.Wait()
			if err := os.Rename(x.dir, x.dir+"-old"); err != nil {
				t.Fatal(err)
			}

			began := time.Now()
			b := proc.Launch(t, x.dir, proc.Options{Env: x.env})
			b.Listening()
			t.Logf("it listens %v after its start", time.Since(began))
			x.rig = &rig{Broker: b, t: t, client: b.Dial(), raw: b.Raw(), ctx: x.ctx}
			topics := x.levee(nil, "topic", "ls", "--namespace", "other").Stdout
			for i := range 5 {
				if !strings.Contains(topics, fmt.Sprint("t", i)) {
					t.Errorf("topic t%d is gone:\n%s", i, topics)
				}
			}
			if r := x.levee(nil, "schema", "get", "numbers", "--http", x.HTTP); !strings.Contains(r.Stdout, "record") {
				t.Errorf("schema: %+v", r)
			}
			if text := x.levee(nil, "subscription", "ls", "read").Stdout; !strings.Contains(text, "reader") {
				t.Errorf("subscriptions:\n%s", text)
			}
			x.Terminate()
			x.Wait()

			old := proc.Launch(t, x.dir+"-old", proc.Options{Env: x.env})
			old.Doom()
			<-old.Exited()
			code := old.Wait()
			text := old.Printed()
			if code == 0 || !strings.Contains(text, "took it over") {
				t.Errorf("the old directory: exit code %v\n%s", code, text)
			}
		})
	}
}
