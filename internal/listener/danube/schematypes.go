package danube

import "strings"

// schemaSpec is a schema to be registered or checked.
type schemaSpec struct {
	Type, Definition       string
	CreatedBy, Description string
	Tags                   []string
}

// schemaVersion is one version of a subject.
type schemaVersion struct {
	ID                            uint64
	Type, Definition, Fingerprint string
	Subject                       string
	Version                       int32
	CreatedMs                     int64
	CreatedBy, Description        string
	Tags                          []string
}

// schemaSubject is a subject with its latest version.
type schemaSubject struct {
	Name          string
	Compatibility string // the mode in force
	Latest        schemaVersion
}

// topicSchema says which subject a topic's messages follow.
type topicSchema struct {
	Subject  string // "": none
	Policy   string // none, warn or enforce
	Validate bool   // look at the payload
	SchemaID uint64 // read only: of the subject's latest version
}

// policyName is a validation policy as the registry spells it.
func policyName(said string) string {
	if said == "" {
		return policyNone
	}
	return strings.ToLower(said)
}
