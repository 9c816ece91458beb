package objstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/task"
)

// partAttempts is how often a part is sent before the put as a whole fails.
const partAttempts = 4

// SendPieces sends a source in pieces of size bytes, up to parallel of them at once, for adapters whose stores make one
// object of many parts. A piece whose sending is Retryable is sent again: until the parts are put together nothing can be
// seen of them. When it returns nil, send has succeeded once for each piece, and together they have the source's checksum.
func SendPieces(ctx context.Context, src Source, size int64, parallel int, send func(ctx context.Context, n int, up *Upload) error) error {
	g := task.NewGroup(ctx)
	slots := make(chan struct{}, parallel)
	var cut error
	n := 0
	for piece, err := range src.Pieces(g.Context(), size) {
		if err != nil {
			cut = err
			break
		}
		select {
		case slots <- struct{}{}:
		case <-g.Context().Done(): // the next piece is not read any more
			continue
		}
		i := n
		n++
		g.Go("part", func(ctx context.Context) error {
			defer func() { <-slots }()
			return sendPiece(ctx, piece, i, send)
		})
	}
	if cut != nil {
		g.Stop()
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the group does not take a cancellation for a failure
	}
	return cut
}

func sendPiece(ctx context.Context, piece Piece, n int, send func(ctx context.Context, n int, up *Upload) error) error {
	return Retry(ctx, partAttempts, func() error {
		up := piece.Open(ctx)
		err := send(ctx, n, up)
		if _, broken := up.Stop(); broken != nil {
			return broken
		}
		return err
	})
}

// CheckPut returns ErrInvalid for a put that no store could take.
func CheckPut(key string, src Source) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	return src.Check()
}

// CheckMatch is CheckPut for PutIfMatch. A version that could be taken for "any" or "none" is nobody's: ErrConflict.
func CheckMatch(key string, version Version, src Source) error {
	if err := CheckPut(key, src); err != nil {
		return err
	}
	if version == "" || version == "0" || strings.ContainsAny(string(version), "*\"\r\n, ") {
		return fmt.Errorf("replace %s: %w: version %q is no object's", key, ErrConflict, version)
	}
	return nil
}
