package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

// recordIn is one record as a client sends it. A value that is a JSON string is published as its text, any other JSON
// as it was written, null as a tombstone; bytes that are no text go in value_base64.
type recordIn struct {
	Key         *string         `json:"key"`
	KeyBase64   *[]byte         `json:"key_base64"`
	Value       json.RawMessage `json:"value"`
	ValueBase64 *[]byte         `json:"value_base64"`
	Headers     headersIn       `json:"headers"`
	Timestamp   timestampIn     `json:"timestamp"`
}

func (in recordIn) record(now int64) (record.Record, error) {
	rec := record.Record{Timestamp: now, Headers: in.Headers}
	if in.Timestamp.set {
		rec.Timestamp = in.Timestamp.ms
	}
	switch {
	case in.Key != nil && in.KeyBase64 != nil:
		return rec, fault.New(fault.InvalidArgument, "has both key and key_base64")
	case in.Key != nil:
		rec.Key = []byte(*in.Key)
	case in.KeyBase64 != nil:
		rec.Key = *in.KeyBase64
	}
	if in.ValueBase64 != nil {
		if in.Value != nil {
			return rec, fault.New(fault.InvalidArgument, "has both value and value_base64")
		}
		rec.Value = *in.ValueBase64
		return rec, nil
	}
	if in.Value == nil {
		return rec, fault.New(fault.InvalidArgument, "has neither value nor value_base64; a tombstone is \"value\":null")
	}
	var err error
	rec.Value, err = valueBytes(in.Value)
	return rec, err
}

func valueBytes(raw json.RawMessage) ([]byte, error) {
	switch {
	case string(raw) == "null":
		return nil, nil
	case raw[0] == '"':
		text, err := jsonText(raw)
		return []byte(text), err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fault.New(fault.InvalidArgument, "value: %w", err)
	}
	return compact.Bytes(), nil
}

// jsonText decodes a JSON string, and refuses one that encoding/json would change: half of a surrogate pair becomes
// U+FFFD there, and a record must be stored as it was sent.
func jsonText(raw json.RawMessage) (string, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fault.New(fault.InvalidArgument, "value: %w", err)
	}
	if strings.ContainsRune(text, utf8.RuneError) &&
		!bytes.ContainsRune(raw, utf8.RuneError) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return "", fault.New(fault.InvalidArgument, "value: half of a surrogate pair is no character: send bytes as value_base64")
	}
	return text, nil
}

// headerJSON is one header; names may repeat, so a list of them is the general form.
type headerJSON struct {
	Key         string  `json:"key"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 *[]byte `json:"value_base64,omitempty"`
}

// headersIn takes {"name":"value",…} or a list of headerJSON.
type headersIn []record.Header

// UnmarshalJSON reads either form; an object's headers are taken in the order of their names.
func (h *headersIn) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		var list []headerJSON
		if err := strictJSON(text, &list); err != nil {
			return err
		}
		for _, e := range list {
			header := record.Header{Key: e.Key}
			switch {
			case e.ValueBase64 != nil:
				header.Value = *e.ValueBase64
			case e.Value != nil:
				header.Value = []byte(*e.Value)
			}
			*h = append(*h, header)
		}
		return nil
	}
	var object map[string]string
	if err := json.Unmarshal(text, &object); err != nil {
		return fault.New(fault.InvalidArgument, "headers: want an object of strings, or a list of {\"key\",\"value\"}: %w", err)
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		*h = append(*h, record.Header{Key: name, Value: []byte(object[name])})
	}
	return nil
}

// timestampIn takes milliseconds since 1970 or RFC 3339.
type timestampIn struct {
	ms  int64
	set bool
}

// UnmarshalJSON reads either form.
func (t *timestampIn) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	t.set = true
	if len(text) > 0 && text[0] == '"' {
		var at time.Time
		if err := json.Unmarshal(text, &at); err != nil {
			return fault.New(fault.InvalidArgument, "timestamp: want milliseconds since 1970 or RFC 3339: %w", err)
		}
		t.ms = at.UnixMilli()
		return nil
	}
	return json.Unmarshal(text, &t.ms)
}

// recordOut is one record as a client gets it. Text stands in key and value, other bytes in key_base64 and
// value_base64; a record without key has "key":null, a tombstone "value":null.
type recordOut struct {
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
	Timestamp string       `json:"timestamp"`
	Key       *string      `json:"key"`
	KeyBytes  string       `json:"key_base64,omitempty"`
	Value     *string      `json:"value"`
	ValBytes  string       `json:"value_base64,omitempty"`
	Headers   []headerJSON `json:"headers,omitempty"`
}

func toRecordOut(partition int32, r record.Record) recordOut {
	out := recordOut{Partition: partition, Offset: r.Offset, Timestamp: timeJSON(r.Timestamp)}
	out.Key, out.KeyBytes = textOrBase64(r.Key)
	out.Value, out.ValBytes = textOrBase64(r.Value)
	for _, h := range r.Headers {
		header := headerJSON{Key: h.Key}
		if h.Value != nil && utf8.Valid(h.Value) {
			text := string(h.Value)
			header.Value = &text
		} else if h.Value != nil {
			value := h.Value
			header.ValueBase64 = &value
		}
		out.Headers = append(out.Headers, header)
	}
	return out
}

func textOrBase64(b []byte) (text *string, encoded string) {
	switch {
	case b == nil:
		return nil, ""
	case utf8.Valid(b):
		s := string(b)
		return &s, ""
	}
	return nil, base64.StdEncoding.EncodeToString(b)
}

// timeJSON renders milliseconds since 1970; a record without a time has none.
func timeJSON(ms int64) string {
	if ms < 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
