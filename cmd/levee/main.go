// Command levee is the broker and its command line in one binary. It owns what belongs to the process: arguments,
// standard streams, signals and the exit code; everything else is in internal/cli. Its one invariant: the first
// interrupt asks for an orderly end, and a second one ends the process at once.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/leveemq/levee/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // signals have their default effect again
	// Taken, not ignored: children would inherit that. A write to a closed pipe then fails with EPIPE, which the
	// command line takes as "enough".
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
