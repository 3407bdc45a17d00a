package gitguard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestComplete_WhileAnotherDirectoryIsCompleted: the lock of a record is the sign of a living
// process, so a process that completes something elsewhere hides no record from those that use its
// directory.
func TestComplete_WhileAnotherDirectoryIsCompleted(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	here, there := t.TempDir(), t.TempDir()
	for _, dir := range []string{here, there} {
		aside, err := NewAside(t.Context(), dir)
		require.NoError(t, err)
		if aside == nil {
			t.Skip("LOUD: there is no git")
		}
		out, err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "hooks", "pre-commit"), []byte("#!/bin/sh\n"), 0o700))
		require.NoError(t, aside.record.leave(), "as when the process is killed")
	}
	elsewhere, err := abandoned(t.Context(), there)
	require.NoError(t, err)
	done, err := complete(t.Context(), here, true)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
	require.Len(t, elsewhere, 1)
	require.NoError(t, elsewhere[0].leave())
	done, err = complete(t.Context(), there, true)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
}

// TestReport_AnotherSessionIsKilled: what it has left for git is shown by the session that
// continues there, also if that began later, and its worker looks first.
func TestReport_AnotherSessionIsKilled(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := t.TempDir()
	git := func(arguments ...string) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, arguments...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("LOUD: there is no git")
	}
	git("init", "-q")
	first, err := NewReport(t.Context(), dir, false, func(string) {})
	require.NoError(t, err)
	git("config", "core.pager", "x")
	second, err := NewReport(t.Context(), dir, false, func(string) {})
	require.NoError(t, err)
	worker, err := NewAside(t.Context(), dir)
	require.NoError(t, err)
	require.NoError(t, first.aside.record.leave(), "as when the process is killed")
	_, err = worker.Move(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Finding{{Path: ".git/config", What: "core.pager = x"}}, second.Findings(t.Context()))
	require.Empty(t, second.Findings(t.Context()), "once")
}

// TestHarmless_WhatRunsOrReachesThisHostIsNot.
func TestHarmless_WhatRunsOrReachesThisHostIsNot(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://example.com/x", "ssh://me@example.com/x", "git@example.com:x/y.git"} {
		require.True(t, harmless("remote.o.url", url) && harmless("remote.o.pushurl", url) && harmless("submodule.o.url", url), url)
	}
	for _, url := range []string{
		"ext::sh -c evil", "ext://x/y", "file:///x", "/x", "./x", "https://-x/y", "ssh://-oProxyCommand=x/y", "ssh://-u@example.com/x", "x::y", "host:::y", "",
	} {
		require.False(t, harmless("remote.o.url", url) || harmless("remote.o.pushurl", url) || harmless("submodule.o.url", url), url)
	}
	require.True(t, harmless("submodule.x.update", "rebase"))
	require.False(t, harmless("submodule.x.update", " !evil"))
	require.True(t, harmless("branch.x.remote", "up") && harmless("branch.x.pushremote", ".") && harmless("branch.x.remote", "https://example.com/x"))
	require.False(t, harmless("branch.x.remote", "./evil") || harmless("branch.x.pushremote", "/evil") || harmless("extensions.partialclone", "ext::evil"))
	require.True(t, harmless("extensions.refstorage", "reftable") && harmless("gc.auto", "0") &&
		harmless("gc.refs/heads/x.reflogexpire", "now") && harmless("init.defaultbranch", "x"))
	for key, value := range map[string]string{
		"gc.recentobjectshook": "evil", "gc.repackfilterto": "/home", "core.worktree": "/home", "core.protecthfs": "false", "core.protectntfs": "false",
		"extensions.refstorage": "files:///home/x", "rebase.instructionformat": "%s%nexec evil", "branch.x.mergeoptions": "-s evil", "pull.twohead": "evil",
		"init.templatedir": "evil", "fetch.bundleuri": "evil", "hook.x.command": "evil", "commit.template": "/home/x", "push.pushoption": "x", "submodule.x.gitdir": "evil",
	} {
		require.False(t, harmless(key, value), key)
	}
	require.False(t, harmless("core.pager", "x") || harmless("http.x.proxy", "y") || harmless("unheard.of", ""))
}

// TestDriver_HasAProgram.
func TestDriver_HasAProgram(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"filter.x.clean": "filter=x", "filter.x.smudge": "filter=x", "filter.x.process": "filter=x",
		"diff.y.command": "diff=y", "diff.y.textconv": "diff=y", "merge.z.driver": "merge=z",
	} {
		attribute, ok := driver(key)
		require.True(t, ok, key)
		require.Equal(t, want, attribute)
	}
	for _, key := range []string{"filter.x.required", "filter.clean", "diff.y.binary", "merge.tool"} {
		_, ok := driver(key)
		require.False(t, ok, key)
	}
}

// TestRecord_AnotherDirectoryGetsTheNumber of one that was removed: it has not moved, and what its
// user has set there stays.
func TestRecord_AnotherDirectoryGetsTheNumber(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	info, err := os.Stat(dir)
	require.NoError(t, err)
	born := bornAt(dir)
	if born == 0 {
		t.Skip("NOT TESTED: this system does not say when a directory was made")
	}
	for made, want := range map[int64]string{born: dir, 0: dir, born - 1: ""} {
		r := record{Directory: filepath.Join(dir, "gone"), ID: identityOf(info, dir), Born: made}
		at, err := r.at(dir)
		require.NoError(t, err)
		require.Equal(t, want, at, made-born)
	}
}

// TestTracked_CountsWholePaths: the names in a submodule are short, and what is returned of each is
// its path.
func TestTracked_CountsWholePaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deep := filepath.Join(dir, strings.Repeat(strings.Repeat("d", 100)+"/", 20))
	const files = 50
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("LOUD: there is no git")
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", fmt.Sprintf(`mkdir -p %[1]q; git init -q %[2]q; git init -q %[1]q; cd %[1]q; touch $(seq %[3]d); git add .
git -c user.name=n -c user.email=e commit -qm 1; cd %[2]q; git -c advice.addEmbeddedRepo=false add .`, deep, dir, files)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	git, err := newReader(dir)
	require.NoError(t, err)
	for room, enough := range map[int]bool{10_000: false, 1_000_000: true} {
		r, ok, err := repositoryOf(dir)
		require.True(t, ok)
		require.NoError(t, err)
		all := &tracked{reader: git, dir: dir, room: room}
		if err = all.repository(t.Context(), &r); enough {
			require.NoError(t, err)
			require.Len(t, all.files, files+1)
			continue
		}
		require.ErrorContains(t, err, "the names of its files")
	}
}
