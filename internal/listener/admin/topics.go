package admin

import (
	"encoding/hex"
	"net/http"
	"time"

	"github.com/leveemq/levee/internal/broker"
)

// settingsJSON are a topic's settings; what is absent comes from the broker's defaults. Names are the broker's.
type settingsJSON struct {
	Fsync           *string `json:"fsync,omitempty"`
	FsyncIntervalMs *int64  `json:"fsync_interval_ms,omitempty"`
	RetentionBytes  *int64  `json:"retention_bytes,omitempty"`
	RetentionAgeMs  *int64  `json:"retention_age_ms,omitempty"`
	SegmentBytes    *int64  `json:"segment_bytes,omitempty"`

	ObjectRetentionBytes *int64 `json:"object_retention_bytes,omitempty"`
	ObjectRetentionAgeMs *int64 `json:"object_retention_age_ms,omitempty"`
}

func (j settingsJSON) settings() broker.Settings {
	return broker.Settings{
		Fsync: j.Fsync, FsyncInterval: fromMs(j.FsyncIntervalMs),
		RetentionBytes: j.RetentionBytes, RetentionAge: fromMs(j.RetentionAgeMs), SegmentBytes: j.SegmentBytes,
		ObjectRetentionBytes: j.ObjectRetentionBytes, ObjectRetentionAge: fromMs(j.ObjectRetentionAgeMs),
	}
}

func toSettingsJSON(s broker.Settings) settingsJSON {
	return settingsJSON{
		Fsync: s.Fsync, FsyncIntervalMs: toMs(s.FsyncInterval),
		RetentionBytes: s.RetentionBytes, RetentionAgeMs: toMs(s.RetentionAge), SegmentBytes: s.SegmentBytes,
		ObjectRetentionBytes: s.ObjectRetentionBytes, ObjectRetentionAgeMs: toMs(s.ObjectRetentionAge),
	}
}

// fromMs reads milliseconds; a number that no duration can hold becomes the longest one, which the broker refuses.
func fromMs(ms *int64) *time.Duration {
	if ms == nil {
		return nil
	}
	d := time.Duration(*ms) * time.Millisecond
	if d.Milliseconds() != *ms {
		d = 1<<63 - 1
		if *ms < 0 {
			d = -1 << 63
		}
	}
	return &d
}

func toMs(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

type topicJSON struct {
	Name        string       `json:"name"`
	ID          string       `json:"id"` // names the incarnation
	Incarnation uint64       `json:"incarnation"`
	Partitions  int32        `json:"partitions"`
	Dispatch    string       `json:"dispatch"`
	Settings    settingsJSON `json:"settings"`
	Effective   settingsJSON `json:"effective"`
	Created     string       `json:"created"`
}

func toTopicJSON(t broker.TopicInfo) topicJSON {
	return topicJSON{
		Name: t.Name, ID: hex.EncodeToString(t.ID[:]), Incarnation: t.Incarnation, Partitions: t.Partitions, Dispatch: string(t.Dispatch),
		Settings: toSettingsJSON(t.Settings), Effective: toSettingsJSON(t.Effective), Created: timeJSON(t.CreatedMs),
	}
}

type partitionJSON struct {
	Partition    int32  `json:"partition"`
	State        string `json:"state"`
	First        int64  `json:"first"`   // oldest offset retained
	End          int64  `json:"end"`     // the next offset readers will see
	Durable      int64  `json:"durable"` // offsets below it are on the device
	Copied       bool   `json:"copied"`
	CopiedBelow  int64  `json:"copied_below"`
	ExposedBytes int64  `json:"exposed_bytes"`
	ExposedMs    int64  `json:"exposed_ms"`
	Bytes        int64  `json:"bytes"`
	Segments     int    `json:"segments"`
	Generation   uint32 `json:"generation"`
	Subscribers  int    `json:"subscribers"`

	Buffered  bool           `json:"buffered"`            // a record is acknowledged once the write buffer has it
	Confirmed int64          `json:"confirmed"`           // with buffered: offsets below it are there, or in a copy
	Uncovered *int64         `json:"uncovered,omitempty"` // from here on records were acknowledged without it
	TakenOver *takenOverJSON `json:"taken_over,omitempty"`
}

// takenOverJSON tells where a partition's records were found when its log was made again.
type takenOverJSON struct {
	AtMs      int64     `json:"at_ms"`
	From      string    `json:"from"`     // the lost broker, in words
	Objects   int64     `json:"objects"`  // offsets below it were in the store of objects
	Replayed  int64     `json:"replayed"` // offsets from there on and below it were in the write buffer
	Lost      *lostJSON `json:"lost,omitempty"`
	Directory string    `json:"directory,omitempty"` // the lost broker's, where that was brought back
	Returned  *lostJSON `json:"returned,omitempty"`  // offsets that it alone had
}

type lostJSON struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func toPartitionJSON(p broker.PartitionInfo) partitionJSON {
	row := partitionJSON{
		Partition: p.Partition, State: p.State, First: p.First, End: p.End, Durable: p.Durable, Copied: p.Copied, CopiedBelow: p.CopiedBelow,
		ExposedBytes: p.ExposedBytes, ExposedMs: p.ExposedMs, Bytes: p.Bytes, Segments: p.Segments, Generation: p.Generation, Subscribers: p.Subscribers,
		Buffered: p.Buffered, Confirmed: p.Confirmed, Uncovered: p.Uncovered,
	}
	if t := p.TakenOver; t != nil {
		row.TakenOver = &takenOverJSON{AtMs: t.AtMs, From: t.From, Objects: t.Objects, Replayed: t.Replayed, Directory: t.Directory}
		if t.Lost != nil {
			row.TakenOver.Lost = &lostJSON{t.Lost.From, t.Lost.To}
		}
		if t.Returned != nil {
			row.TakenOver.Returned = &lostJSON{t.Returned.From, t.Returned.To}
		}
	}
	return row
}

type exposureJSON struct {
	Fault string `json:"fault"`
	Loses string `json:"loses"`
}

type descriptionJSON struct {
	topicJSON
	Parts     []partitionJSON `json:"partition_states"`
	Exposures []exposureJSON  `json:"exposures"`
}

func (s *Server) listTopics(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r, "namespace"); err != nil {
		return err
	}
	topics, err := b.Topics(r.URL.Query().Get("namespace"))
	if err != nil {
		return err
	}
	list := make([]topicJSON, len(topics))
	for i, t := range topics {
		list[i] = toTopicJSON(t)
	}
	writeJSON(w, http.StatusOK, map[string]any{"topics": list})
	return nil
}

func (s *Server) getTopic(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	d, err := b.DescribeTopic(r.Context(), topicName(r))
	if err != nil {
		return err
	}
	answer := descriptionJSON{topicJSON: toTopicJSON(d.TopicInfo), Parts: []partitionJSON{}, Exposures: []exposureJSON{}}
	for _, p := range d.Parts {
		answer.Parts = append(answer.Parts, toPartitionJSON(p))
	}
	for _, e := range d.Exposures {
		answer.Exposures = append(answer.Exposures, exposureJSON(e))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (s *Server) putTopic(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	var spec struct {
		Partitions int32        `json:"partitions"`
		Dispatch   string       `json:"dispatch"`
		Settings   settingsJSON `json:"settings"`
	}
	if err := s.decode(w, r, &spec, true); err != nil {
		return err
	}
	t, err := b.CreateTopic(r.Context(), broker.TopicSpec{
		Name: topicName(r), Partitions: spec.Partitions, Dispatch: broker.Dispatch(spec.Dispatch), Settings: spec.Settings.settings(),
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, toTopicJSON(t))
	return nil
}

func (s *Server) patchTopic(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	var change struct {
		Settings settingsJSON `json:"settings"`
		Unset    []string     `json:"unset"`
	}
	if err := s.decode(w, r, &change, false); err != nil {
		return err
	}
	t, err := b.SetTopic(r.Context(), topicName(r), change.Settings.settings(), change.Unset)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, toTopicJSON(t))
	return nil
}

func (s *Server) deleteTopic(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := b.DeleteTopic(r.Context(), topicName(r)); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"deleted": topicName(r)})
	return nil
}

func (s *Server) listNamespaces(w http.ResponseWriter, _ *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	type namespaceJSON struct {
		Name   string `json:"name"`
		Topics int    `json:"topics"`
	}
	list := []namespaceJSON{}
	for _, n := range b.Namespaces() {
		list = append(list, namespaceJSON(n))
	}
	writeJSON(w, http.StatusOK, map[string]any{"namespaces": list})
	return nil
}

func (s *Server) putNamespace(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	name := r.PathValue("namespace")
	if err := b.CreateNamespace(r.Context(), name); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, map[string]string{"name": name})
	return nil
}

func (s *Server) deleteNamespace(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	name := r.PathValue("namespace")
	if err := b.DeleteNamespace(r.Context(), name); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"deleted": name})
	return nil
}
