package files

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
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
	return protocol.Errorf(protocol.CodeInvalidPattern,
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

// canMatch returns an error for a pattern that can match no line. Such a pattern needs a line end
// (lines are searched one by one), or text after the end of a line.
func canMatch(pattern string) error {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return badPattern(pattern, err)
	}
	what := ""
	switch {
	case needs(parsed, '\n'):
		what = `each line is searched by itself, and has no \n; search for a part of one line`
	case impossible(parsed):
		what = `^ and $ are the start and the end of a line; put a \ before each that is meant as it is`
	default:
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidPattern, "no line can match the pattern %q: %s", pattern, what)
}

// needsReturn reports whether a pattern only matches what has a carriage return.
func needsReturn(pattern string) bool {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	return err == nil && needs(parsed, '\r')
}

// needs reports whether every text that matches has a character.
func needs(re *syntax.Regexp, char rune) bool {
	some := func(sub *syntax.Regexp) bool { return needs(sub, char) }
	switch re.Op {
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, char)
	case syntax.OpCharClass:
		return len(re.Rune) == 2 && re.Rune[0] == char && re.Rune[1] == char
	case syntax.OpConcat:
		return slices.ContainsFunc(re.Sub, some)
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !some(sub) })
	case syntax.OpCapture, syntax.OpPlus:
		return some(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min > 0 && some(re.Sub[0])
	default:
		return false
	}
}

// impossible reports whether nothing matches: something stands behind the end, or before the start.
func impossible(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpConcat:
		return slices.ContainsFunc(re.Sub, impossible) || crossed(re.Sub)
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !impossible(sub) })
	case syntax.OpCapture, syntax.OpPlus:
		return impossible(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min > 0 && impossible(re.Sub[0])
	default:
		return false
	}
}

// crossed reports whether a sequence of parts has text behind the end or before the start.
func crossed(parts []*syntax.Regexp) bool {
	text, ended := false, false
	for _, part := range parts {
		switch part.Op {
		case syntax.OpEndText:
			ended = true
		case syntax.OpBeginText:
			if text {
				return true
			}
		default:
			if text = text || !canBeEmpty(part); ended && !canBeEmpty(part) {
				return true
			}
		}
	}
	return false
}

// canBeEmpty reports whether a pattern perhaps matches a text without any character.
func canBeEmpty(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !canBeEmpty(sub) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, canBeEmpty)
	case syntax.OpCapture, syntax.OpPlus:
		return canBeEmpty(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || canBeEmpty(re.Sub[0])
	default:
		return true
	}
}
