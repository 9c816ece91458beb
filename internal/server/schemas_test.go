package server

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// ask sends a request to the HTTP port and returns status and body.
func ask(t *testing.T, client *http.Client, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

const (
	integerSchema = `{"schemaType":"JSON","schema":"{\"type\":\"integer\"}"}`
	stringSchema  = `{"schemaType":"JSON","schema":"{\"type\":\"string\"}"}`
)

// TestSchemasOutliveARestart: what was registered over the HTTP port and what topics are held against is there after a
// restart, with its id and its version.
func TestSchemasOutliveARestart(t *testing.T) {
	s := &site{t, t.TempDir(), nil, &movements{rose: map[string]bool{}, fell: map[string]bool{}}}
	d := disk{vfs.NewMem()}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a"})
	url := "http://" + m.listening.HTTP
	if status, text := ask(t, client, "POST", url+"/subjects/a%2Fvalue/versions", integerSchema); status != 200 || text != `{"id":1,"version":1}` {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := ask(t, client, "POST", url+"/subjects/a%2Fvalue/versions", stringSchema); status != 409 || !strings.Contains(text, "type_narrowed") {
		t.Errorf("%d %s", status, text)
	}
	if err := m.broker.Load().Schemas().SetTopicSchema(t.Context(), "a", broker.TopicSchema{Subject: "a/value", Policy: "enforce", Validate: true}); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	_ = m.end()

	m = s.start(d, "a")
	url = "http://" + m.listening.HTTP
	if status, text := ask(t, client, "GET", url+"/subjects/a%2Fvalue/versions/latest", ""); status != 200 || !strings.Contains(text, `"id":1,"version":1`) {
		t.Errorf("%d %s", status, text)
	}
	_, err := m.broker.Load().PublishBatch(t.Context(), "a", 0, pack(t, record.NoProducer, `"text"`))
	if fault.DetailsOf(err)["reason"] != "schema_mismatch" {
		t.Errorf("published: %v", err)
	}
	m.send("a", pack(t, record.NoProducer, "5"))
}

func moveSchemas(s *site) {
	t := s.t
	m := s.start(disk{vfs.NewMem()}, "a")
	m.create(broker.TopicSpec{Name: "a"})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	versions := "http://" + m.listening.HTTP + "/subjects/n/versions"
	m.during("registering a schema twice", func() {
		ask(t, client, "POST", versions, integerSchema)
		ask(t, client, "POST", versions, integerSchema)
	}, by("levee_schema_versions_registered_total", 1), by(`levee_http_requests_total{code="200",route="/subjects"}`, 2))
	m.during("registering one that does not fit", func() { ask(t, client, "POST", versions, stringSchema) },
		by("levee_schema_versions_refused_total", 1), by("levee_schema_versions_registered_total", 0))
	policy := func(policy string) {
		if err := m.broker.Load().Schemas().SetTopicSchema(t.Context(), "a", broker.TopicSchema{Subject: "n", Policy: policy, Validate: true}); err != nil {
			t.Fatal(err)
		}
	}
	good, bad := pack(t, record.NoProducer, "1", "2"), pack(t, record.NoProducer, "1", "x", "y")
	m.during("records without a policy", func() { m.send("a", bad) }, by("levee_schema_records_checked_total", 0))
	policy("warn")
	m.during("records under warn", func() { m.send("a", good, bad) },
		by("levee_schema_records_checked_total", 5), by(`levee_schema_records_mismatched_total{policy="warn"}`, 2))
	policy("enforce")
	m.during("records under enforce", func() { m.send("a", good); m.refused("a", bad) },
		by("levee_schema_records_checked_total", 4), by(`levee_schema_records_mismatched_total{policy="enforce"}`, 1),
		by(`levee_broker_publish_errors_total{kind="invalid_argument"}`, 1))
}
