package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/leveemq/levee/record"
)

func TestTemplate(t *testing.T) {
	r := record.Record{Offset: 42, Timestamp: 1764441000250, Key: []byte("k"), Value: []byte("v\x00w"),
		Headers: []record.Header{{Key: "a", Value: []byte("1")}, {Key: "b", Value: nil}}}
	for _, c := range []struct{ in, out string }{
		{`%v\n`, "v\x00w\n"},
		{`%p/%o %k=%v`, "3/42 k=v\x00w"},
		{`%t`, "2025-11-29T18:30:00.250Z"},
		{`[%h]`, "[a=1,b=]"},
		{`100%% %%o`, "100% %o"},
		{`\t%o\n`, "\t42\n"},
		{`ü%oü`, "ü42ü"},
		{``, ""},
	} {
		tpl, err := parseTemplate(c.in)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if got := string(tpl.append(nil, 3, &r)); got != c.out {
			t.Errorf("%q: got %q, want %q", c.in, got, c.out)
		}
	}
	for _, bad := range []string{`%`, `%x`, `a%`, `%ü`, `\q`, `%\n`} {
		if _, err := parseTemplate(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestRecordJSON(t *testing.T) {
	for _, c := range []struct {
		r    record.Record
		want string
	}{
		{record.Record{Offset: 1, Timestamp: 2, Key: []byte("k"), Value: []byte("<v>")},
			`{"partition":7,"offset":1,"timestamp":2,"key":"k","value":"<v>","headers":[]}`},
		{record.Record{Value: []byte{}},
			`{"partition":7,"offset":0,"timestamp":0,"key":null,"value":"","headers":[]}`},
		{record.Record{Key: []byte{0xff}, Value: []byte{0xfe}, Headers: []record.Header{{Key: "h", Value: []byte{0xff}}, {Key: "i"}}},
			`{"partition":7,"offset":0,"timestamp":0,"key":null,"key_base64":"/w==","value":null,"value_base64":"/g==","headers":[{"key":"h","value":null,"value_base64":"/w=="},{"key":"i","value":null}]}`},
	} {
		var b strings.Builder
		if err := writeJSON(&b, newRecordJSON(7, &c.r)); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(b.String()); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		if !json.Valid([]byte(b.String())) {
			t.Errorf("not JSON: %s", b.String())
		}
	}
}
