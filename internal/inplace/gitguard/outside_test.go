package gitguard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

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
