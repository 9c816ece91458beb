package cli

import "net/http"

type schemaRegisterCmd struct {
	httpFlags
	schemaSource
	Subject string `arg:"" help:"The subject; it is made with its first version."`
	File    string `arg:"" help:"The definition; - for standard input."`
}

// Help describes the command.
func (schemaRegisterCmd) Help() string {
	return manual{
		text:    "A schema that the subject has already is not added again. One that breaks the subject's compatibility is refused, with what breaks.",
		example: "levee schema register orders-value order.avsc\nlevee schema register events event.json --type json\nlevee schema register team team.avsc --ref com.shop.User=user:2",
		rows:    "one object", row: schemaJSON{},
	}.String()
}

// Run registers the schema.
func (c *schemaRegisterCmd) Run(a *app) error {
	s, err := c.load(a, c.File)
	if err != nil {
		return err
	}
	var made wireSchema
	if err := c.call(a, http.MethodPost, subjectPath(c.Subject)+"/versions", nil, s, &made); err != nil {
		return withHint(err, "levee schema get "+c.Subject+", or levee schema check "+c.Subject+" "+c.File)
	}
	made.Subject, made.Type = c.Subject, s.Type
	return a.print(made.row(), "%s has version %d, schema id %d", c.Subject, made.Version, made.ID)
}
