package kinds

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/plain"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// searchPatience is the longest time of a search. After it, the search returns what it has found.
const searchPatience = 15 * time.Second

// Bounds of the use of ripgrep.
const (
	ripgrepFiles = 300              // searched without it when there are no more
	ripgrepWall  = 10 * time.Second // then the search continues without it
)

// search finds matching lines. If there are many files, ripgrep lists in the sandbox those that can
// have a match, and only those are read here. The list of files and the lines of the result come
// from the same code, with ripgrep and without.
func (f fileOps) search(ctx context.Context, fs sandbox.FS, p protocol.FilesSearch) (protocol.Value, error) {
	limit := p.Limit
	p.Limit = 0
	options := sandbox.SearchOptions{Patience: searchPatience}
	if pattern, ok := ripgrepPattern(p.Pattern, p.IgnoreCase); ok && f.ripgrep && !isLiteral(p) {
		options.Among = f.candidates(ctx, fs, p, pattern)
	}
	all, err := fs.Search(ctx, p, options)
	if err != nil {
		return nil, err
	}
	return results.List(all, len(all.Matches), all.Total, limit, func(v protocol.FilesSearchResult, n int) protocol.FilesSearchResult {
		short := make([]protocol.Match, n)
		for i, m := range v.Matches[:n] {
			short[i] = plain.CutMatch(m)
		}
		v.Matches = short
		return v
	})
}

// isLiteral reports whether a search is for a text as it is, which ripgrep finds no faster.
func isLiteral(p protocol.FilesSearch) bool {
	return !p.IgnoreCase && regexp.QuoteMeta(p.Pattern) == p.Pattern
}

// candidates returns the files that can have a match. It returns nil if all have to be searched:
// there are few, or ripgrep does not help.
func (f fileOps) candidates(ctx context.Context, fs sandbox.FS, p protocol.FilesSearch, pattern string) []string {
	found, err := fs.GlobRegular(ctx, protocol.FilesGlob{Pattern: p.Glob, Names: true, Path: p.Path, NoIgnore: p.NoIgnore})
	if err != nil || found.Total <= ripgrepFiles || found.Total > len(found.Paths) {
		return nil
	}
	var input bytes.Buffer
	for _, path := range found.Paths {
		input.WriteString("./" + path + "\x00")
	}
	// xargs ends with 123 when one of its runs found nothing; an error of ripgrep leaves
	// a line on stderr.
	result, err := f.sandbox.Exec(ctx, sandbox.Cmd{
		Argv: []string{
			"xargs", "-0", "rg", "--no-config", "--files-with-matches", "--null", "--text", "--encoding=none",
			"--color=never", "--threads=4", "-e", pattern, "--",
		},
		Stdin: input.Bytes(), Limits: sandbox.Limits{Wall: ripgrepWall, Output: int64(max(input.Len(), 1<<10))},
	})
	switch {
	case err != nil, result.Reason != sandbox.ReasonExited, result.Stdout.Truncated, result.Stderr.Total > 0,
		!slices.Contains([]int{0, 1, 123}, result.ExitCode):
		return nil
	}
	candidates := []string{}
	for path := range bytes.SplitSeq(result.Stdout.Data, []byte{0}) {
		if len(path) > 0 {
			candidates = append(candidates, strings.TrimPrefix(string(path), "./"))
		}
	}
	return candidates
}

// anyText matches what any one character of a pattern can match, and more: where bytes
// are no characters, one of them is a character here, and none is to ripgrep.
const anyText = `(?-u:[^\n]){1,4}`

// ripgrepPattern returns a pattern for ripgrep that matches every line that the given one matches,
// and perhaps others. ok is false if there is no such pattern.
func ripgrepPattern(pattern string, ignoreCase bool) (_ string, ok bool) {
	flags := syntax.Perl
	if ignoreCase {
		flags |= syntax.FoldCase
	}
	parsed, err := syntax.Parse(pattern, flags)
	if err != nil {
		return "", false
	}
	var b strings.Builder
	ok = loosen(&b, parsed)
	return b.String(), ok
}

// loosen writes a pattern that matches wherever re does. It returns false when re has
// parts that cannot be put so.
func loosen(b *strings.Builder, re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return loosenLiteral(b, re)
	case syntax.OpCharClass:
		if plainClass(re.Rune) {
			b.WriteString(re.String())
		} else {
			b.WriteString(anyText)
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteString(anyText)
	case syntax.OpBeginLine, syntax.OpBeginText:
		b.WriteString("(?m:^)")
	case syntax.OpEndLine, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary, syntax.OpEmptyMatch:
		// always true, as far as ripgrep is concerned
	case syntax.OpCapture, syntax.OpConcat:
		return loosenAll(b, re.Sub, "")
	case syntax.OpAlternate:
		return loosenAll(b, re.Sub, "|")
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		if !loosenAll(b, re.Sub, "") {
			return false
		}
		b.WriteString(repetition(re))
	default:
		return false
	}
	return true
}

func loosenLiteral(b *strings.Builder, re *syntax.Regexp) bool {
	for _, r := range re.Rune {
		switch {
		case r == '\n':
			return false
		case r == utf8.RuneError:
			b.WriteString(anyText)
		case re.Flags&syntax.FoldCase != 0:
			b.WriteString("(?i:" + regexp.QuoteMeta(string(r)) + ")")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return true
}

func loosenAll(b *strings.Builder, subs []*syntax.Regexp, between string) bool {
	b.WriteString("(?:")
	for i, sub := range subs {
		if i > 0 {
			b.WriteString(between)
		}
		if !loosen(b, sub) {
			return false
		}
	}
	b.WriteString(")")
	return true
}

func repetition(re *syntax.Regexp) string {
	switch {
	case re.Op == syntax.OpStar:
		return "*"
	case re.Op == syntax.OpPlus:
		return "+"
	case re.Op == syntax.OpQuest:
		return "?"
	case re.Max < 0:
		return fmt.Sprintf("{%d,}", re.Min)
	default:
		return fmt.Sprintf("{%d,%d}", re.Min, re.Max)
	}
}

// plainClass reports whether a class has characters of one byte only, and no line end.
func plainClass(ranges []rune) bool {
	for i := 0; i < len(ranges); i += 2 {
		low, high := ranges[i], ranges[i+1]
		if high > 0x7F || low <= '\r' && high >= '\n' {
			return false
		}
	}
	return len(ranges) > 0
}
