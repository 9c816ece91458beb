package cli

import (
	"runtime"
	"runtime/debug"
)

// Version and Commit may be set by the linker (-X); otherwise they come from what the Go tool recorded.
var (
	Version string
	Commit  string
)

type versionCmd struct{}

// Help describes the command.
func (versionCmd) Help() string {
	return manual{
		text:    "Prints what this binary is. A broker's own version is in its log and in its metrics.",
		example: "levee version",
		rows:    "one object", row: versionJSON{},
	}.String()
}

type versionJSON struct {
	Version  string `json:"version" doc:"of this binary; devel when it was not built from a release"`
	Commit   string `json:"commit" doc:"it was built from, with + for uncommitted changes; empty when unknown"`
	Go       string `json:"go" doc:"version of the Go compiler"`
	Platform string `json:"platform" doc:"operating system and architecture"`
}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	v := buildVersion()
	commit := ""
	if v.Commit != "" {
		commit = " (" + v.Commit + ")"
	}
	return a.print(v, "levee %s%s, %s, %s", v.Version, commit, v.Go, v.Platform)
}

// buildVersion puts together what is known about this binary.
func buildVersion() versionJSON {
	v := versionJSON{Version: Version, Commit: Commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if v.Version == "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version
		}
		if v.Commit == "" {
			v.Commit = recordedCommit(info)
		}
	}
	if v.Version == "" {
		v.Version = "devel"
	}
	return v
}

func recordedCommit(info *debug.BuildInfo) string {
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + changed
}
