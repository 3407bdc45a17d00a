package worker_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// gitIn runs git as a person does.
func gitIn(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=p", "GIT_AUTHOR_EMAIL=p@example.com",
		"GIT_COMMITTER_NAME=p", "GIT_COMMITTER_EMAIL=p@example.com",
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)
	return string(out)
}

// repositoryRig has a worker whose session works in place on a repository with a submodule.
func repositoryRig(t *testing.T) (run func(script string) protocol.CommandRunResult, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Copies {
		t.Skip("NOT TESTED: no place can show a link here")
	}
	dir, session := filepath.Join(t.TempDir(), "work"), protocol.NewSessionID()
	require.NoError(t, os.Mkdir(dir, 0o755))
	gitIn(t, dir, "git init -q -b main; git commit -q --allow-empty -m first; git init -q -b main ../lib; git -C ../lib commit -q --allow-empty -m l; "+
		"git -c protocol.file.allow=always submodule --quiet add \"$PWD/../lib\" lib; git commit -q -m lib; git -C lib remote set-url origin https://example.com/lib")
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	r.work(o)
	run = func(script string) protocol.CommandRunResult {
		t.Helper()
		got := r.do(session, protocol.CommandRun{Command: "export GIT_AUTHOR_NAME=s GIT_AUTHOR_EMAIL=s@example.com GIT_COMMITTER_NAME=s GIT_COMMITTER_EMAIL=s@example.com\n" + script})
		requireOK(t, got)
		return value[protocol.CommandRunResult](t, got)
	}
	return run, dir
}

// TestIsolated_GitWorksInARepositoryInPlace does what people do with git, where its settings are
// protected.
func TestIsolated_GitWorksInARepositoryInPlace(t *testing.T) {
	t.Parallel()
	run, dir := repositoryRig(t)
	before := gitIn(t, dir, "cat .git/config .git/modules/lib/config")
	for _, script := range []string{
		"git remote add up https://example.com/up.git && git remote get-url up",
		"git init -q --bare -b main /tmp/b && git push -q /tmp/b main && git fetch -q /tmp/b main:refs/remotes/up/main && git switch -q --track -c topic up/main",
		"git commit -q --allow-empty -m topic && git branch -q --unset-upstream && git branch -q -u up/main && git switch -q main && git branch -q -D topic",
		"git worktree add -q wt && git -C wt commit -q --allow-empty -m wt && git worktree remove wt",
		"cd lib && git remote add up git@example.com:lib.git && git commit -q --allow-empty -m more && cd .. && git submodule status && git add lib && git commit -q -m more",
		"git -c protocol.file.allow=always submodule --quiet add /tmp/b second && git commit -q -m second && git submodule update --init",
		"git switch -q -c other up/main",
		"git stash && git rebase -q main && git gc -q && git fsck",
	} {
		got := run("{ " + script + "; } 2>&1")
		require.Zero(t, got.ExitCode, "%s\n%s", script, got.Stdout)
	}
	require.Equal(t, before, gitIn(t, dir, "cat .git/config .git/modules/lib/config"), "the user's settings do not change")
	gitIn(t, dir, "git status; git log --oneline | grep second; git -C lib log --oneline | grep more")
}

// TestIsolated_GitSettingsStayInTheSandbox, and notes name them, and the paths that a command could
// not change.
func TestIsolated_GitSettingsStayInTheSandbox(t *testing.T) {
	t.Parallel()
	run, dir := repositoryRig(t)
	before := gitIn(t, dir, "cat .git/config .git/modules/lib/config")
	got := run("git config core.hooksPath hooks && git config user.name s && git -C lib config core.fsmonitor 'touch ran; true' && git config core.hooksPath && git -C lib config core.fsmonitor")
	require.Zero(t, got.ExitCode, "%s", got.Stderr)
	require.Equal(t, "hooks\ntouch ran; true\n", string(got.Stdout))
	require.Len(t, got.Notes, 1)
	require.Contains(t, got.Notes[0], ".git/config: core.hookspath, .git/config: user.name, .git/modules/lib/config: core.fsmonitor.")
	got = run("echo x > .git/hooks/pre-commit; mv .git/config .git/other; rm -r .git/modules/lib/hooks; echo x > .git/commondir")
	require.Len(t, got.Notes, 1)
	require.Contains(t, got.Notes[0], ".git/commondir, .git/config, .git/hooks, .git/modules/lib/hooks: protected")
	require.Empty(t, run("git status").Notes)
	require.Equal(t, before, gitIn(t, dir, "cat .git/config .git/modules/lib/config"))
	gitIn(t, dir, "git config user.name person") // replaces the file
	require.Equal(t, "hooks\n", string(run("git config core.hooksPath").Stdout))
	require.Equal(t, "s\n", string(run("git config user.name").Stdout))
	require.Equal(t, "person\n", gitIn(t, dir, "git config user.name"))
}

// TestIsolated_NewRepositoriesRunNothing: after a call, the user's git runs nothing of a repository
// that the call made, by commands or by file operations, and a note names what was set aside.
func TestIsolated_NewRepositoriesRunNothing(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		r := newRig(t)
		o := r.isolatedOptions(t)
		o.KeepGitSettings = keep
		dir, session := filepath.Join(t.TempDir(), "work"), protocol.NewSessionID()
		require.NoError(t, os.Mkdir(dir, 0o755))
		o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
		r.work(o)
		mark := filepath.Join(filepath.Dir(dir), "ran")
		got := r.do(session, protocol.CommandRun{Command: "git init -q && git config core.fsmonitor 'touch ../ran; false' && git init -q sub"})
		requireOK(t, got)
		run := value[protocol.CommandRunResult](t, got)
		require.Zero(t, run.ExitCode, "%s", run.Stderr)
		gitIn(t, dir, "git status")
		if keep {
			require.FileExists(t, mark)
			continue
		}
		require.NoFileExists(t, mark)
		require.Len(t, run.Notes, 1)
		require.Contains(t, run.Notes[0], ".git/config: core.fsmonitor")
		requireOK(t, r.do(session, protocol.FilesWrite{Path: "sub/.git/config", Content: protocol.Bytes("[core]\n\tfsmonitor = \"touch ../../ran; false\"\n")}))
		gitIn(t, dir, "git -C sub status")
		require.NoFileExists(t, mark)
		require.FileExists(t, filepath.Join(dir, "sub/.git/config.set-aside"))
	}
}

// TestIsolated_ProgramsThatOutliveTheirCall: what a background process has left for git is set
// aside after what is typed to it, and at its end, although no call of its session ends then.
func TestIsolated_ProgramsThatOutliveTheirCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	dir, session := filepath.Join(t.TempDir(), "work"), protocol.NewSessionID()
	require.NoError(t, os.Mkdir(dir, 0o755))
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	r.work(o)
	const plant = "git init -q %[1]s; git -C %[1]s config core.fsmonitor 'touch ../../ran; false'; "
	script := "read x; " + fmt.Sprintf(plant, "sent") + "echo planted; read x; " + fmt.Sprintf(plant, "ended")
	got := r.do(session, protocol.CommandRun{Command: script, Background: true, TTY: true})
	requireOK(t, got)
	process := value[protocol.CommandRunResult](t, got).Process
	requireOK(t, r.do(session, wire.ProcessSend{Process: process, Input: protocol.Bytes("\r"), Wait: 60_000}))
	require.FileExists(t, filepath.Join(dir, "sent/.git/config.set-aside"))
	gitIn(t, dir, "git -C sent status")
	requireOK(t, r.do(session, wire.ProcessSend{Process: process, Input: protocol.Bytes("\r"), Wait: 60_000}))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "ended/.git/config.set-aside"))
		return err == nil
	}, patience, 10*time.Millisecond)
	gitIn(t, dir, "git -C ended status")
	require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "ran"))
}

// TestIsolated_WhatCannotBeLookedAtIsSaid, also by a call that failed for another reason, until the
// reason is gone.
func TestIsolated_WhatCannotBeLookedAtIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	dir, session := filepath.Join(t.TempDir(), "work"), protocol.NewSessionID()
	require.NoError(t, os.Mkdir(dir, 0o755))
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	r.work(o)
	const said = "what the user's git would run in the workspace cannot be found out"
	got := r.do(session, protocol.CommandRun{Command: "mkdir -p " + strings.Repeat("a/", 502)})
	require.ErrorContains(t, got.Error, said)
	got = r.do(session, protocol.FilesEdit{Path: "missing", Old: "a", New: "b"})
	require.Equal(t, protocol.CodeNotFound, got.Error.Code)
	require.ErrorContains(t, got.Error, said)
	requireOK(t, r.do(session, protocol.CommandRun{Command: "rm -r a"}))
}
