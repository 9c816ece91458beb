package cli

import (
	"errors"

	"github.com/leveemq/levee/internal/config"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Say what a broker would refuse about a configuration file."`
	Show  configShowCmd  `cmd:"" help:"Print every setting in effect and where it comes from."`
}

type configCheckCmd struct {
	File string `arg:"" help:"The file."`
}

// Help describes the command.
func (configCheckCmd) Help() string {
	return manual{
		text:    "Looks at the file alone, without environment and flags, and lists every problem at once. Exits with 1 when there is one.",
		example: "levee config check levee.yaml",
		rows:    "one object, also when the file is refused", row: configCheckJSON{},
	}.String()
}

type configCheckJSON struct {
	File     string              `json:"file" doc:"as it was given"`
	Valid    bool                `json:"valid" doc:"whether a broker would start with it"`
	Problems []configProblemJSON `json:"problems" doc:"why not; each an object with key, value, origin and message"`
	Warnings []string            `json:"warnings" doc:"what looks like a mistake but is not refused"`
}

type configProblemJSON struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Origin  string `json:"origin"`
	Message string `json:"message"`
}

// Run checks the file.
func (c *configCheckCmd) Run(a *app) error {
	out := configCheckJSON{File: c.File, Problems: []configProblemJSON{}, Warnings: []string{}}
	cfg, err := config.Load(config.LoadOptions{File: c.File})
	var invalid *config.Invalid
	switch {
	case errors.As(err, &invalid):
		for _, p := range invalid.Problems {
			out.Problems = append(out.Problems, configProblemJSON{p.Key, p.Value, p.Origin.String(), p.Message})
		}
	case err != nil:
		return err
	default:
		out.Valid = true
		out.Warnings = append(out.Warnings, cfg.Warnings()...)
	}
	if a.json {
		if perr := writeJSON(a.stdout, out); perr != nil {
			return perr
		}
		return err
	}
	if err != nil {
		return err
	}
	a.warn(cfg)
	return a.print(out, "%s: valid", c.File)
}

// warn prints a configuration's warnings.
func (a *app) warn(cfg *config.Config) {
	for _, w := range cfg.Warnings() {
		a.note("warning: %s", w)
	}
}

type configShowCmd struct {
	brokerFlags
}

// Help describes the command.
func (configShowCmd) Help() string {
	return manual{
		text:    "Puts defaults, file, environment and flags together as levee server would, and prints the result. A later source wins, in this order.",
		example: "levee config show --config levee.yaml",
		rows:    "one object a setting", row: configEntryJSON{},
	}.String()
}

type configEntryJSON struct {
	Key     string `json:"key" doc:"as it is written in the file, with dots between the sections"`
	Value   string `json:"value" doc:"in effect"`
	Default string `json:"default" doc:"without file, environment and flags"`
	Unit    string `json:"unit" doc:"size, duration, count, path, …"`
	Origin  string `json:"origin" doc:"default, file:line, environment NAME or flag --name"`
	Env     string `json:"env" doc:"the environment variable that sets it"`
	Help    string `json:"help" doc:"what it does"`
}

// Run prints the settings.
func (c *configShowCmd) Run(a *app) error {
	cfg, err := c.load(a)
	if err != nil {
		return err
	}
	a.warn(cfg)
	t := a.table("KEY", "VALUE", "FROM")
	for _, e := range cfg.Entries() {
		row := configEntryJSON{e.Key, e.Value, e.Default, e.Unit, e.Origin, e.Env, e.Help}
		value := e.Value
		if value == "" {
			value = `""`
		}
		if err := t.row(row, e.Key, value, e.Origin); err != nil {
			return err
		}
	}
	return t.end()
}
