package gitguard_test

import (
	"context"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

// run runs a script as a person does, with settings that are nobody's.
func run(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=p", "GIT_AUTHOR_EMAIL=p@example.com",
		"GIT_COMMITTER_NAME=p", "GIT_COMMITTER_EMAIL=p@example.com", "RAN=" + filepath.Join(filepath.Dir(dir), "ran"),
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)
	return string(out)
}

// workspace is an empty directory, or a repository with a commit and what a script adds.
func workspace(t *testing.T, script string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	dir := filepath.Join(t.TempDir(), "work")
	require.NoError(t, os.Mkdir(dir, 0o755))
	run(t, dir, script)
	return dir
}

const commit = "git init -q && echo a > a.txt && git add a.txt && git commit -q -m first\n"

// lib is a repository beside the workspace, and submodule has it as one.
const (
	lib       = "git init -q ../lib; git -C ../lib commit -q --allow-empty -m l\n"
	submodule = commit + lib + "git -c protocol.file.allow=always submodule --quiet add \"$PWD/../lib\" lib; git commit -q -m lib\n"
)

// ran is a program that leaves a file beside the workspace.
const ran = `touch "$RAN"`

// TestFindings_WhatGitRunsIsFound has somebody who may write anywhere in a directory plant
// programs, and a person use git: what runs for the person was found before.
func TestFindings_WhatGitRunsIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, plant, uses string
		in                  string // the directory that is looked at, below the workspace
		found               []string
	}{
		"hook": {
			commit, "echo 'exec " + ran + "' | sed '1i#!/bin/sh' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
			"git commit -q --allow-empty -m x", "",
			[]string{".git/hooks/pre-commit: a hook"},
		},
		"below logs": {
			"mkdir logs",
			"echo 'ref: refs/heads/main' > HEAD; mkdir objects refs; git init -q logs; git -C logs config core.fsmonitor '" + ran + ";true'",
			"git -C logs status", "",
			[]string{"logs/.git/config: core.fsmonitor"},
		},
		"behind a long line": {
			commit + "git config filter.x.clean '" + ran + ";cat'",
			"{ printf '#%070000d\\n' 0; echo '*.txt filter=x'; } > .gitattributes; touch a.txt", "git status", "",
			[]string{".gitattributes: uses filter=x"},
		},
		"a hook that is changed": {
			commit + "printf '#!/bin/sh\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
			"printf '#!/bin/sh\n" + ran + "\n' > .git/hooks/pre-commit", "git commit -q --allow-empty -m x", "",
			[]string{".git/hooks/pre-commit: a hook"},
		},
		"settings": {
			commit, "git config core.fsmonitor '" + ran + ";true'", "git status", "", []string{`.git/config: core.fsmonitor = touch "$RAN";true`},
		},
		"another directory of settings": {
			commit,
			"cp -r .git evil; git config -f evil/config core.fsmonitor '" + ran + ";true'; echo ../evil > .git/commondir",
			"git status", "",
			[]string{"evil/config: core.fsmonitor"},
		},
		"settings of a worktree": {
			commit + "git config extensions.worktreeConfig true",
			"git config -f .git/config.worktree core.fsmonitor '" + ran + ";true'", "git status", "",
			[]string{".git/config.worktree: core.fsmonitor"},
		},
		"hooks in the workspace": {
			commit + "git config core.hooksPath .husky; mkdir .husky",
			"printf '#!/bin/sh\n" + ran + "\n' > .husky/pre-commit; chmod +x .husky/pre-commit", "git commit -q --allow-empty -m x", "",
			[]string{".husky/pre-commit: a hook"},
		},
		"a script that husky runs": {
			commit + "git config core.hooksPath .husky/_; mkdir -p .husky/_; printf '#!/bin/sh\nsh -e .husky/pre-commit\n' > .husky/_/pre-commit; chmod +x .husky/_/pre-commit; echo true > .husky/pre-commit",
			"echo '" + ran + "' > .husky/pre-commit", "git commit -q --allow-empty -m x", "",
			[]string{".husky/pre-commit: a hook"},
		},
		"hooks of a push": {
			commit + "git config core.hooksPath h; git config receive.denyCurrentBranch ignore",
			"mkdir .git/h; printf '#!/bin/sh\n" + ran + "\n' > .git/h/post-receive; chmod +x .git/h/post-receive",
			"rm -rf ../clone; git clone -q . ../clone; git -C ../clone -c core.hooksPath=/none commit -q --allow-empty -m $RANDOM; git -C ../clone -c core.hooksPath=/none push -q origin +HEAD:x",
			"",
			[]string{".git/h/post-receive: a hook"},
		},
		"a file of settings in the workspace": {
			commit + "git config include.path ../.gitconfig",
			"git config -f .gitconfig core.fsmonitor '" + ran + ";true'", "git status", "",
			[]string{".gitconfig: core.fsmonitor"},
		},
		"a program that settings name": {
			commit + "mkdir tools; echo true > tools/look; chmod +x tools/look; git config core.fsmonitor ./tools/look",
			"printf '#!/bin/sh\n" + ran + "\n' > tools/look", "git status", "",
			[]string{"tools/look: a program of core.fsmonitor"},
		},
		"a driver of attributes": {
			commit + "git config filter.x.clean '" + ran + ";cat'",
			"echo '*.txt filter=x' > .gitattributes; touch a.txt", "git status", "",
			[]string{".gitattributes: uses filter=x"},
		},
		"a repository in the repository": {
			commit,
			"git init -q sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor '" + ran + ";true'; git -c advice.addEmbeddedRepo=false add sub",
			"git status", "",
			[]string{"sub/.git/config: core.fsmonitor"},
		},
		"a file .git": {
			commit,
			"git init -q --separate-git-dir=elsewhere sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor '" +
				ran + ";true'; git -c advice.addEmbeddedRepo=false add sub",
			"git status", "",
			[]string{"elsewhere/config: core.fsmonitor"},
		},
		"a new repository": {
			"true", "git init -q; git config core.fsmonitor '" + ran + ";true'", "git status", "", []string{".git/config: core.fsmonitor"},
		},
		"a directory of a repository": {
			commit + "git config core.hooksPath sub/hooks; mkdir -p sub/hooks",
			"printf '#!/bin/sh\n" + ran + "\n' > sub/hooks/pre-commit; chmod +x sub/hooks/pre-commit", "git commit -q --allow-empty -m x", "sub",
			[]string{"hooks/pre-commit: a hook"},
		},
		"a repository in the place of that around": {
			commit + "mkdir sub", "git init -q sub; git -C sub config core.fsmonitor '" + ran + ";true'",
			"git -C sub status", "sub",
			[]string{".git/config: core.fsmonitor"},
		},
		"a bare repository": {
			"mkdir sub", "git init -q --bare sub/b; git -C sub/b config alias.st '!" + ran + "'", "cd sub/b && git st", "", []string{"sub/b/config: alias.st"},
		},
		"the settings of a submodule": {
			submodule,
			"git -C lib config core.fsmonitor '" + ran + ";true'", "git status", "",
			[]string{".git/modules/lib/config: core.fsmonitor"},
		},
		"the settings of a submodule that is gone": {
			submodule,
			"git rm -q lib; git commit -q -m gone; git config -f .git/modules/lib/config core.fsmonitor '" + ran + ";true'",
			"mkdir -p lib; echo 'gitdir: ../.git/modules/lib' > lib/.git; git -C lib status", "",
			[]string{".git/modules/lib/config: core.fsmonitor"},
		},
		"the settings of a worktree elsewhere": {
			commit + "git worktree add -q ../other 2>&1",
			"cp -r .git evil; git config -f evil/config core.fsmonitor '" + ran + ";true'; echo ../../../evil > .git/worktrees/other/commondir", "git -C ../other status", "",
			[]string{"evil/config: core.fsmonitor"},
		},
		"files outside": {
			"true", "git init -q sub; cd sub; echo x > ran; git add ran; git commit -q -m x; git config core.worktree ../../..",
			"git -C sub reset -q --hard", "",
			[]string{"sub/.git/config: core.worktree = ../../.."},
		},
		"files outside by a link": {
			"true",
			"git init -q sub; cd sub; echo x > ran; git add ran; git commit -q -m x; ln -s ../.. up; git config core.worktree ../up",
			"git -C sub reset -q --hard", "",
			[]string{"sub/.git/config: core.worktree = ../up"},
		},
		"files among hooks": {
			commit,
			"git init -q sub; cd sub; printf '#!/bin/sh\n" + ran +
				"\n' > pre-commit; chmod +x pre-commit; git add .; git commit -q -m x; git config core.worktree ../../.git/hooks",
			"git -C sub reset -q --hard; git commit -q --allow-empty -m x", "",
			[]string{"sub/.git/config: core.worktree = ../../.git/hooks"},
		},
		"a command among the commits rebased": {
			commit + "git branch old; git commit -q --allow-empty -m y; git branch top; git switch -q old; echo b > b.txt; git add b.txt; git commit -q -m b; git tag b",
			"git config rebase.instructionFormat '%s%nexec " + ran + "'", "git switch -q -C work b; git rebase -q top", "",
			[]string{".git/config: rebase.instructionformat = %s%nexec"},
		},
		"the hook of recent objects": {
			commit, "git config gc.recentObjectsHook '" + ran + "'",
			"case $(git version) in *' 2.'[123]?.*|*' 2.4'[01].*) " + ran +
				";; *) git hash-object -w --stdin </dev/null; find .git/objects -type f -exec touch -d -2days {} +; git prune --expire=1.hour.ago;; esac",
			"",
			[]string{".git/config: gc.recentobjectshook"},
		},
		"a linked hook": {
			commit, "printf '#!/bin/sh\n" + ran + "\n' > x; chmod +x x; ln -s ../../x .git/hooks/pre-commit",
			"git commit -q --allow-empty -m x", "",
			[]string{".git/hooks/pre-commit: a hook"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, c.before)
			run(t, dir, "("+c.uses+") || true")
			mark := filepath.Join(filepath.Dir(dir), "ran")
			_ = os.Remove(mark) // of a driver that ran for the person before
			look, err := gitguard.Look(t.Context(), filepath.Join(dir, c.in))
			require.NoError(t, err)
			run(t, dir, c.plant)
			_ = os.Remove(mark)
			found, err := look.Findings(t.Context())
			require.NoError(t, err)
			require.NoFileExists(t, mark, "looking runs nothing")
			told := ""
			for _, f := range found {
				told += f.String() + "\n"
			}
			for _, want := range c.found {
				require.Contains(t, told, want)
			}
			run(t, dir, c.uses+"\ntrue")
			require.FileExists(t, mark, "the case is one: git runs it")
		})
	}
}

// TestFindings_WhatIsOrdinaryIsNot are things that sessions do and that have git run nothing.
func TestFindings_WhatIsOrdinaryIsNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, work string }{
		"commits": {commit, "echo b > b; git add b; git commit -q -m b; git stash; git switch -q -c other; git tag v1; git gc -q"},
		"a remote": {
			commit,
			"git remote add o https://example.com/x.git; git config branch.main.remote o; git config branch.main.merge refs/heads/main; git remote add p git@example.com:x/y.git",
		},
		"a new repository":   {"true", commit + "git config user.name x"},
		"clone":              {commit, "git init -q lib; git -C lib remote add origin https://example.com/lib"},
		"a submodule":        {commit + lib, "git -c protocol.file.allow=always submodule --quiet add https://example.com/lib lib || true; git clone -q ../lib lib; git -C lib remote set-url origin https://example.com/lib; git submodule --quiet add https://example.com/lib lib; git submodule --quiet absorbgitdirs 2>&1; git -C lib config core.worktree"},
		"a submodule gone":   {submodule, "git rm -q lib; git commit -q -m gone; test -e .git/modules/lib/config"},
		"one comes and goes": {commit + lib, "git -c protocol.file.allow=always submodule --quiet add https://example.com/lib lib || true; git clone -q ../lib lib; git -C lib remote set-url origin https://example.com/lib; git submodule --quiet add https://example.com/lib lib; git submodule --quiet absorbgitdirs 2>&1; git rm -q --cached lib; rm -r lib .gitmodules; git config --remove-section submodule.lib"},
		"its own directory":  {"true", commit + "git config core.worktree \"$PWD\"; git config extensions.preciousObjects false"},
		"a worktree":         {commit, "git worktree add -q wt 2>&1; git -C wt commit -q --allow-empty -m w"},
		"attributes":         {commit, "echo '*.txt text diff=java' > .gitattributes"},
		"what was there": {
			commit + "git config core.fsmonitor true; git config alias.x '!true'; printf '#!/bin/sh\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit",
			"echo b > a.txt",
		},
		"hook, not allowed": {commit, "echo x > .git/hooks/pre-commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, c.before)
			look, err := gitguard.Look(t.Context(), dir)
			require.NoError(t, err)
			run(t, dir, c.work)
			found, err := look.Findings(t.Context())
			require.NoError(t, err)
			require.Empty(t, found)
		})
	}
}

// TestFindings_WhatGitCannotReadIsTold: settings that never end, and a directory that is gone.
func TestFindings_WhatGitCannotReadIsTold(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit)
	look, err := gitguard.Look(t.Context(), dir)
	require.NoError(t, err)
	run(t, dir, "echo nowhere > .git/commondir")
	found, err := look.Findings(t.Context())
	require.NoError(t, err)
	require.Equal(t, []gitguard.Finding{{Path: ".git", What: "a repository that git cannot read"}}, found)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = look.Findings(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, os.RemoveAll(dir))
	_, err = look.Findings(t.Context())
	require.Error(t, err)
	_, err = gitguard.Look(t.Context(), dir)
	require.Error(t, err)
}

func replaced(text, old, by string) string { return strings.ReplaceAll(text, old, by) }

func lines(text string) iter.Seq[string] { return strings.Lines(text) }
