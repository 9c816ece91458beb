package cli

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leveemq/levee/record"
)

// template is a parsed --format: literal text and verbs in turn.
type template struct{ parts []templatePart }

type templatePart struct {
	text string // literal, where verb is 0
	verb byte
}

// parseTemplate parses %o %p %k %v %t %h %% and the escapes of unescape.
func parseTemplate(s string) (template, error) {
	var t template
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			t.parts = append(t.parts, templatePart{text: text.String()})
			text.Reset()
		}
	}
	s, err := unescape(s)
	if err != nil {
		return template{}, err
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			text.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return template{}, fmt.Errorf("the template ends in a lone %%: write %%%% for a percent sign")
		}
		switch s[i] {
		case '%':
			text.WriteByte('%')
		case 'o', 'p', 'k', 'v', 't', 'h':
			flush()
			t.parts = append(t.parts, templatePart{verb: s[i]})
		default:
			r, _ := utf8.DecodeRuneInString(s[i:])
			return template{}, fmt.Errorf("the template has the unknown %%%c: there are %%o offset, %%p partition, %%k key, %%v value, %%t time, %%h headers and %%%%", r)
		}
	}
	flush()
	return t, nil
}

// append adds r as the template says. Keys, values and headers are copied byte for byte.
func (t template) append(dst []byte, partition int32, r *record.Record) []byte {
	for _, p := range t.parts {
		switch p.verb {
		case 0:
			dst = append(dst, p.text...)
		case 'o':
			dst = strconv.AppendInt(dst, r.Offset, 10)
		case 'p':
			dst = strconv.AppendInt(dst, int64(partition), 10)
		case 'k':
			dst = append(dst, r.Key...)
		case 'v':
			dst = append(dst, r.Value...)
		case 't':
			dst = time.UnixMilli(r.Timestamp).UTC().AppendFormat(dst, timeFormat)
		case 'h':
			for i, h := range r.Headers {
				if i > 0 {
					dst = append(dst, ',')
				}
				dst = append(append(append(dst, h.Key...), '='), h.Value...)
			}
		}
	}
	return dst
}

// timeFormat is RFC 3339 in UTC with the milliseconds a record carries.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// recordJSON is a record as consume prints it. Bytes are text where they are valid UTF-8, and otherwise base64 under
// the other name. A missing key and a null value are null.
type recordJSON struct {
	Partition   int32        `json:"partition" doc:"partition the record is in"`
	Offset      int64        `json:"offset" doc:"its position there"`
	Timestamp   int64        `json:"timestamp" doc:"milliseconds since 1970, UTC"`
	Key         *string      `json:"key" doc:"null for a record without a key, and where key_base64 stands instead"`
	KeyBase64   *string      `json:"key_base64,omitempty" doc:"instead of key, when that is not valid UTF-8"`
	Value       *string      `json:"value" doc:"null for a record without a value, and where value_base64 stands instead"`
	ValueBase64 *string      `json:"value_base64,omitempty" doc:"instead of value, when that is not valid UTF-8"`
	Headers     []headerJSON `json:"headers" doc:"in order; each an object with key, value and, where that is not valid UTF-8, value_base64"`
}

type headerJSON struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 *string `json:"value_base64,omitempty"`
}

func newRecordJSON(partition int32, r *record.Record) recordJSON {
	out := recordJSON{Partition: partition, Offset: r.Offset, Timestamp: r.Timestamp, Headers: make([]headerJSON, len(r.Headers))}
	out.Key, out.KeyBase64 = textOrBase64(r.Key)
	out.Value, out.ValueBase64 = textOrBase64(r.Value)
	for i, h := range r.Headers {
		out.Headers[i].Key = strings.ToValidUTF8(h.Key, "�")
		out.Headers[i].Value, out.Headers[i].ValueBase64 = textOrBase64(h.Value)
	}
	return out
}

func textOrBase64(b []byte) (text, encoded *string) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}
