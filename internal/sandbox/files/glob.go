package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp/syntax"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (f *FS) glob(ctx context.Context, name string, req protocol.FilesGlob) (protocol.FilesGlobResult, error) {
	result := protocol.FilesGlobResult{Paths: []string{}}
	if info, err := f.root.Stat(name); err != nil {
		return result, err
	} else if !info.IsDir() {
		return result, protocol.Errorf(codes.NotDirectory, "%q is not a directory", name)
	}
	wanted, err := f.newGlob(ctx, req.Pattern, req.Names, name, req.NoIgnore)
	if err != nil {
		return result, err
	}
	if err := f.allow(path.Join(name, wanted.base), reading); err != nil { // the base may go through a link
		return result, err
	}
	room := newRoom(req.Limit)
	w := walk{fs: f, noIgnore: req.NoIgnore, withPackages: req.NoIgnore && !req.NoGenerated, skip: func(string) { result.Skipped++ }, visit: func(_ context.Context, at position) error {
		if at.entry.IsDir() || !wanted.match(path.Join(wanted.base, at.below)) {
			return nil
		}
		if result.Total++; room.take(len(at.name)) {
			result.Paths = append(result.Paths, at.name)
		}
		return nil
	}}
	err = w.from(ctx, path.Join(name, wanted.base))
	if wanted.base != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || isFault(err, codes.NotDirectory)) {
		err = nil // nothing can match
	}
	result.Ignored, result.Generated, result.GeneratedPaths = w.ignored, w.generated, w.generatedPaths
	return result, err
}

func isFault(err error, code protocol.Code) bool {
	fault, ok := errors.AsType[*protocol.Error](err)
	return ok && fault.Code == code
}

// glob is a pattern for paths below a start; the zero value matches every path.
type glob struct {
	pattern string
	names   bool   // matches base names
	base    string // directory below the start in which every match is; "" is the start
}

// newGlob returns a pattern for a search below start. Brackets match literally if a file has such a
// name, as in app/[slug]/page.tsx; otherwise they match one of the characters in them.
func (f *FS) newGlob(ctx context.Context, pattern string, names bool, start string, noIgnore bool) (glob, error) {
	wanted, err := parseGlob(pattern, names)
	if err != nil || !strings.Contains(wanted.pattern, "[") || strings.Contains(wanted.pattern, `\`) {
		return wanted, err
	}
	named, err := parseGlob(strings.NewReplacer("[", `\[`, "]", `\]`).Replace(wanted.pattern), names)
	if err != nil || f.allow(path.Join(start, named.base), reading) != nil {
		return wanted, nil //nolint:nilerr // it has no such files
	}
	w := walk{fs: f, noIgnore: noIgnore, withPackages: noIgnore, skip: func(string) {}, visit: func(_ context.Context, at position) error {
		if !at.entry.IsDir() && named.match(path.Join(named.base, at.below)) {
			return errFound
		}
		return nil
	}}
	switch err := w.from(ctx, path.Join(start, named.base)); {
	case errors.Is(err, errFound):
		return named, nil
	case ctx.Err() != nil, errors.Is(err, os.ErrClosed):
		return glob{}, err
	default:
		return wanted, nil
	}
}

// errFound ends a walk that has found what it was for.
var errFound = errors.New("found")

// parseGlob checks a pattern. With names, one without a slash matches base names.
func parseGlob(pattern string, names bool) (glob, error) {
	if pattern == "" {
		return glob{}, nil
	}
	if len(pattern) > maxPath {
		return glob{}, protocol.Errorf(codes.InvalidPattern, "the glob has %d bytes, at most %d are possible", len(pattern), maxPath)
	}
	text := strings.TrimPrefix(strings.TrimPrefix(pattern, mount+"/"), "./")
	if strings.HasPrefix(text, "/") || slices.Contains(strings.Split(text, "/"), "..") {
		return glob{}, protocol.Errorf(codes.PathEscape,
			`the glob %q leads outside of the workspace; use one that is relative to it, such as "src/**/*.go"`, pattern)
	}
	if !doublestar.ValidatePattern(text) {
		return glob{}, protocol.Errorf(codes.InvalidPattern,
			`the glob %q is malformed; examples: "*.go", "src/**/*.{ts,tsx}"`, pattern)
	}
	if names && !strings.Contains(text, "/") {
		return glob{pattern: text, names: true}, nil
	}
	base, _ := doublestar.SplitPattern(text)
	if base == "." {
		base = ""
	}
	return glob{pattern: text, base: base}, nil
}

// match reports whether a path below the start is meant.
func (g glob) match(below string) bool {
	if g.pattern == "" {
		return true
	}
	if g.names {
		below = path.Base(below)
	}
	return doublestar.MatchUnvalidated(g.pattern, below)
}

// badPattern is the fault of a regular expression that does not compile.
func badPattern(pattern string, err error) error {
	what, where := err.Error(), ""
	if syntaxErr, ok := errors.AsType[*syntax.Error](err); ok {
		what = syntaxErr.Code.String()
		if at, expr := badPlace(pattern, syntaxErr); at >= 0 {
			where = fmt.Sprintf(" at character %d, %q", utf8.RuneCountInString(pattern[:at])+1, expr)
		}
	}
	return protocol.Errorf(codes.InvalidPattern,
		`the pattern %q is malformed: %s%s; patterns are RE2 regular expressions, put a \ before a special character that is meant as it is`,
		pattern, what, where)
}

// badPlace is where a fault is in a pattern, and the text there; -1 when that is not known.
func badPlace(pattern string, fault *syntax.Error) (int, string) {
	switch fault.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen: // the parser reports no position
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
	return protocol.Errorf(codes.InvalidPattern, "no line can match the pattern %q: %s", pattern, what)
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
