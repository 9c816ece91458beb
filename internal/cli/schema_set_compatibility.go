package cli

import (
	"net/http"
	"net/url"
	"strings"
)

type schemaSetCompatibilityCmd struct {
	httpFlags
	Mode    string `arg:"" enum:"none,backward,backward_transitive,forward,forward_transitive,full,full_transitive,default" help:"none, backward, forward or full, or one of the last three with _transitive; default unsets it."`
	Subject string `placeholder:"SUBJECT" help:"Of this subject; without it, of all that have no mode of their own."`
}

type compatibilityJSON struct {
	Subject string `json:"subject,omitempty" doc:"absent for the one that all share"`
	Mode    string `json:"mode" doc:"the mode set, or default"`
}

// Help describes the command.
func (schemaSetCompatibilityCmd) Help() string {
	return manual{
		text: "backward: the new version reads what the last one wrote. forward: the last one reads what the new one writes. full: both. " +
			"With _transitive, all versions count and not only the last one. Where nothing is set it is backward.",
		example: "levee schema set-compatibility full --subject orders-value\nlevee schema set-compatibility forward_transitive",
		rows:    "one object", row: compatibilityJSON{},
	}.String()
}

// Run sets the mode.
func (c *schemaSetCompatibilityCmd) Run(a *app) error {
	path := "/config"
	of := "all subjects without their own"
	if c.Subject != "" {
		path += "/" + url.PathEscape(c.Subject)
		of = c.Subject
	}
	method, body := http.MethodPut, any(map[string]string{"compatibility": strings.ToUpper(c.Mode)})
	if c.Mode == unsetValue {
		method, body = http.MethodDelete, nil
	}
	var answer struct{}
	if err := c.call(a, method, path, nil, body, &answer); err != nil {
		return withHint(err, "levee schema ls")
	}
	return a.print(compatibilityJSON{c.Subject, c.Mode}, "compatibility of %s: %s", of, c.Mode)
}
