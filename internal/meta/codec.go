package meta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/leveemq/levee/internal/fault"
)

// commandVersion is the version of the form commands are stored in:
//
//	{"v":1,"op":"topic.create","args":{ … the command's fields … }}
//
// Fields keep their names and meaning for ever: logs that hold them must open in every later version.
const commandVersion = 1

type envelope struct {
	V    int             `json:"v"`
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

// Encode returns the form of c that is stored. The same command always gives the same bytes.
func Encode(c Command) ([]byte, error) {
	args, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", c.Op(), err)
	}
	b, err := json.Marshal(envelope{V: commandVersion, Op: c.Op(), Args: args})
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", c.Op(), err)
	}
	return b, nil
}

// Decode reads what Encode wrote. It refuses an unknown version or command with unsupported, and unknown fields and
// anything that is no command with corrupt.
func Decode(b []byte) (Command, error) {
	var e envelope
	if err := decodeStrict(b, &e); err != nil {
		return nil, fault.New(fault.Corrupt, "decode command: %w", err)
	}
	if e.V != commandVersion {
		return nil, fault.New(fault.Unsupported, "command %q has version %d, and this program knows version %d only: a newer one wrote it, so run that", e.Op, e.V, commandVersion)
	}
	switch e.Op {
	case CreateNamespace{}.Op():
		return decodeArgs[CreateNamespace](e)
	case DeleteNamespace{}.Op():
		return decodeArgs[DeleteNamespace](e)
	case CreateTopic{}.Op():
		return decodeArgs[CreateTopic](e)
	case SetTopic{}.Op():
		return decodeArgs[SetTopic](e)
	case DeleteTopic{}.Op():
		return decodeArgs[DeleteTopic](e)
	case TopicPurged{}.Op():
		return decodeArgs[TopicPurged](e)
	case ReserveOffsets{}.Op():
		return decodeArgs[ReserveOffsets](e)
	case NewGeneration{}.Op():
		return decodeArgs[NewGeneration](e)
	case ReserveProducerIDs{}.Op():
		return decodeArgs[ReserveProducerIDs](e)
	case RaiseRegistration{}.Op():
		return decodeArgs[RaiseRegistration](e)
	case CreateSubscription{}.Op():
		return decodeArgs[CreateSubscription](e)
	case SetSubscription{}.Op():
		return decodeArgs[SetSubscription](e)
	case DeleteSubscription{}.Op():
		return decodeArgs[DeleteSubscription](e)
	case SaveCursors{}.Op():
		return decodeArgs[SaveCursors](e)
	case SeekCursor{}.Op():
		return decodeArgs[SeekCursor](e)
	case RegisterSchema{}.Op():
		return decodeArgs[RegisterSchema](e)
	case DeleteSchemaVersion{}.Op():
		return decodeArgs[DeleteSchemaVersion](e)
	case DeleteSubject{}.Op():
		return decodeArgs[DeleteSubject](e)
	case SetCompatibility{}.Op():
		return decodeArgs[SetCompatibility](e)
	case SetTopicSchema{}.Op():
		return decodeArgs[SetTopicSchema](e)
	case ExportObject{}.Op():
		return decodeArgs[ExportObject](e)
	case DropObjects{}.Op():
		return decodeArgs[DropObjects](e)
	case FoldObjects{}.Op():
		return decodeArgs[FoldObjects](e)
	case MergeObjects{}.Op():
		return decodeArgs[MergeObjects](e)
	case TakeOver{}.Op():
		return decodeArgs[TakeOver](e)
	case SettleTakeover{}.Op():
		return decodeArgs[SettleTakeover](e)
	case AcceptLoss{}.Op():
		return decodeArgs[AcceptLoss](e)
	case SetUncovered{}.Op():
		return decodeArgs[SetUncovered](e)
	}
	return nil, fault.New(fault.Unsupported, "command %q is unknown to this program: a newer one wrote it, so run that", e.Op)
}

func decodeArgs[C Command](e envelope) (Command, error) {
	var c C
	if err := decodeStrict(e.Args, &c); err != nil {
		return nil, fault.New(fault.Corrupt, "decode command %s: %w", e.Op, err)
	}
	return c, nil
}

// decodeStrict reads one JSON object and nothing after it, without unknown fields.
func decodeStrict(b []byte, into any) error {
	if b = bytes.TrimLeft(b, " \t\r\n"); len(b) == 0 || b[0] != '{' {
		return fmt.Errorf("not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("something follows the JSON object")
	}
	return nil
}
