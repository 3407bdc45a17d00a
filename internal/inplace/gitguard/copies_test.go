package gitguard_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// copies is a repository, and the copy of its settings that a sandbox has.
type copies struct {
	*gitguard.Copies

	dir, copy string
}

func newCopies(t *testing.T, script string) *copies {
	t.Helper()
	dir, scratch := workspace(t, commit+script), t.TempDir()
	c := &copies{Copies: gitguard.NewCopies(dir, scratch, []string{".git/config"}), dir: dir, copy: filepath.Join(scratch, isolation.CopyOf(".git/config"))}
	require.NoError(t, c.Put(t.Context()))
	return c
}

// sets has a command change settings, and returns what is reported of it.
func (c *copies) sets(t *testing.T, script string) []string {
	t.Helper()
	run(t, c.dir, "set() { git config -f '"+c.copy+"' \"$@\"; }\nCOPY='"+c.copy+"'\n"+script)
	keys, err := c.Changed(t.Context())
	require.NoError(t, err)
	return keys
}

func TestCopies_WhatCommandsSetStaysInTheCopy(t *testing.T) {
	t.Parallel()
	const before = "git config remote.origin.url https://example.com/o; git config branch.main.remote origin"
	for script, key := range map[string]string{
		"set core.fsmonitor ./evil": "core.fsmonitor", "set core.hooksPath x": "core.hookspath", "set user.name agent": "user.name",
		"set remote.origin.url https://evil.example.com/o":                 "remote.origin.url",
		"set --remove-section remote.origin":                               "remote.origin.url",
		"set remote.up.url https://example.com/up":                         "remote.up.url",
		"set include.path x":                                               "include.path",
		"set \"remote.$(printf 'a\\033b').url\" ./evil":                    `"remote.a\x1bb.url"`,
		"printf '[remote]\\n\\turl = https://example.com\\n' >> \"$COPY\"": "remote.url",
		"printf '[-e]\\n\\tx = --global\\n' >> \"$COPY\"":                  "-e.x",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := newCopies(t, before)
			config := filepath.Join(c.dir, ".git/config")
			want, err := os.ReadFile(config)
			require.NoError(t, err)
			require.Equal(t, []string{".git/config: " + key}, c.sets(t, script))
			actual, err := os.ReadFile(config)
			require.NoError(t, err)
			require.Equal(t, string(want), string(actual), "the user's settings do not change")
			require.Empty(t, c.sets(t, "true"), "it is reported once")
			has := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			run(t, c.dir, "git config x.y z")
			require.NoError(t, c.Put(t.Context()), "the user's change is added to what was set")
			now := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			require.Contains(t, now, "x.y=z")
			for line := range lines(has) {
				require.Contains(t, now, line)
			}
		})
	}
}

func TestCopies_CommandsMayDoWithThemWhatTheyLike(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"removed": "rm -rf '%'", "a pipe": "rm '%'; mkfifo '%'", "a directory": "rm '%'; mkdir '%'", "a link": "rm '%'; ln -s /etc/passwd '%'",
		"big": "head -c 2000000 /dev/zero > '%'", "its directory is a link": "rm -r \"$(dirname '%')\"; ln -s /etc \"$(dirname '%')\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCopies(t, "true")
			require.Empty(t, c.sets(t, replaced(script, "%", c.copy)))
			if name != "its directory is a link" {
				run(t, c.dir, replaced("[ ! -d '%' ] || rmdir '%'", "%", c.copy))
				require.NoError(t, c.Put(t.Context()))
				require.FileExists(t, c.copy)
			} else {
				require.Error(t, c.Put(t.Context()))
			}
		})
	}
	c := newCopies(t, "true")
	run(t, c.dir, "echo '[' > '"+c.copy+"'")
	_, err := c.Changed(t.Context())
	require.ErrorContains(t, err, "look for changed settings in .git/config")
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"git config user.name p; git config x.gone 1")
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	theirs := run(t, dir, "cp .git/config c; git config -f c user.name s; git config -f c --unset x.gone; git config -f c core.pager y; cat c")
	keys, err := gitguard.Differences(t.Context(), root, ".git/config", []byte(theirs))
	require.NoError(t, err)
	require.Equal(t, []string{".git/config: core.pager", ".git/config: user.name", ".git/config: x.gone"}, keys)
}
