package datadir

import "testing"

func TestPartitionAt(t *testing.T) {
	for file, want := range map[string]string{
		"/data/topics/ns/a@12/3/00.log":    "ns/a/3",
		"/data/topics/ns/a@12/3":           "ns/a/3",
		"/data/topics/ns/a@12":             "",
		"/data/topics/ns/a/3/00.log":       "",
		"/data/raft/log/00.log":            "",
		"/elsewhere/topics/ns/a@1/0/0.log": "",
	} {
		if got, ok := PartitionAt("/data", file); ok != (want != "") || ok && got != want {
			t.Errorf("%s is of %q, %v, want %q", file, got, ok, want)
		}
	}
}
