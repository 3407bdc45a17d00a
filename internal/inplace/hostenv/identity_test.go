package hostenv_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
)

// TestIdentity is the name and the address that git has in a directory, and nothing else.
func TestIdentity(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("UNSUPPORTED: git is not installed")
	}
	global := filepath.Join(t.TempDir(), "gitconfig")
	t.Setenv("GIT_CONFIG_GLOBAL", global)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	dir := t.TempDir()
	set := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	requireIdentity(t, dir, "", "")
	set("config", "--global", "user.name", "Ada Lovelace")
	set("config", "--global", "user.email", "ada@example.com")
	set("config", "--global", "user.signingkey", "secret")
	requireIdentity(t, dir, "Ada Lovelace", "ada@example.com")

	set("init", "-q")
	set("config", "user.email", "ada@work.example")
	requireIdentity(t, dir, "Ada Lovelace", "ada@work.example", "the workspace's counts more")

	set("config", "user.name", "Eve\nGIT_SSH=evil")
	set("config", "user.email", "<eve>")
	requireIdentity(t, dir, "", "", "what cannot be in a commit is left out")
	set("config", "user.name", strings.Repeat("x", 257))
	requireIdentity(t, dir, "", "")
}

func requireIdentity(t *testing.T, dir, name, email string, why ...any) {
	t.Helper()
	gotName, gotEmail := hostenv.Identity(t.Context(), dir)
	require.Equal(t, [2]string{name, email}, [2]string{gotName, gotEmail}, why...)
}
