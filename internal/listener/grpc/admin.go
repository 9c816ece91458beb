package grpc

import (
	"context"
	"math"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// adminService answers levee.v1.Admin: every call is one of the broker's, with its types mapped.
type adminService struct {
	leveev1.UnimplementedAdminServer
	broker        *broker.Broker
	subscriptions subscriptions
	deadLetters   deadLetters
	info          func() ServerInfo // nil: nothing to say
}

func (a *adminService) CreateNamespace(ctx context.Context, req *leveev1.CreateNamespaceRequest) (*leveev1.CreateNamespaceResponse, error) {
	if err := a.broker.CreateNamespace(ctx, req.Name); err != nil {
		return nil, err
	}
	return &leveev1.CreateNamespaceResponse{}, nil
}

func (a *adminService) ListNamespaces(context.Context, *leveev1.ListNamespacesRequest) (*leveev1.ListNamespacesResponse, error) {
	resp := &leveev1.ListNamespacesResponse{}
	for _, n := range a.broker.Namespaces() {
		resp.Namespaces = append(resp.Namespaces, &leveev1.Namespace{Name: n.Name, Topics: count(n.Topics)})
	}
	return resp, nil
}

func (a *adminService) DeleteNamespace(ctx context.Context, req *leveev1.DeleteNamespaceRequest) (*leveev1.DeleteNamespaceResponse, error) {
	if err := a.broker.DeleteNamespace(ctx, req.Name); err != nil {
		return nil, err
	}
	return &leveev1.DeleteNamespaceResponse{}, nil
}

func (a *adminService) CreateTopic(ctx context.Context, req *leveev1.CreateTopicRequest) (*leveev1.CreateTopicResponse, error) {
	set, err := settingsOf(req.Settings)
	if err != nil {
		return nil, err
	}
	topic, err := a.broker.CreateTopic(ctx, broker.TopicSpec{
		Name: req.Name, Partitions: req.Partitions, Dispatch: broker.Dispatch(req.Dispatch), Settings: set,
	})
	if err != nil {
		return nil, err
	}
	return &leveev1.CreateTopicResponse{Topic: topicOf(topic)}, nil
}

func (a *adminService) ListTopics(_ context.Context, req *leveev1.ListTopicsRequest) (*leveev1.ListTopicsResponse, error) {
	topics, err := a.broker.Topics(req.Namespace)
	if err != nil {
		return nil, err
	}
	resp := &leveev1.ListTopicsResponse{}
	for _, t := range topics {
		resp.Topics = append(resp.Topics, topicOf(t))
	}
	return resp, nil
}

func (a *adminService) DescribeTopic(ctx context.Context, req *leveev1.DescribeTopicRequest) (*leveev1.DescribeTopicResponse, error) {
	d, err := a.broker.DescribeTopic(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	resp := &leveev1.DescribeTopicResponse{Topic: topicOf(d.TopicInfo)}
	for _, p := range d.Parts {
		resp.Partitions = append(resp.Partitions, &leveev1.Partition{
			Partition: p.Partition, State: p.State, First: p.First, End: p.End, Durable: p.Durable, Bytes: p.Bytes,
			Copied: p.Copied, CopiedBelow: p.CopiedBelow, ExposedBytes: p.ExposedBytes, ExposedMs: p.ExposedMs,
			Segments: count(p.Segments), Generation: p.Generation, Subscribers: count(p.Subscribers),
			Buffered: p.Buffered, Confirmed: p.Confirmed, Uncovered: p.Uncovered, TakenOver: takenOver(p.TakenOver),
		})
	}
	for _, e := range d.Exposures {
		resp.Exposures = append(resp.Exposures, &leveev1.Exposure{Fault: e.Fault, Loses: e.Loses})
	}
	return resp, nil
}

func takenOver(t *broker.TakenOver) *leveev1.TakeoverReport {
	if t == nil {
		return nil
	}
	r := &leveev1.TakeoverReport{AtMs: t.AtMs, From: t.From, ObjectsBelow: t.Objects, ReplayedBelow: t.Replayed, Directory: t.Directory}
	if t.Lost != nil {
		r.LostFrom, r.LostTo = &t.Lost.From, &t.Lost.To
	}
	if t.Returned != nil {
		r.ReturnedFrom, r.ReturnedTo = &t.Returned.From, &t.Returned.To
	}
	return r
}

func (a *adminService) RecoverPartitions(ctx context.Context, req *leveev1.RecoverPartitionsRequest) (*leveev1.RecoverPartitionsResponse, error) {
	partition := int32(-1)
	if req.Partition != nil {
		if partition = *req.Partition; partition < 0 {
			return nil, fault.New(fault.InvalidArgument, "partition %d: it is 0 or above", partition)
		}
	}
	var waiting []broker.Waiting
	var err error
	switch {
	case req.From != "" && req.AcceptLoss:
		return nil, fault.New(fault.InvalidArgument, "from and accept_loss: a loss is accepted where there is no directory to go on with")
	case req.From != "":
		waiting, err = a.broker.Return(ctx, req.Topic, partition, req.From)
	default:
		waiting, err = a.broker.Recover(ctx, req.Topic, partition, req.AcceptLoss)
	}
	if err != nil {
		return nil, err
	}
	resp := &leveev1.RecoverPartitionsResponse{}
	for _, w := range waiting {
		resp.Partitions = append(resp.Partitions, &leveev1.WaitingPartition{Partition: w.Partition, Broker: w.Broker, SinceMs: w.Since.UnixMilli(), Report: takenOver(w.Report)})
	}
	return resp, nil
}

func (a *adminService) SetTopic(ctx context.Context, req *leveev1.SetTopicRequest) (*leveev1.SetTopicResponse, error) {
	set, err := settingsOf(req.Settings)
	if err != nil {
		return nil, err
	}
	topic, err := a.broker.SetTopic(ctx, req.Name, set, req.Unset)
	if err != nil {
		return nil, err
	}
	return &leveev1.SetTopicResponse{Topic: topicOf(topic)}, nil
}

func (a *adminService) DeleteTopic(ctx context.Context, req *leveev1.DeleteTopicRequest) (*leveev1.DeleteTopicResponse, error) {
	if err := a.broker.DeleteTopic(ctx, req.Name); err != nil {
		return nil, err
	}
	return &leveev1.DeleteTopicResponse{}, nil
}

func (a *adminService) UnloadTopic(ctx context.Context, req *leveev1.UnloadTopicRequest) (*leveev1.UnloadTopicResponse, error) {
	if err := a.broker.UnloadTopic(ctx, req.Name); err != nil {
		return nil, err
	}
	return &leveev1.UnloadTopicResponse{}, nil
}

func (a *adminService) ServerInfo(context.Context, *leveev1.ServerInfoRequest) (*leveev1.ServerInfoResponse, error) {
	topics, partitions := a.broker.Counts()
	limits := a.broker.Limits()
	resp := &leveev1.ServerInfoResponse{
		State: a.broker.State(), Topics: count(topics), Partitions: count(partitions), Problems: a.broker.Problems(),
		MaxRecordBytes: int64(limits.RecordBytes), MaxBatchBytes: int64(limits.BatchBytes),
	}
	if a.info != nil {
		info := a.info()
		resp.Version, resp.BrokerId, resp.StartedMs = info.Version, info.BrokerID, info.Started.UnixMilli()
	}
	return resp, nil
}

func topicOf(t broker.TopicInfo) *leveev1.Topic {
	return &leveev1.Topic{
		Name: t.Name, Id: t.ID[:], Incarnation: t.Incarnation, Partitions: t.Partitions, Dispatch: string(t.Dispatch),
		Settings: settingsFrom(t.Settings), Effective: settingsFrom(t.Effective), CreatedMs: t.CreatedMs,
	}
}

func settingsFrom(s broker.Settings) *leveev1.TopicSettings {
	return &leveev1.TopicSettings{
		Fsync: s.Fsync, RetentionBytes: s.RetentionBytes, SegmentBytes: s.SegmentBytes,
		FsyncIntervalMs: milliseconds(s.FsyncInterval), RetentionAgeMs: milliseconds(s.RetentionAge),
		ObjectRetentionBytes: s.ObjectRetentionBytes, ObjectRetentionAgeMs: milliseconds(s.ObjectRetentionAge),
	}
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// settingsOf maps what a client set; nil sets nothing. The broker decides what the values may be.
func settingsOf(in *leveev1.TopicSettings) (broker.Settings, error) {
	if in == nil {
		return broker.Settings{}, nil
	}
	out := broker.Settings{Fsync: in.Fsync, RetentionBytes: in.RetentionBytes, SegmentBytes: in.SegmentBytes, ObjectRetentionBytes: in.ObjectRetentionBytes}
	var err error
	if out.FsyncInterval, err = duration(broker.SettingFsyncInterval, in.FsyncIntervalMs); err != nil {
		return out, err
	}
	if out.RetentionAge, err = duration(broker.SettingRetentionAge, in.RetentionAgeMs); err != nil {
		return out, err
	}
	out.ObjectRetentionAge, err = duration(broker.SettingObjectRetentionAge, in.ObjectRetentionAgeMs)
	return out, err
}

func duration(name string, ms *int64) (*time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if ms == nil {
		return nil, nil // absent stays absent
	}
	if *ms > most || *ms < -most {
		return nil, invalid("topic settings: %s is %d: it must be at most %d", name, *ms, most)
	}
	d := time.Duration(*ms) * time.Millisecond
	return &d, nil
}

// count fits a number of things into the wire's type.
func count(n int) int32 { return int32(min(n, math.MaxInt32)) } // in range by the min
