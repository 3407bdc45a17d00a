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

// badPlace is where a fault is in a pattern, and the text there; -1 when that is not
// known. Of parentheses and of the last backslash the parser tells no place.
func badPlace(pattern string, fault *syntax.Error) (int, string) {
	switch fault.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen:
		if at := lonelyParen(pattern); at >= 0 {
			return at, pattern[at:]
		}
	case syntax.ErrTrailingBackslash:
		return len(pattern) - 1, `\`
	default:
	}
	return strings.Index(pattern, fault.Expr), fault.Expr
}

// lonelyParen is where the first closing parenthesis is that none opens, or else the last
// opening one that none closes; -1 when there is neither.
func lonelyParen(pattern string) int {
	var open []int
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			i = classEnd(pattern, i)
		case '(':
			open = append(open, i)
		case ')':
			if len(open) == 0 {
				return i
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) == 0 {
		return -1
	}
	return open[len(open)-1]
}

// classEnd is where the character class ends that begins at start.
func classEnd(pattern string, start int) int {
	i := start + 1
	if strings.HasPrefix(pattern[i:], "^") {
		i++
	}
	for first := i; i < len(pattern) && (pattern[i] != ']' || i == first); i++ {
		if pattern[i] == '\\' {
			i++
		}
	}
	return i
}
