package azure

import (
	"testing"

	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/test/servers"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a store of a new container of a server.
func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(Config{
		Endpoint: url, Account: servers.AzureAccount, AccountKey: servers.AzureKey, Container: "container", BlockSize: 4 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.client.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// Azurite orders names as UTF-16.
func TestConformance(t *testing.T) {
	objstoretest.Run(t, open(t, servers.Azure(t)), objstoretest.Traits{Flat: true, Slow: true})
}

func TestNetwork(t *testing.T) {
	p := servers.NewProxy(t, servers.Azure(t))
	objstoretest.RunNetwork(t, open(t, p.URL), p, 9<<20)
}
