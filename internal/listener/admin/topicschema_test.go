package admin

import "testing"

func TestTopicSchema(t *testing.T) {
	si := serve(t, nil)
	topic := si.topic("default/a", "")
	target := topic + "/schema"
	want := func(method, body string, expect topicSchemaJSON) {
		t.Helper()
		var got topicSchemaJSON
		if si.want(200, method, target, body).json(t, &got); got != expect {
			t.Errorf("%s %s: %+v, want %+v", method, body, got, expect)
		}
	}
	want("GET", "", topicSchemaJSON{Policy: "none"})
	want("PUT", `{"subject":"s","policy":"enforce"}`, topicSchemaJSON{Subject: "s", Policy: "enforce", Validate: true})
	if e := si.do("POST", topic+"/records", "x", "Content-Type", asText).fault(t); e.Kind != "invalid_argument" || e.Details["reason"] != "schema_mismatch" {
		t.Errorf("%+v", e)
	}
	want("PUT", `{"subject":"s","policy":"warn","validate":false}`, topicSchemaJSON{Subject: "s", Policy: "warn"})
	si.want(400, "PUT", target, `{"policy":"enforce"}`)
	si.want(400, "PUT", target, `{"subject":"s","policy":"sometimes"}`)
	si.want(400, "PUT", target, `{"subjects":"s"}`)
	si.want(404, "PUT", topic+"x/schema", `{"subject":"s","policy":"warn"}`)
	want("DELETE", "", topicSchemaJSON{Policy: "none"})
	want("GET", "", topicSchemaJSON{Policy: "none"})
	si.want(200, "POST", topic+"/records", "x", "Content-Type", asText)
}
