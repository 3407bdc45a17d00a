package worker_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// outsideRig is a worker whose session works in place on dir, which is work, a linked worktree of
// repo, or repo/lib, a submodule of it.
type outsideRig struct {
	base, dir, gitDir string
	inside            string // gitDir in the sandbox
	run               func(script string) protocol.CommandRunResult
	end               func() // of the sandbox and what is reserved for it
}

func newOutsideRig(t *testing.T, base, name, prepare string) *outsideRig {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Protect {
		t.Skip("NOT TESTED: nothing can be protected here")
	}
	base, err := os.MkdirTemp(base, "outside-") //nolint:usetesting // the place matters
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	require.NoError(t, os.Mkdir(filepath.Join(base, "repo"), 0o755))
	gitIn(t, filepath.Join(base, "repo"), `make() { git init -q -b main $1; echo 1 >$1/f; git -C $1 add f; git -C $1 commit -q -m first; }; make ../library; make .
		git -c protocol.file.allow=always submodule --quiet add ../library lib; git commit -q -m second
		git worktree add -q ../work -b topic; git worktree add -q ../second; `+prepare)
	dir, session := filepath.Join(base, name), protocol.NewSessionID()
	outside := gitguard.FindOutside(t.Context(), dir)
	require.NotNil(t, outside)
	require.True(t, outside.NamesBack)
	mounts, free, err := hostenv.Limits{View: hostenv.ViewOf(o.Caps)}.Repository(t.Context(), outside)
	require.NoError(t, err)
	o.Mounts, o.Workspace = mounts, func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	_, stop := r.work(o)
	end := sync.OnceFunc(func() {
		stop()
		require.NoError(t, free())
	})
	t.Cleanup(end)
	inside := outside.Named
	if !filepath.IsAbs(inside) {
		inside = filepath.Join("/workspace", inside)
	}
	return &outsideRig{base: base, dir: dir, gitDir: outside.GitDir, inside: inside, end: end, run: func(script string) protocol.CommandRunResult {
		t.Helper()
		got := r.do(session, protocol.CommandRun{
			Command: "export GIT_AUTHOR_NAME=s GIT_AUTHOR_EMAIL=s@example.com GIT_COMMITTER_NAME=s GIT_COMMITTER_EMAIL=s@example.com\n" + script,
		})
		requireOK(t, got)
		return value[protocol.CommandRunResult](t, got)
	}}
}

// TestIsolated_GitWorksWhereTheRepositoryIsElsewhere: what a commit needs is written to the
// repository of a linked worktree or a submodule, which is outside of the workspace.
func TestIsolated_GitWorksWhereTheRepositoryIsElsewhere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ base, dir, prepare string }{
		"worktree":              {"/var/tmp", "work", "true"},
		"worktree below /tmp":   {"/tmp", "work", "true"},
		"worktree, relative":    {"/tmp", "work", "echo 'gitdir: ../repo/.git/worktrees/work' >../work/.git"},
		"worktree without logs": {"/var/tmp", "work", "rm -rf .git/logs"},
		"submodule":             {"/var/tmp", "repo/lib", "true"},
		"submodule, absolute":   {"/tmp", "repo/lib", `echo "gitdir: $PWD/.git/modules/lib" >lib/.git`},
		"submodule of worktree": {"/tmp", "work/lib", "git -C ../work -c protocol.file.allow=always submodule --quiet update --init"},
		"submodule after crash": {"/tmp", "repo/lib", "echo ./ >.git/modules/lib/commondir; mkdir .git/modules/lib/modules"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newOutsideRig(t, test.base, test.dir, test.prepare)
			for _, script := range []string{
				"git status && test -z \"$(git status --porcelain)\" && git log --oneline | grep first && git branch -a | grep main",
				"git switch -q -c here; echo 2 >f && git commit -q -am new && git switch -q -c other && git merge -q here",
				"echo 3 >f && git stash -q && git diff --exit-code && git rebase -q here && git tag t && git reflog | grep new",
				"git rev-parse --show-toplevel | grep '^/workspace$'",
			} {
				got := r.run("{ " + script + "; } 2>&1")
				require.Zero(t, got.ExitCode, "%s\n%s", script, got.Stdout)
			}
			r.end()
			require.Equal(t, "new\n", gitIn(t, r.dir, "git status >/dev/null; git fsck --no-progress >&2; git log --format=%s -1"))
			require.Equal(t, "new\n", gitIn(t, filepath.Join(r.base, "repo"), "git -C "+r.dir+" log --format=%s -1 here; git status >/dev/null"))
			for _, made := range []string{"config.worktree", "modules"} {
				require.NoFileExists(t, filepath.Join(r.gitDir, made))
				require.NoDirExists(t, filepath.Join(r.gitDir, made))
			}
			require.Equal(t, filepath.Base(test.dir) == "lib", !isThere(filepath.Join(r.gitDir, "commondir")))
		})
	}
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestIsolated_ALinkedWorktreeChangesNothingThatGitRuns: settings, hooks, other worktrees, and what
// says where the settings are, stay as they are in the repository. The same holds for a submodule.
func TestIsolated_ALinkedWorktreeChangesNothingThatGitRuns(t *testing.T) {
	t.Parallel()
	const attempts = `git config core.fsmonitor 'touch ran'; git config --worktree core.fsmonitor 'touch ran'
		echo x >COMMON/hooks/pre-commit; rm -rf COMMON/hooks; mv COMMON/hooks COMMON/x; mv COMMON/config COMMON/x; rm COMMON/config; echo x >COMMON/config
		cp COMMON/config COMMON/new && mv COMMON/new COMMON/config; mv COMMON BASE/away; echo x >COMMON/info/attributes; mv COMMON/info COMMON/x
		echo /tmp >MINE/commondir; rm MINE/commondir; mv MINE/commondir MINE/x; ln -f /dev/null MINE/commondir; cp MINE/HEAD MINE/new && mv MINE/new MINE/commondir
		rm MINE/config.worktree; echo x >MINE/config.worktree; mv MINE/config.worktree MINE/x; mv MINE MINE2
		mkdir -p MINE/modules/x; mv MINE/modules MINE/x; rmdir MINE/modules
		git worktree add -q x; echo 'gitdir: /tmp' >.git; rm .git; mv .git x; echo x >MINE/extra; echo x >MINE/extra.d/pre-commit`
	const ofWorktree = `mkdir COMMON/new; echo x >COMMON/commondir; echo x >COMMON/config.worktree; echo x >MINE/gitdir; mv MINE/gitdir MINE/x
		echo x >COMMON/worktrees/second/HEAD; rm -rf COMMON/worktrees/second; git worktree remove --force ../second; echo x >COMMON/HEAD; echo x >COMMON/index`
	const ofSubmodule = `mkdir -p COMMON/worktrees/x; mv COMMON/worktrees COMMON/x; rmdir COMMON/worktrees; echo x >COMMON/../../config; echo x >COMMON/../../hooks/pre-commit`
	for name, test := range map[string]struct{ base, dir, prepare, attempts string }{
		"worktree": {"/var/tmp", "work", `git config extensions.worktreeConfig true
			git -C ../work config --worktree include.path extra; git -C ../work config --worktree core.hooksPath "$PWD/.git/worktrees/work/extra.d"`, ofWorktree},
		"worktree below /tmp": {"/tmp", "work", `git config extensions.worktreeConfig true
			git config include.path worktrees/work/extra; git config core.hooksPath "$PWD/.git/worktrees/work/extra.d"`, ofWorktree},
		"submodule":            {"/var/tmp", "repo/lib", `git -C lib config include.path extra; git -C lib config core.hooksPath "$PWD/.git/modules/lib/extra.d"`, ofSubmodule},
		"submodule below /tmp": {"/tmp", "repo/lib", `rm -rf .git/modules/lib/hooks; echo "gitdir: $PWD/.git/modules/lib" >lib/.git; git -C lib config include.path extra; git -C lib config core.hooksPath "$PWD/.git/modules/lib/extra.d"`, ofSubmodule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newOutsideRig(t, test.base, test.dir, test.prepare)
			common, inside := filepath.Join(r.base, "repo/.git"), filepath.Join(r.inside, "../..")
			if test.dir != "work" {
				common, inside = r.gitDir, r.inside
			}
			const state = "{ find . -path ./objects -prune -o -path ./refs -prune -o -path ./logs -prune -o -path ./index -o -path ./HEAD -o -print | sort; " +
				"cat config worktrees/*/commondir worktrees/*/gitdir worktrees/*/config.worktree worktrees/second/* commondir || true; } 2>&1 | sha256sum"
			before := gitIn(t, common, state)
			for script := range strings.Lines(attempts + "\n" + test.attempts) {
				for script := range strings.SplitSeq(script, "; ") {
					script = strings.NewReplacer("COMMON", inside, "MINE", r.inside, "BASE", r.base).Replace(strings.TrimSpace(script))
					require.NotZero(t, r.run(script).ExitCode, script)
				}
			}
			r.run("git worktree prune --expire=now; git gc -q --prune=now; rm -f " + r.inside + "/new")
			require.Equal(t, before, gitIn(t, common, state))
			require.NoFileExists(t, filepath.Join(r.dir, "ran"))
		})
	}
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
	// Without an echo of what is typed, the first output after it is that the repository is there.
	script := "stty -echo; echo ready; read x; " + fmt.Sprintf(plant, "sent") + "echo planted; read x; " + fmt.Sprintf(plant, "ended")
	got := r.do(session, protocol.CommandRun{Command: script, Background: true, TTY: true})
	requireOK(t, got)
	process := value[protocol.CommandRunResult](t, got).Process
	requireOK(t, r.do(session, wire.ProcessRead{Process: process, Wait: 60_000}))
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

// TestWorkspaceImport_FailedLeavesNothing of an upload that is deeper than files may be open.
func TestWorkspaceImport_FailedLeavesNothing(t *testing.T) { //nolint:paralleltest // it has a limit of the process
	r := newRig(t)
	o := r.options()
	r.work(o)
	root := emptyRoot(t)
	require.NoError(t, root.MkdirAll(strings.Repeat("d/", 600), 0o700))
	require.NoError(t, root.WriteFile("z", bytes.Repeat([]byte("last"), 1<<10), 0o600))
	requireOK(t, r.do(protocol.NewSessionID(), r.uploadRoot(t, "cut", root)))
	cut := r.uploadRoot(t, "cut", root)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	known, err := store.Last(t.Context(), "cut")
	require.NoError(t, err)
	require.NoError(t, natsio.DeleteObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), known["z"].Parts[0].Body))
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	session := protocol.NewSessionID()
	requireFault(t, r.do(session, cut), protocol.StatusFailed, protocol.CodeNotFound)
	requireTidy(t, o.Data, session)
}
