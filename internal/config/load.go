package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// loader collects settings, weakest source first, and every problem on the way.
type loader struct {
	c        *Config
	keys     []key
	byName   map[string]key
	sections map[string]bool // "listen", "storage", …
	problems []Problem
}

func newLoader() *loader {
	c := &Config{origins: map[string]Origin{}}
	l := &loader{c: c, keys: table(c), byName: map[string]key{}, sections: map[string]bool{}}
	for _, k := range l.keys {
		if err := k.value.set(k.def); err != nil {
			panic("config: default of " + k.name + " is refused")
		}
		l.byName[k.name] = k
		for i, r := range k.name {
			if r == '.' {
				l.sections[k.name[:i]] = true
			}
		}
	}
	return l
}

// set gives one setting a value, or notes why not. source is the text around it, for problems in files.
func (l *loader) set(k key, text string, from Origin, source func() string) {
	if err := k.value.set(text); err != nil {
		p := Problem{Key: k.name, Value: text, Origin: from, Message: "allowed: " + k.value.allowed()}
		if text == "" {
			p.Message = "is empty; " + p.Message
		}
		if isSecret(k.value) {
			p.Value, source = notShown, nil
		}
		if source != nil {
			p.Source = source()
		}
		l.problems = append(l.problems, p)
		return
	}
	l.c.origins[k.name] = from
}

func (l *loader) problem(p Problem) { l.problems = append(l.problems, p) }

// An orchestrator sets variables for every service it knows of, in these forms; with a service named levee they begin
// as ours do and mean nothing to us.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)

// clientVariables belong to commands that connect to a broker. LEVEE_TLS_CERT and LEVEE_TLS_KEY are both: each is what
// the process that reads it presents.
var clientVariables = []string{"LEVEE_ADDR", "LEVEE_CONFIG", "LEVEE_HTTP", "LEVEE_OUTPUT", "LEVEE_TLS_CA", "LEVEE_TOKEN_FILE"}

// environment takes LEVEE_… variables. An empty one counts as not set. One that is no setting is refused when it was
// clearly meant to be one, and only mentioned otherwise: scripts around the broker have variables of their own.
func (l *loader) environment(env []string) {
	byEnv := map[string]key{}
	for _, k := range l.keys {
		byEnv[k.env()] = k
	}
	last := map[string]string{} // as in os.Getenv of most systems, the last one counts
	for _, e := range env {
		if name, text, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, "LEVEE_") && text != "" {
			last[name] = text
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		if k, ok := byEnv[name]; ok {
			l.set(k, last[name], Origin{Source: FromEnv, Where: name}, nil)
			continue
		}
		if slices.Contains(clientVariables, name) || serviceVariable.MatchString(name) {
			continue
		}
		near := nearest(name, slices.Collect(maps.Keys(byEnv)))
		if near == "" && !l.inSection(name) {
			l.c.warnings = append(l.c.warnings, "the environment variable "+name+" is no setting and is ignored; settings are listed in docs/configuration.md")
			continue
		}
		l.problem(Problem{Origin: Origin{Source: FromEnv, Where: name}, Message: "there is no such setting" + didYouMean(near)})
	}
}

// inSection reports whether a variable is named like the settings of one section.
func (l *loader) inSection(variable string) bool {
	for s := range l.sections {
		if strings.HasPrefix(variable, "LEVEE_"+strings.ToUpper(s)+"_") {
			return true
		}
	}
	return false
}

func (l *loader) flags(flags map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		k, ok := l.byName[name]
		if !ok {
			near := nearest(name, slices.Collect(maps.Keys(l.byName)))
			l.problem(Problem{Key: name, Value: flags[name], Origin: Origin{Source: FromFlag, Where: name},
				Message: "there is no such setting" + didYouMean(near)})
			continue
		}
		where := k.name
		if k.flag != "" {
			where = "--" + k.flag
		}
		l.set(k, flags[name], Origin{Source: FromFlag, Where: where}, nil)
	}
}

// finish checks the settings against each other. Only a configuration without any problem is returned.
func (l *loader) finish() (*Config, error) {
	l.problems = append(l.problems, l.c.conflicts()...)
	if len(l.problems) > 0 {
		return nil, &Invalid{Problems: l.problems}
	}
	return l.c, nil
}

func didYouMean(near string) string {
	if near == "" {
		return "; see docs/configuration.md for all there are"
	}
	return ": did you mean " + near + "?"
}

// nearest returns the word that one or two typing mistakes turn into text; empty when there is none.
func nearest(text string, words []string) string {
	best, at := "", 3
	slices.Sort(words)
	for _, w := range words {
		if d := distance(text, w); d < at {
			best, at = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions and replacements between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
