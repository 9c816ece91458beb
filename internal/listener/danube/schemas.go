package danube

import (
	"context"
	"unicode/utf8"

	api "github.com/leveemq/levee/api/danube"
	schema "github.com/leveemq/levee/api/danube/schema"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
)

// schemas is what the services ask of the broker's schema registry.
type schemas interface {
	schemaReads
	schemaChanges
}

type schemaReads interface {
	// SchemaUses lists every subject and version with an id.
	SchemaUses(id uint64) ([]schemaVersion, error)
	SchemaVersion(subject string, version int32) (schemaVersion, error) // version may be latestSchema
	SchemaVersions(subject string) ([]schemaVersion, error)
	Subjects() []schemaSubject
	// CheckSchema says what stands in the way of registering s; nothing: it is compatible.
	CheckSchema(ctx context.Context, subject string, s schemaSpec, mode string) ([]string, error)
	SchemaCompatibility(subject string) (string, error)
	TopicSchema(topic string) (topicSchema, error)
}

type schemaChanges interface {
	RegisterSchema(ctx context.Context, subject string, s schemaSpec) (v schemaVersion, created bool, err error)
	SetSchemaCompatibility(ctx context.Context, subject, mode string) error
	DeleteSchemaVersion(ctx context.Context, subject string, version int32) error
	SetTopicSchema(ctx context.Context, topic string, t topicSchema) error
}

const policyNone = "none"

type schemaRegistry struct {
	schema.UnimplementedSchemaRegistryServer
	*Service
}

// adoptSchema takes a producer's word for which subject its topic's messages follow: the first one decides it, the
// others have to agree.
func (s *Service) adoptSchema(ctx context.Context, topic string, ref *api.SchemaReference) error {
	latest, err := s.broker.SchemaVersion(ref.Subject, latestSchema)
	if err != nil {
		return err
	}
	switch v := ref.VersionRef.(type) {
	case *api.SchemaReference_PinnedVersion:
		if _, err := s.broker.SchemaVersion(ref.Subject, schemaNumber(v.PinnedVersion)); err != nil {
			return s.refuse(codes.FailedPrecondition, "create producer: subject %s has no version %d: %s", ref.Subject, v.PinnedVersion, clip(err.Error(), messageChars))
		}
	case *api.SchemaReference_MinVersion:
		if uint32(latest.Version) < v.MinVersion { //nolint:gosec // counts from 1
			return s.refuse(codes.FailedPrecondition, "create producer: the latest version of subject %s is %d, not %d or later", ref.Subject, latest.Version, v.MinVersion)
		}
	}
	have, err := s.broker.TopicSchema(topic)
	if err != nil {
		return err
	}
	switch have.Subject {
	case ref.Subject:
		return nil
	case "":
		have.Subject = ref.Subject
		return s.broker.SetTopicSchema(ctx, topic, have)
	}
	return s.refuse(codes.FailedPrecondition, "create producer: messages of topic %s follow subject %s, not %s", wireTopic(topic), have.Subject, ref.Subject)
}

// schemaNumber makes a version that does not fit one that does not exist.
func schemaNumber(v uint32) int32 { return int32(min(v, 1<<31-1)) } //nolint:gosec // bounded

func specOf(kind string, definition []byte) (schemaSpec, error) {
	if !utf8.Valid(definition) {
		return schemaSpec{}, invalid("schema: its definition is not UTF-8")
	}
	if kind == "" {
		return schemaSpec{}, invalid("schema: it has no schema_type: bytes, string, number, avro, json_schema or protobuf")
	}
	return schemaSpec{Type: kind, Definition: string(definition)}, nil
}

// RegisterSchema adds a version to a subject.
func (s *schemaRegistry) RegisterSchema(ctx context.Context, req *schema.RegisterSchemaRequest) (*schema.RegisterSchemaResponse, error) {
	spec, err := specOf(req.SchemaType, req.SchemaDefinition)
	if err != nil {
		return nil, s.fail("RegisterSchema", err, plain)
	}
	spec.CreatedBy, spec.Description, spec.Tags = req.CreatedBy, req.Description, req.Tags
	v, created, err := s.broker.RegisterSchema(ctx, req.Subject, spec)
	if err != nil {
		return nil, s.fail("RegisterSchema", err, plain)
	}
	return &schema.RegisterSchemaResponse{
		SchemaId: v.ID, Version: uint32(v.Version), IsNewVersion: created, Fingerprint: v.Fingerprint, //nolint:gosec // counts from 1
	}, nil
}

// GetSchema returns the schema with an id, or another version of a subject that has it.
func (s *schemaRegistry) GetSchema(_ context.Context, req *schema.GetSchemaRequest) (*schema.GetSchemaResponse, error) {
	v, err := s.schemaBy(req)
	if err != nil {
		return nil, s.fail("GetSchema", err, plain)
	}
	return s.schemaResponse("GetSchema", v)
}

func (s *schemaRegistry) schemaBy(req *schema.GetSchemaRequest) (schemaVersion, error) {
	uses, err := s.broker.SchemaUses(req.SchemaId)
	if err != nil {
		return schemaVersion{}, err
	}
	if len(uses) == 0 {
		return schemaVersion{}, fault.New(fault.NotFound, "schema %d does not exist, or no subject has it any more", req.SchemaId)
	}
	if req.Version == nil {
		return uses[0], nil
	}
	version := schemaNumber(*req.Version)
	for _, u := range uses { // the id's own version first: other subjects may have one with that number, too
		if u.Version == version {
			return u, nil
		}
	}
	return s.broker.SchemaVersion(uses[0].Subject, version)
}

// GetLatestSchema returns the latest version of a subject.
func (s *schemaRegistry) GetLatestSchema(_ context.Context, req *schema.GetLatestSchemaRequest) (*schema.GetSchemaResponse, error) {
	v, err := s.broker.SchemaVersion(req.Subject, latestSchema)
	if err != nil {
		return nil, s.fail("GetLatestSchema", err, plain)
	}
	return s.schemaResponse("GetLatestSchema", v)
}

func (s *schemaRegistry) schemaResponse(call string, v schemaVersion) (*schema.GetSchemaResponse, error) {
	mode, err := s.broker.SchemaCompatibility(v.Subject)
	if err != nil {
		return nil, s.fail(call, err, plain)
	}
	return &schema.GetSchemaResponse{
		SchemaId: v.ID, Version: uint32(v.Version), Subject: v.Subject, SchemaType: v.Type, SchemaDefinition: []byte(v.Definition), //nolint:gosec // counts from 1
		Description: v.Description, CreatedAt: seconds(v.CreatedMs), CreatedBy: v.CreatedBy, Tags: v.Tags,
		Fingerprint: v.Fingerprint, CompatibilityMode: mode,
	}, nil
}

func seconds(ms int64) uint64 { return uint64(max(0, ms) / 1000) } //nolint:gosec // not negative

// ListVersions lists the versions of a subject.
func (s *schemaRegistry) ListVersions(_ context.Context, req *schema.ListVersionsRequest) (*schema.ListVersionsResponse, error) {
	list, err := s.broker.SchemaVersions(req.Subject)
	if err != nil {
		return nil, s.fail("ListVersions", err, plain)
	}
	resp := &schema.ListVersionsResponse{}
	for _, v := range list {
		resp.Versions = append(resp.Versions, &schema.SchemaVersionInfo{
			Version: uint32(v.Version), CreatedAt: seconds(v.CreatedMs), CreatedBy: v.CreatedBy, Description: v.Description, //nolint:gosec // counts from 1
			Fingerprint: v.Fingerprint, SchemaId: v.ID,
		})
	}
	return resp, nil
}

// CheckCompatibility says what would stand in the way of registering a schema.
func (s *schemaRegistry) CheckCompatibility(ctx context.Context, req *schema.CheckCompatibilityRequest) (*schema.CheckCompatibilityResponse, error) {
	spec, err := specOf(req.SchemaType, req.NewSchemaDefinition)
	var problems []string
	if err == nil {
		problems, err = s.broker.CheckSchema(ctx, req.Subject, spec, req.GetCompatibilityMode())
	}
	if err != nil {
		return nil, s.fail("CheckCompatibility", err, plain)
	}
	return &schema.CheckCompatibilityResponse{IsCompatible: len(problems) == 0, Errors: problems}, nil
}

// DeleteSchemaVersion deletes one version of a subject.
func (s *schemaRegistry) DeleteSchemaVersion(ctx context.Context, req *schema.DeleteSchemaVersionRequest) (*schema.DeleteSchemaVersionResponse, error) {
	if err := s.broker.DeleteSchemaVersion(ctx, req.Subject, schemaNumber(req.Version)); err != nil {
		return nil, s.fail("DeleteSchemaVersion", err, whileCreating)
	}
	return &schema.DeleteSchemaVersionResponse{Success: true, Message: "deleted"}, nil
}

// SetCompatibilityMode sets which changes of a subject's schema are allowed.
func (s *schemaRegistry) SetCompatibilityMode(ctx context.Context, req *schema.SetCompatibilityModeRequest) (*schema.SetCompatibilityModeResponse, error) {
	err := s.setCompatibility(ctx, req)
	if err != nil {
		return nil, s.fail("SetCompatibilityMode", err, plain)
	}
	return &schema.SetCompatibilityModeResponse{Success: true, Message: "set"}, nil
}

func (s *schemaRegistry) setCompatibility(ctx context.Context, req *schema.SetCompatibilityModeRequest) error {
	if req.Subject == "" || req.CompatibilityMode == "" { // they would mean all subjects, and whatever holds for them
		return invalid("set compatibility mode: name a subject and a mode")
	}
	return s.broker.SetSchemaCompatibility(ctx, req.Subject, req.CompatibilityMode)
}

// ConfigureTopicSchema says which subject a topic's messages follow.
func (s *schemaRegistry) ConfigureTopicSchema(ctx context.Context, req *schema.ConfigureTopicSchemaRequest) (*schema.ConfigureTopicSchemaResponse, error) {
	err := s.setTopicSchema(ctx, req.TopicName, func(t *topicSchema) error {
		if req.SchemaSubject == "" {
			return invalid("configure topic schema: name a subject")
		}
		t.Subject, t.Policy, t.Validate = req.SchemaSubject, policyName(req.ValidationPolicy), req.EnablePayloadValidation
		return nil
	})
	if err != nil {
		return nil, s.fail("ConfigureTopicSchema", err, plain)
	}
	return &schema.ConfigureTopicSchemaResponse{Success: true, Message: "configured"}, nil
}

// UpdateTopicValidationPolicy says what becomes of messages that do not follow the topic's subject.
func (s *schemaRegistry) UpdateTopicValidationPolicy(ctx context.Context, req *schema.UpdateTopicValidationPolicyRequest) (*schema.UpdateTopicValidationPolicyResponse, error) {
	err := s.setTopicSchema(ctx, req.TopicName, func(t *topicSchema) error {
		if t.Subject == "" {
			return s.refuse(codes.FailedPrecondition, "topic %s has no schema: configure one first", clip(req.TopicName, nameChars))
		}
		t.Policy, t.Validate = policyName(req.ValidationPolicy), req.EnablePayloadValidation
		return nil
	})
	if err != nil {
		return nil, s.fail("UpdateTopicValidationPolicy", err, plain)
	}
	return &schema.UpdateTopicValidationPolicyResponse{Success: true, Message: "updated"}, nil
}

func (s *schemaRegistry) setTopicSchema(ctx context.Context, topic string, change func(*topicSchema) error) error {
	at, _, err := s.resolve(named(topic))
	if err != nil {
		return err
	}
	t, err := s.broker.TopicSchema(at.topic)
	if err != nil {
		return err
	}
	if err := change(&t); err != nil {
		return err
	}
	return s.broker.SetTopicSchema(ctx, at.topic, t)
}

// GetTopicSchemaConfig says which subject a topic's messages follow.
func (s *schemaRegistry) GetTopicSchemaConfig(_ context.Context, req *schema.GetTopicSchemaConfigRequest) (*schema.GetTopicSchemaConfigResponse, error) {
	at, _, err := s.resolve(named(req.TopicName))
	var t topicSchema
	if err == nil {
		t, err = s.broker.TopicSchema(at.topic)
	}
	if err == nil && t.Subject == "" {
		err = fault.New(fault.NotFound, "topic %s has no schema", clip(req.TopicName, nameChars))
	}
	if err != nil {
		return nil, s.fail("GetTopicSchemaConfig", err, plain)
	}
	return &schema.GetTopicSchemaConfigResponse{
		SchemaSubject: t.Subject, ValidationPolicy: t.Policy, EnablePayloadValidation: t.Validate, SchemaId: t.SchemaID,
	}, nil
}

// ListSubjects lists the subjects with their latest versions.
func (s *schemaRegistry) ListSubjects(context.Context, *schema.ListSubjectsRequest) (*schema.ListSubjectsResponse, error) {
	resp := &schema.ListSubjectsResponse{}
	for _, sub := range s.broker.Subjects() {
		resp.Subjects = append(resp.Subjects, &schema.SubjectSummary{
			Subject: sub.Name, SchemaType: sub.Latest.Type, LatestVersion: uint32(sub.Latest.Version), CompatibilityMode: sub.Compatibility, //nolint:gosec // counts from 1
			SchemaId: sub.Latest.ID, Tags: sub.Latest.Tags,
		})
	}
	return resp, nil
}
