package registry

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// ask sends one request and returns status, content type and body.
func ask(t *testing.T, h http.Handler, method, target, body string) (status int, kind, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Code, w.Header().Get("Content-Type"), strings.TrimSpace(w.Body.String())
}

// TestAnswers: what goes over the wire, to the letter.
func TestAnswers(t *testing.T) {
	_, s := serve(t)
	h := New(func() *broker.Schemas { return s })
	const user = `{\"type\":\"record\",\"name\":\"User\",\"fields\":[]}`
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string // the answer; with a * at its end, its beginning
	}{
		{"GET", "/subjects", "", 200, `[]`},
		{"POST", "/subjects/user/versions", `{"schema":"` + user + `"}`, 200, `{"id":1,"version":1}`},
		{"POST", "/subjects/:.:user/versions/", `{"schema":"` + user + `","schemaType":"AVRO","references":[],"id":-1,"version":0,"metadata":null,"ruleSet":{}}`, 200, `{"id":1,"version":1}`},
		{"POST", "/subjects/user", `{"schema":"` + user + `"}`, 200, `{"subject":"user","id":1,"version":1,"schema":"` + user + `"}`},
		{"GET", "/subjects/user/versions/latest", "", 200, `{"subject":"user","id":1,"version":1,"schema":"` + user + `"}`},
		{"GET", "/subjects/user/versions/-1?format=default&fetchMaxId=false", "", 200, `{"subject":"user","id":1,"version":1,"schema":"` + user + `"}`},
		{"GET", "/subjects/user/versions/1/schema", "", 200, strings.ReplaceAll(user, `\`, "")},
		{"GET", "/subjects/user/versions/1/referencedby", "", 200, `[]`},
		{"GET", "/subjects/user/versions/1/referencedBy", "", 200, `[]`},
		{"GET", "/subjects/user/versions/1/nothing", "", 404, `{"error_code":404,*`},
		{"GET", "/schemas/ids/1", "", 200, `{"schema":"` + user + `"}`},
		{"GET", "/schemas/ids/1/subjects?subject=user", "", 200, `["user"]`},
		{"GET", "/schemas/ids/1/subjects?subject=other", "", 200, `[]`},
		{"GET", "/schemas/ids/1/versions", "", 200, `[{"subject":"user","version":1}]`},
		{"GET", "/schemas/ids/one", "", 404, `{"error_code":40403,*`},
		{"GET", "/schemas/types", "", 200, `["JSON","PROTOBUF","AVRO"]`},
		{"GET", "/schemas?subjectPrefix=:*:us&latestOnly=true", "", 200, `[{"subject":"user","id":1,"version":1,"schema":"` + user + `"}]`},
		{"GET", "/schemas?offset=1&limit=-1", "", 200, `[]`},
		{"GET", "/schemas?offset=x", "", 400, `{"error_code":400,*`},
		{"POST", "/subjects/text/versions", `{"schema":"","schemaType":"string"}`, 200, `{"id":2,"version":1}`},
		{"GET", "/subjects/text/versions/1", "", 200, `{"subject":"text","id":2,"version":1,"schemaType":"STRING","schema":""}`},
		{"GET", "/contexts/.:/subjects", "", 422, `{"error_code":42208,*`},
		{"GET", "/contexts/%3A.%3A/subjects", "", 200, `["text","user"]`},
		{"GET", "/contexts/./subjects", "", 200, `["text","user"]`},
		{"GET", "/contexts/other/subjects", "", 422, `{"error_code":42208,*`},
		{"GET", "/subjects/:.other:user/versions", "", 422, `{"error_code":42208,*`},
		{"POST", "/compatibility/subjects/user/versions/latest", `{"schema":"` + user + `"}`, 200, `{"is_compatible":true}`},
		{"POST", "/compatibility/subjects/user/versions?verbose=true", `{"schema":"` + user + `"}`, 200, `{"is_compatible":true,"messages":[]}`},
		{"POST", "/compatibility/subjects/user/versions?verbose=true", `{"schema":"\"int\""}`, 200, `{"is_compatible":false,"messages":["version 1: *`},
		{"GET", "/config", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"PUT", "/config/user", `{"compatibility":"full"}`, 200, `{"compatibility":"FULL"}`},
		{"GET", "/config/__GLOBAL", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"PUT", "/config/user", `{"compatibility":"FULLER"}`, 422, `{"error_code":42203,*`},
		{"PUT", "/config/user", `{"compatibility":5}`, 400, `{"error_code":400,*`},
		{"PUT", "/config/user", `{}`, 422, `{"error_code":42203,*`},
		{"PUT", "/config/user", `{"compatibility":"FULL","normalize":true}`, 422, `{"error_code":42205,*`},
		{"PUT", "/config/user", `{"compatibility":"FULL","normalize":false,"alias":""}`, 200, `{"compatibility":"FULL"}`},
		{"PUT", "/mode", `{"mode":"SIDEWAYS"}`, 422, `{"error_code":42204,*`},
		{"GET", "/mode/user?defaultToGlobal=true", "", 200, `{"mode":"READWRITE"}`},
		{"GET", "/subjects/user/versions/zero", "", 422, `{"error_code":42202,*`},
		{"GET", "/subjects/user/versions/0", "", 422, `{"error_code":42202,*`},
		{"GET", "/subjects/nobody/versions", "", 404, `{"error_code":40401,*`},
		{"POST", "/subjects/user/versions", `{"schema":"{"}`, 422, `{"error_code":42201,*`},
		{"POST", "/subjects/user/versions", `{"schema":"x","schemaType":"XML"}`, 422, `{"error_code":42201,*`},
		{"POST", "/subjects/user/versions", `{"schema":`, 400, `{"error_code":400,*`},
		{"POST", "/subjects/user/versions", `{"schema":"` + strings.Repeat("x", maxBody) + `"}`, 413, `{"error_code":413,*`},
		{"POST", "/subjects/user/versions?normalize=perhaps", `{"schema":"` + user + `"}`, 400, `{"error_code":400,*`},
		{"GET", "/subjects?deleted=perhaps", "", 400, `{"error_code":400,*`},
		{"DELETE", "/subjects/user?permanent=perhaps", "", 400, `{"error_code":400,*`},
		{"DELETE", "/subjects/user/versions/latest", "", 200, `1`},
		{"GET", "/subjects/user/versions/1?deleted=true", "", 200, `{"subject":"user","id":1,"version":1,"schema":"` + user + `","deleted":true}`},
		{"DELETE", "/subjects/user/versions/1?permanent=true", "", 200, `1`},
		{"PATCH", "/subjects", "", 405, `{"error_code":405,*`},
		{"POST", "/schemas/types", "", 405, `{"error_code":405,*`},
		{"GET", "/schemas/nothing", "", 404, `{"error_code":404,*`},
	} {
		status, kind, text := ask(t, h, c.method, c.target, c.body)
		start, open := strings.CutSuffix(c.want, "*")
		if status != c.status || kind != contentType || text != c.want && (!open || !strings.HasPrefix(text, start)) {
			t.Errorf("%s %s: %d %s %.300s, want %d %s", c.method, c.target, status, kind, text, c.status, c.want)
		}
		if status >= 300 {
			var said struct {
				Code    int    `json:"error_code"`
				Message string `json:"message"`
			}
			if err := json.Unmarshal([]byte(text), &said); err != nil || said.Message == "" {
				t.Errorf("%s %s: %s", c.method, c.target, text)
			}
		}
	}
}

// TestSerialized: a Protobuf schema is answered as descriptor to who asks for it, in whichever form it was registered.
func TestSerialized(t *testing.T) {
	_, s := serve(t)
	h := New(func() *broker.Schemas { return s })
	get := func(target string) (schema string) {
		t.Helper()
		status, _, text := ask(t, h, "GET", target, "")
		var got struct{ Schema, SchemaType string }
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || got.SchemaType != "PROTOBUF" {
			t.Fatalf("%s: %d %s (%v)", target, status, text, err)
		}
		return got.Schema
	}
	send := func(target, schema, rest, want string) {
		t.Helper()
		if status, _, text := ask(t, h, "POST", target, `{"schemaType":"PROTOBUF","schema":"`+schema+`"`+rest+`}`); status != 200 || text != want {
			t.Errorf("%s: %d %s, want %s", target, status, text, want)
		}
	}
	const item, order = `syntax = 'proto3'; message Item { string name = 1; }`, `syntax = 'proto3'; import 'item.proto'; message Order { Item item = 1; }`
	const references = `,"references":[{"name":"item.proto","subject":"item","version":1}]`
	send("/subjects/item/versions", item, "", `{"id":1,"version":1}`)
	send("/subjects/order/versions", order, references, `{"id":2,"version":1}`)
	described := get("/subjects/order/versions/1?format=serialized")
	if raw, err := base64.StdEncoding.DecodeString(described); err != nil || !strings.Contains(string(raw), "item.proto") || described != get("/schemas/ids/2?format=serialized&subject=order") {
		t.Errorf("%s: %v", described, err)
	}
	for _, target := range []string{"/schemas/ids/2", "/subjects/order/versions/latest", "/schemas/ids/2?format=other", "/subjects/order/versions/1?format="} {
		if got := get(target); got != order {
			t.Errorf("%s: %s", target, got)
		}
	}
	send("/compatibility/subjects/order/versions/latest", described, references, `{"is_compatible":true}`)
	send("/subjects/order/versions", described, references, `{"id":2,"version":1}`) // it is there, as text
	send("/subjects/other/versions", described, references, `{"id":3,"version":1}`)
	send("/subjects/other/versions", order, references, `{"id":3,"version":1}`)
	send("/compatibility/subjects/other/versions/latest", order, references, `{"is_compatible":true}`)
	if got := get("/schemas/ids/3"); got != described || get("/schemas/ids/3?format=serialized") != described {
		t.Errorf("%s, registered as %s", got, described)
	}
	if status, _, text := ask(t, h, "POST", "/subjects/order", `{"schemaType":"PROTOBUF","schema":"`+described+`"`+references+`}`); status != 200 || !strings.Contains(text, `"version":1`) {
		t.Errorf("looked up: %d %s", status, text)
	}
	ask(t, h, "POST", "/subjects/number/versions", `{"schema":"\"int\""}`)
	if status, _, text := ask(t, h, "GET", "/schemas/ids/4?format=serialized", ""); status != 200 || text != `{"schema":"\"int\""}` {
		t.Errorf("Avro: %d %s", status, text)
	}
}

func TestStarting(t *testing.T) {
	h := New(func() *broker.Schemas { return nil })
	if status, _, text := ask(t, h, "GET", "/subjects", ""); status != 503 || !strings.Contains(text, `"error_code":503`) {
		t.Errorf("%d %s", status, text)
	}
}

func TestCodes(t *testing.T) {
	for kind, want := range map[fault.Kind]int{fault.Internal: 50001, fault.IO: 50001, fault.Timeout: 50002, fault.Unavailable: 503, fault.InvalidArgument: 400, fault.Exhausted: 429} {
		if status, code := codes(fault.New(kind, "x")); code != want || status != kind.Row().HTTP {
			t.Errorf("%v: %d %d", kind, status, code)
		}
	}
}

// TestBodiesAreBounded: no more bodies than allowed are read at once.
func TestBodiesAreBounded(t *testing.T) {
	_, s := serve(t)
	h := New(func() *broker.Schemas { return s })
	var ends []*io.PipeWriter
	answers := make(chan int, maxBodies)
	for range maxBodies {
		r, w := io.Pipe()
		ends = append(ends, w)
		go func() {
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest("POST", "/subjects/a/versions", r))
			answers <- answer.Code
		}()
		if _, err := w.Write([]byte(`{"schema":"\"int\"",`)); err != nil { // it is being read
			t.Fatal(err)
		}
	}
	if status, _, text := ask(t, h, "POST", "/subjects/a/versions", `{"schema":"\"int\""}`); status != 429 {
		t.Errorf("%d %s", status, text)
	}
	for _, w := range ends {
		if _, err := w.Write([]byte(`"schemaType":"AVRO"}`)); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
	}
	for range maxBodies {
		if status := <-answers; status != 200 {
			t.Errorf("answered %d", status)
		}
	}
}
