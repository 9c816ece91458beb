package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/test/servers"
)

// RunNetwork runs a store whose server is behind a proxy through every fault at every request: what is reported is so, and
// whoever goes on as the port's comments say gets there. Objects of large bytes take several requests.
func RunNetwork(t *testing.T, s objstore.Store, p *servers.Proxy, large int) {
	t.Helper()
	n := &network{suite: &suite{s: s, seed: seed(t)}, proxy: p}
	for _, f := range servers.Faults() {
		t.Run(f.String(), func(t *testing.T) {
			dir := "network/" + fmt.Sprint(int(f))
			t.Run("put", func(t *testing.T) { n.puts(t, f, dir+"/small", n.noise(10_000, dir), false) })
			t.Run("put large", func(t *testing.T) {
				if testing.Short() && f != servers.LoseAnswer && f != servers.Refuse503 {
					return // each is many uploads
				}
				n.puts(t, f, dir+"/large", n.noise(large, dir), false)
			})
			t.Run("replace", func(t *testing.T) { n.puts(t, f, dir+"/replaced", n.noise(10_001, dir), true) })
			t.Run("read", func(t *testing.T) { n.reads(t, f, dir+"/read") })
			t.Run("delete", func(t *testing.T) { n.deletes(t, f, dir+"/deleted") })
		})
	}
}

type network struct {
	*suite
	proxy *servers.Proxy
}

// meet runs a call of which the nth request meets the fault. One that hangs is given up as soon as it does.
func (n *network) meet(t *testing.T, f servers.Fault, nth int, call func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	played := n.proxy.Play(f, nth)
	g := task.NewGroup(ctx)
	g.Go("give up", func(ctx context.Context) error {
		select {
		case <-played:
			if f == servers.Hang {
				cancel()
			}
		case <-ctx.Done():
		}
		return nil
	})
	call(ctx)
	g.Stop()
	_ = g.Wait() // it never fails
}

// puts meets the fault at the first request of a put, then at the second, and so on.
func (n *network) puts(t *testing.T, f servers.Fault, base string, content []byte, replace bool) {
	src := objstore.Bytes(content)
	for nth := 1; ; nth++ {
		key := fmt.Sprintf("%s/%d", base, nth)
		old := []byte(nil)
		put := func(ctx context.Context) error { _, err := n.s.PutIfAbsent(ctx, key, src); return err }
		if replace {
			old = []byte("first")
			info, err := n.s.PutIfAbsent(t.Context(), key, objstore.Bytes(old))
			must(t, err)
			put = func(ctx context.Context) error { _, err := n.s.PutIfMatch(ctx, key, info.Version, src); return err }
		}
		var err error
		n.meet(t, f, nth, func(ctx context.Context) { err = put(ctx) })
		if !n.proxy.Played() {
			n.proxy.Play(servers.Pass, 0)
			must(t, err)
			return
		}
		n.wantOutcome(t, fmt.Sprintf("%s at request %d", f, nth), err, key, old, content)
		if !replace {
			_, err = objstore.PutOnce(t.Context(), n.s, key, src)
			must(t, err)
		}
	}
}

// wantOutcome wants that what is there is what an error allows.
func (n *network) wantOutcome(t *testing.T, at string, err error, key string, old, content []byte) {
	t.Helper()
	got, _, rerr := objstore.Read(t.Context(), n.s, key, 1<<30)
	if errors.Is(rerr, objstore.ErrNotFound) {
		got, rerr = nil, nil
	}
	must(t, rerr)
	done, before := bytes.Equal(got, content), bytes.Equal(got, old)
	switch {
	case !done && !before:
		t.Errorf("%s: %v: %d bytes that nobody stored", at, err, len(got))
	case err == nil && !done:
		t.Errorf("%s: reported as stored, and is not", at)
	case err != nil && done && !errors.Is(err, objstore.ErrOutcomeUnknown):
		t.Errorf("%s: reported as not stored, and is: %v", at, err)
	}
	if errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("%s: an error of the network was taken for an answer: %v", at, err)
	}
}

func (n *network) reads(t *testing.T, f servers.Fault, dir string) {
	content := n.noise(300_000, dir)
	key := dir + "/x"
	_, err := n.s.PutIfAbsent(t.Context(), key, objstore.Bytes(content))
	must(t, err)
	for name, read := range map[string]func(ctx context.Context) (bool, error){
		"get": func(ctx context.Context) (bool, error) {
			data, _, err := objstore.Read(ctx, n.s, key, 1<<30)
			return bytes.Equal(data, content), err
		},
		"get of a part": func(ctx context.Context) (bool, error) {
			data, _, err := objstore.ReadRange(ctx, n.s, key, 1000, 100_000)
			return bytes.Equal(data, content[1000:101_000]), err
		},
		"head": func(ctx context.Context) (bool, error) {
			info, err := n.s.Head(ctx, key)
			return info.Size == int64(len(content)) && info.HasCRC, err
		},
		"list": func(ctx context.Context) (bool, error) {
			found := 0
			for info, err := range n.s.List(ctx, dir, "") {
				if err != nil {
					return false, err
				}
				if info.Key == key {
					found++
				}
			}
			return found == 1, nil
		},
	} {
		var right bool
		var err error
		n.meet(t, f, 1, func(ctx context.Context) { right, err = read(ctx) })
		switch {
		case err == nil && !right:
			t.Errorf("%s: wrong, and no error", name)
		case errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrOutcomeUnknown), errors.Is(err, objstore.ErrRange), errors.Is(err, objstore.ErrInvalid):
			t.Errorf("%s: an error of the network was taken for an answer: %v", name, err)
		case err != nil && !objstore.Retryable(err) && !errors.Is(err, objstore.ErrDenied) && !errors.Is(err, context.Canceled):
			t.Errorf("%s: nobody knows what to do about: %v", name, err)
		case err == nil && f >= servers.Refuse429 && f <= servers.Refuse403:
			t.Errorf("%s: no error", name)
		}
		if right, err := read(t.Context()); !right || err != nil {
			t.Errorf("%s: %v afterwards", name, err)
		}
	}
}

func (n *network) deletes(t *testing.T, f servers.Fault, dir string) {
	key := dir + "/x"
	_, err := n.s.PutIfAbsent(t.Context(), key, objstore.Bytes([]byte("x")))
	must(t, err)
	n.meet(t, f, 1, func(ctx context.Context) { err = n.s.Delete(ctx, key) })
	_, herr := n.s.Head(t.Context(), key)
	gone := errors.Is(herr, objstore.ErrNotFound)
	if err == nil && !gone || err != nil && gone && !errors.Is(err, objstore.ErrOutcomeUnknown) {
		t.Errorf("delete: %v, and afterwards head: %v", err, herr)
	}
	must(t, n.s.Delete(t.Context(), key))
	n.wantAbsent(t, t.Context(), key)
}
