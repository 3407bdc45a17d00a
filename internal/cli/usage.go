package cli

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
)

// usageError adds to kong's message what would be allowed.
func (s *sources) usageError(err error) error {
	message := err.Error()
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && !strings.Contains(message, "unknown flag") {
		message = s.explain(parse.Context, err).Error()
	}
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		selected := parse.Context.Selected()
		switch {
		case strings.HasPrefix(message, "expected one of") && selected == nil: // kong names five at most
			message = "expected one of " + commandNames(parse.Context.Model.Node)
		case selected != nil && len(selected.Children) > 0 && // the verb comes first
			(strings.HasPrefix(message, "expected one of") || strings.HasPrefix(message, "missing flags")):
			message = "expected one of " + commandNames(selected)
		case strings.HasPrefix(message, `expected "<`) && selected != nil:
			message += "; usage: " + parse.Context.Model.Name + " " + selected.Summary()
		case strings.Contains(message, "unexpected argument") && selected != nil && len(selected.Children) > 0:
			message += "; commands are " + commandNames(selected)
		case strings.Contains(message, "unexpected argument") && selected != nil:
			message += "; usage: " + parse.Context.Model.Name + " " + selected.Summary()
		case strings.Contains(message, "unexpected argument") && len(parse.Context.Model.Children) > 0:
			message += "; commands are " + commandNames(parse.Context.Model.Node)
		case strings.Contains(message, "unexpected argument"):
			message += "; usage: " + parse.Context.Model.Name + parse.Context.Model.Summary() // which begins with a space
		case unknownFlag.MatchString(message):
			message = misspelt(unknownFlag.FindStringSubmatch(message)[1], parse.Context)
		case strings.Contains(message, "expected duration but got"):
			message += "; a duration has a unit, as in 90s, 10m or 1h30m"
		case strings.HasPrefix(message, "missing flags: --nats="):
			message += "; coordinator serve starts a fleet, and prints the flags that reach it"
		case strings.HasSuffix(message, `value but got "EOL" (<EOL>)`):
			flag, _, _ := strings.Cut(message, ":")
			message = flag + " needs a value"
		case strings.Contains(message, " (short flag)"): // of which there are none: it is a negative number
			message = strings.Replace(message, " (short flag)", "", 1)
		}
	}
	return &ExitError{Code: ExitUsage, Message: message}
}

var unknownFlag = regexp.MustCompile(`^unknown flag --([^\s,]+)`)

// misspelt is the error about an unknown flag, of one line, with the nearest flag there is.
func misspelt(name string, kctx *kong.Context) string {
	var names []string
	for _, flag := range kctx.Flags() {
		names = append(names, flag.Name)
	}
	message := "unknown flag --" + name
	if near, ok := prose.Nearest(name, names); ok {
		message += "; did you mean --" + near + "?"
	} else {
		message += ";"
	}
	return message + listed
}

// called is the command that was meant when parsing stopped, as it is called.
func called(p Program, err error) string {
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context.Selected() != nil {
		return parse.Context.Selected().FullPath()
	}
	return p.Name
}

func commandNames(group *kong.Node) string {
	var names []string
	for _, command := range group.Children {
		if !command.Hidden {
			names = append(names, command.Name)
		}
	}
	return strings.Join(names, ", ")
}

// explain adds to an error which of the flags that it is about were set by a variable or a file: a
// user who did that long ago looks for the cause among the arguments.
func (s *sources) explain(kctx *kong.Context, err error) error {
	if err == nil || err.Error() == "" || kctx == nil {
		return err
	}
	var notes []string
	for _, flag := range kctx.Flags() {
		origin := s.origin(kctx, flag)
		if origin != "" && origin != originFlag && concerns(err.Error(), flag) && !strings.Contains(err.Error(), strings.TrimPrefix(origin, ofVariable)) {
			notes = append(notes, fmt.Sprintf("--%s is set by %s", flag.Name, origin))
		}
	}
	if len(notes) == 0 {
		return err
	}
	return &noted{err: err, note: strings.Join(notes, ", ")}
}

// concerns reports whether a message names a flag, or its value if that is a text.
func concerns(message string, flag *kong.Flag) bool {
	if regexp.MustCompile(`(^|[^\w-])--` + regexp.QuoteMeta(flag.Name) + `($|[^\w-])`).MatchString(message) {
		return true
	}
	if flag.Target.Kind() != reflect.String || flag.Enum != "" {
		return false
	}
	const leastTelling = 3 // letters: less is in many a message
	value := natsio.Redact(flag.Target.String())
	return len(value) >= leastTelling && strings.Contains(message, value)
}

// noted is an error with what variables have to do with it.
type noted struct {
	err  error
	note string
}

func (e *noted) Error() string { return e.err.Error() + " (" + e.note + ")" }

func (e *noted) Unwrap() error { return e.err }

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

// An unset variable of a script becomes an empty value. As a flag it is an error: an empty
// --allow-tool would allow every tool. An empty environment variable counts as not set, except
// those that [narrows] marks.

// narrows marks flags without which more is allowed.
const narrows = "narrows"

var errEmptyItem = errors.New("has an empty value: omit it, and any extra comma")

// list reads a flag that takes several values.
func list(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("value")
	if err != nil {
		return err
	}
	items, listed := token.Value.([]string) // of a file
	switch {
	case listed:
	case ctx.Value.Flag == nil: // arguments, up to a flag, or all that follows of another command line
		items = []string{token.String()}
		for next := ctx.Scan.Peek(); next.Type != kong.EOLToken && (ctx.Value.PassthroughMode != kong.PassThroughModeNone || next.IsValue()); next = ctx.Scan.Peek() {
			items = append(items, ctx.Scan.Pop().String())
		}
	default:
		items = []string{token.String()}
		if sep := ctx.Value.Tag.Sep; sep != -1 {
			items = strings.Split(items[0], string(sep))
		}
	}
	for _, item := range items {
		if strings.TrimSpace(item) == "" {
			return errEmptyItem
		}
		target.Set(reflect.Append(target, reflect.ValueOf(item)))
	}
	return nil
}

// dropEmptyEnv makes an empty variable the same as none, as it is with compose files
// that pass on what is not set. It returns their names.
func dropEmptyEnv() map[string]bool {
	empty := map[string]bool{}
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); value == "" && strings.HasPrefix(name, EnvPrefix+"_") {
			empty[name] = true
			_ = os.Unsetenv(name) // names that are set can be unset
		}
	}
	return empty
}

// checkEmpty returns the first fault of values that are empty. emptyEnv are the variables that
// were.
func checkEmpty(kctx *kong.Context, emptyEnv map[string]bool) error {
	for _, at := range kctx.Path {
		if f := at.Flag; f != nil && f.Target.Kind() == reflect.String && strings.TrimSpace(f.Target.String()) == "" {
			return Usagef("--%s: is empty; want %s, or leave it out", f.Name, f.FormatPlaceHolder())
		}
	}
	for _, f := range kctx.Flags() {
		for _, name := range f.Envs {
			if emptyEnv[name] && f.Target.IsZero() && f.Tag.Has(narrows) {
				return Usagef("%s: is empty, which would allow more tool calls; set %s, or unset the variable", name, f.FormatPlaceHolder())
			}
		}
	}
	return nil
}
