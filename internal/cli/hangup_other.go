//go:build !unix

package cli

import (
	"context"
	"os"
)

// watchHangup waits for ctx: here only a write tells that nobody reads any more.
func watchHangup(ctx context.Context, _ *os.File) error {
	<-ctx.Done()
	return nil
}
