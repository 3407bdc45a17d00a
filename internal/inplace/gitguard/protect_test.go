package gitguard_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

const module = "git init -q ../lib; git -C ../lib commit -q --allow-empty -m l; git -c protocol.file.allow=always submodule --quiet add \"$PWD/../lib\" lib; git commit -q -m lib\n"

func TestProtected(t *testing.T) {
	t.Parallel()
	plain := []string{".git/commondir", ".git/config", ".git/config.worktree", ".git/hooks"}
	of := func(more ...string) []string { return append(more, plain...) }
	for name, c := range map[string]struct {
		script, in string
		want       []string
	}{
		"nothing":                                {"true", "", nil},
		"a file":                                 {"touch main.go; mkdir .git", "", nil},
		"repository":                             {commit, "", of()},
		"editors":                                {commit + "mkdir .vscode .idea", "", of(".vscode", ".idea")},
		"hooks elsewhere":                        {commit + "git config core.hooksPath scripts/hooks", "", of("scripts/hooks")},
		"husky":                                  {commit + "git config core.hooksPath .husky/_", "", of(".husky")},
		"hooks by another name of the directory": {commit + "ln -s work ../alias; git config core.hooksPath \"$(dirname \"$PWD\")/alias/h\"", "", of("h")},
		"hooks that are not there":               {commit + "git config core.hooksPath /nowhere", "", of()},
		"an include": {
			commit + "git config include.path ../.gitconfig; git config -f .gitconfig include.path more/x", "", of(".gitconfig", "more/x"),
		},
		"an include, missing": {commit + "git config includeIf.onbranch:x.path ../.gitconfig", "", of(".gitconfig")},
		"programs": {
			commit + "mkdir t; touch t/a t/b c d; chmod +x d; git config filter.x.clean \"sh -c './t/a | cat'\"; git config alias.x '!t/b c'; git config core.pager d",
			"", of("t/a", "t/b", "d"),
		},
		"a subdirectory":      {commit + "mkdir sub; git config core.hooksPath sub/hooks", "sub", []string{".git", "hooks"}},
		"below a worktree":    {commit + "git worktree add -q ../other 2>&1; mkdir ../other/sub", "../other/sub", []string{".git"}},
		"a repository below":  {commit + "git init -q sub", "sub", of()},
		"a file .git":         {"git init -q --separate-git-dir=r w", "", []string{"r/commondir", "r/config", "r/config.worktree", "r/hooks", "w/.git"}},
		"bare":                {"git init -q --bare b", "", []string{"b/commondir", "b/config", "b/config.worktree", "b/hooks"}},
		"a nested repository": {commit + "git init -q a/b", "", of("a/b/.git/commondir", "a/b/.git/config", "a/b/.git/config.worktree", "a/b/.git/hooks")},
		"a submodule": {
			commit + module, "",
			of(".git/modules/lib/commondir", ".git/modules/lib/config", ".git/modules/lib/config.worktree", ".git/modules/lib/hooks", "lib/.git"),
		},
		"a worktree elsewhere": {commit + "git worktree add -q ../other 2>&1", "", of(".git/worktrees/other")},
		"a worktree in it": {
			commit + "git worktree add -q in 2>&1", "",
			of(".git/worktrees/in/commondir", ".git/worktrees/in/config.worktree", ".git/worktrees/in/gitdir", "in/.git"),
		},
		"a link, which cannot be protected": {commit + "git config core.hooksPath h; mkdir x; ln -s x h", "", of()},
		"settings that git cannot read":     {commit + "echo [ >> .git/config", "", of()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(workspace(t, c.script), c.in)
			got, err := gitguard.Protected(t.Context(), dir)
			require.NoError(t, err)
			require.ElementsMatch(t, c.want, got.Protect)
			for place := range got.Missing {
				require.Contains(t, got.Protect, place)
			}
			for _, config := range got.Configs {
				require.Contains(t, got.Protect, config)
			}
		})
	}
	_, err := gitguard.Protected(t.Context(), filepath.Join(t.TempDir(), "missing"))
	require.Error(t, err)
}

// TestProtected_OfSomebodyElse: root finds what others' repositories have.
func TestProtected_OfSomebodyElse(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("UNSUPPORTED: only root can give files away")
	}
	dir := workspace(t, commit+"git config core.hooksPath scripts; chown -R 65534:65534 .")
	got, err := gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	require.Contains(t, got.Protect, "scripts")
	scratch := t.TempDir()
	require.NoError(t, gitguard.NewCopies(dir, scratch, got.Configs).Put(t.Context()))
	require.Equal(t, "65534\n", run(t, dir, "stat -c %u '"+filepath.Join(scratch, isolation.CopyOf(".git/config"))+"'"), "it is theirs, too")
}

// madeUp makes repositories in a directory.
func madeUp(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		at := filepath.Join(dir, "deep", fmt.Sprint(i), ".git")
		for _, name := range []string{"objects", "refs"} {
			require.NoError(t, os.MkdirAll(filepath.Join(at, name), 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(at, "HEAD"), []byte("ref: refs/heads/main\n"), 0o600))
	}
}

// TestProtected_OfTooManyIsRefused: there is a bound to what a sandbox can protect. None is left
// open.
func TestProtected_OfTooManyIsRefused(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit)
	fits := isolation.MaxProtected/4 - 1 // each has four paths
	madeUp(t, dir, fits)
	got, err := gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	require.Len(t, got.Protect, 4*(fits+1))
	madeUp(t, dir, fits+1)
	_, err = gitguard.Protected(t.Context(), dir)
	require.ErrorContains(t, err, "use a directory in it, or name what to protect (--protect)")
}

// TestProtected_WhatStandsInPlacesIsNothingToGit has git do its work while files stand in the place
// of what is missing.
func TestProtected_WhatStandsInPlacesIsNothingToGit(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+module+"git worktree add -q in 2>&1; git config extensions.worktreeConfig true")
	got, err := gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	const asks = "git rev-parse --git-dir --show-toplevel; git status; git branch -a; git worktree list; git config --list; git submodule status; git -C in status; git -C lib status"
	before := run(t, dir, asks)
	made := 0
	for place, content := range got.Missing {
		if _, err := os.Lstat(filepath.Join(dir, place)); err != nil {
			require.NoError(t, os.WriteFile(filepath.Join(dir, place), []byte(content), 0o644))
			made++
		}
	}
	require.Positive(t, made)
	require.Equal(t, before, run(t, dir, asks))
	run(t, dir, "echo b > b; git add b; git commit -q -m b; git stash; git switch -q -c x; git rebase -q HEAD; git gc -q; git fsck; git worktree add -q ../more 2>&1; git worktree remove ../more; git config x.y z; git -C lib commit -q --allow-empty -m l; git commit -q -a -m l")
}

func TestFindOutside(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
		export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p
		git init -q repo; cd repo; git commit -q --allow-empty -m 1; mkdir sub; git worktree add -q ../work; git worktree add -q ../moved
		sub() { at=$1; shift; git -C "$at" -c protocol.file.allow=always submodule --quiet "$@"; }
		git init -q ../inner; git -C ../inner commit -q --allow-empty -m 1; git init -q ../lib; sub ../lib add "$PWD/../inner" inner; git -C ../lib commit -q -m 1
		sub . add "$PWD/../lib" lib; git commit -qm lib; git -C ../work reset -q --hard $(git rev-parse HEAD); git -C ../work -c protocol.file.allow=always submodule --quiet update --init --recursive
		mkdir lib/d forged; cp lib/.git forged; cp -r .git/modules/lib .git/modules/own; mkdir own; echo "gitdir: ../.git/modules/own" >own/.git; git config -f .git/modules/own/config core.worktree ../../../own
		git config -f .git/modules/own/config extensions.worktreeConfig true
		mv ../moved ../away; mkdir ../forged; cp ../work/.git ../forged; mkdir ../private; echo "gitdir: $PWD/../private" >../forged2; mkdir ../plain
		mkdir ../stolen && echo "gitdir: $PWD/.git" >../stolen/.git; cd ..; git -C repo worktree add -q -b ab "$PWD/a b"`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	repo := filepath.Join(base, "repo")
	for dir, want := range map[string]string{
		"work": "", "a b": "", "repo/lib": "", "work/lib": "", "work/lib/inner": "",
		"repo/sub": "a subdirectory of the repository " + repo + ",", "repo/lib/d": "a subdirectory of the repository " + repo + "/lib,",
		"repo/forged": "a submodule of the repository " + repo + ",", "repo/own": "a submodule of the repository " + repo + ",",
		"away":   "a linked worktree of the repository " + repo + ",", // git says so, too, until it is repaired
		"forged": "a linked worktree of the repository " + repo + ",", "stolen": "the workspace's repository is " + repo + "/.git,",
	} {
		got := gitguard.FindOutside(t.Context(), filepath.Join(base, dir))
		require.NotNil(t, got, dir)
		require.Equal(t, want == "", got.NamesBack, dir)
		require.Contains(t, got.String(), want, dir)
		switch filepath.Base(dir) {
		case "work", "a b":
			require.Equal(t, filepath.Join(repo, ".git"), got.Common)
			require.Equal(t, filepath.Join(repo, ".git/worktrees"), filepath.Dir(got.GitDir))
			require.Equal(t, got.GitDir, got.Named)
		case "lib":
			require.Equal(t, filepath.Join(base, filepath.Dir(dir)), got.Dir)
			require.Equal(t, got.Common, got.GitDir)
		}
	}
	for _, dir := range []string{"repo", "plain", "missing"} {
		require.Nil(t, gitguard.FindOutside(t.Context(), filepath.Join(base, dir)), dir)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(repo, ".git/worktrees/work")))
	require.False(t, gitguard.FindOutside(t.Context(), filepath.Join(base, "work")).NamesBack)
}

// TestOutside_ReserveIsUndoneByTheLast: what stands in the place of nothing stays while any process
// has it reserved, also when a sandbox of the whole repository removes what it made.
func TestOutside_ReserveIsUndoneByTheLast(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	base := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
		export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p
		git init -q lib; git -C lib commit -q --allow-empty -m 1; git init -q repo; cd repo; git -c protocol.file.allow=always submodule --quiet add ../lib lib; echo . >.git/modules/lib/commondir`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	outside := gitguard.FindOutside(t.Context(), filepath.Join(base, "repo/lib"))
	require.True(t, outside.NamesBack)
	places, free, err := outside.Reserve(t.Context())
	require.NoError(t, err)
	require.Subset(t, places, []string{"config", "hooks", "info", "modules", "worktrees", "commondir", "config.worktree"})
	_, freeToo, err := outside.Reserve(t.Context())
	require.NoError(t, err)
	made := filepath.Join(outside.GitDir, "commondir")
	require.NoError(t, free())
	content, err := os.ReadFile(made)
	require.NoError(t, err)
	require.Equal(t, "./\n", string(content), "not what a sandbox of the whole repository takes for its own")
	require.NoError(t, freeToo())
	require.NoFileExists(t, made)
	require.NoDirExists(t, filepath.Join(outside.GitDir, "modules"))
	require.FileExists(t, filepath.Join(outside.GitDir, "config"))
}

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
		"settings": {"true", "git init -q; git config core.fsmonitor " + evil, "git status", []string{".git/config: core.fsmonitor"}},
		"a hook":   {"true", commit + hook(".git/hooks/pre-commit"), "git commit -q --allow-empty -m x", []string{".git/hooks/pre-commit"}},
		"in a repository": {
			commit,
			"git init -q sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor " + evil + "; git -c advice.addEmbeddedRepo=false add sub",
			"git status",
			[]string{"sub/.git/config: core.fsmonitor"},
		},
		"a file .git": {
			commit,
			"git init -q --separate-git-dir=elsewhere sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor " +
				evil + "; git -c advice.addEmbeddedRepo=false add sub",
			"git status",
			[]string{"elsewhere/config: core.fsmonitor"},
		},
		"bare": {
			"mkdir sub", "git init -q --bare sub/b; git -C sub/b config alias.st '!" + ran + "'", "cd sub/b && git st", []string{"sub/b/config: alias.st"},
		},
		"settings elsewhere": {
			"true",
			commit + "mkdir other; mv .git/config .git/objects .git/refs other; git config -f other/config core.fsmonitor " + evil + "; echo ../other > .git/commondir",
			"git status",
			[]string{"other/config: core.fsmonitor"},
		},
		"of a worktree": {
			"true",
			commit + "git config extensions.worktreeConfig true; git config -f .git/config.worktree core.fsmonitor " + evil,
			"git status",
			[]string{".git/config.worktree: core.fsmonitor"},
		},
		"an include": {
			"true",
			"git init -q; git config -f x core.fsmonitor " + evil + "; git config include.path ../x",
			"git status",
			[]string{".git/config: include.path"},
		},
		"hooks elsewhere": {
			"true", commit + "mkdir h; " + hook("h/pre-commit") + "; git config core.hooksPath h",
			"git commit -q --allow-empty -m x",
			[]string{".git/config: core.hookspath"},
		},
		"a link to hooks": {
			"true",
			commit + "mkdir h; " + hook("h/pre-commit") + "; rm -r .git/hooks; ln -s ../h .git/hooks",
			"git commit -q --allow-empty -m x",
			[]string{".git/hooks"},
		},
		"a linked hook": {
			"true", commit + hook("h") + "; ln -s ../../h .git/hooks/pre-commit", "git commit -q --allow-empty -m x", []string{".git/hooks/pre-commit"},
		},
		"a link to settings": {
			"true", "git init -q; git config core.fsmonitor " + evil + "; mv .git/config c; ln -s ../c .git/config", "git status", []string{".git/config"},
		},
		"below logs": {
			"mkdir -p logs",
			"git init -q logs; echo 'ref: refs/heads/main' > HEAD; mkdir objects refs; git -C logs config core.fsmonitor " + evil,
			"git -C logs status",
			[]string{"logs/.git/config: core.fsmonitor"},
		},
		"behind a file .git that leads nowhere": {
			"true",
			"mkdir a; echo 'gitdir: nowhere' > a/.git; git init -q b; git -C b config core.fsmonitor " + evil,
			"git -C b status",
			[]string{"b/.git/config: core.fsmonitor"},
		},
		"a file .git with a NUL": {
			"true",
			"git init -q --separate-git-dir=elsewhere sub; git -C elsewhere config core.fsmonitor " + evil + "; printf 'gitdir: ../elsewhere\\0x\\n' > sub/.git",
			"git -C sub status",
			[]string{"elsewhere/config: core.fsmonitor"},
		},
		"in the place of one that was there": {
			"git init -q lib", "mv lib moved; git init -q lib; git -C lib config core.fsmonitor " + evil,
			"git -C lib status",
			[]string{"lib/.git/config: core.fsmonitor"},
		},
		"behind many versions": {
			"true",
			"git init -q; git config core.fsmonitor " + evil + "; cd .git; touch config.set-aside; for i in $(seq 2 100); do touch config.$i.set-aside; done",
			"git status",
			[]string{".git/config: core.fsmonitor"},
		},
		"one key of two values": {
			"true",
			"git init -q; git config remote.o.url https://example.com/x; git config --add remote.o.url \"ext::sh -c '" + ran + "'\"; git config remote.o.uploadpack " + evil,
			"git -c protocol.ext.allow=always fetch -q ext::x || git fetch -q o",
			[]string{".git/config: remote.o.uploadpack", ".git/config: remote.o.url"},
		},
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
