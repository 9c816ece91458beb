package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// progress draws one line on a terminal while something takes longer than a second.
type progress struct {
	out io.Writer
	// state returns how much is done of how much, and what to say beside the bar. A total of 0 means unknown. It is
	// called from run's goroutine.
	state func() (done, total int64, detail string)
}

const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
	progressWidth = 30
)

// run draws until ctx is done and then wipes the line.
func (p progress) run(ctx context.Context) error {
	timer := time.NewTimer(progressAfter)
	defer timer.Stop()
	drawn := false
	for {
		select {
		case <-ctx.Done():
			if drawn {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return nil
		case <-timer.C:
			drawn = true
			fmt.Fprint(p.out, "\r\x1b[K"+p.line())
			timer.Reset(progressEvery)
		}
	}
}

func (p progress) line() string {
	done, total, detail := p.state()
	if total <= 0 {
		return detail
	}
	share := min(max(float64(done)/float64(total), 0), 1)
	full := int(share * progressWidth)
	return fmt.Sprintf("[%s%s] %3.0f %%  %s", strings.Repeat("#", full), strings.Repeat(".", progressWidth-full), share*100, detail)
}
