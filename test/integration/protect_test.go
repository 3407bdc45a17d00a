package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// planted is what runs when git runs a program of a session: it leaves a file beside the workspace.
const planted = "#!/bin/sh\ntouch ../ran\n"

// git runs git as a person does, in a repository.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=p", "GIT_AUTHOR_EMAIL=p@example.com",
		"GIT_COMMITTER_NAME=p", "GIT_COMMITTER_EMAIL=p@example.com",
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// repository is a workspace with a commit; beside it there is room for what must not appear.
func repository(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		processtest.Unavailable(t, "git is not installed")
	}
	workspace := filepath.Join(t.TempDir(), "work")
	require.NoError(t, os.Mkdir(workspace, 0o755))
	git(t, workspace, "init", "-q")
	write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
	git(t, workspace, "add", "a.txt")
	git(t, workspace, "commit", "-q", "-m", "first")
	return workspace
}

const identity = "git config --global user.name s && git config --global user.email s@example.com && "

// plants are the ways into a person's git. Each of them has to fail.
var plants = []string{
	"printf '" + `#!/bin/sh\ntouch ../ran\n` + "' > .git/hooks/pre-commit",
	"git config core.fsmonitor 'touch ../ran'",
	"git config core.hooksPath evil",
	"echo '[core]\n fsmonitor = touch ../ran' >> .git/config",
	"mv .git .git2 && cp -r .git2 .git",
	"mv .git/hooks .git/hooks2 && cp -r evil .git/hooks",
}

// TestProtect_WhatGitRunsStaysAsItIs is a repository that is used in place by a session that
// commits, and would have the person's git run its programs.
func TestProtect_WhatGitRunsStaysAsItIs(t *testing.T) {
	t.Parallel()
	workspace := repository(t)
	config := content(t, filepath.Join(workspace, ".git", "config"))
	turns := []step{say("Committing.",
		bash("commit", identity+"echo beta > b.txt && git add b.txt && git commit -q -m second && git checkout -q -b other && git log --oneline | wc -l"),
		use("tool", "write", object{"path": ".git/hooks/pre-commit", "content": planted}))}
	for i, plant := range plants {
		turns = append(turns, say("Planting.", bash("plant"+string(rune('a'+i)), "mkdir -p evil; "+plant)))
	}
	model := script(t, append(turns, say("Done."))...)
	got := succeed(t, coordinator, launch{args: []string{"run", "--json", "--model", model, "--workspace", workspace, "--data", t.TempDir(), "do it"}})
	all := results(events(t, got.stdout))
	require.Equal(t, "2\n", all["commit"].Content)
	require.Contains(t, all["tool"].Content, ".git/hooks/pre-commit is protected")
	for i, plant := range plants {
		require.Regexp(t, `exit code|hold in this sandbox only`, all["plant"+string(rune('a'+i))].Content, plant)
	}
	require.Equal(t, config, content(t, filepath.Join(workspace, ".git", "config")))
	git(t, workspace, "status")
	git(t, workspace, "commit", "-q", "--allow-empty", "-m", "third")
	require.Equal(t, "3\n", git(t, workspace, "rev-list", "--count", "HEAD"))
	require.NoFileExists(t, filepath.Join(workspace, "..", "ran"))
}

// TestProtect_RepositoriesCanBeMade has a session make one, with settings, in an empty directory.
func TestProtect_RepositoriesCanBeMade(t *testing.T) {
	t.Parallel()
	repository(t) // git is there
	workspace := t.TempDir()
	model := script(t,
		say("Making.", bash("c1", "git init -q && git config user.name s && git config user.email s@example.com && echo a > a && git add a && git commit -q -m first")),
		say("Again.", bash("c2", "git config user.name again && git commit -q --allow-empty -m second && git rev-list --count HEAD")), say("Done."))
	got := succeed(t, coordinator, launch{args: []string{"run", "--json", "--model", model, "--workspace", workspace, "--data", t.TempDir(), "do it"}})
	require.Equal(t, "2\n", results(events(t, got.stdout))["c2"].Content)
	require.NotContains(t, got.stderr, "before you use git", "nothing in it has git run anything")
}

// TestProtect_WhatComesBack is the same for a copy of the repository that a fleet works on: what
// the session has committed comes back, and what it has set and planted does not.
func TestProtect_WhatComesBack(t *testing.T) {
	t.Parallel()
	workspace := repository(t)
	config := content(t, filepath.Join(workspace, ".git", "config"))
	model := script(t, say("Working.", bash("c1", identity+"git commit -q --allow-empty -m second && git remote add up https://example.com/up.git && "+
		"printf '"+`#!/bin/sh\ntouch ../ran\n`+"' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit && git config core.fsmonitor 'touch ../ran' && git rev-list --count HEAD")),
		say("Done."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	args := append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...)
	p := start(t, coordinator, launch{args: append(args, "do it")})
	require.Equal(t, 0, p.wait(t))
	require.Regexp(t, `protected, and left unchanged here \(see --protect\): \.git/config: core\.fsmonitor, \.git/config: remote\.up\.fetch, \.git/config: remote\.up\.url, \.git/hooks/pre-commit\n`, p.stderr)
	require.Equal(t, config, content(t, filepath.Join(workspace, ".git", "config")))
	require.NoFileExists(t, filepath.Join(workspace, ".git", "hooks", "pre-commit"))
	require.Equal(t, "2\n", git(t, workspace, "rev-list", "--count", "HEAD"))
	git(t, workspace, "commit", "-q", "--allow-empty", "-m", "third")
	require.NoFileExists(t, filepath.Join(workspace, "..", "ran"))
}

// TestProtect_WhatGitReadsStaysAsItIs has a session plant programs where git looks without being
// told to, and a person use git afterwards: nothing runs.
func TestProtect_WhatGitReadsStaysAsItIs(t *testing.T) {
	t.Parallel()
	const evil = "git config -f %s core.fsmonitor 'touch ../ran; true'; "
	settings := func(file string) string { return strings.ReplaceAll(evil, "%s", file) }
	const hook = "mkdir -p %s; printf '" + `#!/bin/sh\ntouch ../ran\n` + "' > %s/pre-commit; chmod +x %s/pre-commit"
	for name, c := range map[string]struct{ before, plant, in string }{
		"another directory of settings":   {"true", "cp -r .git evil; " + settings("evil/config") + "echo ../evil > .git/commondir", ""},
		"settings of a worktree":          {"git config extensions.worktreeConfig true", settings(".git/config.worktree"), ""},
		"hooks in the workspace":          {"git config core.hooksPath .husky/_", strings.ReplaceAll(hook, "%s", ".husky/_"), ""},
		"settings in the workspace":       {"git config include.path ../.gitconfig", settings(".gitconfig"), ""},
		"a program in the workspace":      {"mkdir t; echo true > t/x; chmod +x t/x; git config core.fsmonitor ./t/x", "echo 'touch ../ran' > t/x", ""},
		"a repository around, by its own": {"mkdir sub", "git init -q; git config core.fsmonitor 'touch ../../ran; true'", "sub"},
		"a repository around, by hooks":   {"mkdir sub; git config core.hooksPath sub/hooks", strings.ReplaceAll(hook, "%s", "hooks"), "sub"},
		"a repository in the repository": {
			"git init -q sub; git -C sub commit -q --allow-empty -m s; git -c advice.addEmbeddedRepo=false add sub", "cd sub; " + settings(".git/config"), "",
		},
		"the repository that a file .git names": {
			"git init -q --separate-git-dir=r sub; git -C sub commit -q --allow-empty -m s; git add sub 2>&1",
			settings("r/config") + "echo 'gitdir: ../evil' > sub/.git", "",
		},
		"settings of a worktree that is elsewhere": {
			"git worktree add -q ../other 2>&1", "cp -r .git evil; " + settings("evil/config") + "echo ../../../evil > .git/worktrees/other/commondir", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workspace := repository(t)
			command(t, workspace, c.before)
			model := script(t, say("Planting.", bash("c1", identity+c.plant+"\necho planted")), say("Reading.", bash("c2", "git -C . status 2>&1")), say("Done."))
			args := []string{"run", "--json", "--model", model, "--workspace", filepath.Join(workspace, c.in), "--data", t.TempDir(), "do it"}
			got := succeed(t, coordinator, launch{args: args})
			require.Contains(t, results(events(t, got.stdout))["c1"].Content, "planted\n")
			git(t, filepath.Join(workspace, c.in), "status")
			git(t, workspace, "status")
			git(t, workspace, "commit", "-q", "--allow-empty", "-m", "third")
			if name == "settings of a worktree that is elsewhere" {
				git(t, filepath.Join(workspace, "..", "other"), "status")
			}
			require.NoFileExists(t, filepath.Join(workspace, "..", "ran"), results(events(t, got.stdout))["c1"].Content)
			require.NoFileExists(t, filepath.Join(workspace, ".git", "commondir"), "what stands for it is gone")
		})
	}
}

// TestProtect_AKilledSessionsSettingsAreSetAside kills the process of a session after its command
// has planted a program, and before it can set that aside: the next command in the directory does
// it, whichever it is, and says so.
func TestProtect_AKilledSessionsSettingsAreSetAside(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(workspace string) launch{
		"call": func(workspace string) launch {
			return launch{args: []string{"call", "--workspace", workspace, "--sandbox", "process", "bash", `{"command":"true"}`}}
		},
		"run": func(workspace string) launch {
			return launch{args: []string{"run", "--workspace", workspace, "--sandbox", "process", "--model", script(t, say("Done.")), "do it"}}
		},
		"the same session": func(string) launch {
			return launch{args: []string{"run", "--session", "killed", "--sandbox", "process", "--model", script(t, say("", bash("c1", "sleep 600")), say("Done."))}}
		},
		"mcp": func(workspace string) launch {
			return launch{args: []string{"mcp", "--workspace", workspace, "--sandbox", "process"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, workspace := t.TempDir(), filepath.Join(t.TempDir(), "work")
			require.NoError(t, os.Mkdir(workspace, 0o755))
			const plant = "git init -q && git config core.fsmonitor 'touch ../ran; true' && touch planted && sleep 600"
			killed := start(t, coordinator, launch{
				args: []string{"run", "--session", "killed", "--workspace", workspace, "--sandbox", "process", "--model", script(t, say("Planting.", bash("c1", plant))), "do it"},
				env:  []string{"HOME=" + home},
			})
			require.Eventually(t, func() bool {
				_, err := os.Stat(filepath.Join(workspace, "planted"))
				return err == nil
			}, patience, 20*time.Millisecond)
			killed.kill(t)
			require.Contains(t, content(t, filepath.Join(workspace, ".git", "config")), "fsmonitor", "it was killed before")
			l := next(workspace)
			l.env = []string{"HOME=" + home}
			got := execute(t, coordinator, l)
			require.Equal(t, 0, got.code, got.stderr)
			require.Contains(t, got.stderr, "a session whose process was killed has left in "+workspace)
			require.Contains(t, got.stderr, ".git/config: core.fsmonitor")
			git(t, workspace, "status")
			require.NoFileExists(t, filepath.Join(workspace, "..", "ran"))
			require.FileExists(t, filepath.Join(workspace, ".git", "config.set-aside"))
			left, err := filepath.Glob(filepath.Join(home, ".local/state/toolfleet/git/*.json"))
			require.NoError(t, err)
			require.Empty(t, left, "a clean end leaves no record")
		})
	}
}

// command runs a script of a person's.
func command(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=p", "GIT_AUTHOR_EMAIL=p@example.com",
		"GIT_COMMITTER_NAME=p", "GIT_COMMITTER_EMAIL=p@example.com",
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
}

// TestProtect_WhatGitWouldRunIsTold is what cannot be kept from a session that may commit and make
// repositories: what these have git run is set aside, it is told by name, last, and the exit code
// stays. --protect .git keeps the first from being made.
func TestProtect_WhatGitWouldRunIsTold(t *testing.T) {
	t.Parallel()
	const entry = "git init -q sub && cd sub && git commit -q --allow-empty -m s && git config core.fsmonitor 'touch ../../ran; true' && cd .. && git add sub; git commit -q -m entry"
	for name, c := range map[string]struct {
		empty       bool
		plant, told string
		flags       []string
		runs        bool
		again       bool // the second session changes a repository that is there by then, and not protected
	}{
		"entry":            {plant: entry, told: `sub/.git/config.set-aside: was set aside`},
		"entry, all shut":  {plant: entry, told: `sub/.git/config.set-aside: was set aside`, flags: []string{"--protect", ".git"}, again: true},
		"a new repository": {empty: true, plant: "git init -q && git config core.fsmonitor 'touch ../ran; true'", told: `.git/config.set-aside: was set aside`},
		"what is kept": {
			empty: true, plant: "git init -q && git config core.fsmonitor 'touch ../ran; true'",
			told: `.git/config: core.fsmonitor = touch ../ran; true`, flags: []string{"--keep-git-settings"}, runs: true,
		},
		"nothing is protected": {
			plant: "printf '" + `#!/bin/sh\ntouch ../ran\n` + "' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit",
			told:  ".git/hooks/pre-commit: a hook", flags: []string{"--protect", "none"},
		},
		"in the background": {
			plant: "sh -c 'sleep 0.1; git init -q b; git -C b config alias.x !y; git -C b config core.pager z' & wait",
			told:  "b/.git/config.set-aside: was set aside",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workspace := repository(t)
			if c.empty {
				workspace = filepath.Join(t.TempDir(), "empty")
				require.NoError(t, os.Mkdir(workspace, 0o755))
			}
			model := script(t, say("Planting.", bash("c1", identity+c.plant)), say("Done."))
			args := append([]string{"run", "--model", model, "--workspace", workspace, "--data", t.TempDir()}, c.flags...)
			got := succeed(t, coordinator, launch{args: append(args, "do it")})
			lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
			require.Contains(t, got.stderr, "before you use git or an editor in "+workspace)
			require.Contains(t, strings.Join(lines[max(0, len(lines)-3):], "\n"), c.told, "it is said last")
			got = succeed(t, coordinator, launch{args: append(args, "--json", "do it again")})
			require.Equal(t, c.again, strings.Contains(got.stdout, "git_findings"), "it is told once")
			git(t, workspace, "status")
			_, err := os.Stat(filepath.Join(workspace, "..", "ran"))
			require.Equal(t, c.runs, err == nil, "planted programs run")
		})
	}
}
