package danube

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// A topic is namespace/name to the broker and /namespace/name on the wire. Partition n of a topic X that has several is
// X-part-n on the wire; a topic whose own name is X-part-n counts as a partition of X there, since that is how Danube's
// producers make partitioned topics. The broker refuses X beside X-part-n, so that a name never means both.

const partInfix = "-part-"

// place is where a name on the wire leads to.
type place struct {
	topic      string   // namespace/name
	id         [16]byte // the topic's incarnation
	partition  int32    // -1: the topic has several and was named as a whole
	partitions int32
	reliable   bool
}

// parseTopic returns the broker's name for one on the wire. The broker judges its parts.
func parseTopic(wire string) (string, error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(wire, "/"), "/")
	if !ok || !strings.HasPrefix(wire, "/") || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", fault.New(fault.InvalidArgument, "topic %q: it should be /namespace/name", clip(wire, nameChars))
	}
	return namespace + "/" + name, nil
}

func wireTopic(name string) string { return "/" + name }

func partName(topic string, n int32) string { return fmt.Sprint(topic, partInfix, n) }

// splitPart takes X-part-n apart.
func splitPart(name string) (base string, n int32, ok bool) {
	i := strings.LastIndex(name, partInfix)
	if i < 0 {
		return "", 0, false
	}
	digits := name[i+len(partInfix):]
	v, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || v < 0 || strconv.FormatInt(v, 10) != digits {
		return "", 0, false
	}
	return name[:i], int32(v), true
}

// resolve finds the topic, and the partition, that a name on the wire stands for. It fails with kind invalid_argument or
// not_found.
func (s *Service) resolve(wire string) (place, broker.TopicInfo, error) {
	name, err := parseTopic(wire)
	if err != nil {
		return place{}, broker.TopicInfo{}, err
	}
	info, err := s.broker.Topic(name)
	partition := int32(0)
	if err != nil {
		base, n, isPart := splitPart(name)
		if !isPart || fault.KindOf(err) != fault.NotFound {
			return place{}, broker.TopicInfo{}, err
		}
		whole, wholeErr := s.broker.Topic(base)
		if wholeErr != nil || whole.Partitions < 2 || n >= whole.Partitions {
			return place{}, broker.TopicInfo{}, err
		}
		info, partition = whole, n
	} else if info.Partitions > 1 {
		partition = -1
	}
	at := place{topic: info.Name, id: info.ID, partition: partition, partitions: info.Partitions, reliable: info.Reliable()}
	s.remember(wire, at)
	return at, info, nil
}

// remember keeps a place for acks. A topic that was deleted and made again gets a new one before anything of it can be
// acknowledged: a consumer of the new topic is opened first, and that resolves the name.
func (s *Service) remember(wire string, at place) {
	if _, known := s.places.Swap(wire, at); !known && s.placesKept.Add(1) > mostPlaces {
		s.places.Clear() // of deleted topics mostly; the others are found again
		s.placesKept.Store(0)
	}
}

const mostPlaces = 1 << 16

// placeFor returns the place of a topic whose messages were delivered.
func (s *Service) placeFor(wire string) (place, error) {
	if at, ok := s.places.Load(wire); ok {
		return at.(place), nil
	}
	at, _, err := s.resolve(wire)
	return at, err
}

func (s *Service) forget(wire string) { s.places.Delete(wire) }

// partitionsOf lists what to subscribe to for a topic: at least one name.
func (s *Service) partitionsOf(wire string) ([]string, error) {
	at, _, err := s.resolve(wire)
	switch {
	case err == nil && at.partition >= 0:
		return []string{wire}, nil
	case err == nil:
		names := make([]string, at.partitions)
		for i := range names {
			names[i] = partName(wire, int32(i)) //nolint:gosec // the broker bounds partitions
		}
		return names, nil
	case fault.KindOf(err) != fault.NotFound:
		return nil, err
	}
	parts, listErr := s.partTopics(wire)
	if listErr != nil || len(parts) == 0 {
		return nil, err
	}
	return parts, nil
}

// partTopics lists the topics with names of their own that count as partitions of a topic, by number.
func (s *Service) partTopics(wire string) ([]string, error) {
	name, err := parseTopic(wire)
	if err != nil {
		return nil, err
	}
	namespace, _, _ := strings.Cut(name, "/")
	list, err := s.broker.Topics(namespace)
	if err != nil {
		return nil, err
	}
	var numbers []int32
	for _, t := range list {
		if base, n, ok := splitPart(t.Name); ok && base == name {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = partName(wire, n)
	}
	return names, nil
}

// wireNames lists how a topic appears on the wire.
func wireNames(t broker.TopicInfo) []string {
	if t.Partitions < 2 {
		return []string{wireTopic(t.Name)}
	}
	names := make([]string, t.Partitions)
	for i := range names {
		names[i] = partName(wireTopic(t.Name), int32(i)) //nolint:gosec // the broker bounds partitions
	}
	return names
}
