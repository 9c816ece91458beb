package danube

import (
	"strings"

	"github.com/leveemq/levee/internal/broker"
)

type (
	schemaSpec    = broker.SchemaSpec
	schemaVersion = broker.SchemaVersion
	schemaSubject = broker.SchemaSubject
	topicSchema   = broker.TopicSchema
)

const latestSchema = broker.LatestSchema

// policyName is a validation policy as the registry spells it.
func policyName(said string) string {
	if said == "" {
		return policyNone
	}
	return strings.ToLower(said)
}
