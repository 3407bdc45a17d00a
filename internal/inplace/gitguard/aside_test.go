package gitguard_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

// TestAside_GitRunsNothingOfNewRepositories has a session make repositories that have git run a
// program, and a person use git in the directory after the call.
func TestAside_GitRunsNothingOfNewRepositories(t *testing.T) {
	t.Parallel()
	const evil = "'" + ran + ";true'"
	hook := func(at string) string {
		return "printf '#!/bin/sh\n" + ran + "\n' > " + at + "; chmod +x " + at
	}
	for name, c := range map[string]struct {
		before, plant, uses string
		moved               []string
	}{
		"settings":                              {"true", "git init -q; git config core.fsmonitor " + evil, "git status", []string{".git/config: core.fsmonitor"}},
		"a hook":                                {"true", commit + hook(".git/hooks/pre-commit"), "git commit -q --allow-empty -m x", []string{".git/hooks/pre-commit"}},
		"in a repository":                       {commit, "git init -q sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor " + evil + "; git -c advice.addEmbeddedRepo=false add sub", "git status", []string{"sub/.git/config: core.fsmonitor"}},
		"a file .git":                           {commit, "git init -q --separate-git-dir=elsewhere sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor " + evil + "; git -c advice.addEmbeddedRepo=false add sub", "git status", []string{"elsewhere/config: core.fsmonitor"}},
		"bare":                                  {"mkdir sub", "git init -q --bare sub/b; git -C sub/b config alias.st '!" + ran + "'", "cd sub/b && git st", []string{"sub/b/config: alias.st"}},
		"settings elsewhere":                    {"true", commit + "mkdir other; mv .git/config .git/objects .git/refs other; git config -f other/config core.fsmonitor " + evil + "; echo ../other > .git/commondir", "git status", []string{"other/config: core.fsmonitor"}},
		"of a worktree":                         {"true", commit + "git config extensions.worktreeConfig true; git config -f .git/config.worktree core.fsmonitor " + evil, "git status", []string{".git/config.worktree: core.fsmonitor"}},
		"an include":                            {"true", "git init -q; git config -f x core.fsmonitor " + evil + "; git config include.path ../x", "git status", []string{".git/config: include.path"}},
		"hooks elsewhere":                       {"true", commit + "mkdir h; " + hook("h/pre-commit") + "; git config core.hooksPath h", "git commit -q --allow-empty -m x", []string{".git/config: core.hookspath"}},
		"a link to hooks":                       {"true", commit + "mkdir h; " + hook("h/pre-commit") + "; rm -r .git/hooks; ln -s ../h .git/hooks", "git commit -q --allow-empty -m x", []string{".git/hooks"}},
		"a linked hook":                         {"true", commit + hook("h") + "; ln -s ../../h .git/hooks/pre-commit", "git commit -q --allow-empty -m x", []string{".git/hooks/pre-commit"}},
		"a link to settings":                    {"true", "git init -q; git config core.fsmonitor " + evil + "; mv .git/config c; ln -s ../c .git/config", "git status", []string{".git/config"}},
		"below logs":                            {"mkdir -p logs", "git init -q logs; echo 'ref: refs/heads/main' > HEAD; mkdir objects refs; git -C logs config core.fsmonitor " + evil, "git -C logs status", []string{"logs/.git/config: core.fsmonitor"}},
		"behind a file .git that leads nowhere": {"true", "mkdir a; echo 'gitdir: nowhere' > a/.git; git init -q b; git -C b config core.fsmonitor " + evil, "git -C b status", []string{"b/.git/config: core.fsmonitor"}},
		"a file .git with a NUL":                {"true", "git init -q --separate-git-dir=elsewhere sub; git -C elsewhere config core.fsmonitor " + evil + "; printf 'gitdir: ../elsewhere\\0x\\n' > sub/.git", "git -C sub status", []string{"elsewhere/config: core.fsmonitor"}},
		"in the place of one that was there":    {"git init -q lib", "mv lib moved; git init -q lib; git -C lib config core.fsmonitor " + evil, "git -C lib status", []string{"lib/.git/config: core.fsmonitor"}},
		"behind many versions":                  {"true", "git init -q; git config core.fsmonitor " + evil + "; cd .git; touch config.set-aside; for i in $(seq 2 100); do touch config.$i.set-aside; done", "git status", []string{".git/config: core.fsmonitor"}},
		"one key of two values":                 {"true", "git init -q; git config remote.o.url https://example.com/x; git config --add remote.o.url \"ext::sh -c '" + ran + "'\"; git config remote.o.uploadpack " + evil, "git -c protocol.ext.allow=always fetch -q ext::x || git fetch -q o", []string{".git/config: remote.o.uploadpack", ".git/config: remote.o.url"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, c.before)
			aside, err := gitguard.NewAside(t.Context(), dir)
			require.NoError(t, err)
			look, err := gitguard.Look(t.Context(), dir)
			require.NoError(t, err)
			run(t, dir, c.plant)
			mark := filepath.Join(filepath.Dir(dir), "ran")
			_ = os.Remove(mark)
			moved, err := aside.Move(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.moved, moved)
			require.NoFileExists(t, mark, "setting aside runs nothing")
			if name != "one key of two values" {
				run(t, dir, "("+c.uses+") || true")
			}
			require.NoFileExists(t, mark)
			found, err := look.Findings(t.Context())
			require.NoError(t, err)
			require.NotEmpty(t, found)
			for _, finding := range found {
				require.Regexp(t, `\.set-aside$|^a/nowhere$`, finding.Path)
			}
			moved, err = aside.Move(t.Context())
			require.NoError(t, err)
			require.Empty(t, moved, "once")
			// What was kept is what was there: back in its place, git runs it.
			if name != "one key of two values" && name != "behind many versions" {
				run(t, dir, `find . -name '*.set-aside' | while read -r f; do mv "$f" "${f%.set-aside}"; done; `+c.uses+"\ntrue")
				require.FileExists(t, mark, "the case is one")
			}
		})
	}
}

// TestAside_WhatWasThereStays: settings of repositories of the user's, and harmless ones of new
// ones.
func TestAside_WhatWasThereStays(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"git config core.pager less; printf '#!/bin/sh\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit")
	aside, err := gitguard.NewAside(t.Context(), dir)
	require.NoError(t, err)
	before := run(t, dir, "git config --list; ls .git/hooks")
	run(t, dir, "git init -q sub; git -C sub remote add origin https://example.com/x; git -C sub config user.name n; git -C sub commit -q --allow-empty -m s")
	moved, err := aside.Move(t.Context())
	require.NoError(t, err)
	require.Empty(t, moved)
	require.Equal(t, before, run(t, dir, "git config --list; ls .git/hooks"))
	run(t, dir, "git -C sub config core.pager a; git -C sub config x.y z")
	for _, pager := range []string{"a", "b"} { // each version is kept
		run(t, dir, "git -C sub config core.pager "+pager)
		moved, err = aside.Move(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"sub/.git/config: core.pager", "sub/.git/config: x.y"}[:len(moved)], moved)
	}
	require.Equal(t, "a\nb\n", run(t, dir, "git config -f sub/.git/config.set-aside core.pager; git config -f sub/.git/config.2.set-aside core.pager"))
	require.Equal(t, "https://example.com/x\n", run(t, dir, "git -C sub remote get-url origin"))
}

// TestAside_WhatCannotBeLookedAtHidesNothing: an error, or a file that git refuses, is no way to
// keep what else there is.
func TestAside_WhatCannotBeLookedAtHidesNothing(t *testing.T) {
	t.Parallel()
	dir := workspace(t, "true")
	aside, err := gitguard.NewAside(t.Context(), dir)
	require.NoError(t, err)
	run(t, dir, "mkdir -p "+strings.Repeat("a/", 502)+"; git init -q b; git -C b config core.pager x; git init -q c; echo '[core' > c/.git/config")
	moved, err := aside.Move(t.Context())
	require.ErrorContains(t, err, "is below more than 500 directories")
	require.Equal(t, []string{"b/.git/config: core.pager", "c/.git/config"}, moved)
}

// TestAside_HooksByThePersonsSettings: a relative core.hooksPath of the person's has each new
// repository run files of its worktree, and an absolute one all repositories those of a directory,
// which is protected although it has no repository.
func TestAside_HooksByThePersonsSettings(t *testing.T) {
	for _, path := range []string{".githooks", "tools/hooks", ".husky/_"} {
		dir := workspace(t, "true")
		global := filepath.Join(filepath.Dir(dir), ".gitconfig") // which the person's git reads
		run(t, dir, "git config -f ../.gitconfig core.hooksPath "+path)
		t.Setenv("GIT_CONFIG_GLOBAL", global)
		aside, err := gitguard.NewAside(t.Context(), dir)
		require.NoError(t, err)
		hooks := filepath.Join("sub", path)
		uses := "git -C sub commit -q --allow-empty -m x"
		run(t, dir, "git init -q sub; mkdir -p "+hooks+"; printf '#!/bin/sh\n"+ran+"\n' >"+hooks+"/pre-commit; chmod +x "+hooks+"/pre-commit")
		moved, err := aside.Move(t.Context())
		require.NoError(t, err)
		require.Contains(t, moved, hooks+"/pre-commit")
		run(t, dir, uses)
		mark := filepath.Join(filepath.Dir(dir), "ran")
		require.NoFileExists(t, mark)
		run(t, dir, "mv "+hooks+"/pre-commit.set-aside "+hooks+"/pre-commit; "+uses)
		require.FileExists(t, mark, "the case is one")
	}
	dir := workspace(t, "mkdir hooks")
	run(t, dir, "git config -f ../.gitconfig core.hooksPath \"$PWD/hooks\"")
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(filepath.Dir(dir), ".gitconfig"))
	got, err := gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{"hooks"}, got.Protect)
	look, err := gitguard.Look(t.Context(), dir)
	require.NoError(t, err)
	run(t, dir, "echo >hooks/pre-push; chmod +x hooks/pre-push")
	found, err := look.Findings(t.Context())
	require.NoError(t, err)
	require.Equal(t, []gitguard.Finding{{Path: "hooks/pre-push", What: "a hook"}}, found)
}
