package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkEvery is how many lines of one file are searched between looks at the context.
const checkEvery = 4096

// Search implements [sandbox.FS].
func (f *FS) Search(ctx context.Context, req protocol.FilesSearch, options sandbox.SearchOptions) (protocol.FilesSearchResult, error) {
	return operate(f, req.Path, reading, "search", func(name string) (protocol.FilesSearchResult, error) {
		s, err := f.newSearch(req, options)
		if err != nil {
			return protocol.FilesSearchResult{}, err
		}
		if s.glob, err = f.newGlob(ctx, req.Glob, true, name, req.NoIgnore); err != nil {
			return protocol.FilesSearchResult{}, err
		}
		s.glob.base = ""
		err = s.run(ctx, name, req.NoIgnore)
		if s.result.Stopped = errors.Is(err, errStopped); s.result.Stopped {
			err = nil
		}
		return s.result, err
	})
}

// search is one run of Search.
type search struct {
	fs      *FS
	pattern *regexp.Regexp
	literal []byte // every match starts with it
	returns bool   // every match has a carriage return, perhaps that of the line end
	glob    glob
	among   map[string]bool // of the files in UTF-8 those that can match; nil for all
	room    room
	until   time.Time // zero for no end
	named   bool      // one file was asked for, and its faults are those of the search
	result  protocol.FilesSearchResult
}

// errStopped ends a search whose time is over.
var errStopped = errors.New("the time of the search is over")

func (f *FS) newSearch(req protocol.FilesSearch, options sandbox.SearchOptions) (*search, error) {
	pattern, err := regexp.Compile(req.Pattern)
	if err != nil {
		return nil, badPattern(req.Pattern, err)
	}
	if req.IgnoreCase {
		pattern = regexp.MustCompile("(?i)" + req.Pattern)
	}
	if err := canMatch(req.Pattern); err != nil {
		return nil, err
	}
	literal, _ := pattern.LiteralPrefix()
	s := &search{fs: f, pattern: pattern, literal: []byte(literal), returns: needsReturn(req.Pattern), room: newRoom(req.Limit)}
	s.result.Matches = []protocol.Match{}
	if options.Patience > 0 {
		s.until = time.Now().Add(options.Patience)
	}
	if options.Among != nil {
		s.among = make(map[string]bool, len(options.Among))
		for _, name := range options.Among {
			s.among[name] = true
		}
	}
	return s, nil
}

// run searches the file or directory name.
func (s *search) run(ctx context.Context, name string, noIgnore bool) error {
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
	w := walk{fs: s.fs, noIgnore: noIgnore, visit: func(ctx context.Context, at position) error {
		if !at.entry.Type().IsRegular() {
			return nil
		}
		return s.file(ctx, at.name, at.below)
	}}
	err = w.from(ctx, name)
	s.result.Skipped += w.skipped
	for _, name := range w.unread {
		s.result.SkippedPaths = addName(s.result.SkippedPaths, name)
	}
	s.result.Ignored = w.ignored
	return err
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
		s.result.Skipped++
		s.result.SkippedPaths = addName(s.result.SkippedPaths, name)
		return nil //nolint:nilerr // one unreadable file does not end a search
	}
	text, as, _ := decode(content)
	if bytes.IndexByte(text, 0) >= 0 {
		s.result.Binary++
		s.result.BinaryPaths = addName(s.result.BinaryPaths, name)
		return nil
	}
	s.result.Files++
	if as == (form{}) && s.among != nil && !s.among[name] {
		return nil
	}
	return s.lines(ctx, name, text)
}

// lines searches content line by line, and skips to where a match is possible.
func (s *search) lines(ctx context.Context, name string, content []byte) error {
	number := 1
	for looked := 1; len(content) > 0; looked++ {
		if looked%checkEvery == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if s.over() {
				return errStopped
			}
		}
		skip := bytes.Index(content, s.literal)
		if skip < 0 {
			return nil
		}
		start := bytes.LastIndexByte(content[:skip], '\n') + 1
		number += bytes.Count(content[:start], []byte{'\n'})
		content = content[start:]
		length := lineLength(content)
		line := bytes.TrimSuffix(content[:length], []byte{'\n'})
		shown := bytes.TrimSuffix(line, []byte{'\r'})
		if !s.returns {
			line = shown
		}
		if s.pattern.Match(line) {
			s.found(name, number, shown)
		}
		content = content[length:]
		number++
	}
	return nil
}

// found records a matching line.
func (s *search) found(name string, number int, line []byte) {
	s.result.Total++
	if s.room.take(len(name) + len(line)) {
		s.result.Matches = append(s.result.Matches, protocol.Match{
			Path: name, Line: number, Text: strings.ToValidUTF8(string(line), "\uFFFD"),
		})
	}
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
