package cli

import (
	"errors"
	"strings"

	"github.com/alecthomas/kong"
)

// usageError adds to kong's message what would be allowed.
func usageError(err error) error {
	message := err.Error()
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && !strings.Contains(message, "unknown flag") {
		message = variables(parse.Context, err).Error()
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
		case strings.Contains(message, "unknown flag"):
			message += listed
		case strings.Contains(message, "expected duration but got"):
			message += "; a duration has a unit, as in 90s, 10m or 1h30m"
		case strings.Contains(message, " (short flag)"): // of which there are none: it is a negative number
			message = strings.Replace(message, " (short flag)", "", 1)
		}
	}
	return &ExitError{Code: ExitUsage, Message: message}
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
