package gitguard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/gitguard"
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
		git init -q ../lib; git -C ../lib commit -q --allow-empty -m 1; git -c protocol.file.allow=always submodule --quiet add "$PWD/../lib" lib
		mv ../moved ../away; mkdir ../forged; cp ../work/.git ../forged; mkdir ../private; echo "gitdir: $PWD/../private" >../forged2; mkdir ../plain
		mkdir ../stolen && echo "gitdir: $PWD/.git" >../stolen/.git; cd ..; git -C repo worktree add -q -b ab "$PWD/a b"`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	repo := filepath.Join(base, "repo")
	for dir, want := range map[string]string{
		"work": "", "a b": "",
		"repo/sub": "a subdirectory of the repository " + repo + ",", "repo/lib": "a submodule of the repository " + repo + ",",
		"away":   "a linked worktree of the repository " + repo + ",", // git says so, too, until it is repaired
		"forged": "a linked worktree of the repository " + repo + ",", "stolen": "a submodule of the repository",
	} {
		got := gitguard.FindOutside(filepath.Join(base, dir))
		require.NotNil(t, got, dir)
		require.Equal(t, want == "", got.Worktree, dir)
		if require.Contains(t, got.String(), want, dir); got.Worktree {
			require.Equal(t, filepath.Join(repo, ".git"), got.Common)
			require.Equal(t, filepath.Join(repo, ".git/worktrees"), filepath.Dir(got.GitDir))
			require.Equal(t, got.GitDir, got.Named)
		}
	}
	for _, dir := range []string{"repo", "plain", "missing"} {
		require.Nil(t, gitguard.FindOutside(filepath.Join(base, dir)), dir)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(repo, ".git/worktrees/work")))
	require.False(t, gitguard.FindOutside(filepath.Join(base, "work")).Worktree)
}
