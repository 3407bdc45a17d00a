package environment

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// TestHost_RepositoryOutsideOfTheWorkspace: of a linked worktree and a submodule it is mounted,
// also below /tmp, and where git cannot work the user is told so in one line.
func TestHost_RepositoryOutsideOfTheWorkspace(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	base, err := os.MkdirTemp("/tmp", "outside-") //nolint:usetesting // the place matters
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
		export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p
		git init -q repo; cd repo; git commit -q --allow-empty -m 1; mkdir sub; git worktree add -q ../work
		git init -q ../lib; git -C ../lib commit -q --allow-empty -m 1; git -c protocol.file.allow=always submodule --quiet add "$PWD/../lib" lib`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	repo := filepath.Join(base, "repo")
	common := filepath.Join(repo, ".git")
	lib := filepath.Join(common, "modules/lib")
	for name, test := range map[string]struct {
		workspace, driver string
		flags             HostFlags
		mounted           map[string]bool
		told              string
	}{
		"a linked worktree": {"work", "ns", HostFlags{}, map[string]bool{
			common: false, common + "/objects": true, common + "/worktrees/work": true, common + "/worktrees/work/commondir": false,
		}, ""},
		"a submodule":         {"repo/lib", "ns", HostFlags{}, map[string]bool{lib: true, lib + "/config": false, lib + "/commondir": false}, ""},
		"a subdirectory":      {"repo/sub", "ns", HostFlags{}, nil, "the workspace is a subdirectory of the repository " + repo},
		"the repository":      {"repo", "ns", HostFlags{}, nil, ""},
		"without protection":  {"work", "landlock", HostFlags{}, nil, "the workspace is a linked worktree of the repository " + repo},
		"mounted by the user": {"work", "ns", HostFlags{Mount: []string{common}}, nil, ""},
	} {
		test.flags.Cache, test.flags.Toolchains = flagNone, flagNone
		w := &worker{}
		w.Caps = isolation.Caps{Driver: test.driver, Level: isolation.LevelFull}
		h, err := test.flags.open(t.Context(), w, filepath.Join(base, test.workspace), t.TempDir())
		require.NoError(t, err, name)
		require.Contains(t, h.git, test.told, name)
		require.Equal(t, test.told == "", h.git == "", name)
		mounted := map[string]bool{}
		for _, m := range h.mounts {
			mounted[m.Host] = m.Write
		}
		if test.mounted == nil {
			require.NotContains(t, mounted, common+"/objects", name)
			require.NotContains(t, mounted, lib, name)
		}
		require.Subset(t, mounted, test.mounted, name)
		require.NoError(t, h.close())
		require.NoFileExists(t, filepath.Join(lib, "commondir"), "nothing stays in the repository")
	}
}
