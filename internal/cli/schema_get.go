package cli

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

type schemaGetCmd struct {
	httpFlags
	Subject string `arg:"" optional:"" help:"The subject."`
	Version string `default:"latest" placeholder:"N|latest" help:"Which version."`
	ID      uint64 `name:"id" help:"The schema with this id, whatever subject has it."`
}

// Help describes the command.
func (schemaGetCmd) Help() string {
	return manual{
		text:    "Prints the definition as it was registered.",
		example: "levee schema get orders-value\nlevee schema get orders-value --version 2\nlevee schema get --id 7",
		rows:    "one object", row: schemaJSON{},
	}.String()
}

// Run prints the schema.
func (c *schemaGetCmd) Run(a *app) error {
	if (c.Subject == "") == (c.ID == 0) {
		return usagef("name a subject, or give --id")
	}
	path := subjectPath(c.Subject) + "/versions/" + url.PathEscape(c.Version)
	if c.ID != 0 {
		path = "/schemas/ids/" + strconv.FormatUint(c.ID, 10)
	}
	var found wireSchema
	if err := c.call(a, http.MethodGet, path, nil, nil, &found); err != nil {
		return withHint(err, "levee schema ls")
	}
	if c.ID != 0 {
		found.ID = c.ID
	}
	return a.print(found.row(), "%s", strings.TrimRight(found.Schema, "\n"))
}
