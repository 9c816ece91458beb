package cli

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help describes the command.
func (completionCmd) Help() string {
	return manual{
		text: "The script completes commands, flags and the values of flags that have a fixed set; file names elsewhere. It is " +
			"made from the commands this binary has: make it again after an upgrade.",
		example: "source <(levee completion bash)\nlevee completion zsh > \"${fpath[1]}/_levee\"\nlevee completion fish > ~/.config/fish/completions/levee.fish",
	}.String()
}

// Run prints the script.
func (c *completionCmd) Run(a *app) error {
	nodes := completions(a.model)
	switch c.Shell {
	case "zsh":
		return zshCompletion(a.stdout, nodes)
	case "fish":
		return fishCompletion(a.stdout, nodes)
	}
	return bashCompletion(a.stdout, nodes)
}

// completion is what may follow one command.
type completion struct {
	path  string // "levee topic create"
	words []completionWord
	flags []completionWord
	enums map[string][]string // by flag, with its dashes
}

type completionWord struct{ word, help string }

// completions returns every command of the model, parents before children.
func completions(app *kong.Application) []completion {
	var out []completion
	var walk func(n *kong.Node, path string)
	walk = func(n *kong.Node, path string) {
		c := completion{path: path, enums: map[string][]string{}}
		for _, group := range n.AllFlags(true) {
			for _, f := range group {
				c.flags = append(c.flags, completionWord{"--" + f.Name, f.Help})
				if f.Enum != "" {
					c.enums["--"+f.Name] = strings.Split(strings.TrimPrefix(f.Enum, ","), ",") // a leading one allows none
				}
			}
		}
		sort.Slice(c.flags, func(i, j int) bool { return c.flags[i].word < c.flags[j].word })
		for _, p := range n.Positional {
			if p.Enum != "" {
				for _, w := range strings.Split(p.Enum, ",") {
					c.words = append(c.words, completionWord{w, p.Help})
				}
			}
		}
		for _, child := range n.Children {
			c.words = append(c.words, completionWord{child.Name, child.Help})
		}
		out = append(out, c)
		for _, child := range n.Children {
			walk(child, path+" "+child.Name)
		}
	}
	walk(app.Node, app.Name)
	return out
}

func (c completion) enumFlags() []string {
	flags := make([]string, 0, len(c.enums))
	for f := range c.enums {
		flags = append(flags, f)
	}
	sort.Strings(flags)
	return flags
}

func joinWords(words []completionWord) string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = w.word
	}
	return strings.Join(all, " ")
}

// paths joins the paths of all commands but the first as alternatives of a shell's case.
func paths(nodes []completion) string {
	var all []string
	for _, n := range nodes[1:] {
		all = append(all, `"`+n.path+`"`)
	}
	return strings.Join(all, "|")
}

// posixCases prints the part that bash and zsh share: what may follow, by path and by the word before.
func posixCases(b *strings.Builder, nodes []completion) {
	b.WriteString("  case \"$path $prev\" in\n")
	for _, n := range nodes {
		for _, f := range n.enumFlags() {
			fmt.Fprintf(b, "    \"%s %s\") words=\"%s\" ;;\n", n.path, f, strings.Join(n.enums[f], " "))
		}
	}
	b.WriteString("    *)\n      case \"$path\" in\n")
	for _, n := range nodes {
		fmt.Fprintf(b, "        \"%s\") words=\"%s\" flags=\"%s\" ;;\n", n.path, joinWords(n.words), joinWords(n.flags))
	}
	b.WriteString("      esac\n      case \"$cur\" in -*) words=\"$flags\" ;; esac\n      ;;\n  esac\n")
}

func bashCompletion(w io.Writer, nodes []completion) error {
	var b strings.Builder
	b.WriteString("# bash completion for levee\n_levee() {\n")
	b.WriteString("  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" path=levee words= flags= i\n")
	b.WriteString("  for ((i = 1; i < COMP_CWORD; i++)); do\n    case \"$path ${COMP_WORDS[i]}\" in\n")
	fmt.Fprintf(&b, "      %s) path=\"$path ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n", paths(nodes))
	posixCases(&b, nodes)
	b.WriteString("  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _levee levee\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func zshCompletion(w io.Writer, nodes []completion) error {
	var b strings.Builder
	b.WriteString("#compdef levee\n_levee() {\n")
	// "path" is zsh's own search path, and "words" the command line: both need other names here.
	b.WriteString("  local cur=\"${words[CURRENT]}\" prev=\"${words[CURRENT-1]}\" at=levee choices= flags= i\n")
	b.WriteString("  for ((i = 2; i < CURRENT; i++)); do\n    case \"$at ${words[i]}\" in\n")
	fmt.Fprintf(&b, "      %s) at=\"$at ${words[i]}\" ;;\n    esac\n  done\n", paths(nodes))
	var cases strings.Builder
	posixCases(&cases, nodes)
	b.WriteString(strings.NewReplacer("$path", "$at", " words=", " choices=").Replace(cases.String()))
	b.WriteString("  if [[ -n \"$choices\" ]]; then compadd -- ${=choices}; else _files; fi\n}\n")
	b.WriteString("if [[ \"${funcstack[1]}\" == _levee ]]; then _levee \"$@\"; else compdef _levee levee; fi\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func fishCompletion(w io.Writer, nodes []completion) error {
	var b strings.Builder
	b.WriteString("# fish completion for levee\nfunction __levee_at\n  set -l at levee\n  for word in (commandline -opc)[2..-1]\n    switch \"$at $word\"\n      case")
	for _, n := range nodes[1:] {
		b.WriteString(" '" + n.path + "'")
	}
	b.WriteString("\n        set at \"$at $word\"\n    end\n  end\n  test \"$at\" = \"$argv\"\nend\n")
	for _, n := range nodes {
		for _, word := range n.words {
			fmt.Fprintf(&b, "complete -c levee -f -n '__levee_at %s' -a %s -d '%s'\n", n.path, word.word, fishQuote(word.help))
		}
		for _, f := range n.flags {
			fmt.Fprintf(&b, "complete -c levee -n '__levee_at %s' -l %s -d '%s'", n.path, strings.TrimPrefix(f.word, "--"), fishQuote(f.help))
			if values := n.enums[f.word]; values != nil {
				fmt.Fprintf(&b, " -x -a '%s'", strings.Join(values, " "))
			}
			b.WriteString("\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func fishQuote(s string) string { return strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) }
