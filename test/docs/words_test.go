package docs_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// words are those that make readers read a sentence twice. Documents and help texts have none of
// them. Comments of Go code have at most as many as the number says, which may only be lowered.
var words = []struct {
	pattern  *regexp.Regexp
	write    string
	comments int
}{
	{word(`whoever|nobody|somebody|everybody`), "the actor: the caller, the holder, no worker", 94},
	{word(`told|tells?|telling|hears?|heard`), "notified, reported, returned, received", 102},
	{word(`places?`), "path, location, directory, position", 118},
	{word(`beside`), "next to, concurrently with, in addition to", 32},
	{word(`of which|of whom|of whose`), "a sentence of its own", 39},
	{word(`anew`), "from scratch, again", 5},
	{word(`goes on|go on|lets? go`), "continues; releases", 36},
	{word(`desk|seat|roster|heeds?|wonders?|bury|buries|doors?|news|foretells?|thereof`), "the field's word", 17},
	{word(`shuts? in`), "isolates", 1},
}

// word matches any of alternatives, as a whole word.
func word(alternatives string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + alternatives + `)\b`)
}

// exceptions are terms, which are removed before words are searched for.
var exceptions = regexp.MustCompile(`(?i)\bin[ -]place\b|takes? place`)

// find returns the words of a text that match a pattern, each with its line.
func find(text string, pattern *regexp.Regexp) (found []string) {
	for line := range strings.Lines(text) {
		for range pattern.FindAllString(exceptions.ReplaceAllString(line, ""), -1) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func TestWords_Documents(t *testing.T) {
	t.Parallel()
	for name, text := range documents(t) {
		prose := string(code.ReplaceAll(fence.ReplaceAll(text, nil), nil))
		for _, word := range words {
			for _, line := range find(prose, word.pattern) {
				t.Errorf("%s: %q has %q: write %s", name, line, word.pattern, word.write)
			}
		}
	}
}

// TestWords_Code: help texts have none of the words, and comments no more than they had.
func TestWords_Code(t *testing.T) {
	t.Parallel()
	help := regexp.MustCompile(`help:"((?:[^"\\]|\\.)*)"`)
	comments := map[*regexp.Regexp]int{}
	require.NoError(t, filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || entry.IsDir() {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var tokens scanner.Scanner
		files := token.NewFileSet()
		tokens.Init(files.AddFile(name, -1, len(source)), source, nil, scanner.ScanComments)
		for {
			_, kind, text := tokens.Scan()
			switch kind {
			case token.COMMENT:
				for _, word := range words {
					comments[word.pattern] += len(find(text, word.pattern))
				}
			case token.STRING:
				for _, match := range help.FindAllStringSubmatch(text, -1) {
					for _, word := range words {
						require.Empty(t, find(match[1], word.pattern), "%s: write %s", name, word.write)
					}
				}
			case token.EOF:
				return nil
			}
		}
	}))
	for _, word := range words {
		n := comments[word.pattern]
		require.LessOrEqual(t, n, word.comments, "%q in comments: write %s", word.pattern, word.write)
		if n < word.comments {
			t.Logf("%q: %d are left: lower the bound from %d", word.pattern, n, word.comments)
		}
	}
}
