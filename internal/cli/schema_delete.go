package cli

import (
	"net/http"
	"net/url"
)

type schemaDeleteCmd struct {
	httpFlags
	Subject   string `arg:"" help:"The subject."`
	Version   string `placeholder:"N|latest" help:"This version alone."`
	Permanent bool   `help:"For good; what is deleted so must have been deleted without this flag first."`
}

type deletedSchemaJSON struct {
	Subject  string  `json:"subject" doc:"the subject"`
	Versions []int32 `json:"versions" doc:"which were deleted"`
}

// Help describes the command.
func (schemaDeleteCmd) Help() string {
	return manual{
		text:    "A deleted version can still be read by its id and its number, and no longer counts for anything else. A version that others refer to cannot be deleted.",
		example: "levee schema delete orders-value --version 3\nlevee schema delete orders-value\nlevee schema delete orders-value --permanent",
		rows:    "one object", row: deletedSchemaJSON{},
	}.String()
}

// Run deletes.
func (c *schemaDeleteCmd) Run(a *app) error {
	query := url.Values{}
	if c.Permanent {
		query.Set("permanent", "true")
	}
	deleted := deletedSchemaJSON{Subject: c.Subject}
	var err error
	if c.Version != "" {
		deleted.Versions = make([]int32, 1)
		err = c.call(a, http.MethodDelete, subjectPath(c.Subject)+"/versions/"+url.PathEscape(c.Version), query, nil, &deleted.Versions[0])
	} else {
		err = c.call(a, http.MethodDelete, subjectPath(c.Subject), query, nil, &deleted.Versions)
	}
	if err != nil {
		return withHint(err, "levee schema ls --deleted")
	}
	return a.print(deleted, "deleted versions %d of %s", deleted.Versions, c.Subject)
}
