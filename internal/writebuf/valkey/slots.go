package valkey

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/valkey-io/valkey-go"
)

const slotCount = 1 << 14

// slotTable remembers which node of a cluster owns which keys. What it remembers may be stale: then a node answers MOVED,
// having done nothing, and the next call asks again.
type slotTable struct {
	turn task.Turn // who has it asks the cluster

	mu     sync.Mutex
	owners []string // guarded by mu; immutable once set; nil: not known
	known  []string // guarded by mu; immutable once set; the nodes that owned slots when they were
	turns  int      // guarded by mu; how often it was forgotten: another node is asked first each time, as the last one was wrong
}

func (t *slotTable) get(slot uint16) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners == nil {
		return ""
	}
	return t.owners[slot]
}

func (t *slotTable) set(owners []string) {
	known := slices.Compact(slices.Sorted(slices.Values(owners)))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owners, t.known = owners, slices.DeleteFunc(known, func(a string) bool { return a == "" })
}

func (t *slotTable) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners != nil {
		t.owners = nil
		t.turns++
	}
}

// witnesses returns whom to ask, in order: those of the configuration, and those who owned slots.
func (t *slotTable) witnesses(configured []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.turns % len(configured)
	all := slices.Concat(configured[first:], configured[:first])
	for _, a := range t.known {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

func (t *slotTable) owner(ctx context.Context, s *Store, slot uint16) (string, error) {
	if a := t.get(slot); a != "" {
		return a, nil
	}
	if !t.turn.Take(ctx.Done()) {
		return "", ctx.Err()
	}
	defer t.turn.Give()
	if a := t.get(slot); a != "" {
		return a, nil
	}
	var failed []error
	for _, address := range t.witnesses(s.cfg.Addresses) {
		n, err := s.node(address)
		if err != nil {
			return "", err
		}
		msg, err := s.ask(ctx, n, "CLUSTER", "SLOTS")
		if err == nil {
			var owners []string
			if owners, err = readSlots(msg, address); err == nil {
				t.set(owners)
				if owners[slot] != "" {
					return owners[slot], nil
				}
				err = fmt.Errorf("nobody owns slot %d", slot)
			}
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return "", fmt.Errorf("find the owner of slot %d: %w: %w", slot, writebuf.ErrUnavailable, errors.Join(failed...))
}

// nodes returns those that own slots.
func (t *slotTable) nodes(ctx context.Context, s *Store) ([]string, error) {
	if _, err := t.owner(ctx, s, 0); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known, nil
}

var errSlots = errors.New("the cluster's table of slots cannot be read")

// readSlots reads CLUSTER SLOTS: lists of first slot, last slot, primary, replicas. An empty host means the one asked.
func readSlots(msg valkey.ValkeyMessage, asked string) ([]string, error) {
	rows, err := msg.ToArray()
	if err != nil {
		return nil, err
	}
	owners := make([]string, slotCount)
	for _, r := range rows {
		row, err := r.ToArray()
		if err != nil || len(row) < 3 {
			return nil, errSlots
		}
		first, ok1 := answer(row).number(0)
		last, ok2 := answer(row).number(1)
		primary, err := row[2].ToArray()
		if !ok1 || !ok2 || err != nil || len(primary) < 2 || last >= slotCount {
			return nil, errSlots
		}
		host, _ := primary[0].ToString() // null means the host that was asked
		port, ok := answer(primary).number(1)
		if !ok {
			return nil, errSlots
		}
		if host == "" || host == "?" {
			if host, _, err = net.SplitHostPort(asked); err != nil {
				return nil, err
			}
		}
		for i := first; i <= last; i++ {
			owners[i] = net.JoinHostPort(host, strconv.FormatUint(port, 10))
		}
	}
	return owners, nil
}

// slotOf is CRC-16 (XModem) of what stands between the braces.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slotCount
}
