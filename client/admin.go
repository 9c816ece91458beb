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
	Partition   int32
	State       string // serving, opening, or "unavailable: why"
	First       int64  // oldest offset retained
	End         int64  // next offset that readers will see
	Durable     int64  // offsets below it are on the device
	Bytes       int64
	Segments    int32
	Generation  uint32
	Subscribers int32
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
				Bytes: p.GetBytes(), Segments: p.GetSegments(), Generation: p.GetGeneration(), Subscribers: p.GetSubscribers(),
			}
		}),
		Exposures: convert(r.GetExposures(), func(e *leveev1.Exposure) Exposure {
			return Exposure{Fault: e.GetFault(), Loses: e.GetLoses()}
		}),
	}, nil
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
	}
}

func settingsOf(m *leveev1.TopicSettings) Settings {
	if m == nil {
		return Settings{}
	}
	return Settings{
		Fsync: m.Fsync, FsyncInterval: duration(m.FsyncIntervalMs), RetentionBytes: m.RetentionBytes,
		RetentionAge: duration(m.RetentionAgeMs), SegmentBytes: m.SegmentBytes,
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
