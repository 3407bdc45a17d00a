package environment

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
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

// TestAccess_IsTold: the first lines of a session say who gets in, and where commands log in.
func TestAccess_IsTold(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&access{}).notices())
	a := &access{
		published: []published{{URL: "http://127.0.0.1:8080", Port: 3000}, {URL: "http://127.0.0.1:8081", Port: 3001, open: true}},
		logins:    []string{"github.com:22", "git.example:2222"}, git: []string{"github.com"},
	}
	var told []string
	for _, p := range a.forwards("s", func(line string) { told = append(told, line) }) {
		p.Listens()
		p.Listens()
	}
	require.Equal(t, []string{
		"http://127.0.0.1:8080 is port 3000 of the sandbox, where something listens now",
		"http://127.0.0.1:8081 is port 3001 of the sandbox, where something listens now; other machines reach it, too",
	}, told)
	require.Equal(t, []string{
		"commands log in with your SSH agent at github.com:22, git.example:2222",
		"commands get your git credentials for github.com",
	}, a.notices())
}

// TestAccess_URLs are what a browser takes.
func TestAccess_URLs(t *testing.T) {
	t.Parallel()
	a, err := (&AccessFlags{Publish: []string{"0:3000", "[::1]:0:3000"}}).openAccess(t.Context(), "ns", hostenv.View{Root: true}, egress.Allow{}, "")
	require.NoError(t, err)
	defer a.close()
	require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, a.published[0].URL)
	require.Regexp(t, `^http://\[::1\]:\d+$`, a.published[1].URL)
}

// What is no policy file is refused before it is read: a device has no end.
func TestPolicies_OfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, large := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "large.yaml")
	require.NoError(t, os.WriteFile(good, []byte("tools: {deny: [bash]}\n"), 0o600))
	require.NoError(t, os.WriteFile(large, []byte(strings.Repeat("#", 1<<20+1)), 0o600))
	for file, fault := range map[string]string{
		dir: "is not a regular file", large: "is larger than 1 MiB", os.DevNull: "is not a regular file", good + ".none": "good.yaml.none",
	} {
		_, err := (&PolicyFlags{Policy: file}).Policies()
		require.ErrorContains(t, err, "--policy: ")
		require.ErrorContains(t, err, fault)
	}
	all, err := (&PolicyFlags{Policy: good}).Policies()
	require.NoError(t, err)
	require.Equal(t, []string{"bash"}, all[0].Tools.Deny)
}
