package cli

import (
	"net/http"
	"net/url"
)

type schemaLsCmd struct {
	httpFlags
	Subject string `arg:"" optional:"" help:"List the versions of this one."`
	Deleted bool   `help:"Those that are deleted and not gone, too."`
}

// Help describes the command.
func (schemaLsCmd) Help() string {
	return manual{
		text:    "Without a subject, the latest version of each. Definitions are left out: levee schema get prints them.",
		example: "levee schema ls\nlevee schema ls orders-value --deleted",
		rows:    "one object a version", row: schemaJSON{},
	}.String()
}

// Run prints the versions.
func (c *schemaLsCmd) Run(a *app) error {
	query := url.Values{"subjectPrefix": {c.Subject}}
	if c.Subject == "" {
		query.Set("latestOnly", "true")
	}
	if c.Deleted {
		query.Set("deleted", "true")
	}
	var all []wireSchema
	if err := c.call(a, http.MethodGet, "/schemas", query, nil, &all); err != nil {
		return err
	}
	t := a.table("SUBJECT", "VERSION", "ID", "TYPE", "")
	for _, v := range all {
		if c.Subject != "" && v.Subject != c.Subject {
			continue // it only begins like it
		}
		row := v.row()
		row.Schema = ""
		note := ""
		if row.Deleted {
			note = "deleted"
		}
		if err := t.row(row, row.Subject, row.Version, row.ID, row.Type, note); err != nil {
			return err
		}
	}
	return t.end()
}
