package danube_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/api/codec"
	"github.com/leveemq/levee/api/danube"
	danubeadmin "github.com/leveemq/levee/api/danube/admin"
	danubeschema "github.com/leveemq/levee/api/danube/schema"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestWire compares what is generated with the list of Danube's wire that was made without our .proto files: a client
// sees numbers and types, and the path of a call.
func TestWire(t *testing.T) {
	want, err := os.ReadFile("testdata/wire.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range []protoreflect.FileDescriptor{
		danube.File_danube_danube_proto, danubeschema.File_danube_schema_schema_proto, danubeadmin.File_danube_admin_admin_proto,
	} {
		got = append(got, describe(f)...)
	}
	listed := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, line := range got {
		if !slices.Contains(listed, line) {
			t.Errorf("not on Danube's wire: %s", line)
		}
	}
	for _, line := range listed {
		if !slices.Contains(got, line) {
			t.Errorf("missing: %s", line)
		}
	}
}

func describe(f protoreflect.FileDescriptor) (lines []string) {
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			stream := ""
			if m.IsStreamingServer() {
				stream = "stream "
			}
			if m.IsStreamingClient() {
				stream += "(from the client) "
			}
			lines = append(lines, fmt.Sprintf("rpc %s %s %s %s%s", s.FullName(), m.Name(), m.Input().Name(), stream, m.Output().Name()))
		}
	}
	lines = append(lines, enums(f.Package(), f.Enums())...)
	for i := range f.Messages().Len() {
		m := f.Messages().Get(i)
		if m.Fields().Len() == 0 {
			lines = append(lines, "message "+string(m.FullName()))
		}
		lines = append(lines, enums(f.Package().Append(m.Name()), m.Enums())...)
		for j := range m.Fields().Len() {
			fd := m.Fields().Get(j)
			lines = append(lines, fmt.Sprintf("field %s %d %s %s", m.FullName(), fd.Number(), fd.Name(), kind(fd)))
		}
	}
	return lines
}

func enums(scope protoreflect.FullName, list protoreflect.EnumDescriptors) (lines []string) {
	for i := range list.Len() {
		e := list.Get(i)
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			lines = append(lines, fmt.Sprintf("enum %s %s %d", scope.Append(e.Name()), v.Name(), v.Number()))
		}
	}
	return lines
}

func kind(fd protoreflect.FieldDescriptor) string {
	if fd.IsMap() {
		return fmt.Sprintf("map<%s,%s>", fd.MapKey().Kind(), fd.MapValue().Kind())
	}
	name := fd.Kind().String()
	switch {
	case fd.Message() != nil:
		name = string(fd.Message().Name())
	case fd.Enum() != nil:
		name = string(fd.Enum().Name())
	}
	switch {
	case fd.IsList():
		return "repeated " + name
	case fd.HasOptionalKeyword():
		return "optional " + name
	case fd.ContainingOneof() != nil:
		return fmt.Sprintf("oneof %s %s", fd.ContainingOneof().Name(), name)
	}
	return name
}

// TestCodec sends every field through the broker's codec and through the standard library, in both directions.
func TestCodec(t *testing.T) {
	id, version, key := uint64(1<<63), uint32(7), "k"
	m := &danube.StreamMessage{
		RequestId: 1, MsgId: &danube.MsgID{ProducerId: 2, TopicName: "/default/t", BrokerAddr: "b", TopicOffset: 3}, Payload: []byte("p"),
		PublishTime: 4, ProducerName: "n", SubscriptionName: "s", Attributes: map[string]string{"a": "b", "": ""},
		SchemaId: &id, SchemaVersion: &version, RoutingKey: &key,
	}
	ours, err := codec.Codec{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var theirs danube.StreamMessage
	if err := proto.Unmarshal(ours.Materialize(), &theirs); err != nil || !proto.Equal(m, &theirs) {
		t.Errorf("the standard library read %v (%v), not %v", &theirs, err, m)
	}
	var back danube.StreamMessage
	if err := (codec.Codec{}).Unmarshal(ours, &back); err != nil || !proto.Equal(m, &back) {
		t.Errorf("the codec read %v (%v), not %v", &back, err, m)
	}
}
