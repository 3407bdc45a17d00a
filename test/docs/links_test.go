// Package docs_test checks the documents: each link between them leads somewhere, and each page
// begins with what its reader does.
package docs_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	documents := map[string][]byte{}
	require.NoError(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && (entry.Name()[0] == '.' || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if path.Ext(name) != ".md" || entry.IsDir() {
			return nil
		}
		documents[name], err = fs.ReadFile(root, name)
		return err
	}))
	require.Greater(t, len(documents), 10)
	for name, text := range documents {
		text = code.ReplaceAll(fence.ReplaceAll(text, nil), nil)
		for _, match := range link.FindAllSubmatch(text, -1) {
			checkLink(t, root, documents, name, string(match[1]))
		}
	}
}

// checkLink fails for a target that is not in the repository, or a heading that its document does
// not have. Addresses elsewhere are not asked for.
func checkLink(t *testing.T, root fs.FS, documents map[string][]byte, from, target string) {
	t.Helper()
	if strings.Contains(target, "://") {
		return
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
		if _, err := fs.Stat(root, to); err != nil {
			t.Errorf("%s: %s leads to no file", from, target)
			return
		}
	}
	if anchor != "" && !hasAnchor(documents[to], anchor) {
		t.Errorf("%s: %s leads to no heading", from, target)
	}
}

// hasAnchor knows the anchors that GitHub gives to headings.
func hasAnchor(text []byte, anchor string) bool {
	for _, match := range heading.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		title := bytes.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[1])
		if string(title) == anchor {
			return true
		}
	}
	return false
}

// TestDocs_BeginWithTheReader checks that the README can be read in three minutes. Each page begins
// with what its reader does, not with a promise of what the page teaches.
func TestDocs_BeginWithTheReader(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, len(strings.Fields(string(readme))), 700, "words of README.md")
	pages := 0
	require.NoError(t, filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		require.Regexp(t, `\A# .+\n\n[A-Z*|]`, string(text), path)
		require.NotRegexp(t, `\A# .+\n\n(After|In|On) this page`, string(text), path)
		pages++
		return err
	}))
	require.Greater(t, pages, 10)
}
