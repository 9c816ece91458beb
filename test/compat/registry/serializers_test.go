// Package registry holds the schema registry against the serializers that were made for Confluent's: they run unchanged,
// and what they write is published to topics that refuse what does not match. It never reaches into the broker. Its
// invariant: no broker and no script outlives its test.
package registry

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/compat/python"
	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// TestPythonSerializers runs Confluent's serializers for Python: see testdata/serializers.py for what they do. What they
// wrote is then published to topics that enforce the schemas they registered.
func TestPythonSerializers(t *testing.T) {
	python.Interpreter(t)
	for name, payloads := range map[string]int{"avro": 3, "json": 2, "references": 2, "protobuf": 5, "known": 1, "text": 3} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
			defer cancel()
			b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
			s := python.Start(ctx, t, "testdata/serializers.py", "http://"+b.HTTP, name)
			topics := map[string]*client.Producer{}
			n := 0
			for line := s.Line(); line != "done"; line = s.Line() {
				topic, text, _ := strings.Cut(line, " ")
				payload, err := hex.DecodeString(text)
				if err != nil || len(payload) < 6 {
					t.Fatalf("the script says %q", line)
				}
				if topics[topic] == nil {
					topics[topic] = enforced(ctx, t, b, topic)
				}
				publish(ctx, t, topics[topic], payload)
				n++
			}
			if n != payloads {
				t.Errorf("%d payloads, want %d", n, payloads)
			}
		})
	}
}

// enforced makes a topic that holds payloads against the subject Confluent's serializers use for it.
func enforced(ctx context.Context, t *testing.T, b *proc.Broker, topic string) *client.Producer {
	t.Helper()
	c := b.Dial()
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: topic}); err != nil {
		t.Fatal(err)
	}
	if got := proc.Run(t, nil, "schema", "topic", topic, "--http", b.HTTP, "--policy", "enforce", "--subject", topic+"-value"); got.Code != 0 {
		t.Fatal(got.Stderr)
	}
	p, err := c.NewProducer(ctx, topic, client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// publish demands that a payload is taken, and that it is refused when something happened to it.
func publish(ctx context.Context, t *testing.T, p *client.Producer, payload []byte) {
	t.Helper()
	if _, err := p.PublishSync(ctx, record.Record{Value: payload}); err != nil {
		t.Errorf("%x: %v", payload, err)
	}
	for name, mangled := range map[string][]byte{
		"cut short": payload[:len(payload)-1], "with more behind it": append(payload[:len(payload):len(payload)], 0xff),
	} {
		_, err := p.PublishSync(ctx, record.Record{Value: mangled})
		var e *client.Error
		if !errors.As(err, &e) || e.Details["reason"] != "schema_mismatch" {
			t.Errorf("%x, %s: %v", payload, name, err)
		}
	}
}
