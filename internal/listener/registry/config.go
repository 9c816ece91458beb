package registry

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// configSubject reads which subject a path is about; empty: the global configuration.
func configSubject(r *http.Request) (string, error) {
	if r.PathValue("subject") == "" {
		return "", nil
	}
	subject, err := subjectOf(r)
	if subject == "__GLOBAL" { // how Confluent's clients name it
		subject = ""
	}
	return subject, err
}

func (h *handler) getConfig(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := configSubject(r)
	if err != nil {
		return err
	}
	orGlobal, err := flag(r, "defaultToGlobal")
	if err != nil {
		return err
	}
	mode, err := s.Compatibility(subject, orGlobal)
	if err != nil {
		return err
	}
	return ok(w, map[string]string{"compatibilityLevel": strings.ToUpper(mode)})
}

func (h *handler) putConfig(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := configSubject(r)
	if err != nil {
		return err
	}
	var in map[string]json.RawMessage
	if err := h.read(w, r, &in); err != nil {
		return err
	}
	var level string
	for name, raw := range in {
		switch {
		case name == "compatibility":
			if err := json.Unmarshal(raw, &level); err != nil {
				return fault.New(fault.InvalidArgument, "read compatibility: %w", err)
			}
		case given(raw) && string(raw) != "false" && string(raw) != `""`:
			return fault.New(fault.Unsupported, "%q cannot be configured here: leave it out", name).With("reason", "not_permitted")
		}
	}
	if level == "" {
		return fault.New(fault.InvalidArgument, "no compatibility is given").With("reason", "invalid_compatibility")
	}
	if err := s.SetCompatibility(r.Context(), subject, level); err != nil {
		return err
	}
	return ok(w, map[string]string{"compatibility": strings.ToUpper(level)})
}

// deleteConfig answers with the level that was in force until then, under both names: clients differ in what they read.
func (h *handler) deleteConfig(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := configSubject(r)
	if err != nil {
		return err
	}
	was, err := s.Compatibility(subject, false)
	if err != nil {
		return err
	}
	if err := s.SetCompatibility(r.Context(), subject, ""); err != nil {
		return err
	}
	level := strings.ToUpper(was)
	return ok(w, map[string]string{"compatibilityLevel": level, "compatibility": level})
}

// readWrite is the only mode there is: nothing here is read-only, and nothing is imported.
const readWrite = "READWRITE"

func (h *handler) getMode(_ *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	if _, err := configSubject(r); err != nil {
		return err
	}
	return ok(w, map[string]string{"mode": readWrite})
}

func (h *handler) putMode(_ *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	if _, err := configSubject(r); err != nil {
		return err
	}
	var in struct {
		Mode string `json:"mode"`
	}
	if err := h.read(w, r, &in); err != nil {
		return err
	}
	switch strings.ToUpper(in.Mode) {
	case readWrite:
		return ok(w, map[string]string{"mode": readWrite})
	case "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD":
		return fault.New(fault.Unsupported, "mode %s is not supported: this registry is always %s", in.Mode, readWrite).With("reason", "not_permitted")
	}
	return fault.New(fault.InvalidArgument, "there is no mode %q", in.Mode).With("reason", "invalid_mode")
}
