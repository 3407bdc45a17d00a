package files

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// badPattern is the fault of a regular expression that does not compile.
func badPattern(pattern string, err error) error {
	what, where := err.Error(), ""
	if syntaxErr, ok := errors.AsType[*syntax.Error](err); ok {
		what = syntaxErr.Code.String()
		if at, expr := badPlace(pattern, syntaxErr); at >= 0 {
			where = fmt.Sprintf(" at character %d, %q", utf8.RuneCountInString(pattern[:at])+1, expr)
		}
	}
	return sandbox.Faultf(sandbox.FaultInvalidPattern,
		`the pattern %q is malformed: %s%s; patterns are RE2 regular expressions, put a \ before a special character that is meant as it is`,
		pattern, what, where)
}

// badPlace is where a fault is in a pattern, and the text there; -1 when that is not known.
func badPlace(pattern string, fault *syntax.Error) (int, string) {
	switch fault.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen: // of which the parser tells no place
		return -1, ""
	case syntax.ErrTrailingBackslash:
		return len(pattern) - 1, `\`
	default:
		return strings.Index(pattern, fault.Expr), fault.Expr
	}
}
