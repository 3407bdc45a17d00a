package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkEvery is how many lines of one file are searched between looks at the context.
const checkEvery = 4096

func (f *FS) searchAll(ctx context.Context, name string, req protocol.FilesSearch) (protocol.FilesSearchResult, error) {
	return f.search(ctx, name, sandbox.FilesSearch{FilesSearch: req})
}

func (f *FS) search(ctx context.Context, name string, req sandbox.FilesSearch) (protocol.FilesSearchResult, error) {
	s, err := f.newSearch(req)
	if err != nil {
		return protocol.FilesSearchResult{}, err
	}
	if s.glob, err = f.newGlob(ctx, req.Glob, true, name, req.NoIgnore); err != nil {
		return protocol.FilesSearchResult{}, err
	}
	inside := s.glob.base
	s.glob.base = ""
	err = s.run(ctx, name, inside, req.NoIgnore)
	if s.result.Stopped = errors.Is(err, errStopped); s.result.Stopped {
		err = nil
	}
	return s.result, err
}

// search is one run of a search.
type search struct {
	fs      *FS
	pattern *regexp.Regexp
	literal literal // every match has it
	returns bool    // every match has a carriage return, perhaps that of the line end
	glob    glob
	room    room
	until   time.Time // zero for no end
	named   bool      // one file was asked for, and its faults are those of the search
	context int       // lines around each match
	result  protocol.FilesSearchResult
}

// errStopped ends a search whose time is over.
var errStopped = errors.New("the time of the search is over")

func (f *FS) newSearch(req sandbox.FilesSearch) (*search, error) {
	pattern, err := regexp.Compile(req.Pattern)
	if err != nil {
		return nil, badPattern(req.Pattern, err)
	}
	if req.IgnoreCase {
		pattern = regexp.MustCompile("(?i)" + req.Pattern)
	}
	program, err := canMatch(req.Pattern)
	if err != nil {
		return nil, err
	}
	s := &search{fs: f, pattern: pattern, literal: literalOf(pattern), returns: !matchesWithout(program, '\r', false), room: newRoom(req.Limit), context: req.Context}
	s.result.Matches = []protocol.Match{}
	if req.Patience > 0 {
		s.until = time.Now().Add(req.Patience)
	}
	return s, nil
}

// literal is a text that every match of a pattern has; "" is none.
type literal struct {
	text   string
	folded bool // in lower case, of ASCII: matches may have others
}

// literalOf is the longest literal found in a pattern.
func literalOf(pattern *regexp.Regexp) literal {
	parsed, err := syntax.Parse(pattern.String(), syntax.Perl)
	if err != nil {
		return literal{}
	}
	return longest(parsed)
}

func longest(re *syntax.Regexp) (l literal) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			for _, part := range strings.FieldsFunc(string(re.Rune), foldsWide) {
				l = longer(l, literal{strings.ToLower(part), true})
			}
		} else if !slices.Contains(re.Rune, utf8.RuneError) { // bytes match that are no text, too
			l.text = string(re.Rune)
		}
	case syntax.OpConcat:
		for _, part := range re.Sub {
			l = longer(l, longest(part))
		}
	case syntax.OpCapture, syntax.OpPlus:
		l = longest(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			l = longest(re.Sub[0])
		}
	default:
	}
	return l
}

func longer(a, b literal) literal {
	if len(b.text) > len(a.text) {
		return b
	}
	return a
}

// foldsWide reports whether a letter has other forms than those of ASCII: the signs for kelvin and
// long s are forms of k and s.
func foldsWide(r rune) bool { return r >= utf8.RuneSelf || strings.ContainsRune("kKsS", r) }

// lowered is a copy of a text whose ASCII letters are in lower case.
func lowered(text []byte) []byte {
	lower := bytes.Clone(text)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	return lower
}

// run searches the file or directory name. What it looks for is in the directory inside of it.
func (s *search) run(ctx context.Context, name, inside string, noIgnore bool) error {
	info, err := s.fs.root.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if err := requireRegular(name, info); err != nil {
			return err
		}
		s.named = true
		return s.file(ctx, name, path.Base(name))
	}
	w := walk{fs: s.fs, noIgnore: noIgnore, withPackages: noIgnore, named: inside, skip: s.skip, visit: func(ctx context.Context, at position) error {
		if !at.entry.Type().IsRegular() {
			return nil
		}
		return s.file(ctx, at.name, at.below)
	}}
	err = w.from(ctx, name)
	s.result.Ignored, s.result.Generated, s.result.GeneratedPaths = w.ignored, w.generated, w.generatedPaths
	return err
}

// skip notes a file or directory that cannot be searched.
func (s *search) skip(name string) {
	s.result.Skipped++
	s.result.SkippedPaths = addName(s.result.SkippedPaths, name)
}

// maxNamed is how many of the files and directories are named that are not searched.
const maxNamed = 3

func addName(names []string, name string) []string {
	if len(names) < maxNamed {
		names = append(names, name)
	}
	return names
}

// file searches one regular file; below is its path below the start of the search.
// Files that cannot be searched are counted as skipped, unless one was asked for by its
// name, or as binary.
func (s *search) file(ctx context.Context, name, below string) error {
	if !s.glob.match(below) {
		return nil
	}
	if s.over() {
		return errStopped
	}
	content, _, err := s.fs.load(ctx, name, os.O_RDONLY)
	switch {
	case ctx.Err() != nil, errors.Is(err, os.ErrClosed), err != nil && s.named:
		return err
	case err != nil:
		s.skip(name)
		return nil //nolint:nilerr // one unreadable file does not end a search
	}
	text, _, _ := decode(content)
	if bytes.IndexByte(text, 0) >= 0 {
		s.result.Binary++
		s.result.BinaryPaths = addName(s.result.BinaryPaths, name)
		return nil
	}
	s.result.Files++
	return s.lines(ctx, name, cellsOf(name, text))
}

// lines searches content line by line, and skips to where a match is possible.
func (s *search) lines(ctx context.Context, name string, content []byte) error {
	number, literal, look := 1, []byte(s.literal.text), content
	around := surroundings{search: s, content: content}
	defer around.end()
	if s.literal.folded {
		look = lowered(content)
	}
	for looked := 1; len(content) > 0; looked++ {
		if looked%checkEvery == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if s.over() {
				return errStopped
			}
		}
		skip := bytes.Index(look, literal)
		if skip < 0 {
			return nil
		}
		start := bytes.LastIndexByte(content[:skip], '\n') + 1
		number += bytes.Count(content[:start], []byte{'\n'})
		content, look = content[start:], look[start:]
		length := lineLength(content)
		line := bytes.TrimSuffix(content[:length], []byte{'\n'})
		shown := bytes.TrimSuffix(line, []byte{'\r'})
		if !s.returns {
			line = shown
		}
		if s.pattern.Match(line) {
			around.until(len(around.content) - len(content))
			if s.found(name, number, shown) {
				around.match(length)
			}
		}
		content, look = content[length:], look[length:]
		number++
	}
	return nil
}

// found records a matching line, and reports whether there was room for it.
func (s *search) found(name string, number int, line []byte) bool {
	s.result.Total++
	fits := s.room.take(len(name) + len(line))
	if fits {
		s.result.Matches = append(s.result.Matches, protocol.Match{
			Path: name, Line: number, Text: prose.Valid(string(line)),
		})
	}
	return fits
}

// surroundings gives the matches in one file the lines around them.
type surroundings struct {
	*search

	content []byte
	from    int      // where the lines begin that no match has
	open    bool     // the last match gets the lines after from
	before  []string // for the next match
}

// until gives away the lines that end at an offset: first to the match before them, then to the
// match there.
func (a *surroundings) until(offset int) {
	if a.before = nil; a.context <= 0 {
		return
	}
	lines := a.content[a.from:offset]
	a.from = offset
	if a.open {
		after := &a.result.Matches[len(a.result.Matches)-1].After
		for len(*after) < a.context && len(lines) > 0 {
			length := lineLength(lines)
			*after = append(*after, a.line(lines[:length]))
			lines = lines[length:]
		}
	}
	for a.open = false; len(a.before) < a.context && len(lines) > 0; {
		start := bytes.LastIndexByte(lines[:len(lines)-1], '\n') + 1
		a.before = append(a.before, a.line(lines[start:]))
		lines = lines[:start]
	}
	slices.Reverse(a.before)
}

// match gives the lines before it to the match that was found last, whose line has so many bytes.
func (a *surroundings) match(length int) {
	a.result.Matches[len(a.result.Matches)-1].Before = a.before
	a.from, a.open = a.from+length, true
}

func (a *surroundings) end() {
	if a.open {
		a.until(len(a.content))
	}
}

// maxNearLine is how many bytes a line around a match has at most.
const maxNearLine = 500

// line is a line around a match, as far as there is room.
func (a *surroundings) line(text []byte) string {
	text = bytes.TrimRight(text, "\r\n")
	if len(text) > maxNearLine {
		text = text[:prose.Border(text[:maxNearLine])]
	}
	if a.room.bytes -= len(text); a.room.bytes < 0 {
		return ""
	}
	return prose.Valid(string(text))
}

// over reports whether the time of the search is over.
func (s *search) over() bool { return !s.until.IsZero() && time.Now().After(s.until) }

// lineLength is the length of the first line, with its line end.
func lineLength(content []byte) int {
	if i := bytes.IndexByte(content, '\n'); i >= 0 {
		return i + 1
	}
	return len(content)
}
