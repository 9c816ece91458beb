package cli

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressIsDrawnAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		done := int64(0)
		p := progress{out: &out, state: func() (int64, int64, string) { done += 25; return done, 100, "publishing" }}
		for _, c := range []struct {
			after time.Duration
			want  string
		}{
			{999 * time.Millisecond, ""},
			{1300 * time.Millisecond, "\r\x1b[K[#######.......................]  25 %  publishing\r\x1b[K[###############...............]  50 %  publishing\r\x1b[K"},
		} {
			out.Reset()
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			if err := p.run(ctx); err != nil || out.String() != c.want {
				t.Errorf("after %v: got %q, %v", c.after, out.String(), err)
			}
			cancel()
		}
	})
}

func TestProgressWithoutATotal(t *testing.T) {
	p := progress{state: func() (int64, int64, string) { return 5, 0, "5 records" }}
	if got := p.line(); got != "5 records" {
		t.Errorf("got %q", got)
	}
}
