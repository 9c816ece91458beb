package cli

import (
	"context"

	"github.com/leveemq/levee/client"
)

type namespaceCmd struct {
	Create namespaceCreateCmd `cmd:"" help:"Make a namespace."`
	Ls     namespaceLsCmd     `cmd:"" help:"List the namespaces."`
	Delete namespaceDeleteCmd `cmd:"" help:"Remove a namespace that has no topics."`
}

type namespaceJSON struct {
	Name   string `json:"name" doc:"of the namespace"`
	Topics int    `json:"topics" doc:"how many it has"`
}

type doneJSON struct {
	Name string `json:"name" doc:"what was made or changed"`
	Done string `json:"done" doc:"created, deleted or unloaded"`
}

type namespaceCreateCmd struct {
	Name string `arg:"" help:"Letters, digits, dots, underscores and hyphens, at most 200."`
}

// Help describes the command.
func (namespaceCreateCmd) Help() string {
	return manual{
		text:    "A namespace groups topics. The namespace default always exists.",
		example: "levee namespace create shop",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run makes the namespace.
func (c *namespaceCreateCmd) Run(a *app) error {
	err := a.admin(func(ctx context.Context, admin *client.Admin) error { return admin.CreateNamespace(ctx, c.Name) })
	if err != nil {
		return withHint(err, "levee namespace ls")
	}
	return a.print(doneJSON{c.Name, "created"}, "created namespace %s", c.Name)
}

type namespaceLsCmd struct{}

// Help describes the command.
func (namespaceLsCmd) Help() string {
	return manual{
		text:    "In alphabetical order.",
		example: "levee namespace ls",
		rows:    "one object a namespace", row: namespaceJSON{},
	}.String()
}

// Run prints the namespaces.
func (namespaceLsCmd) Run(a *app) error {
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		all, err := admin.Namespaces(ctx)
		if err != nil {
			return err
		}
		t := a.table("NAME", "TOPICS")
		for _, n := range all {
			if err := t.row(namespaceJSON(n), n.Name, n.Topics); err != nil {
				return err
			}
		}
		return t.end()
	})
}

type namespaceDeleteCmd struct {
	Name string `arg:"" help:"The namespace."`
}

// Help describes the command.
func (namespaceDeleteCmd) Help() string {
	return manual{
		text:    "Refused while the namespace has topics, and for default.",
		example: "levee namespace delete shop",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run removes the namespace.
func (c *namespaceDeleteCmd) Run(a *app) error {
	err := a.admin(func(ctx context.Context, admin *client.Admin) error { return admin.DeleteNamespace(ctx, c.Name) })
	if err != nil {
		return withHint(err, "levee topic ls --namespace "+c.Name+", for what it holds")
	}
	return a.print(doneJSON{c.Name, "deleted"}, "deleted namespace %s", c.Name)
}
