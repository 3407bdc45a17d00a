//go:build unix

package files_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The files that a glob leaves out are those that git ignores, whatever the rules.
func TestIgnore_AsGitDoes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("UNSUPPORTED HERE: git is not installed, so nothing is compared")
	}
	part := rapid.SampledFrom([]string{"a", "b", "ab", "*", "**", "?", "[ab]", "[!a]", "a*", "*b", `\a`, "[[:alpha:]]", "[a-b]", "[b-]", "[]a]", "[^b]", `\*`, "a?", ".*"})
	rule := rapid.Custom(func(t *rapid.T) string {
		text := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/")
		return rapid.SampledFrom([]string{"", "", "", "!", "#"}).Draw(t, "mark") + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "start") +
			text + rapid.SampledFrom([]string{"", "", "/", " ", `\ `, "/**"}).Draw(t, "end")
	})
	rules := rapid.SliceOfN(rule, 0, 4)
	base := t.TempDir()
	repository := filepath.Join(base, "git")
	git(t, "init", "-q", "--bare", repository)
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		checks++
		dir := filepath.Join(base, strconv.Itoa(checks))
		require.NoError(t, os.Mkdir(dir, 0o755))
		put := func(name, content string) {
			name = filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		}
		names := []string{"a", "b/a", "b/b", "ab/a/b", "ab/ab", "c/a/b/ab", "c/ab", "c/b/a"}
		for _, name := range names {
			put(name, "")
		}
		for _, at := range []string{"", "c/", "ab/a/"} {
			if text := strings.Join(rules.Draw(rt, "rules"), "\n"); text != "" {
				put(at+".gitignore", text+"\n")
			}
		}
		fs := open(t, dir)
		got, err := fs.Glob(t.Context(), protocol.FilesGlob{Pattern: "**"})
		require.NoError(t, err)
		require.Equal(rt, append([]string{}, gitSees(t, repository, dir)...), got.Paths)
	})
}

// gitSees are the files in dir that git would add to a repository.
func gitSees(t *testing.T, repository, dir string) []string {
	t.Helper()
	var names []string
	out := git(t, "--git-dir", repository, "--work-tree", dir, "ls-files", "--others", "--exclude-standard", "-z")
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if len(name) > 0 {
			names = append(names, string(name))
		}
	}
	return names
}

func git(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = []string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1"}
	if i := slices.Index(args, "--work-tree"); i >= 0 {
		cmd.Dir = args[i+1]
	}
	out, err := cmd.Output()
	require.NoError(t, err)
	return out
}
