package cli

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

type schemaCheckCmd struct {
	httpFlags
	schemaSource
	Subject string `arg:"" help:"The subject."`
	File    string `arg:"" help:"The definition; - for standard input."`
	Version string `placeholder:"N|latest" help:"Check against this version alone, and not against those the subject's compatibility names."`
}

type schemaCheckJSON struct {
	Subject    string   `json:"subject" doc:"the subject"`
	Compatible bool     `json:"compatible" doc:"whether the schema could be its next version"`
	Problems   []string `json:"problems" doc:"what breaks"`
}

// Help describes the command.
func (schemaCheckCmd) Help() string {
	return manual{
		text:    "Changes nothing. Exits with 1 where the schema is not compatible.",
		example: "levee schema check orders-value order.avsc\nlevee schema check orders-value order.avsc --version 1",
		rows:    "one object", row: schemaCheckJSON{},
	}.String()
}

// Run checks the schema.
func (c *schemaCheckCmd) Run(a *app) error {
	s, err := c.load(a, c.File)
	if err != nil {
		return err
	}
	path := "/compatibility" + subjectPath(c.Subject) + "/versions"
	if c.Version != "" {
		path += "/" + url.PathEscape(c.Version)
	}
	var answer struct {
		Compatible bool     `json:"is_compatible"`
		Messages   []string `json:"messages"`
	}
	if err := c.call(a, http.MethodPost, path, url.Values{"verbose": {"true"}}, s, &answer); err != nil {
		return withHint(err, "levee schema ls "+c.Subject)
	}
	if answer.Compatible {
		return a.print(schemaCheckJSON{c.Subject, true, []string{}}, "compatible with %s", c.Subject)
	}
	if a.json {
		if err := a.print(schemaCheckJSON{c.Subject, false, answer.Messages}, ""); err != nil {
			return err
		}
	}
	return fault.New(fault.Conflict, "not compatible with %s:\n%s", c.Subject, strings.Join(answer.Messages, "\n"))
}
