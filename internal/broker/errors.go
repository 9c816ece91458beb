package broker

import (
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/record"
)

// errDraining ends subscribers and refuses publishers once the broker is about to stop.
func errDraining() error {
	return fault.New(fault.Unavailable, "the broker is stopping: connect again, to another broker or later")
}

// errFull refuses records while what is left of the disk is kept for the metadata.
func errFull() error {
	return fault.New(fault.NoSpace, "the disk is full, and what is left is kept for the metadata: nothing was written; it goes on by itself once there is room")
}

func errNoTopic(name meta.Name) error {
	return fault.New(fault.NotFound, "topic %s does not exist: create it: levee topic create %s", name, name).With("topic", name)
}

func errDeleted(name meta.Name) error {
	return fault.New(fault.Deleted, "topic %s was deleted: create it again: levee topic create %s", name, name).With("topic", name)
}

func errReplaced(name meta.Name) error {
	return fault.New(fault.Deleted, "topic %s was deleted and created again: open it anew, it starts at offset 0", name).With("topic", name)
}

func errNoPartition(name string, partition int32, partitions int) error {
	return fault.New(fault.NotFound, "topic %s has no partition %d: it has %d, counted from 0: levee topic describe %s",
		name, partition, partitions, name).With("topic", name).With("partitions", partitions)
}

// errBatch classifies what package record says about a batch from a publisher.
func errBatch(err error, topic string, partition int32, limits record.Limits) error {
	kind := fault.InvalidArgument
	var re *record.Error
	tooLarge := errors.As(err, &re) && re.Kind == record.KindTooLarge
	if tooLarge {
		kind = fault.TooLarge
	}
	e := fault.New(kind, "publish to %s/%d: %w: nothing was written", topic, partition, err)
	if re != nil {
		e = e.With("cause", re.Kind)
	}
	if tooLarge {
		e = e.With("limit_record_bytes", limits.RecordBytes).With("limit_batch_bytes", limits.BatchBytes)
	}
	return e
}

// onTopic makes sure that err names the topic, and keeps its kind and details.
func onTopic(doing, topic string, err error) error {
	if err == nil {
		return nil
	}
	if most := 2*meta.MaxNameLength + 1; len(topic) > most { // no name has so much, and whoever said it knows it
		topic = topic[:most] + "…"
	}
	return fmt.Errorf("%s %s: %w", doing, topic, err)
}
