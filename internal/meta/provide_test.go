package meta

import (
	"bytes"
	"testing"

	"github.com/leveemq/levee/internal/fault"
)

// TestWhatThisBrokerCannotProvideIsRefused covers SUB-11 where topics come from: a mode, a kind of dispatch or a setting
// that this version does not know is refused when a topic is created, when it is changed, when the command is read from
// the log and when a snapshot is restored. It is never left out and the topic served with less.
func TestWhatThisBrokerCannotProvideIsRefused(t *testing.T) {
	name := Name{"default", "orders"}
	for what, c := range map[string]Command{
		"fsync":          CreateTopic{Name: name, ID: testID(1), Partitions: 1, Dispatch: Reliable, Settings: Settings{Fsync: ptr("quorum")}},
		"dispatch":       CreateTopic{Name: name, ID: testID(1), Partitions: 1, Dispatch: "shared"},
		"settings":       CreateTopic{Name: name, ID: testID(1), Partitions: 1, Dispatch: NonReliable, Settings: Settings{Fsync: ptr(FsyncOnCommit)}},
		"fsync, changed": SetTopic{Name: name, ID: testID(1), Settings: Settings{Fsync: ptr("quorum")}},
		"unset":          SetTopic{Name: name, ID: testID(1), Unset: []string{"valkey"}},
	} {
		if err := c.Validate(); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}

	good := CreateTopic{Name: name, ID: testID(1), TimeMs: 5, Partitions: 1, Dispatch: Reliable, Settings: Settings{Fsync: ptr(FsyncOnCommit)}}
	command, err := Encode(good)
	if err != nil {
		t.Fatal(err)
	}
	s := NewState()
	if r, err := s.Apply(1, good); err != nil || r.Refused != nil {
		t.Fatal(err, r.Refused)
	}
	snapshot := mustSnapshot(t, s)
	for _, change := range [][2]string{
		{`"fsync":"on_commit"`, `"fsync":"quorum"`},
		{`"fsync":"on_commit"`, `"fsync":"on_commit","valkey":true`},
		{`"dispatch":"reliable"`, `"dispatch":"shared"`},
		{`"dispatch":"reliable"`, `"dispatch":"reliable","export":"s3"`},
	} {
		for where, b := range map[string][]byte{"command": command, "snapshot": snapshot} {
			changed := bytes.Replace(b, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(changed, b) {
				t.Fatalf("the %s holds no %s: %s", where, change[0], b)
			}
			var err error
			if where == "snapshot" {
				err = NewState().Restore(changed)
			} else {
				err = applied(t, changed)
			}
			if err == nil {
				t.Errorf("a %s with %s was taken", where, change[1])
			}
		}
	}
}

// applied returns why a command from the log does not take effect; nil where it does.
func applied(t *testing.T, command []byte) error {
	t.Helper()
	c, err := Decode(command)
	if err != nil {
		return err
	}
	r, err := NewState().Apply(1, c)
	if err != nil {
		return err
	}
	if r.Refused != nil {
		return r.Refused
	}
	return nil
}
