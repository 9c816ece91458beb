package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// A stamp is a small text file that says one thing about the data directory:
//
//	levee-<kind> version=<n> flags=<n> crc32c=<8 hex digits>\n
//	<one JSON object>\n
//
// The checksum (CRC-32C) covers the first line up to and without the blank before "crc32c", the line feed after it, and
// the second line with its line feed. docs/formats/identity.md describes the three files that have this form.
const (
	stampVersion = 1
	stampLimit   = 4096 // bytes of a whole file; a real one has a few hundred
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DamagedError says that one of the files that identify a data directory is not what a broker wrote. Nothing was
// changed, and the start is refused: what such a file says decides which data can be trusted.
type DamagedError struct {
	Path   string
	Cause  string
	Advice string // what to do, and what that means for the data
}

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged: %s: %s", e.Path, e.Cause, e.Advice)
}

// FaultKind classifies the error.
func (e *DamagedError) FaultKind() fault.Kind { return fault.Corrupt }

// FaultDetails returns the file.
func (e *DamagedError) FaultDetails() map[string]string { return map[string]string{"file": e.Path} }

// stamped is the content of one kind of stamp.
type stamped interface {
	kind() string   // also the file's name
	advice() string // what to do about a damaged file
	check() error   // whether what was read can be true
}

// encodeStamp returns the file of s. The same content is always the same bytes.
func encodeStamp(s stamped) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", s.kind(), err)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", s.kind(), err)
	}
	head := fmt.Sprintf("levee-%s version=%d flags=0", s.kind(), stampVersion)
	sum := crc32.Checksum([]byte(head+"\n"+string(body)+"\n"), castagnoli)
	return fmt.Appendf(nil, "%s crc32c=%08x\n%s\n", head, sum, body), nil
}

// decodeStamp reads data, the content of the file at path, into s. Nothing in it is used before its version and
// checksum are right.
func decodeStamp(path string, data []byte, s stamped) error {
	damaged := func(format string, args ...any) error {
		return &DamagedError{Path: path, Cause: fmt.Sprintf(format, args...), Advice: s.advice()}
	}
	first, body, _ := bytes.Cut(data, []byte("\n"))
	head, sum, ok := strings.Cut(string(first), " crc32c=")
	fields := strings.Split(head, " ")
	if !ok || len(fields) != 3 || fields[0] != "levee-"+s.kind() {
		return damaged("it does not begin with levee-%s", s.kind())
	}
	version, okV := strings.CutPrefix(fields[1], "version=")
	flags, okF := strings.CutPrefix(fields[2], "flags=")
	if !okV || !okF || !number(version) || !number(flags) {
		return damaged("its first line is not of the form version=N flags=N crc32c=SUM")
	}
	if version != strconv.Itoa(stampVersion) || flags != "0" {
		return fault.New(fault.Unsupported, "%s has version %s and flags %s, this program knows version %d and no flags: start the version of Levee that wrote it, or a newer one",
			path, version, flags, stampVersion).With("file", path)
	}
	if want := fmt.Sprintf("%08x", crc32.Checksum([]byte(head+"\n"+string(body)), castagnoli)); sum != want {
		return damaged("its checksum does not match its content")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return damaged("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return damaged("something follows its content")
	}
	if err := s.check(); err != nil {
		return damaged("%v", err)
	}
	return nil
}

// number reports whether text is a short decimal number.
func number(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// readStamp reads a stamp below dir into s and reports whether there is one.
func readStamp(fs vfs.FS, dir string, s stamped) (bool, error) {
	path := dir + "/" + s.kind()
	data, err := vfs.ReadFile(fs, path, stampLimit)
	switch {
	case errors.Is(err, vfs.ErrNotExist):
		return false, nil
	case errors.Is(err, vfs.ErrTooLarge):
		return false, &DamagedError{Path: path, Cause: fmt.Sprintf("it has more than %d bytes", stampLimit), Advice: s.advice()}
	case err != nil:
		return false, fault.New(fault.IO, "read %s: %w", path, err).With("file", path)
	}
	return true, decodeStamp(path, data, s)
}

// writeStamp replaces a stamp below dir in one step. It is on the device when writeStamp returns nil; after an error
// either the old or the new one is.
func writeStamp(fs vfs.FS, dir string, s stamped) error {
	data, err := encodeStamp(s)
	if err != nil {
		return err
	}
	path := dir + "/" + s.kind()
	if err := vfs.WriteFileAtomic(fs, path, data); err != nil {
		kind := fault.IO
		if errors.Is(err, vfs.ErrNoSpace) {
			kind = fault.NoSpace
		}
		return fault.New(kind, "record the state of the data directory: %w", err).With("file", path)
	}
	return nil
}
