package admin

import (
	"net/http"

	"github.com/leveemq/levee/internal/broker"
)

const topicSchemaPath = "/v1/topics/{namespace}/{topic}/schema"

// topicSchemaJSON is what a topic's records are held against.
type topicSchemaJSON struct {
	Subject  string `json:"subject"`
	Policy   string `json:"policy"`
	Validate bool   `json:"validate"`
	SchemaID uint64 `json:"schema_id,omitempty"` // of the subject's latest version
}

func (s *Server) getTopicSchema(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r); err != nil {
		return err
	}
	return answerTopicSchema(w, b, topicName(r))
}

func answerTopicSchema(w http.ResponseWriter, b *broker.Broker, topic string) error {
	t, err := b.Schemas().TopicSchema(topic)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, topicSchemaJSON(t))
	return nil
}

// putTopicSchema sets what a topic's records are held against. Payloads are validated unless the body says not to.
func (s *Server) putTopicSchema(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r); err != nil {
		return err
	}
	in := struct {
		Subject  string `json:"subject"`
		Policy   string `json:"policy"`
		Validate bool   `json:"validate"`
	}{Validate: true}
	if err := s.decode(w, r, &in, false); err != nil {
		return err
	}
	set := broker.TopicSchema{Subject: in.Subject, Policy: in.Policy, Validate: in.Validate}
	if err := b.Schemas().SetTopicSchema(r.Context(), topicName(r), set); err != nil {
		return err
	}
	return answerTopicSchema(w, b, topicName(r))
}

func (s *Server) deleteTopicSchema(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r); err != nil {
		return err
	}
	if err := b.Schemas().SetTopicSchema(r.Context(), topicName(r), broker.TopicSchema{}); err != nil {
		return err
	}
	return answerTopicSchema(w, b, topicName(r))
}
