package danube

import (
	"testing"

	api "github.com/leveemq/levee/api/danube"
	schema "github.com/leveemq/levee/api/danube/schema"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestSchemas(t *testing.T) {
	r := newRig(t, nil)
	conn, err := r.client.Conn(r.client.Seed)
	if err != nil {
		t.Fatal(err)
	}
	registry := schema.NewSchemaRegistryClient(conn)
	register := func(definition string) *schema.RegisterSchemaResponse {
		t.Helper()
		resp, err := registry.RegisterSchema(r.ctx, &schema.RegisterSchemaRequest{
			Subject: "s", SchemaType: "json_schema", SchemaDefinition: []byte(definition), CreatedBy: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	one := register(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)
	two := register(`{"type":"object","properties":{"a":{"type":"integer"}}}`)
	if one.Version != 1 || two.Version != 2 || !two.IsNewVersion {
		t.Errorf("got %v and %v", one, two)
	}
	use := func(name string, ref *api.SchemaReference) *Producer {
		return r.producer(ProducerConfig{Topic: "/default/t", Name: name, Reliable: true, Schema: ref})
	}
	latest := use("latest", &api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_UseLatest{UseLatest: true}})
	pinned := use("pinned", &api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_PinnedVersion{PinnedVersion: 1}})
	c := r.consumer("/default/t", "c", shared)
	for _, p := range []*Producer{latest, pinned} {
		if err := p.Send(r.ctx, Message{Payload: []byte(`{"a":1}`)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []*schema.RegisterSchemaResponse{two, one} {
		m := r.next(c)
		r.ack(c, m)
		if m.GetSchemaId() != want.SchemaId || m.GetSchemaVersion() != want.Version {
			t.Errorf("a message has schema %d, version %d: %v", m.GetSchemaId(), m.GetSchemaVersion(), want)
		}
	}
	if _, err := registry.ConfigureTopicSchema(r.ctx, &schema.ConfigureTopicSchemaRequest{
		TopicName: "/default/t", SchemaSubject: "s", ValidationPolicy: "enforce", EnablePayloadValidation: true,
	}); err != nil {
		t.Fatal(err)
	}
	if err := pinned.Send(r.ctx, Message{Payload: []byte(`{"b":1}`)}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a message against its schema got %v", err)
	}
	if err := latest.Send(r.ctx, Message{Payload: []byte(`{"b":1}`)}); err != nil {
		t.Errorf("a message that follows the latest version got %v", err)
	}
	_, err = r.client.Producer(r.ctx, ProducerConfig{Topic: "/default/t", Name: "other", Reliable: true, Schema: &api.SchemaReference{Subject: "none"}})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a subject that does not exist got %v", err)
	}
}
