package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Candidate is a word that may stand on a command line, and what it means.
type Candidate struct{ Word, Help string }

// Complete returns the candidates for the last of words, those that follow the program's name.
// values knows those of flags ("--session") and arguments ("id") of a command ("session show").
func Complete(p Program, grammar any, words []string, values func(command, name string) []Candidate) []Candidate {
	if len(words) == 0 {
		return nil
	}
	node, arguments := newParser(p, grammar, &sources{p: p}).Model.Node, 0
	var open *kong.Flag // whose value comes next
	for _, word := range words[:len(words)-1] {
		switch {
		case open != nil:
			open = nil
		case strings.HasPrefix(word, "--"):
			open = valued(node, strings.TrimPrefix(word, "--"))
		case !strings.HasPrefix(word, "-") && child(node, word) != nil:
			node, arguments = child(node, word), 0
		case !strings.HasPrefix(word, "-"):
			arguments++
		}
	}
	last := words[len(words)-1]
	command := strings.TrimPrefix(strings.TrimPrefix(node.FullPath(), p.Name), " ")
	name, _, assigned := strings.Cut(strings.TrimPrefix(last, "--"), "=")
	var found []Candidate
	switch {
	case open != nil:
		found = valuesOf(open.Value, "--"+open.Name, command, values)
	case strings.HasPrefix(last, "--") && assigned:
		if flag := valued(node, name); flag != nil {
			for _, c := range valuesOf(flag.Value, "--"+name, command, values) {
				found = append(found, Candidate{"--" + name + "=" + c.Word, c.Help})
			}
		}
	case strings.HasPrefix(last, "-"):
		for _, flag := range slices.Concat(node.AllFlags(true)...) {
			found = append(found, Candidate{"--" + flag.Name, sentence(flag.Help)})
		}
	default:
		for _, c := range node.Children {
			if !c.Hidden {
				found = append(found, Candidate{c.Name, sentence(c.Help)})
			}
		}
		if arguments < len(node.Positional) {
			argument := node.Positional[arguments]
			found = append(found, valuesOf(argument, argument.Name, command, values)...)
		}
	}
	return slices.DeleteFunc(found, func(c Candidate) bool { return !strings.HasPrefix(c.Word, last) })
}

// valued is the flag of a name that takes a value, of a command or those above it; nil for none.
func valued(node *kong.Node, name string) *kong.Flag {
	for _, flag := range slices.Concat(node.AllFlags(false)...) {
		if flag.Name == name && !flag.IsBool() {
			return flag
		}
	}
	return nil
}

// valuesOf are the candidates for a flag or argument: those of its enum, or else of values.
func valuesOf(v *kong.Value, name, command string, values func(command, name string) []Candidate) (all []Candidate) {
	if v.Enum == "" {
		return values(command, name)
	}
	for _, word := range v.EnumSlice() {
		all = append(all, Candidate{Word: word})
	}
	return all
}

// String is a candidate as the scripts of shells read it: a line, with a tab before the help.
func (c Candidate) String() string {
	line := func(text string) string {
		return strings.NewReplacer("\n", " ", "\t", " ").Replace(prose.Visible(text))
	}
	if c.Help == "" {
		return line(c.Word)
	}
	return fmt.Sprintf("%s\t%s", line(c.Word), line(c.Help))
}
