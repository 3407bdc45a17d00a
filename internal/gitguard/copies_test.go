package gitguard_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/gitguard"
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

// sets has a command change settings, and returns what stays in the copy.
func (c *copies) sets(t *testing.T, script string) []string {
	t.Helper()
	run(t, c.dir, "set() { git config -f '"+c.copy+"' \"$@\"; }\n"+script)
	kept, err := c.Take(t.Context())
	require.NoError(t, err)
	return kept
}

// real are the settings that a person has for keys of some form.
func (c *copies) real(t *testing.T, form string) string {
	t.Helper()
	return run(t, c.dir, "git config --get-regexp '"+form+"' || true")
}

func TestCopies_WhatIsHarmlessIsTakenOver(t *testing.T) {
	t.Parallel()
	c := newCopies(t, "git config remote.origin.url https://example.com/o; git config branch.main.remote origin; git config branch.main.merge refs/heads/main")
	info, err := os.Stat(filepath.Join(c.dir, ".git/config"))
	require.NoError(t, err)
	require.Empty(t, c.sets(t, "set remote.up.url git@example.com:x/y.git; set remote.up.fetch '+refs/heads/*:refs/remotes/up/*'; set branch.new.remote up; set branch.new.merge refs/heads/new; set submodule.lib.url https://example.com/lib"))
	require.Equal(t, "branch.new.merge refs/heads/new\nbranch.new.remote up\nremote.up.fetch +refs/heads/*:refs/remotes/up/*\nremote.up.url git@example.com:x/y.git\nsubmodule.lib.url https://example.com/lib\n",
		c.real(t, `\.(up|new|lib)\.`))
	after, err := os.Stat(filepath.Join(c.dir, ".git/config"))
	require.NoError(t, err)
	require.True(t, os.SameFile(info, after), "another file in its place would not be kept from the sandbox")
	require.Empty(t, c.sets(t, "set remote.up.url https://example.com/2; set --remove-section branch.new; set --remove-section branch.main"), "its own, and branches that are gone")
	require.Equal(t, "remote.up.url https://example.com/2\n", c.real(t, `up.url|branch`))
	require.NoFileExists(t, filepath.Join(c.dir, ".git/config.lock"))
}

func TestCopies_TheRestStaysInTheCopy(t *testing.T) {
	t.Parallel()
	const before = "git config remote.origin.url https://example.com/o; git config branch.main.remote origin"
	for script, key := range map[string]string{
		"set core.fsmonitor ./evil": "core.fsmonitor", "set core.hooksPath x": "core.hookspath", "set user.name agent": "user.name",
		"set remote.origin.url https://evil.example.com/o": "remote.origin.url", "set remote.origin.pushurl https://evil.example.com/o": "remote.origin.pushurl",
		"set --remove-section remote.origin":                             "remote.origin.url",
		"set branch.main.remote evil":                                    "branch.main.remote",
		"set remote.x.url 'ext::sh -c evil'":                             "remote.x.url",
		"set remote.x.url file:///tmp/evil.git":                          "remote.x.url",
		"set remote.x.url ./evil.git":                                    "remote.x.url",
		"set remote.x.url 'ssh://-oProxyCommand=x/y'":                    "remote.x.url",
		"set remote.x.uploadpack ./evil":                                 "remote.x.uploadpack",
		"set remote.x.fetch '+refs/heads/*:refs/heads/*'":                "remote.x.fetch",
		"set branch.x.remote ./evil":                                     "branch.x.remote",
		"set submodule.x.update '!evil'":                                 "submodule.x.update",
		"set include.path x":                                             "include.path",
		"set branch.x.merge refs/evil/x":                                 "branch.x.merge",
		"set remote.x.prune perhaps":                                     "remote.x.prune",
		"set remote.x.tagopt --upload-pack=evil":                         "remote.x.tagopt",
		"set \"remote.$(printf 'a\\033b').url\" ./evil":                  `"remote.a\x1bb.url"`,
		"printf '[remote]\\n\\turl = https://example.com\\n' >> '$COPY'": "remote.url",
		"printf '[-e]\\n\\tx = --global\\n' >> '$COPY'":                  "-e.x",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := newCopies(t, before)
			want := c.real(t, ".")
			script := "COPY='" + c.copy + "'\n" + script
			require.Equal(t, []string{".git/config: " + key}, c.sets(t, replaced(script, "'$COPY'", "\"$COPY\"")))
			require.Equal(t, want, c.real(t, "."))
			require.Empty(t, c.sets(t, "true"), "it is told once")
			has := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			run(t, c.dir, "git config x.y z")
			require.NoError(t, c.Put(t.Context()), "the person's change comes to what was set")
			now := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			require.Contains(t, now, "x.y=z")
			for line := range lines(has) {
				require.Contains(t, now, line)
			}
		})
	}
}

// TestCopies_WhatIsTheSessionsOwnItMayChange, also when the settings are read anew in between.
func TestCopies_WhatIsTheSessionsOwnItMayChange(t *testing.T) {
	t.Parallel()
	c := newCopies(t, "true")
	require.Empty(t, c.sets(t, "set remote.up.url https://example.com/a"))
	run(t, c.dir, "git config x.y z")
	require.NoError(t, c.Put(t.Context()))
	require.Empty(t, c.sets(t, "set remote.up.url https://example.com/b"))
	require.Equal(t, "remote.up.url https://example.com/b\n", c.real(t, "remote"))

	require.Len(t, c.sets(t, "set remote.new.url 'ext::sh -c evil'"), 1)
	require.Empty(t, c.sets(t, "set remote.new.url https://example.com/new"))
	run(t, c.dir, "git config x.y zz")
	require.NoError(t, c.Put(t.Context()))
	require.Equal(t, "https://example.com/new\n", run(t, c.dir, "git config -f '"+c.copy+"' remote.new.url"), "not what it was first")
}

// TestCopies_APersonsChangeMeanwhileIsNotLost, nor is what could not be taken over.
func TestCopies_APersonsChangeMeanwhileIsNotLost(t *testing.T) {
	t.Parallel()
	c := newCopies(t, "true")
	has := func(key string) string { t.Helper(); return run(t, c.dir, "git config -f '"+c.copy+"' "+key) }
	run(t, c.dir, "git config x.y z")
	require.Empty(t, c.sets(t, "set remote.up.url https://example.com/up"))
	require.NoError(t, c.Put(t.Context()))
	require.Equal(t, "z\n", has("x.y"))

	run(t, c.dir, "touch .git/config.lock; git config -f '"+c.copy+"' remote.o.url https://example.com/o")
	_, err := c.Take(t.Context())
	require.ErrorContains(t, err, "config.lock")
	run(t, c.dir, "rm .git/config.lock; git config x.y zz")
	require.NoError(t, c.Put(t.Context()))
	require.Equal(t, "https://example.com/o\n", has("remote.o.url"))
}

// TestCopies_ARemovalIsNoDetour: what is a person's is not removed and made anew as another.
func TestCopies_ARemovalIsNoDetour(t *testing.T) {
	t.Parallel()
	c := newCopies(t, "git config remote.origin.url https://example.com/o; git config branch.main.remote origin")
	c.sets(t, "set remote.evil.url https://evil.example.com/o; set --remove-section remote.origin; set --remove-section branch.main")
	c.sets(t, "set remote.origin.url https://evil.example.com/o; set branch.main.remote evil")
	require.Equal(t, "remote.origin.url https://example.com/o\n", c.real(t, "origin|branch"))
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
	_, err := c.Take(t.Context())
	require.ErrorContains(t, err, "take settings over")
	c = newCopies(t, "true")
	run(t, c.dir, "touch .git/config.lock; git config -f '"+c.copy+"' remote.o.url https://example.com/o")
	kept, err := c.Take(t.Context())
	require.ErrorContains(t, err, "config.lock")
	require.Equal(t, []string{".git/config: remote.o.url"}, kept)
	require.FileExists(t, filepath.Join(c.dir, ".git/config.lock"), "another's lock")
}
