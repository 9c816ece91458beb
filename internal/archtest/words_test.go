package archtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Written in two halves, so that this file does not break its own rule.
var (
	foreignPaths = []string{".." + "/shared"}
	homePaths    = regexp.MustCompile(`(^|[^\w./~-])/(` + `work|root|home/[a-z]\w*|Users/\w+)/`)
	registries   = []string{
		"proxy.golang" + ".org", "registry.npmjs" + ".org", "pypi" + ".org", "files.pythonhosted" + ".org",
		"crates" + ".io", "repo1.maven" + ".org", "deb.debian" + ".org",
	}
)

// registryHosts adds the hosts that this machine is set up with: a build must not depend on them by name.
func registryHosts() []string {
	hosts := registries
	for _, env := range []string{"GOPROXY", "PIP_INDEX_URL", "npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		for _, part := range strings.FieldsFunc(os.Getenv(env), func(r rune) bool { return r == ',' || r == '|' }) {
			if u, err := url.Parse(part); err == nil && strings.Contains(u.Hostname(), ".") {
				hosts = append(hosts, u.Hostname())
			}
		}
	}
	return hosts
}

// placeRule keeps the repository independent of the machine it is written on.
func placeRule(tr *tree) []string {
	var findings []string
	hosts := registryHosts()
	for _, name := range tr.tracked {
		text, err := fs.ReadFile(tr.fsys, name)
		if err != nil {
			findings = append(findings, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not text
		}
		for i, line := range strings.Split(string(text), "\n") {
			at := fmt.Sprintf("%s:%d", name, i+1)
			for _, p := range foreignPaths {
				if strings.Contains(line, p) {
					findings = append(findings, at+": names a directory beside the repository")
				}
			}
			if homePaths.MatchString(line) {
				findings = append(findings, at+": names a path of one machine")
			}
			for _, h := range hosts {
				if strings.Contains(line, h) {
					findings = append(findings, at+": names the package registry "+h)
				}
			}
		}
	}
	return findings
}

func TestNoMachineNamed(t *testing.T) { report(t, placeRule(repo(t))) }

func TestNoMachineNamedBites(t *testing.T) {
	breaks(t, placeRule, map[string]string{
		"a.md": "see .." + "/shared/x\nlives in /" + "root/go\n/" + "home/ann/x\nfine: https://x.test/work/ and ./work/x\n",
		"b.sh": "curl https://registry.npmjs" + ".org/x",
		"c.so": "\x00 .." + "/shared",
	}, "a.md:1:", "a.md:2:", "a.md:3:", "b.sh:1: names the package registry")
}
