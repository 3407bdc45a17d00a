package worker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/hostenv"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// worktreeRig has a worker whose session works in place on a linked worktree, of a repository with
// another one.
func worktreeRig(t *testing.T, prepare string) (run func(script string) protocol.CommandRunResult, base string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Protect {
		t.Skip("NOT TESTED: nothing can be protected here")
	}
	base, err := os.MkdirTemp("/var/tmp", "worktree-") // sandboxes have a /tmp of their own
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	require.NoError(t, os.Mkdir(filepath.Join(base, "repo"), 0o755))
	gitIn(t, filepath.Join(base, "repo"), "git init -q -b main; echo 1 >f; git add f; git commit -q -m first; git worktree add -q ../work -b topic; git worktree add -q ../second; "+prepare)
	dir, session := filepath.Join(base, "work"), protocol.NewSessionID()
	outside := gitguard.FindOutside(dir)
	require.NotNil(t, outside)
	require.True(t, outside.Worktree)
	o.Mounts, err = hostenv.Limits{View: hostenv.ViewOf(o.Caps)}.Repository(outside)
	require.NoError(t, err)
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	r.work(o)
	run = func(script string) protocol.CommandRunResult {
		t.Helper()
		got := r.do(session, protocol.CommandRun{Command: "export GIT_AUTHOR_NAME=s GIT_AUTHOR_EMAIL=s@example.com GIT_COMMITTER_NAME=s GIT_COMMITTER_EMAIL=s@example.com\n" + script})
		requireOK(t, got)
		return value[protocol.CommandRunResult](t, got)
	}
	return run, base
}

// TestIsolated_GitWorksInALinkedWorktree: what a commit needs is written to the repository, which
// is outside of the workspace.
func TestIsolated_GitWorksInALinkedWorktree(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{
		"absolute":     "true",
		"relative":     "echo 'gitdir: ../repo/.git/worktrees/work' >../work/.git",
		"without logs": "rm -rf .git/logs",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, base := worktreeRig(t, prepare)
			for _, script := range []string{
				"git status && git log --oneline | grep first && git branch | grep main",
				"echo 2 >f && git commit -q -am second && git switch -q -c other && git merge -q main",
				"echo 3 >f && git stash -q && git diff --exit-code && git rebase -q main && git tag t && git reflog | grep second",
			} {
				got := run("{ " + script + "; } 2>&1")
				require.Zero(t, got.ExitCode, "%s\n%s", script, got.Stdout)
			}
			require.Equal(t, "second\nfirst\n", gitIn(t, filepath.Join(base, "work"), "git status >/dev/null; git log --format=%s"))
			require.Equal(t, "second\n", gitIn(t, filepath.Join(base, "repo"), "git status >/dev/null; git fsck --no-progress >&2; git log --format=%s -1 topic"))
		})
	}
}

// TestIsolated_ALinkedWorktreeChangesNothingThatGitRuns: settings, hooks, other worktrees, and what
// says where the settings are, stay as they are in the repository.
func TestIsolated_ALinkedWorktreeChangesNothingThatGitRuns(t *testing.T) {
	t.Parallel()
	run, base := worktreeRig(t, "git config extensions.worktreeConfig true")
	const state = "cd .git && { find . -path ./objects -prune -o -path ./refs -prune -o -path ./logs -prune -o -print | sort; " +
		"cat config HEAD index worktrees/work/commondir worktrees/work/gitdir worktrees/work/config.worktree worktrees/second/*; } | sha256sum"
	repo := filepath.Join(base, "repo")
	before := gitIn(t, repo, state)
	common := filepath.Join(repo, ".git")
	mine := filepath.Join(common, "worktrees/work")
	for _, script := range []string{
		"git config core.fsmonitor 'touch ran'", "git config --worktree core.fsmonitor 'touch ran'",
		"echo x >" + common + "/hooks/pre-commit", "mkdir " + common + "/new", "echo x >" + common + "/commondir", "echo x >" + common + "/config.worktree",
		"mv " + common + "/config " + common + "/other", "rm -rf " + common + "/hooks", "mv " + common + " " + base + "/away",
		"echo /tmp >" + mine + "/commondir", "rm " + mine + "/commondir", "mv " + mine + "/commondir " + mine + "/x", "ln -f /dev/null " + mine + "/commondir",
		"echo x >" + mine + "/gitdir", "rm " + mine + "/config.worktree", "echo x >" + mine + "/config.worktree", "mv " + mine + " " + mine + "2",
		"echo x >" + common + "/worktrees/second/HEAD", "rm -rf " + common + "/worktrees/second", "git worktree add -q x", "git worktree remove --force ../second",
		"echo 'gitdir: /tmp' >.git", "rm .git", "echo x >" + common + "/HEAD", "echo x >" + common + "/index", "echo x >" + common + "/info/attributes",
	} {
		require.NotZero(t, run(script).ExitCode, script)
	}
	run("git worktree prune --expire=now; git gc -q --prune=now")
	require.Equal(t, before, gitIn(t, repo, state))
	require.NoFileExists(t, filepath.Join(base, "work", "ran"))
}

// TestIsolated_NoRepositoryIsTold: git says that there is none, and a note says why.
func TestIsolated_NoRepositoryIsTold(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "repo"), 0o755))
	gitIn(t, filepath.Join(base, "repo"), "git init -q -b main; git commit -q --allow-empty -m first; git worktree add -q ../work; mkdir sub; git init -q ../none")
	require.NoError(t, os.RemoveAll(filepath.Join(base, "none", ".git")))
	for dir, told := range map[string]bool{"work": true, "repo/sub": true, "none": false} {
		r := newRig(t)
		o := r.isolatedOptions(t)
		session := protocol.NewSessionID()
		o.Workspace = func(sandbox string) (string, bool) { return filepath.Join(base, dir), sandbox == string(session) }
		_, stop := r.work(o)
		got := r.do(session, protocol.CommandRun{Command: "git status"})
		requireOK(t, got)
		notes := value[protocol.CommandRunResult](t, got).Notes
		require.Equal(t, told, len(notes) == 1, "%s: %q", dir, notes)
		if told {
			require.Contains(t, notes[0], "git does not work in this workspace")
		}
		stop()
	}
}
