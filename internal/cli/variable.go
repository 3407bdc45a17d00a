package cli

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// variables adds to an error which of the flags that it is about were set by a variable: a user who
// exported that long ago looks for the cause among the arguments.
func variables(kctx *kong.Context, err error) error {
	if err == nil || err.Error() == "" || kctx == nil {
		return err
	}
	var notes []string
	for _, flag := range kctx.Flags() {
		if name := variable(kctx, flag); name != "" && concerns(err.Error(), flag) && !strings.Contains(err.Error(), name) {
			notes = append(notes, fmt.Sprintf("--%s is set by the variable %s", flag.Name, name))
		}
	}
	if len(notes) == 0 {
		return err
	}
	return &noted{err: err, note: strings.Join(notes, ", ")}
}

// variable is the variable that has set a flag; "" when that was an argument, or the default.
func variable(kctx *kong.Context, flag *kong.Flag) string {
	for _, at := range kctx.Path {
		if at.Flag == flag {
			return ""
		}
	}
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return name
		}
	}
	return ""
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
