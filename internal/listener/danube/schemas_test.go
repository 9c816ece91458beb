package danube

import (
	"testing"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	schema "github.com/leveemq/levee/api/danube/schema"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func (f *fixture) register(subject, definition string) *schema.RegisterSchemaResponse {
	f.t.Helper()
	resp, err := f.schema.RegisterSchema(f.ctx, &schema.RegisterSchemaRequest{
		Subject: subject, SchemaType: "json_schema", SchemaDefinition: []byte(definition), CreatedBy: "me", Description: "d", Tags: []string{"x"},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

func TestSchemaRegistry(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		one, two := f.register("s", "{1}"), f.register("s", "{2}")
		f.register("another", "{3}")
		if !one.IsNewVersion || one.Version != 1 || two.Version != 2 || one.Fingerprint == "" {
			t.Errorf("got %v, %v", one, two)
		}
		if again := f.register("s", "{1}"); again.IsNewVersion || again.SchemaId != one.SchemaId {
			t.Errorf("got %v", again)
		}
		latest, err := f.schema.GetLatestSchema(f.ctx, &schema.GetLatestSchemaRequest{Subject: "s"})
		want := &schema.GetSchemaResponse{
			SchemaId: two.SchemaId, Version: 2, Subject: "s", SchemaType: "json_schema", SchemaDefinition: []byte("{2}"), Description: "d",
			CreatedAt: 1, CreatedBy: "me", Tags: []string{"x"}, Fingerprint: two.Fingerprint, CompatibilityMode: "backward",
		}
		if err != nil || !proto.Equal(latest, want) {
			t.Errorf("got %v (%v), want %v", latest, err, want)
		}
		// Clients ask for another version by the latest one's id.
		for version, definition := range map[uint32]string{1: "{1}", 2: "{2}"} {
			got, err := f.schema.GetSchema(f.ctx, &schema.GetSchemaRequest{SchemaId: two.SchemaId, Version: &version})
			if err != nil || string(got.SchemaDefinition) != definition {
				t.Errorf("version %d is %v (%v)", version, got, err)
			}
		}
		got, err := f.schema.GetSchema(f.ctx, &schema.GetSchemaRequest{SchemaId: one.SchemaId})
		if err != nil || got.Version != 1 || got.Subject != "s" {
			t.Errorf("got %v, %v", got, err)
		}
		list, err := f.schema.ListVersions(f.ctx, &schema.ListVersionsRequest{Subject: "s"})
		if err != nil || len(list.Versions) != 2 || list.Versions[1].SchemaId != two.SchemaId || list.Versions[0].CreatedAt != 1 {
			t.Errorf("got %v, %v", list, err)
		}
		subjects, err := f.schema.ListSubjects(f.ctx, &schema.ListSubjectsRequest{})
		if err != nil || len(subjects.Subjects) != 2 {
			t.Errorf("got %v, %v", subjects, err)
		}
		check := &schema.CheckCompatibilityRequest{Subject: "s", SchemaType: "avro", NewSchemaDefinition: []byte("no")}
		if resp, err := f.schema.CheckCompatibility(f.ctx, check); err != nil || !resp.IsCompatible {
			t.Errorf("got %v, %v", resp, err)
		}
		check.CompatibilityMode = proto.String("BACKWARD")
		if resp, err := f.schema.CheckCompatibility(f.ctx, check); err != nil || resp.IsCompatible || len(resp.Errors) != 1 {
			t.Errorf("got %v, %v", resp, err)
		}
		if resp, err := f.schema.SetCompatibilityMode(f.ctx, &schema.SetCompatibilityModeRequest{Subject: "s", CompatibilityMode: "FULL"}); err != nil || !resp.Success {
			t.Errorf("got %v, %v", resp, err)
		}
		if resp, err := f.schema.DeleteSchemaVersion(f.ctx, &schema.DeleteSchemaVersionRequest{Subject: "s", Version: 2}); err != nil || !resp.Success {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

func TestSchemaRegistryRefuses(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		_, err := f.schema.RegisterSchema(f.ctx, &schema.RegisterSchemaRequest{Subject: "s", SchemaType: "avro", SchemaDefinition: []byte{0xff}})
		wantCode(t, err, codes.InvalidArgument)
		_, err = f.schema.RegisterSchema(f.ctx, &schema.RegisterSchemaRequest{Subject: "s", SchemaDefinition: []byte("{}")})
		wantCode(t, err, codes.InvalidArgument)
		_, err = f.schema.RegisterSchema(f.ctx, &schema.RegisterSchemaRequest{Subject: "s", SchemaType: "avro"})
		wantCode(t, err, codes.InvalidArgument)
		_, err = f.schema.GetLatestSchema(f.ctx, &schema.GetLatestSchemaRequest{Subject: "s"})
		wantCode(t, err, codes.NotFound)
		_, err = f.schema.GetSchema(f.ctx, &schema.GetSchemaRequest{SchemaId: 4})
		wantCode(t, err, codes.NotFound)
		_, err = f.schema.ListVersions(f.ctx, &schema.ListVersionsRequest{Subject: "s"})
		wantCode(t, err, codes.NotFound)
		_, err = f.schema.DeleteSchemaVersion(f.ctx, &schema.DeleteSchemaVersionRequest{Subject: "s", Version: 1})
		wantCode(t, err, codes.NotFound)
		_, err = f.schema.SetCompatibilityMode(f.ctx, &schema.SetCompatibilityModeRequest{CompatibilityMode: "full"})
		wantCode(t, err, codes.InvalidArgument)
		_, err = f.schema.CheckCompatibility(f.ctx, &schema.CheckCompatibilityRequest{Subject: "s"})
		wantCode(t, err, codes.InvalidArgument)
	})
}

func TestTopicSchema(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		v := f.register("s", "{1}")
		f.newProducer("/default/t", "p")
		update := &schema.UpdateTopicValidationPolicyRequest{TopicName: "/default/t", ValidationPolicy: "warn"}
		_, err := f.schema.UpdateTopicValidationPolicy(f.ctx, update)
		wantCode(t, err, codes.FailedPrecondition)
		_, err = f.schema.GetTopicSchemaConfig(f.ctx, &schema.GetTopicSchemaConfigRequest{TopicName: "/default/t"})
		wantCode(t, err, codes.NotFound)
		_, err = f.schema.ConfigureTopicSchema(f.ctx, &schema.ConfigureTopicSchemaRequest{TopicName: "/default/t"})
		wantCode(t, err, codes.InvalidArgument)

		if resp, err := f.schema.ConfigureTopicSchema(f.ctx, &schema.ConfigureTopicSchemaRequest{
			TopicName: "/default/t", SchemaSubject: "s", ValidationPolicy: "Enforce", EnablePayloadValidation: true,
		}); err != nil || !resp.Success {
			t.Fatalf("got %v, %v", resp, err)
		}
		got, err := f.schema.GetTopicSchemaConfig(f.ctx, &schema.GetTopicSchemaConfigRequest{TopicName: "/default/t"})
		if err != nil || got.SchemaSubject != "s" || got.ValidationPolicy != "enforce" || !got.EnablePayloadValidation {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err := f.schema.UpdateTopicValidationPolicy(f.ctx, update); err != nil {
			t.Error(err)
		}
		if follows := f.follows["default/t"]; follows != (topicSchema{Subject: "s", Policy: "warn"}) {
			t.Errorf("the topic follows %+v", follows)
		}
		desc, err := f.topic.DescribeTopic(f.ctx, &admin.DescribeTopicRequest{Name: "/default/t"})
		if err != nil || desc.GetSchemaSubject() != "s" || desc.GetSchemaId() != v.SchemaId || desc.GetSchemaVersion() != 1 || desc.GetSchemaType() != "json_schema" || desc.GetCompatibilityMode() != "backward" {
			t.Errorf("got %v, %v", desc, err)
		}
	})
}

// The first producer with a schema says what its topic's messages follow; others have to agree.
func TestProducersWithSchema(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.register("s", "{1}")
		f.register("other", "{2}")
		create := func(ref *api.SchemaReference) error {
			_, err := f.producer.CreateProducer(f.ctx, &api.ProducerRequest{
				ProducerName: "p", TopicName: "/default/t", DispatchStrategy: api.DispatchStrategy_Reliable, SchemaRef: ref,
			})
			return err
		}
		for range 2 {
			if err := create(&api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_UseLatest{UseLatest: true}}); err != nil {
				t.Fatal(err)
			}
		}
		if f.follows["default/t"].Subject != "s" {
			t.Errorf("the topic follows %+v", f.follows["default/t"])
		}
		wantCode(t, create(&api.SchemaReference{Subject: "other"}), codes.FailedPrecondition)
		wantCode(t, create(&api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_PinnedVersion{PinnedVersion: 1}}), codes.OK)
		wantCode(t, create(&api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_PinnedVersion{PinnedVersion: 2}}), codes.FailedPrecondition)
		wantCode(t, create(&api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_MinVersion{MinVersion: 1}}), codes.OK)
		wantCode(t, create(&api.SchemaReference{Subject: "s", VersionRef: &api.SchemaReference_MinVersion{MinVersion: 2}}), codes.FailedPrecondition)
		wantCode(t, create(nil), codes.OK)
	})
}
