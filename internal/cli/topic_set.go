package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/leveemq/levee/client"
)

type topicSetCmd struct {
	Name    string   `arg:"" help:"The topic."`
	Setting []string `arg:"" name:"key=value" help:"One of fsync, fsync-interval, retention-bytes, retention-age, segment-bytes, object-retention-bytes and object-retention-age, with its value; default returns it to the broker's."`
}

// Help describes the command.
func (topicSetCmd) Help() string {
	return manual{
		text:    "Names and values are those of the flags of levee topic create. All settings given change together or none does.",
		example: "levee topic set orders retention-age=7d retention-bytes=10GiB\nlevee topic set orders retention-age=default",
		rows:    "one object", row: topicJSON{},
	}.String()
}

// unsetValue returns a setting to the broker's default.
const unsetValue = "default"

// wireNames are the settings as the broker names them, by flag.
var wireNames = map[string]string{
	"fsync": "fsync", "fsync-interval": "fsync_interval_ms", "retention-bytes": "retention_bytes",
	"retention-age": "retention_age_ms", "segment-bytes": "segment_bytes",
	"object-retention-bytes": "object_retention_bytes", "object-retention-age": "object_retention_age_ms",
}

// parse sorts the arguments into what changes and what returns to the default.
func (c *topicSetCmd) parse() (set client.Settings, unset []string, err error) {
	var flags topicFlags
	seen := map[string]bool{}
	for _, arg := range c.Setting {
		key, value, ok := strings.Cut(arg, "=")
		wire, known := wireNames[key]
		switch {
		case !ok || value == "":
			return set, nil, usagef("%q is not a setting: write key=value, or key=%s", arg, unsetValue)
		case !known:
			return set, nil, usagef("%q is no setting that can be changed: there are fsync, fsync-interval, retention-bytes, retention-age, segment-bytes, object-retention-bytes and object-retention-age", key)
		case seen[key]:
			return set, nil, usagef("%s is given twice", key)
		}
		seen[key] = true
		if value == unsetValue {
			unset = append(unset, wire)
			continue
		}
		if err := flags.set(key, value); err != nil {
			return set, nil, usagef("%s: %v", key, err)
		}
	}
	return flags.settings(), unset, nil
}

// set gives one setting its value.
func (f *topicFlags) set(key, value string) error {
	switch key {
	case "fsync":
		for _, m := range []string{"on_commit", "periodic", "none"} {
			if value == m {
				f.Fsync = value
				return nil
			}
		}
		return fmt.Errorf("%q is none of on_commit, periodic and none", value)
	case "fsync-interval":
		f.FsyncInterval = new(duration)
		return f.FsyncInterval.UnmarshalText([]byte(value))
	case "retention-bytes":
		f.RetentionBytes = new(byteSize)
		return f.RetentionBytes.UnmarshalText([]byte(value))
	case "retention-age":
		f.RetentionAge = new(duration)
		return f.RetentionAge.UnmarshalText([]byte(value))
	case "object-retention-bytes":
		f.ObjectRetentionBytes = new(byteSize)
		return f.ObjectRetentionBytes.UnmarshalText([]byte(value))
	case "object-retention-age":
		f.ObjectRetentionAge = new(duration)
		return f.ObjectRetentionAge.UnmarshalText([]byte(value))
	}
	f.SegmentBytes = new(byteSize)
	return f.SegmentBytes.UnmarshalText([]byte(value))
}

// Run changes the settings.
func (c *topicSetCmd) Run(a *app) error {
	set, unset, err := c.parse()
	if err != nil {
		return err
	}
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		t, err := admin.SetTopic(ctx, c.Name, set, unset...)
		if err != nil {
			return onTopic(c.Name, err)
		}
		var lines []string
		for _, s := range settingLines(t) {
			lines = append(lines, s.name+"="+strings.ReplaceAll(s.value, "no limit", "0"))
		}
		return a.print(newTopicJSON(t), "%s is now %s", t.Name, strings.Join(lines, " "))
	})
}
