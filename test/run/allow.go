package main

import (
	"fmt"
	"os"
	"strings"
)

// allowList names the tests that may be skipped, one a line with the reason behind #:
//
//	internal/vfs.TestPunchHole   # the file system has no holes
//
// A name covers its subtests; empty lines and lines starting with # are comments.
type allowList struct {
	file  string
	names []string // dir.Test, dir as it ends the import path
}

func readAllowList(file string) (*allowList, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read list of allowed skips: %w", err)
	}
	list := &allowList{file: file}
	for i, line := range strings.Split(string(text), "\n") {
		name, why, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if strings.TrimSpace(why) == "" {
			return nil, fmt.Errorf("%s:%d: %s: say behind # why it may be skipped", file, i+1, name)
		}
		list.names = append(list.names, name)
	}
	return list, nil
}

func (l *allowList) allows(s skip) bool {
	full := s.pkg + "." + s.test
	for _, name := range l.names {
		rest, ok := cutSuffixAt(full, name)
		if ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// cutSuffixAt finds name in full where a path element begins and returns what follows it.
func cutSuffixAt(full, name string) (rest string, ok bool) {
	if r, ok := strings.CutPrefix(full, name); ok {
		return r, true
	}
	if i := strings.Index(full, "/"+name); i >= 0 {
		return full[i+1+len(name):], true
	}
	return "", false
}
