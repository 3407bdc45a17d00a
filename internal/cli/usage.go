package cli

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
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
