package integration

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFleet_SaysWhereGitDoesNotWork: a copy has the files of a linked worktree, a submodule or a
// subdirectory, and no repository. The user is told in one line, and so is the model where its git
// would not say it.
func TestFleet_SaysWhereGitDoesNotWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	if !isolates(t) {
		t.Skip("NOT TESTED: no driver isolates here, and one that does not finds the repository of this host")
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
		export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p
		git init -q lib; git -C lib commit -q --allow-empty -m 1; git init -q repo; cd repo; mkdir sub; echo 1 >sub/f; git add .; git commit -qm 1
		git -c protocol.file.allow=always submodule --quiet add ../lib lib; git worktree add -q ../work`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	model := script(t, say("Looking.", bash("c1", "git status")), say("Done."))
	server := startServe(t, model, "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "serve"))
	printed := pasted(t, server.waitFor(t, `start workers with: worker (.*)\n`)[1])
	flags, keys := printed[:4], printed[4:]
	start(t, worker, launch{args: slices.Concat([]string{"--data", filepath.Join(t.TempDir(), "data")}, flags, keys)}).
		waitFor(t, `takes calls of pool default in fleet tf: 4 slots, sandbox `)
	t.Run("workspaces", func(t *testing.T) { //nolint:paralleltest // the fleet would wait for all other tests
		for name, test := range map[string]struct {
			dir, told string
			noted     bool
		}{
			"linked worktree": {"work", "the workspace is a linked worktree of the repository " + base + "/repo,", true},
			"submodule":       {"repo/lib", "the workspace is a submodule of the repository " + base + "/repo,", true},
			"subdirectory":    {"repo/sub", "the workspace is a subdirectory of the repository " + base + "/repo,", false},
		} {
			for _, program := range [][]string{{"submit"}, {"run", "--model", model}} {
				t.Run(name+", "+program[0], func(t *testing.T) { //nolint:paralleltest // as above
					got := execute(t, coordinator, launch{args: append(append(slices.Clone(program), flags...), "--json", "--workspace", filepath.Join(base, test.dir), "do it")})
					require.Equal(t, 0, got.code, got.stderr)
					require.Regexp(t, `(?m)^! git does not work in this session: `+test.told+`.*$`, got.stderr)
					result := results(events(t, got.stdout))["c1"]
					require.Contains(t, result.Content, "fatal: not a git repository")
					if test.noted {
						require.Contains(t, result.Content, "git does not work in this workspace: it is a linked worktree, a submodule")
					} else {
						require.NotContains(t, result.Content, base, "it does not lead to a place that is not there")
					}
				})
			}
		}
	})
}
