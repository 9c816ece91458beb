package cli

import (
	"net/http"
	"strings"
)

type schemaTopicCmd struct {
	httpFlags
	Name     string `arg:"" help:"The topic."`
	Policy   string `enum:"none,warn,enforce," default:"" placeholder:"POLICY" help:"none, warn (log and count what does not match) or enforce (refuse it)."`
	Subject  string `placeholder:"SUBJECT" help:"The subject whose versions count."`
	NameOnly bool   `help:"Look only at which schema a record names, not at its payload."`
}

type topicSchemaJSON struct {
	Topic    string `json:"topic" doc:"the topic"`
	Subject  string `json:"subject" doc:"whose versions count"`
	Policy   string `json:"policy" doc:"none, warn or enforce"`
	Validate bool   `json:"validate" doc:"whether payloads are looked at"`
	SchemaID uint64 `json:"schema_id,omitempty" doc:"of the subject's latest version"`
}

// Help describes the command.
func (schemaTopicCmd) Help() string {
	return manual{
		text: "Without flags, prints what is set. A record names its schema in the header levee-schema-id or as Confluent's serializers do; " +
			"one that names none is held against the latest version of the subject.",
		example: "levee schema topic orders --policy enforce --subject orders-value\nlevee schema topic orders",
		rows:    "one object", row: topicSchemaJSON{},
	}.String()
}

// Run sets or prints what the topic is held against.
func (c *schemaTopicCmd) Run(a *app) error {
	namespace, topic, ok := strings.Cut(c.Name, "/")
	if !ok {
		namespace, topic = "default", c.Name
	}
	if c.Policy == "" && (c.Subject != "" || c.NameOnly) {
		return usagef("--subject and --name-only go with --policy")
	}
	method, body := http.MethodGet, any(nil)
	if c.Policy != "" {
		method, body = http.MethodPut, map[string]any{"subject": c.Subject, "policy": c.Policy, "validate": c.Policy != "none" && !c.NameOnly}
	}
	set := topicSchemaJSON{Topic: namespace + "/" + topic}
	if err := c.call(a, method, "/v1/topics/"+namespace+"/"+topic+"/schema", nil, body, &set); err != nil {
		return onTopic(c.Name, err)
	}
	switch {
	case set.Policy == "none":
		return a.print(set, "%s: nothing is checked", set.Topic)
	case set.SchemaID == 0:
		return a.print(set, "%s: %s, subject %s, which has no version yet", set.Topic, set.Policy, set.Subject)
	}
	return a.print(set, "%s: %s, subject %s, latest schema id %d", set.Topic, set.Policy, set.Subject, set.SchemaID)
}
