package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnits_AreValid asks systemd, where it is installed. The programs are not.
func TestUnits_AreValid(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	units, err := filepath.Glob("*.service")
	require.NoError(t, err)
	require.Len(t, units, 2)
	dir := t.TempDir()
	for _, unit := range units {
		content, err := os.ReadFile(unit)
		require.NoError(t, err)
		for program := range strings.FieldsSeq("coordinator worker") {
			content = []byte(strings.ReplaceAll(string(content), "/usr/local/bin/"+program, "/bin/sh"))
		}
		file := filepath.Join(dir, unit)
		require.NoError(t, os.WriteFile(file, content, 0o600))
		output, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Empty(t, string(output))
	}
}

// TestUnits_LetCommandsFinish: who stops a worker must not stop its commands.
func TestUnits_LetCommandsFinish(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("toolfleet-worker.service")
	require.NoError(t, err)
	require.Contains(t, string(content), "\nKillMode=mixed\n")
	require.Contains(t, string(content), "\nDelegate=yes\n")
}
