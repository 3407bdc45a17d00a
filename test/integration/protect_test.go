package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
		unavailable(t, "git is not installed")
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
	turns := []step{say("Committing.", bash("commit", identity+"echo beta > b.txt && git add b.txt && git commit -q -m second && git checkout -q -b other && git log --oneline | wc -l"),
		use("tool", "write", object{"path": ".git/hooks/pre-commit", "content": planted}))}
	for i, plant := range plants {
		turns = append(turns, say("Planting.", bash("plant"+string(rune('a'+i)), "mkdir -p evil; "+plant)))
	}
	model := script(t, append(turns, say("Done."))...)
	got := execute(t, coordinator, launch{args: []string{"run", "--json", "--model", model, "--workspace", workspace, "--data", t.TempDir(), "do it"}})
	require.Equal(t, 0, got.code, got.stderr)
	all := results(events(t, got.stdout))
	require.Equal(t, "2\n", all["commit"].Content)
	require.Contains(t, all["tool"].Content, ".git/hooks/pre-commit is protected")
	for i, plant := range plants {
		require.Contains(t, all["plant"+string(rune('a'+i))].Content, "exit code", plant)
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
	model := script(t, say("Making.", bash("c1", "git init -q && git config user.name s && git config user.email s@example.com && echo a > a && git add a && git commit -q -m first")),
		say("Again.", bash("c2", "git config user.name again && git commit -q --allow-empty -m second && git rev-list --count HEAD")), say("Done."))
	got := execute(t, coordinator, launch{args: []string{"run", "--json", "--model", model, "--workspace", workspace, "--data", t.TempDir(), "do it"}})
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "2\n", results(events(t, got.stdout))["c2"].Content)
	require.Contains(t, got.stderr, "the session made a git repository in "+workspace)
}

// TestProtect_WhatComesBack is the same for a copy of the repository that a fleet works on: what
// the session has committed comes back, and what it has planted does not.
func TestProtect_WhatComesBack(t *testing.T) {
	t.Parallel()
	workspace := repository(t)
	config := content(t, filepath.Join(workspace, ".git", "config"))
	model := script(t, say("Working.", bash("c1", identity+"git commit -q --allow-empty -m second && "+
		"printf '"+`#!/bin/sh\ntouch ../ran\n`+"' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit && git config core.fsmonitor 'touch ../ran' && git rev-list --count HEAD")),
		say("Done."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	args := append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...)
	p := start(t, coordinator, launch{args: append(args, "do it")})
	require.Equal(t, 0, p.wait(t))
	require.Regexp(t, `protected, left as they are here \(--protect says what is\): \.git/config, \.git/hooks/pre-commit\n`, p.stderr)
	require.Equal(t, config, content(t, filepath.Join(workspace, ".git", "config")))
	require.NoFileExists(t, filepath.Join(workspace, ".git", "hooks", "pre-commit"))
	require.Equal(t, "2\n", git(t, workspace, "rev-list", "--count", "HEAD"))
	git(t, workspace, "commit", "-q", "--allow-empty", "-m", "third")
	require.NoFileExists(t, filepath.Join(workspace, "..", "ran"))
}

// TestProtect_AllOfARepository is what the default leaves open, and --protect .git does not: an
// entry for another repository in the index, which git enters to see its state, and a file that
// says where git's settings are. Both are known gaps; the test tells when one opens or closes.
func TestProtect_AllOfARepository(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]string{
		"entry": "git init -q sub && cd sub && git commit -q --allow-empty -m s && git config core.fsmonitor 'touch ../../ran; true' && cd .. && git add sub; git commit -q -m entry",
		"commondir": "cp -r .git evil && git config -f evil/config core.fsmonitor 'touch ../ran; true' && echo ../evil > .git/commondir; " +
			"git rev-parse --git-common-dir",
	} {
		for _, all := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				workspace := repository(t)
				model := script(t, say("Planting.", bash("c1", identity+plant)), say("Reading.", bash("c2", "git status && git log --oneline | wc -l")), say("Done."))
				args := []string{"run", "--json", "--model", model, "--workspace", workspace, "--data", t.TempDir()}
				if all {
					args = append(args, "--protect", ".git")
				}
				got := execute(t, coordinator, launch{args: append(args, "do it")})
				require.Equal(t, 0, got.code, got.stderr)
				git(t, workspace, "status")
				_, err := os.Stat(filepath.Join(workspace, "..", "ran"))
				require.Equal(t, all, os.IsNotExist(err), "planted programs run: %s", results(events(t, got.stdout))["c1"].Content)
				if all {
					require.Contains(t, results(events(t, got.stdout))["c2"].Content, "1\n", "git can read")
				}
			})
		}
	}
}
