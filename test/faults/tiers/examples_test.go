package tiers

import (
	"maps"
	"path/filepath"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// TestExampleConfigurations runs a broker on each of the files in examples/config. They name places that are not here: of
// those the environment names others, which is all that it changes.
func TestExampleConfigurations(t *testing.T) {
	const folder = "../../../examples/config/"
	for file, s := range map[string]setup{
		"wal.yaml": {}, "wal-cloud.yaml": {store: bucket}, "wal-valkey.yaml": {buffer: single}, "wal-valkey-cloud.yaml": {store: bucket, buffer: single},
	} {
		t.Run(file, func(t *testing.T) {
			if res := proc.Run(t, nil, "config", "check", folder+file); res.Code != 0 {
				t.Fatalf("%+v", res)
			}
			env := map[string]string{}
			if s.store != nil {
				places := s.store(t).env
				for _, key := range []string{"ENDPOINT", "ACCESS_KEY", "SECRET_KEY"} {
					env["LEVEE_OBJECT_STORE_"+key] = places["LEVEE_OBJECT_STORE_"+key]
				}
			}
			if s.buffer != nil {
				places := s.buffer(t).env
				env["LEVEE_VALKEY_ADDRESSES"] = places["LEVEE_VALKEY_ADDRESSES"]
			}
			try(t, proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{Env: maps.Clone(env), Args: []string{"--config", folder + file}}))
		})
	}
	files, err := filepath.Glob(folder + "*")
	if err != nil || len(files) != 4 {
		t.Errorf("%v, %v: a file that nobody tries", files, err)
	}
}

// try publishes to a broker and reads it back.
func try(t *testing.T, b *proc.Broker) {
	t.Helper()
	c := b.Dial()
	_, err := c.Admin().CreateTopic(t.Context(), client.TopicSpec{Name: "tried"})
	must(t, err)
	p, err := c.NewProducer(t.Context(), "tried", client.ProducerConfig{})
	must(t, err)
	_, err = p.PublishSync(t.Context(), record.Record{Value: []byte("a record")})
	must(t, err)
	must(t, p.Close(t.Context()))
	consumer, err := c.Consume(t.Context(), "tried", client.ConsumerConfig{})
	must(t, err)
	defer consumer.Close()
	if m, err := consumer.Next(t.Context()); err != nil || string(m.Value) != "a record" {
		t.Errorf("%q, %v", m.Value, err)
	}
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the stop ended with exit code %d", code)
	}
}
