package cli

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

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
