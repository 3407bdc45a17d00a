package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// --help fits on a screen: it shows a command's own flags, and of those in groups the ones that
// have a tag brief, which is their text there. Other texts are cut after the first sentence.
// --help-all shows every flag with its whole text.

// brief is the tag of a flag or argument with its text for --help, of one line.
const brief = "brief"

// helpWidth is the number of columns that help takes of a wide terminal.
const helpWidth = 100

// help prints the short help of the selected command.
func (p Program) help(options kong.HelpOptions, ctx *kong.Context) error {
	options.ValueFormatter = func(v *kong.Value) string {
		if text := v.Tag.Get(brief); text != "" {
			return text
		}
		return sentence(v.Help)
	}
	node, name := ctx.Model.Node, ""
	if selected := ctx.Selected(); selected != nil {
		node, name = selected, strings.TrimPrefix(selected.FullPath(), p.Name+" ")
	}
	all := 0
	for _, flag := range slices.Concat(node.AllFlags(true)...) {
		all++
		flag.Hidden = flag.Group != nil && flag.Tag.Get(brief) == "" || flag.Name == "help"
	}
	for _, child := range node.Children {
		child.Help = sentence(child.Help)
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	for i, example := range p.Examples[name] {
		if i == 0 {
			_, _ = fmt.Fprintln(ctx.Stdout, "\nExamples:")
		}
		_, _ = fmt.Fprintln(ctx.Stdout, "  "+example)
	}
	what := fmt.Sprintf("All %d flags", all)
	if node.Parent == nil && len(node.Children) > 0 {
		what = "All commands"
	}
	_, err := fmt.Fprintf(ctx.Stdout, "\n%s: %s --help-all\n", what, node.FullPath())
	return err
}

// sentence is the first sentence of a text.
func sentence(text string) string {
	if first, _, more := strings.Cut(text, ". "); more {
		return first + "."
	}
	return text
}

// helpAll is the flag that prints every flag of a command.
type helpAll bool

// BeforeReset implements a hook of kong.
func (helpAll) BeforeReset(ctx *kong.Context) error {
	options := kong.HelpOptions{Compact: true, WrapUpperBound: helpWidth, ValueFormatter: kong.DefaultHelpValueFormatter}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	ctx.Exit(ExitOK)
	return nil
}
