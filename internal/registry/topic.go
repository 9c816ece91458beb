package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
)

// TopicSchema is what a topic's records are held against.
type TopicSchema struct {
	Subject  string
	Policy   string // none, warn or enforce; empty: none
	Validate bool   // whether payloads are checked, and not only which schema they name
	SchemaID uint64 // of the subject's latest version, 0 where there is none; not to be set
}

// TopicSchema returns what is set for a topic; nothing but policy none where that is nothing.
func (r *Registry) TopicSchema(topic string) (TopicSchema, error) {
	view := r.store.View()
	t, err := findTopic(view, topic)
	if err != nil {
		return TopicSchema{}, err
	}
	set, ok := view.TopicSchema(t.ID)
	if !ok {
		return TopicSchema{Policy: meta.PolicyNone}, nil
	}
	out := TopicSchema{Subject: set.Subject, Policy: set.Policy, Validate: set.Validate}
	if s, err := view.Subject(set.Subject); err == nil {
		if there, err := pick(s, Latest, Live); err == nil {
			out.SchemaID = there.SchemaID
		}
	}
	return out, nil
}

// SetTopicSchema sets what a topic's records are held against; every publish that begins after it returned is. A policy
// other than none needs a subject, which need not have a version yet. Without a subject and with policy none, nothing is
// set any more.
func (r *Registry) SetTopicSchema(ctx context.Context, topic string, t TopicSchema) error {
	policy := strings.ToLower(t.Policy)
	if policy == "" {
		policy = meta.PolicyNone
	}
	if policy != meta.PolicyNone && t.Subject == "" {
		return fault.New(fault.InvalidArgument, "policy %s needs a subject: which schemas are records held against?", policy)
	}
	found, err := findTopic(r.store.View(), topic)
	if err != nil {
		return err
	}
	_, err = r.store.Propose(ctx, meta.SetTopicSchema{Topic: found.Name, ID: found.ID, Subject: t.Subject, Policy: policy, ValidatePayload: t.Validate})
	if err != nil {
		return fmt.Errorf("set the schema of topic %s: %w", found.Name, err)
	}
	r.policyChanged(found.Name)
	return nil
}

func findTopic(v *meta.View, topic string) (*meta.Topic, error) {
	name, err := meta.ParseTopic(topic)
	if err != nil {
		return nil, err
	}
	return v.Topic(name)
}
