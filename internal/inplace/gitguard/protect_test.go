package gitguard_test

import (
	"fmt"
	"os"
	"path/filepath"
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
		"an include":                             {commit + "git config include.path ../.gitconfig; git config -f .gitconfig include.path more/x", "", of(".gitconfig", "more/x")},
		"an include, missing":                    {commit + "git config includeIf.onbranch:x.path ../.gitconfig", "", of(".gitconfig")},
		"programs":                               {commit + "mkdir t; touch t/a t/b c d; chmod +x d; git config filter.x.clean \"sh -c './t/a | cat'\"; git config alias.x '!t/b c'; git config core.pager d", "", of("t/a", "t/b", "d")},
		"a subdirectory":                         {commit + "mkdir sub; git config core.hooksPath sub/hooks", "sub", []string{".git", "hooks"}},
		"below a worktree":                       {commit + "git worktree add -q ../other 2>&1; mkdir ../other/sub", "../other/sub", []string{".git"}},
		"a repository below":                     {commit + "git init -q sub", "sub", of()},
		"a file .git":                            {"git init -q --separate-git-dir=r w", "", []string{"r/commondir", "r/config", "r/config.worktree", "r/hooks", "w/.git"}},
		"bare":                                   {"git init -q --bare b", "", []string{"b/commondir", "b/config", "b/config.worktree", "b/hooks"}},
		"a nested repository":                    {commit + "git init -q a/b", "", of("a/b/.git/commondir", "a/b/.git/config", "a/b/.git/config.worktree", "a/b/.git/hooks")},
		"a submodule":                            {commit + module, "", of(".git/modules/lib/commondir", ".git/modules/lib/config", ".git/modules/lib/config.worktree", ".git/modules/lib/hooks", "lib/.git")},
		"a worktree elsewhere":                   {commit + "git worktree add -q ../other 2>&1", "", of(".git/worktrees/other")},
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
