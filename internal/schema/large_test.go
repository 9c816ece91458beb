package schema

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLargeSchemas: definitions near the limit are read and compared in seconds.
func TestLargeSchemas(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of computing")
	}
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i, i+1)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for _, c := range []struct {
		name     string
		kind     Type
		old      string
		from, to string
		problems int
	}{
		{"avro fields", Avro, `{"type":"record","name":"R","fields":[` + repeat(15_000, `{"name":"f%d","type":["null","long"],"doc":"%d"},`) + `]}`, `"long"],"doc":"9"`, `"int"],"doc":"9"`, 1},
		{"json properties", JSONSchema, `{"properties":{` + repeat(15_000, `"p%d":{"type":"string","maxLength":%d},`) + `}}`, `"p7":{"type":"string"`, `"p7":{"type":"integer"`, 1},
		{"json definitions in a chain", JSONSchema, `{"properties":{"a":{"$ref":"#/definitions/d0"}},"definitions":{` +
			repeat(4_500, `"d%d":{"type":"object","properties":{"n":{"$ref":"#/definitions/d%d"}}},`) + `,"d4500":{"type":"string"}}}`, `"d4500":{"type":"string"`, `"d4500":{"type":"integer"`, 1},
		{"json alternatives", JSONSchema, `{"anyOf":[` + repeat(300, `{"properties":{"t":{"const":%d},"v":{"minimum":%d}},"required":["t"]},`) + `]}`, `"const":7`, `"const":1000`, 1},
		{"json exclusive alternatives", JSONSchema, `{"oneOf":[` + repeat(300, `{"type":"object","properties":{"t":{"const":%d},"v":{"minimum":%d}},"required":["t"]},`) + `]}`, `"const":7`, `"const":1000`, 1},
		{"proto messages", Protobuf, `syntax = "proto3"; ` + repeat(12_000, "message M%d { string name = 1; int64 age = 2; M%d next = 3; }\n") + `message M12000 {}`, `message M9 { string`, `message M9 { bool`, 1},
	} {
		start := time.Now()
		older := parse(t, c.kind, c.old)
		read := time.Since(start)
		start = time.Now()
		newer := parse(t, c.kind, strings.Replace(c.old, c.from, c.to, 1))
		found := newer.impl.reads(older.impl)
		t.Logf("%s: %d bytes, read in %v, again and compared in %v, %d problems", c.name, len(c.old), read, time.Since(start), len(found))
		if len(found) != c.problems {
			t.Errorf("%s: %.300v, want %d", c.name, found, c.problems)
		}
		if took := time.Since(start); took > 20*time.Second || read > 20*time.Second {
			t.Errorf("%s took %v and %v", c.name, read, took)
		}
	}
}
