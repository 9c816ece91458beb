package cli

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPacerKeepsTheRate(t *testing.T) {
	for _, rate := range []float64{0.5, 1, 7, 1000, 250_000} {
		synctest.Test(t, func(t *testing.T) {
			p := pacer{rate: rate}
			start := time.Now()
			sent := int64(0)
			for time.Since(start) < 20*time.Second {
				n, err := p.next(t.Context(), 100_000)
				if err != nil {
					t.Fatal(err)
				}
				sent += n
			}
			// Record i is due at i/rate, so that the first goes at once and one more than rate×time has gone.
			if want := time.Since(start).Seconds() * rate; float64(sent) < want-rate*0.01-1 || float64(sent) > want+1 {
				t.Errorf("at %v records/s: %d went in %v", rate, sent, time.Since(start))
			}
		})
	}
}

func TestPacerDoesNotMakeUpForALongStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1000}
		if n, _ := p.next(t.Context(), 1000); n != 1 {
			t.Errorf("%d went at once", n)
		}
		timer := time.NewTimer(time.Minute)
		<-timer.C
		if n, _ := p.next(t.Context(), 1_000_000); n > 101 {
			t.Errorf("%d went in a burst", n)
		}
		if n, wait := p.take(time.Now(), 10); n != 0 || wait <= 0 {
			t.Errorf("%d more went at the same time, wait %v", n, wait)
		}
	})
}

func TestPacerWithoutARate(t *testing.T) {
	var p pacer
	if n, err := p.next(t.Context(), 5); n != 5 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestPacerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := pacer{rate: 0.01}
		for {
			if _, err := p.next(ctx, 1); err != nil {
				return
			}
		}
	})
}
