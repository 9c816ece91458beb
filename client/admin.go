package client

import (
	"context"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// Admin says what exists on a broker, makes it and removes it. Changes are durable when a call returns without error.
// Topics are named "namespace/name", or a name alone in namespace "default". Admin retries nothing. It is safe for
// concurrent use.
type Admin struct {
	rpc leveev1.AdminClient
}

// Namespace is a group of topics.
type Namespace struct {
	Name   string
	Topics int
}

// Settings are a topic's. A nil field means: the broker's default.
type Settings struct {
	Fsync          *string        // on_commit, periodic or none
	FsyncInterval  *time.Duration // with periodic; milliseconds
	RetentionBytes *int64         // per partition; 0: unlimited
	RetentionAge   *time.Duration // 0: unlimited; milliseconds
	SegmentBytes   *int64

	// Of the objects that a broker with an object store makes of segments; the two above are of the log alone.
	ObjectRetentionBytes *int64         // per partition; 0: unlimited
	ObjectRetentionAge   *time.Duration // 0: unlimited; milliseconds
}

// Dispatch modes of a topic.
const (
	Reliable    = "reliable"     // stored, and delivered to whoever asks later
	NonReliable = "non_reliable" // delivered to who is there, and dropped for who is slow
)

// TopicSpec says what topic to create.
type TopicSpec struct {
	Name       string
	Partitions int32  // 0: 1
	Dispatch   string // empty: Reliable
	Settings   Settings
}

// Topic is a topic that exists.
type Topic struct {
	Name        string // namespace/name
	ID          []byte // differs after the topic was deleted and created again
	Incarnation uint64
	Partitions  int32
	Dispatch    string
	Settings    Settings // as set
	Effective   Settings // with the broker's defaults filled in
	Created     time.Time
}

// Partition is one partition of a topic, as it stands.
type Partition struct {
	Partition    int32
	State        string // serving, opening, or "unavailable: why"
	First        int64  // oldest offset retained
	End          int64  // next offset that readers will see
	Durable      int64  // offsets below it are on the device
	Copied       bool   // sealed segments are copied to a store of objects
	CopiedBelow  int64  // with Copied: offsets below it have a copy there
	ExposedBytes int64  // with Copied: of the log above that, which has them alone
	ExposedMs    int64  // with Copied: how long ago the oldest segment of those was begun
	Bytes        int64
	Segments     int32
	Generation   uint32
	Subscribers  int32
	Buffered     bool       // a record is acknowledged once the write buffer has it
	Confirmed    int64      // with Buffered: offsets below it are there, or in a copy
	Uncovered    *int64     // with Buffered, not nil: from here on records were acknowledged without it
	TakenOver    *TakenOver // nil: its log was never made again
}

// TakenOver tells where a partition's records were found when its log was made again, because the broker that had it was
// lost with its disk.
type TakenOver struct {
	At       time.Time
	From     string    // the lost broker, in words
	Objects  int64     // offsets below it were in the store of objects
	Replayed int64     // offsets from Objects on and below it were in the write buffer
	Lost     *[2]int64 // not nil: the first and the last of the offsets that are declared lost

	Directory string    // the lost broker's, where that was brought back; empty: it was not
	Returned  *[2]int64 // not nil: the first and the last of the offsets that it alone had
}

// Waiting is a partition that is not served because records that a lost broker acknowledged may be nowhere else.
type Waiting struct {
	Partition int32
	Broker    string // the lost one, in words
	Since     time.Time
	Report    *TakenOver // what came of it, where it waits no more; nil: it does
}

// Exposure says what one fault could cost.
type Exposure struct {
	Fault string
	Loses string
}

// TopicDescription is a topic in full.
type TopicDescription struct {
	Topic
	PartitionStates []Partition
	Exposures       []Exposure // what each fault could cost under the topic's settings
}

// ServerInfo is a broker, as it stands.
type ServerInfo struct {
	Version        string
	BrokerID       string
	Started        time.Time
	MaxRecordBytes int64
	MaxBatchBytes  int64
	State          string // starting, ready or draining
	Topics         int32
	Partitions     int32
	Problems       []string // what is not as it should be
}

// CreateNamespace creates a namespace.
func (a *Admin) CreateNamespace(ctx context.Context, name string) error {
	_, err := a.rpc.CreateNamespace(ctx, &leveev1.CreateNamespaceRequest{Name: name})
	return failure(err)
}

// Namespaces returns every namespace.
func (a *Admin) Namespaces(ctx context.Context) ([]Namespace, error) {
	r, err := a.rpc.ListNamespaces(ctx, &leveev1.ListNamespacesRequest{})
	if err != nil {
		return nil, asError(err)
	}
	return convert(r.GetNamespaces(), func(n *leveev1.Namespace) Namespace {
		return Namespace{Name: n.GetName(), Topics: int(n.GetTopics())}
	}), nil
}

// DeleteNamespace deletes a namespace that has no topics.
func (a *Admin) DeleteNamespace(ctx context.Context, name string) error {
	_, err := a.rpc.DeleteNamespace(ctx, &leveev1.DeleteNamespaceRequest{Name: name})
	return failure(err)
}

// CreateTopic creates a topic.
func (a *Admin) CreateTopic(ctx context.Context, spec TopicSpec) (Topic, error) {
	r, err := a.rpc.CreateTopic(ctx, &leveev1.CreateTopicRequest{
		Name: spec.Name, Partitions: spec.Partitions, Dispatch: spec.Dispatch, Settings: spec.Settings.message(),
	})
	if err != nil {
		return Topic{}, asError(err)
	}
	return topicOf(r.GetTopic()), nil
}

// Topics returns the topics of a namespace, or every topic if it is empty.
func (a *Admin) Topics(ctx context.Context, namespace string) ([]Topic, error) {
	r, err := a.rpc.ListTopics(ctx, &leveev1.ListTopicsRequest{Namespace: namespace})
	if err != nil {
		return nil, asError(err)
	}
	return convert(r.GetTopics(), topicOf), nil
}

// DescribeTopic returns a topic in full.
func (a *Admin) DescribeTopic(ctx context.Context, name string) (TopicDescription, error) {
	r, err := a.rpc.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: name})
	if err != nil {
		return TopicDescription{}, asError(err)
	}
	return TopicDescription{
		Topic: topicOf(r.GetTopic()),
		PartitionStates: convert(r.GetPartitions(), func(p *leveev1.Partition) Partition {
			return Partition{
				Partition: p.GetPartition(), State: p.GetState(), First: p.GetFirst(), End: p.GetEnd(), Durable: p.GetDurable(),
				Copied: p.GetCopied(), CopiedBelow: p.GetCopiedBelow(), ExposedBytes: p.GetExposedBytes(), ExposedMs: p.GetExposedMs(),
				Bytes: p.GetBytes(), Segments: p.GetSegments(), Generation: p.GetGeneration(), Subscribers: p.GetSubscribers(),
				Buffered: p.GetBuffered(), Confirmed: p.GetConfirmed(), Uncovered: p.Uncovered, TakenOver: takenOver(p.GetTakenOver()),
			}
		}),
		Exposures: convert(r.GetExposures(), func(e *leveev1.Exposure) Exposure {
			return Exposure{Fault: e.GetFault(), Loses: e.GetLoses()}
		}),
	}, nil
}

func takenOver(r *leveev1.TakeoverReport) *TakenOver {
	if r == nil {
		return nil
	}
	t := &TakenOver{At: time.UnixMilli(r.GetAtMs()), From: r.GetFrom(), Objects: r.GetObjectsBelow(), Replayed: r.GetReplayedBelow(), Directory: r.GetDirectory()}
	if r.LostFrom != nil {
		t.Lost = &[2]int64{r.GetLostFrom(), r.GetLostTo()}
	}
	if r.ReturnedFrom != nil {
		t.Returned = &[2]int64{r.GetReturnedFrom(), r.GetReturnedTo()}
	}
	return t
}

// RecoverPartitions returns the partitions of a topic that wait for a lost broker; partition is one of them, or -1 for all.
// With acceptLoss, what only that broker had is given up: they serve again, and tell readers which offsets are lost.
func (a *Admin) RecoverPartitions(ctx context.Context, topic string, partition int32, acceptLoss bool) ([]Waiting, error) {
	return a.recoverPartitions(ctx, &leveev1.RecoverPartitionsRequest{Topic: topic, AcceptLoss: acceptLoss}, partition)
}

// ReturnPartitions makes the partitions of a topic again that wait for a lost broker, with what its data directory has; partition
// is one of them, or -1 for all. The directory is one that the broker's machine has, and absolute. It returns once they serve,
// which takes as long as reading the directory does. Where ctx ends earlier, the broker goes on with the one it is at.
func (a *Admin) ReturnPartitions(ctx context.Context, topic string, partition int32, directory string) ([]Waiting, error) {
	return a.recoverPartitions(ctx, &leveev1.RecoverPartitionsRequest{Topic: topic, From: directory}, partition)
}

func (a *Admin) recoverPartitions(ctx context.Context, req *leveev1.RecoverPartitionsRequest, partition int32) ([]Waiting, error) {
	if partition >= 0 {
		req.Partition = &partition
	}
	r, err := a.rpc.RecoverPartitions(ctx, req)
	if err != nil {
		return nil, asError(err)
	}
	return convert(r.GetPartitions(), func(p *leveev1.WaitingPartition) Waiting {
		return Waiting{Partition: p.GetPartition(), Broker: p.GetBroker(), Since: time.UnixMilli(p.GetSinceMs()), Report: takenOver(p.GetReport())}
	}), nil
}

// SetTopic changes the settings that are not nil, returns those named in unset (as the broker's configuration names
// them, e.g. "retention_bytes") to the broker's default, and leaves the others alone. It takes effect at once.
func (a *Admin) SetTopic(ctx context.Context, name string, settings Settings, unset ...string) (Topic, error) {
	r, err := a.rpc.SetTopic(ctx, &leveev1.SetTopicRequest{Name: name, Settings: settings.message(), Unset: unset})
	if err != nil {
		return Topic{}, asError(err)
	}
	return topicOf(r.GetTopic()), nil
}

// DeleteTopic deletes a topic and its data. There is no way back.
func (a *Admin) DeleteTopic(ctx context.Context, name string) error {
	_, err := a.rpc.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: name})
	return failure(err)
}

// UnloadTopic closes a topic's partitions; the next use opens and verifies them again.
func (a *Admin) UnloadTopic(ctx context.Context, name string) error {
	_, err := a.rpc.UnloadTopic(ctx, &leveev1.UnloadTopicRequest{Name: name})
	return failure(err)
}

// ServerInfo returns the broker as it stands.
func (a *Admin) ServerInfo(ctx context.Context) (ServerInfo, error) {
	r, err := a.rpc.ServerInfo(ctx, &leveev1.ServerInfoRequest{})
	if err != nil {
		return ServerInfo{}, asError(err)
	}
	return ServerInfo{
		Version: r.GetVersion(), BrokerID: r.GetBrokerId(), Started: time.UnixMilli(r.GetStartedMs()),
		MaxRecordBytes: r.GetMaxRecordBytes(), MaxBatchBytes: r.GetMaxBatchBytes(), State: r.GetState(),
		Topics: r.GetTopics(), Partitions: r.GetPartitions(), Problems: r.GetProblems(),
	}, nil
}

func failure(err error) error {
	if err == nil {
		return nil
	}
	return asError(err)
}

func convert[From, To any](from []From, one func(From) To) []To {
	to := make([]To, len(from))
	for i := range from {
		to[i] = one(from[i])
	}
	return to
}

func topicOf(t *leveev1.Topic) Topic {
	return Topic{
		Name: t.GetName(), ID: t.GetId(), Incarnation: t.GetIncarnation(), Partitions: t.GetPartitions(),
		Dispatch: t.GetDispatch(), Settings: settingsOf(t.GetSettings()), Effective: settingsOf(t.GetEffective()),
		Created: time.UnixMilli(t.GetCreatedMs()),
	}
}

func (s Settings) message() *leveev1.TopicSettings {
	return &leveev1.TopicSettings{
		Fsync: s.Fsync, FsyncIntervalMs: milliseconds(s.FsyncInterval), RetentionBytes: s.RetentionBytes,
		RetentionAgeMs: milliseconds(s.RetentionAge), SegmentBytes: s.SegmentBytes,
		ObjectRetentionBytes: s.ObjectRetentionBytes, ObjectRetentionAgeMs: milliseconds(s.ObjectRetentionAge),
	}
}

func settingsOf(m *leveev1.TopicSettings) Settings {
	if m == nil {
		return Settings{}
	}
	return Settings{
		Fsync: m.Fsync, FsyncInterval: duration(m.FsyncIntervalMs), RetentionBytes: m.RetentionBytes,
		RetentionAge: duration(m.RetentionAgeMs), SegmentBytes: m.SegmentBytes,
		ObjectRetentionBytes: m.ObjectRetentionBytes, ObjectRetentionAge: duration(m.ObjectRetentionAgeMs),
	}
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	return new(d.Milliseconds())
}

func duration(ms *int64) *time.Duration {
	if ms == nil {
		return nil
	}
	return new(time.Duration(*ms) * time.Millisecond)
}
