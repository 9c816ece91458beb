// Package cli owns the command line: what every command is called, takes, prints and exits with. It never keeps state
// between two calls and reaches the process (arguments, streams, environment, exit) only through Main's parameters, so
// that tests run commands in-process. Invariant: results go to standard output and nothing else does; the exit code is
// 0 for done, 1 for failed, 2 for bad usage and 3 for data that is missing, corrupt or out of range.
//
// size: one command a file, as a reader looks for them; what they share is small and at hand
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitData   = 3
)

// root is the whole grammar. A command's type lives in the file that is named after it.
type root struct {
	connFlags
	outputFlags

	Server       serverCmd       `cmd:"" help:"Run a broker until it is told to stop."`
	Config       configCmd       `cmd:"" help:"Check a configuration, show the one in effect."`
	Version      versionCmd      `cmd:"" help:"Print the version of this binary."`
	Completion   completionCmd   `cmd:"" help:"Print a script that completes commands and flags in a shell."`
	Namespace    namespaceCmd    `cmd:"" help:"Create, list and delete namespaces."`
	Topic        topicCmd        `cmd:"" help:"Create, list, describe, change and delete topics."`
	Partition    partitionCmd    `cmd:"" help:"Have partitions serve again whose broker is lost."`
	Publish      publishCmd      `cmd:"" help:"Publish one record a line, from a file or standard input."`
	Consume      consumeCmd      `cmd:"" help:"Print a topic's records."`
	Subscription subscriptionCmd `cmd:"" help:"Create, list, describe, change, move and delete subscriptions."`
	Dlq          dlqCmd          `cmd:"" help:"List, publish again and give up what subscriptions could not get handled."`
	Schema       schemaCmd       `cmd:"" help:"Register, compare and find schemas, and hold topics to them."`
	Inspect      inspectCmd      `cmd:"" help:"Look at data on disk without a broker; changes nothing."`
	Fsck         fsckCmd         `cmd:"" help:"Check what a stopped broker has stored, and repair what can be."`
	Demo         demoCmd         `cmd:"" help:"Show a guarantee with real brokers and check the result."`
	Bench        benchCmd        `cmd:"" help:"Measure the log alone, or a broker."`
}

// outputFlags are the flags of every command that say how it prints.
type outputFlags struct {
	Output string   `placeholder:"text|json" enum:"text,json" default:"text" variable:"LEVEE_OUTPUT" group:"global" help:"How to print results; json is one object a line."`
	Help   helpFlag `short:"h" group:"global" help:"Print this help, with an example, and exit."`
}

// helpFlag stops parsing so that Main can print the help of the command it was given to.
type helpFlag bool

var errHelp = errors.New("help was asked for")

// IgnoreDefault tells kong that the flag has no value to reset to.
func (helpFlag) IgnoreDefault() {}

// BeforeReset ends parsing.
func (helpFlag) BeforeReset() error { return errHelp }

// Main runs one command: args without the program's name, env as os.Environ returns it. It returns the exit code. When
// ctx is done, commands stop what they do in good order. It starts goroutines that end before it returns, except two
// that nothing can interrupt: one that reads stdin, and one that looks whether a pipe at stdout is still read.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	a := newApp(ctx, args, stdin, stdout, stderr, env)
	var grammar root
	parser, err := newParser(&grammar, a)
	if err != nil {
		// The grammar is fixed at compile time and every test parses with it.
		panic("cli: bad grammar: " + err.Error())
	}
	a.model = parser.Model
	kctx, err := parser.Parse(args)
	if err != nil {
		return a.parseFailed(err)
	}
	a.conn, a.json = grammar.connFlags, grammar.Output == "json"
	a.command = commandOf(kctx.Selected())
	return a.finish(kctx.Run(a))
}

func newParser(grammar *root, a *app) (*kong.Kong, error) {
	return kong.New(grammar,
		kong.Name("levee"),
		kong.Description(rootHelp),
		kong.NoDefaultHelp(),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(int) { panic("cli: kong wanted to exit") }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100, FlagsLast: false}),
		kong.ValueFormatter(describeFlag),
		kong.Resolvers(kong.ResolverFunc(a.fromEnvironment)),
		kong.ExplicitGroups([]kong.Group{{Key: "global", Title: "Flags of every command:"}}),
	)
}

const rootHelp = `Levee is a durable streaming broker. This binary is the broker and everything that talks to it.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 data is missing, corrupt or out of range.

Example:

    levee server --data-dir ./levee-data &
    levee topic create orders
    echo hello | levee publish orders
    levee consume orders --count 1`

// fromEnvironment supplies a flag from the environment variable its tag names. An empty variable counts as unset.
func (a *app) fromEnvironment(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	name := flag.Tag.Get("variable")
	if v := a.env[name]; name != "" && v != "" {
		return v, nil
	}
	return nil, nil
}

// describeFlag appends a flag's default and environment variable to its help. Defaults that only mean "not given" are
// left to the text.
func describeFlag(v *kong.Value) string {
	text := v.Help
	switch v.Default {
	case "", "0", "-1":
	default:
		text += fmt.Sprintf(" (default %s)", v.Default)
	}
	if name := v.Tag.Get("variable"); name != "" {
		text += fmt.Sprintf(" ($%s)", name)
	}
	return text
}

// commandOf returns a node's words without the program's name: "topic create".
func commandOf(n *kong.Node) string {
	if n == nil || n.Parent == nil {
		return ""
	}
	words := []string{}
	for ; n.Parent != nil; n = n.Parent {
		words = append([]string{n.Name}, words...)
	}
	return strings.Join(words, " ")
}

// parseFailed prints help where that was what the arguments asked for, and otherwise what is wrong with them.
func (a *app) parseFailed(err error) int {
	var parse *kong.ParseError
	if !errors.As(err, &parse) {
		return a.finish(usagef("%v", err))
	}
	if errors.Is(err, errHelp) {
		return a.finish(parse.Context.PrintUsage(false))
	}
	node := parse.Context.Selected()
	if node == nil {
		node = parse.Context.Model.Node
	}
	a.command = commandOf(node)
	text := strings.Replace(parse.Error(), `one of "",`, "one of ", 1) // "" stands for a flag that is not given
	if rest, ok := strings.CutPrefix(text, "unexpected argument "); ok && len(node.Children) > 0 {
		text = "unknown command " + rest
	}
	hint := strings.TrimSpace("levee "+a.command) + " --help"
	return a.finish(&usageError{msg: text, hint: hint})
}
