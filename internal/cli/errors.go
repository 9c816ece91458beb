package cli

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/leveemq/levee/internal/fault"
)

// usageError is a command line that cannot be carried out as it stands.
type usageError struct{ msg, hint string }

func (e *usageError) Error() string { return e.msg }

// usagef returns a usage error; the hint is the command's own help.
func usagef(format string, args ...any) error { return &usageError{msg: fmt.Sprintf(format, args...)} }

// exitError gives an error an exit code of its own and, where hint is set, the next command to try.
type exitError struct {
	code int
	hint string
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// withHint names the next command to try, where the kind of err does not already tell it.
func withHint(err error, hint string) error {
	switch kind, _ := kindOf(err); kind {
	case fault.NotFound, fault.AlreadyExists, fault.Conflict, fault.InvalidArgument:
		return &exitError{hint: hint, err: err}
	}
	return err
}

// finish reports err and returns the exit code that belongs to it. A reader that went away is not a failure: whoever
// pipes into head has seen enough.
func (a *app) finish(err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return exitDone
	}
	name := strings.TrimSpace("levee " + a.command)
	var usage *usageError
	if errors.As(err, &usage) {
		if usage.hint == "" {
			usage.hint = name + " --help"
		}
		a.report(name, usage, usage.hint)
		return exitUsage
	}
	a.report(name, err, a.hint(err))
	return exitCode(err)
}

func (a *app) report(name string, err error, hint string) {
	a.note("%s: %s", name, strings.TrimRight(a.message(err), "\n"))
	if hint != "" {
		a.note("  try: %s", hint)
	}
}

func exitCode(err error) int {
	var own *exitError
	if errors.As(err, &own) && own.code != 0 {
		return own.code
	}
	kind, _ := kindOf(err)
	return kind.Row().Exit
}

// hint returns the next command to try, or "" where the text says all there is to say.
func (a *app) hint(err error) string {
	var own *exitError
	if errors.As(err, &own) && own.hint != "" {
		return own.hint
	}
	kind, details := kindOf(err)
	topic := topicOf(err)
	switch kind {
	case fault.NotFound:
		if topic != "" {
			return fmt.Sprintf("levee topic create %s, or see what there is: levee topic ls", topic)
		}
		return "levee topic ls"
	case fault.AlreadyExists:
		if topic != "" {
			return "levee topic describe " + topic
		}
	case fault.Deleted:
		return "levee topic ls"
	case fault.Trimmed:
		if oldest := details["oldest"]; oldest != "" {
			return fmt.Sprintf("--from %s, the oldest offset there is", oldest)
		}
		return "--from earliest"
	case fault.OutOfRange:
		return "--from latest"
	case fault.Unavailable:
		return a.unreachable(err)
	case fault.Corrupt:
		return "levee inspect segments DIR, with the broker's data directory"
	case fault.Timeout, fault.OutcomeUnknown:
		if a.command == "publish" {
			return "a longer --timeout, if the broker is only slow"
		}
	case fault.NoSpace:
		return "make room on the broker's disk, or shorten retention: levee topic set NAME retention-bytes=SIZE"
	}
	return ""
}

// topicError says which topic an error is about, for the hint.
type topicError struct {
	topic string
	err   error
}

func (e *topicError) Error() string { return e.err.Error() }
func (e *topicError) Unwrap() error { return e.err }

func onTopic(topic string, err error) error {
	if err == nil {
		return nil
	}
	return &topicError{topic: topic, err: err}
}

func topicOf(err error) string {
	var t *topicError
	if errors.As(err, &t) {
		return t.topic
	}
	return ""
}

// errInterrupted says that the user asked to stop before everything was done.
var errInterrupted = fault.New(fault.Canceled, "interrupted")
