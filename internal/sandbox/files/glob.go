package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Glob implements [sandbox.FS].
func (f *FS) Glob(ctx context.Context, req protocol.FilesGlob) (protocol.FilesGlobResult, error) {
	return operate(f, req.Path, reading, "search", func(name string) (protocol.FilesGlobResult, error) { return f.glob(ctx, name, req, false) })
}

// GlobRegular implements [sandbox.FS].
func (f *FS) GlobRegular(ctx context.Context, req protocol.FilesGlob) (protocol.FilesGlobResult, error) {
	return operate(f, req.Path, reading, "search", func(name string) (protocol.FilesGlobResult, error) { return f.glob(ctx, name, req, true) })
}

func (f *FS) glob(ctx context.Context, name string, req protocol.FilesGlob, regular bool) (protocol.FilesGlobResult, error) {
	result := protocol.FilesGlobResult{Paths: []string{}}
	if info, err := f.root.Stat(name); err != nil {
		return result, err
	} else if !info.IsDir() {
		return result, protocol.Errorf(protocol.CodeNotDirectory, "%q is not a directory", name)
	}
	wanted, err := f.newGlob(ctx, req.Pattern, req.Names, name, req.NoIgnore)
	if err != nil {
		return result, err
	}
	if err := f.allow(path.Join(name, wanted.base), reading); err != nil { // the base may go through a link
		return result, err
	}
	room := newRoom(req.Limit)
	w := walk{fs: f, noIgnore: req.NoIgnore, visit: func(_ context.Context, at position) error {
		if at.entry.IsDir() || regular && !at.entry.Type().IsRegular() || !wanted.match(path.Join(wanted.base, at.below)) {
			return nil
		}
		if result.Total++; room.take(len(at.name)) {
			result.Paths = append(result.Paths, at.name)
		}
		return nil
	}}
	err = w.from(ctx, path.Join(name, wanted.base))
	if wanted.base != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || isFault(err, protocol.CodeNotDirectory)) {
		err = nil // nothing can match
	}
	result.Skipped, result.Ignored = w.skipped, w.ignored
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
	w := walk{fs: f, noIgnore: noIgnore, visit: func(_ context.Context, at position) error {
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
		return glob{}, protocol.Errorf(protocol.CodeInvalidPattern, "the glob has %d bytes, at most %d are possible", len(pattern), maxPath)
	}
	text := strings.TrimPrefix(strings.TrimPrefix(pattern, mount+"/"), "./")
	if strings.HasPrefix(text, "/") || slices.Contains(strings.Split(text, "/"), "..") {
		return glob{}, protocol.Errorf(protocol.CodePathEscape,
			`the glob %q leads outside of the workspace; use one that is relative to it, such as "src/**/*.go"`, pattern)
	}
	if !doublestar.ValidatePattern(text) {
		return glob{}, protocol.Errorf(protocol.CodeInvalidPattern,
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
