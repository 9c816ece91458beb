package admin

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"mime"
	"net/http"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

// maxRecords bounds how many records one request publishes: they become one batch.
const maxRecords = 100_000

// published is the answer to a publish: the records stand at offset to last_offset of one partition, in their order.
type published struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Offset     int64  `json:"offset"`
	LastOffset int64  `json:"last_offset"`
	Records    int    `json:"records"`
}

// publish takes one or more records and answers once they are acknowledged: all of them or none, for they are one
// batch of one partition.
func (s *Server) publish(w http.ResponseWriter, r *http.Request) error {
	b, err := s.broker()
	if err != nil {
		return err
	}
	if err := knownQuery(r, "key", "lines", "partition"); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	patient(w)
	partition, err := queryInt(r, "partition", -1, 0, math.MaxInt32)
	if err != nil {
		return err
	}
	records, named, err := s.bodyRecords(r, body)
	if err != nil {
		return err
	}
	if named != nil {
		partition = int64(*named)
	}
	// A publisher is told that nobody knows, rather than cut off, when the disk takes for ever.
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.BodyTimeout)
	defer cancel()
	s.writeWithin(w, s.limits.BodyTimeout+s.limits.WriteTimeout)
	at, result, err := b.Publish(ctx, topicName(r), int32(partition), records) //nolint:gosec // queryInt bounds it
	if err == nil {
		err = result.Err
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, published{topicName(r), at, result.Offset, result.LastOffset, len(records)})
	return nil
}

// bodyRecords reads the records of a body by its content type, and the partition where a JSON body names one.
func (s *Server) bodyRecords(r *http.Request, body []byte) ([]record.Record, *int32, error) {
	lines, err := queryBool(r, "lines")
	if err != nil {
		return nil, nil, err
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return nil, nil, fault.New(fault.InvalidArgument, "Content-Type: %w", err)
	}
	now := s.cfg.Now().UnixMilli()
	var key []byte
	if q := r.URL.Query(); q.Has("key") {
		key = []byte(q.Get("key"))
	}
	switch {
	case kind == "application/x-www-form-urlencoded":
		return nil, nil, fault.New(fault.InvalidArgument, "Content-Type %s is what curl sends unless told otherwise: "+
			"say -H 'Content-Type: text/plain' for one record, application/x-ndjson for one a line, application/json for {\"records\":[…]}", kind)
	case lines || kind == "application/x-ndjson":
		records, err := splitLines(body, key, now)
		return records, nil, err
	case kind == "application/json":
		if key != nil {
			return nil, nil, fault.New(fault.InvalidArgument, "key=%s: in a JSON body each record has its own key", key)
		}
		return jsonRecords(body, now)
	}
	return []record.Record{{Key: key, Value: body, Timestamp: now}}, nil, nil
}

// splitLines makes one record of each line. A last line without its end counts, an empty one is an empty record, and
// a carriage return before the end belongs to the end.
func splitLines(body, key []byte, now int64) ([]record.Record, error) {
	var records []record.Record
	for len(body) > 0 {
		if len(records) == maxRecords {
			return nil, tooMany()
		}
		line, rest, _ := bytes.Cut(body, []byte("\n"))
		records = append(records, record.Record{Key: key, Value: bytes.TrimSuffix(line, []byte("\r")), Timestamp: now})
		body = rest
	}
	if len(records) == 0 {
		return nil, fault.New(fault.InvalidArgument, "the body is empty: there is no line to publish")
	}
	return records, nil
}

func tooMany() error {
	return fault.New(fault.TooLarge, "more than %d records in one request: send them in several", maxRecords).With("limit", maxRecords)
}

func jsonRecords(body []byte, now int64) ([]record.Record, *int32, error) {
	var request struct {
		Records   []recordIn `json:"records"`
		Partition *int32     `json:"partition"`
	}
	if err := strictJSON(body, &request); err != nil {
		return nil, nil, err
	}
	switch {
	case len(request.Records) == 0:
		return nil, nil, fault.New(fault.InvalidArgument, `no records: want {"records":[{"key":"…","value":…},…]}`)
	case len(request.Records) > maxRecords:
		return nil, nil, tooMany()
	case request.Partition != nil && *request.Partition < 0:
		return nil, nil, fault.New(fault.InvalidArgument, "partition %d: partitions count from 0", *request.Partition)
	}
	records := make([]record.Record, len(request.Records))
	for i, in := range request.Records {
		var err error
		if records[i], err = in.record(now); err != nil {
			return nil, nil, fmt.Errorf("records[%d]: %w", i, err)
		}
	}
	return records, request.Partition, nil
}
