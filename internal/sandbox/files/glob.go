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
	skip := func(string) { result.Skipped++ }
	w := walk{fs: f, noIgnore: req.NoIgnore, withPackages: req.NoIgnore && !req.NoGenerated, skip: skip, visit: func(_ context.Context, at position) error {
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

// canMatch compiles a pattern, and returns an error for one that can match no line. Such a pattern
// needs a line end (lines are searched one by one), or text after the end of a line.
func canMatch(pattern string) (*syntax.Prog, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, badPattern(pattern, err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, badPattern(pattern, err)
	}
	what := ""
	switch {
	case !matchesWithout(program, '\n', false):
		what = `each line is searched by itself, and has no \n; search for a part of one line`
	case !matchesWithout(program, '\n', true):
		what = `^ and $ are the start and the end of a line; put a \ before each that is meant as it is`
	default:
		return program, nil
	}
	return nil, protocol.Errorf(codes.InvalidPattern, "no line can match the pattern %q: %s", pattern, what)
}

// matchesWithout reports whether a pattern matches some text that lacks a character. With anchored,
// ^ and $ are the start and the end of that text, else they match anywhere.
func matchesWithout(program *syntax.Prog, char rune, anchored bool) bool {
	type state struct {
		at             uint32
		started, ended bool // a character was matched; the end of the line was
	}
	seen := map[state]bool{}
	next := []state{{at: uint32(program.Start)}} //nolint:gosec // an index
	for len(next) > 0 {
		s := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[s] {
			continue
		}
		seen[s] = true
		i := program.Inst[s.at]
		s.at = i.Out
		switch i.Op {
		case syntax.InstMatch:
			return true
		case syntax.InstFail:
			continue
		case syntax.InstAlt, syntax.InstAltMatch:
			next = append(next, state{i.Arg, s.started, s.ended})
		case syntax.InstEmptyWidth:
			at := syntax.EmptyOp(i.Arg) //nolint:gosec // six bits
			if anchored && s.started && at&(syntax.EmptyBeginText|syntax.EmptyBeginLine) != 0 {
				continue
			}
			s.ended = s.ended || anchored && at&(syntax.EmptyEndText|syntax.EmptyEndLine) != 0
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			if only := len(i.Rune) > 0 && i.Rune[0] == char && i.Rune[len(i.Rune)-1] == char; only || s.ended {
				continue
			}
			s.started = true
		case syntax.InstCapture, syntax.InstNop:
		}
		next = append(next, s)
	}
	return false
}
