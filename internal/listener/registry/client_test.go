package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"

	schemas "github.com/leveemq/levee/internal/registry"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a registry over metadata in memory and returns its address.
func serve(t *testing.T) (url string, s *broker.Schemas) {
	t.Helper()
	s = schemas.New(schemas.Config{Store: meta.NewMemory()})
	server := httptest.NewServer(New(func() *broker.Schemas { return s }))
	t.Cleanup(server.Close)
	return server.URL, s
}

func connect(t *testing.T) *sr.Client {
	t.Helper()
	url, _ := serve(t)
	c, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	userV1 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}`
	userV2 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0}]}`
	userV3 = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"mail","type":"string"}]}`
)

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// fails demands an answer with that status and error code.
func fails(t *testing.T, err error, status, code int) {
	t.Helper()
	var re *sr.ResponseError
	if !errors.As(err, &re) || re.StatusCode != status || re.ErrorCode != code || re.Message == "" {
		t.Errorf("%v, want %d, %d", err, status, code)
	}
}

// TestClient does everything that franz-go's client of a schema registry can do.
func TestClient(t *testing.T) {
	c, ctx := connect(t), context.Background()
	types := must(c.SupportedTypes(ctx))(t)
	if len(types) != 3 || !slices.Contains(types, sr.TypeAvro) || !slices.Contains(types, sr.TypeJSON) || !slices.Contains(types, sr.TypeProtobuf) {
		t.Errorf("types %v", types)
	}
	if got := must(c.Contexts(ctx))(t); !slices.Equal(got, []string{"."}) {
		t.Errorf("contexts %v", got)
	}
	if got := must(c.Subjects(ctx))(t); len(got) != 0 {
		t.Errorf("subjects %v", got)
	}
	first := must(c.CreateSchema(ctx, "user-value", sr.Schema{Schema: userV1}))(t)
	if first.ID != 1 || first.Version != 1 || first.Subject != "user-value" || first.Type != sr.TypeAvro || first.Schema.Schema != userV1 {
		t.Errorf("%+v", first)
	}
	if again := must(c.RegisterSchema(ctx, "user-value", sr.Schema{Schema: userV1}, -1, -1))(t); again != 1 {
		t.Errorf("again: %d", again)
	}
	second := must(c.CreateSchema(ctx, "user-value", sr.Schema{Schema: userV2}))(t)
	if second.ID != 2 || second.Version != 2 {
		t.Errorf("%+v", second)
	}
	must(c.CreateSchema(ctx, "a/b c", sr.Schema{Type: sr.TypeJSON, Schema: ` { "type" : "string" } `}))(t)
	proto := must(c.CreateSchema(ctx, "proto", sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message A { string s = 1; }`}))(t)
	if proto.Type != sr.TypeProtobuf {
		t.Errorf("%+v", proto)
	}
	if got := must(c.Subjects(ctx))(t); !slices.Equal(got, []string{"a/b c", "proto", "user-value"}) {
		t.Errorf("subjects %v", got)
	}
	if got := must(c.Subjects(sr.WithParams(ctx, sr.SubjectPrefix("user"))))(t); !slices.Equal(got, []string{"user-value"}) {
		t.Errorf("subjects by prefix %v", got)
	}
	if got := must(c.SubjectVersions(ctx, "user-value"))(t); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("versions %v", got)
	}
	if got := must(c.SchemaByVersion(ctx, "user-value", -1))(t); got.Version != 2 || got.Schema.Schema != userV2 {
		t.Errorf("latest %+v", got)
	}
	if got := must(c.SchemaByVersion(ctx, "a/b c", 1))(t); got.Type != sr.TypeJSON || got.Subject != "a/b c" || got.Schema.Schema != ` { "type" : "string" } ` {
		t.Errorf("%+v", got)
	}
	if got := must(c.SchemaTextByVersion(ctx, "user-value", 1))(t); got != userV1 {
		t.Errorf("text %s", got)
	}
	if got := must(c.SchemaTextByID(ctx, 2))(t); got != userV2 {
		t.Errorf("text %s", got)
	}
	if got := must(c.SchemaByID(ctx, 1))(t); got.Schema != userV1 || got.Type != sr.TypeAvro {
		t.Errorf("by id %+v", got)
	}
	must(c.CreateSchema(ctx, "other", sr.Schema{Schema: userV1}))(t)
	if got := must(c.SubjectsByID(ctx, 1))(t); !slices.Equal(got, []string{"other", "user-value"}) {
		t.Errorf("subjects of 1: %v", got)
	}
	if got := must(c.SchemaVersionsByID(ctx, 1))(t); fmt.Sprint(got) != "[{other 1} {user-value 1}]" {
		t.Errorf("versions of 1: %v", got)
	}
	if got := must(c.SchemaUsagesByID(ctx, 1))(t); len(got) != 2 {
		t.Errorf("usages of 1: %v", got)
	}
	if got := must(c.Schemas(ctx, "user-value"))(t); len(got) != 2 {
		t.Errorf("schemas of a subject: %v", got)
	}
	if got := must(c.AllSchemas(ctx))(t); len(got) != 5 {
		t.Errorf("all schemas: %v", got)
	}
	if got := must(c.LookupSchema(ctx, "user-value", sr.Schema{Schema: userV1 + "\n"}))(t); got.Version != 1 || got.ID != 1 {
		t.Errorf("lookup %+v", got)
	}
	if got := must(c.CreateSchema(sr.WithParams(ctx, sr.Normalize), "tidy", sr.Schema{Type: sr.TypeJSON, Schema: `{ "type" : "number" }`}))(t); got.Schema.Schema != `{"type":"number"}` {
		t.Errorf("normalized %+v", got)
	}
	_, err := c.LookupSchema(ctx, "user-value", sr.Schema{Schema: userV3})
	fails(t, err, 404, 40403)
	_, err = c.LookupSchema(ctx, "nobody", sr.Schema{Schema: userV3})
	fails(t, err, 404, 40401)
	_, err = c.SchemaByVersion(ctx, "user-value", 9)
	fails(t, err, 404, 40402)
	_, err = c.SchemaByID(ctx, 99)
	fails(t, err, 404, 40403)
	_, err = c.CreateSchema(ctx, "user-value", sr.Schema{Schema: userV3})
	fails(t, err, 409, 409)
	_, err = c.CreateSchema(ctx, "user-value", sr.Schema{Schema: `{"type":"nothing"}`})
	fails(t, err, 422, 42201)
	_, err = c.CreateSchemaWithIDAndVersion(ctx, "user-value", sr.Schema{Schema: userV2}, 17, 3)
	fails(t, err, 422, 42205)
	_, err = c.CreateSchema(ctx, "user-value", sr.Schema{Schema: userV2, SchemaMetadata: &sr.SchemaMetadata{Sensitive: []string{"x"}}})
	fails(t, err, 422, 42205)
	_, err = c.SchemaByGUID(ctx, "x")
	fails(t, err, 404, 404)
	fails(t, c.DeleteContext(ctx, "x"), 422, 42208)
}

func TestClientCompatibility(t *testing.T) {
	c, ctx := connect(t), context.Background()
	level := func(want sr.CompatibilityLevel, subjects ...string) {
		t.Helper()
		for _, got := range c.Compatibility(ctx, subjects...) {
			if got.Err != nil || got.Level != want {
				t.Errorf("%v: %+v, want %v", subjects, got, want)
			}
		}
	}
	level(sr.CompatBackward)
	for _, got := range c.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatForward}) {
		if got.Err != nil || got.Level != sr.CompatForward {
			t.Errorf("%+v", got)
		}
	}
	level(sr.CompatForward)
	fails(t, c.Compatibility(ctx, "user")[0].Err, 404, 40408)
	if got := c.Compatibility(sr.WithParams(ctx, sr.DefaultToGlobal), "user")[0]; got.Err != nil || got.Level != sr.CompatForward {
		t.Errorf("%+v", got)
	}
	c.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFullTransitive}, "user")
	level(sr.CompatFullTransitive, "user")
	if got := c.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull, Alias: "x"}, "user")[0]; got.Err == nil {
		t.Error("an alias was taken")
	}
	if got := c.ResetCompatibility(ctx, "user")[0]; got.Err != nil || got.Level != sr.CompatFullTransitive {
		t.Errorf("%+v", got)
	}
	fails(t, c.ResetCompatibility(ctx, "user")[0].Err, 404, 40408)
	if got := c.ResetCompatibility(ctx)[0]; got.Err != nil || got.Level != sr.CompatForward {
		t.Errorf("%+v", got)
	}
	level(sr.CompatBackward)

	must(c.CreateSchema(ctx, "user", sr.Schema{Schema: userV1}))(t)
	for _, version := range []int{1, -1, -2} {
		if got := must(c.CheckCompatibility(ctx, "user", version, sr.Schema{Schema: userV2}))(t); !got.Is || len(got.Messages) != 0 {
			t.Errorf("against %d: %+v", version, got)
		}
		if got := must(c.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "user", version, sr.Schema{Schema: userV3}))(t); got.Is || len(got.Messages) != 1 {
			t.Errorf("against %d: %+v", version, got)
		}
	}
	_, err := c.CheckCompatibility(ctx, "user", 7, sr.Schema{Schema: userV1})
	fails(t, err, 404, 40402)
	if got := must(c.CheckCompatibility(ctx, "nobody", -1, sr.Schema{Schema: userV1}))(t); !got.Is {
		t.Errorf("%+v", got)
	}

	for _, got := range slices.Concat(c.Mode(ctx), c.Mode(ctx, "user"), c.SetMode(ctx, sr.ModeReadWrite), c.ResetMode(ctx, "user")) {
		if got.Err != nil || got.Mode != sr.ModeReadWrite {
			t.Errorf("mode %+v", got)
		}
	}
	fails(t, c.SetMode(ctx, sr.ModeReadOnly)[0].Err, 422, 42205)
}

func TestClientDeletes(t *testing.T) {
	c, ctx := connect(t), context.Background()
	for _, s := range []string{userV1, userV2} {
		must(c.CreateSchema(ctx, "user", sr.Schema{Schema: s}))(t)
	}
	refs := []sr.SchemaReference{{Name: "User", Subject: "user", Version: 2}}
	team := must(c.CreateSchema(ctx, "team", sr.Schema{Schema: `{"type":"array","items":"User"}`, References: refs}))(t)
	if !slices.Equal(team.References, refs) {
		t.Errorf("%+v", team)
	}
	if got := must(c.SchemaReferences(ctx, "user", 2))(t); len(got) != 1 || got[0].Subject != "team" {
		t.Errorf("references %v", got)
	}
	_, err := c.CreateSchema(ctx, "team2", sr.Schema{Schema: `{"type":"array","items":"User"}`, References: []sr.SchemaReference{{Name: "User", Subject: "user", Version: 9}}})
	fails(t, err, 422, 42201)
	fails(t, c.DeleteSchema(ctx, "user", 2, sr.SoftDelete), 422, 42206)
	fails(t, c.DeleteSchema(ctx, "user", 1, sr.HardDelete), 404, 40407)
	if err := c.DeleteSchema(ctx, "user", 1, sr.SoftDelete); err != nil {
		t.Fatal(err)
	}
	fails(t, c.DeleteSchema(ctx, "user", 1, sr.SoftDelete), 404, 40406)
	fails(t, c.DeleteSchema(ctx, "user", 7, sr.SoftDelete), 404, 40402)
	_, err = c.SchemaByVersion(ctx, "user", 1)
	fails(t, err, 404, 40402)
	if got := must(c.SchemaByVersion(sr.WithParams(ctx, sr.ShowDeleted), "user", 1))(t); got.Version != 1 {
		t.Errorf("%+v", got)
	}
	if got := must(c.SubjectVersions(sr.WithParams(ctx, sr.ShowDeleted), "user"))(t); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("versions %v", got)
	}
	if got := must(c.DeleteSubject(ctx, "team", sr.SoftDelete))(t); !slices.Equal(got, []int{1}) {
		t.Errorf("deleted %v", got)
	}
	_, err = c.DeleteSubject(ctx, "team", sr.SoftDelete)
	fails(t, err, 404, 40404)
	_, err = c.DeleteSubject(ctx, "user", sr.HardDelete)
	fails(t, err, 404, 40405)
	if got := must(c.Subjects(sr.WithParams(ctx, sr.DeletedOnly)))(t); !slices.Equal(got, []string{"team"}) {
		t.Errorf("deleted subjects %v", got)
	}
	if got := must(c.DeleteSubject(ctx, "team", sr.HardDelete))(t); !slices.Equal(got, []int{1}) {
		t.Errorf("deleted %v", got)
	}
	must(c.DeleteSubject(ctx, "user", sr.SoftDelete))(t)
	must(c.DeleteSubject(ctx, "user", sr.HardDelete))(t)
	if got := must(c.Subjects(sr.WithParams(ctx, sr.ShowDeleted)))(t); len(got) != 0 {
		t.Errorf("subjects %v", got)
	}
	_, err = c.DeleteSubject(ctx, "user", sr.SoftDelete)
	fails(t, err, 404, 40401)
}
